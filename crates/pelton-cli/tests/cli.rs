//! The `pelton` command, run as users do.

#![forbid(unsafe_code)]

use std::process::{Command, Output};

use pelton::{ENGINE_VARIABLE, EngineKind};

fn pelton(arguments: &[&str], engine: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    command.args(arguments).env_remove(ENGINE_VARIABLE);
    if let Some(engine) = engine {
        command.env(ENGINE_VARIABLE, engine);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The engines that this system has, best first.
fn present() -> Vec<EngineKind> {
    EngineKind::ALL.into_iter().filter(|kind| kind.open().is_ok()).collect()
}

#[test]
fn engines_lists_all_and_marks_the_best_one_here() {
    let output = pelton(&["engines"], None);
    assert!(output.status.success(), "{output:?}");
    let (printed, present) = (text(&output.stdout), present());
    for kind in EngineKind::ALL {
        let is_about_it = |line: &&str| line.split_whitespace().find(|word| *word != "*") == Some(kind.name());
        let line = printed.lines().find(is_about_it).unwrap_or_else(|| panic!("no {kind} in\n{printed}"));
        assert_eq!(line.ends_with("yes"), present.contains(&kind), "{printed}");
        assert_eq!(line.starts_with('*'), present[0] == kind, "{printed}");
    }
    assert!(printed.contains(&format!("would run on {}: the best", present[0])), "{printed}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn engines_picks_what_the_environment_asks_for() {
    let output = pelton(&["engines"], Some("poll"));
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("* poll"), "{printed}");
    assert!(printed.contains("would run on poll: because PELTON_ENGINE asks for it"), "{printed}");
}

#[test]
fn engines_says_why_it_does_not_pick_what_this_system_lacks() {
    let present = present();
    for absent in EngineKind::ALL.into_iter().filter(|kind| !present.contains(kind)) {
        let output = pelton(&["engines"], Some(absent.name()));
        assert!(output.status.success(), "{output:?}");
        let printed = text(&output.stdout);
        assert!(printed.contains(&format!("asks for {absent}, which cannot be had")), "{printed}");
        assert!(text(&output.stderr).contains("engine not available"), "{output:?}");
        assert_eq!(text(&pelton(&["engines", "--log-level", "off"], Some(absent.name())).stderr), "");
    }
}

#[test]
fn an_unknown_engine_is_an_error_that_lists_the_known_ones() {
    let output = pelton(&["engines"], Some("epol"));
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("PELTON_ENGINE") && said.contains("\"epol\""), "{said}");
    assert!(said.contains("epoll, kqueue, poll, select"), "{said}");
}

#[test]
fn help_and_version_are_there_and_nonsense_is_refused() {
    let help = pelton(&["--help"], None);
    assert!(help.status.success());
    assert!(text(&help.stdout).contains("engines") && text(&help.stdout).contains("PELTON_ENGINE"), "{help:?}");
    assert_eq!(text(&pelton(&["--version"], None).stdout), concat!("pelton ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(pelton(&["engins"], None).status.code(), Some(2));
}

#[test]
fn echo_sends_back_what_comes_in_and_ends_on_a_signal() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::process::{Command, Stdio};

    let mut child = Command::new(env!("CARGO_BIN_EXE_pelton"))
        .args(["echo", "--listen", "127.0.0.1:0", "--engine", "poll"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("echoing on ").unwrap().split(',').next().unwrap();
    assert!(line.contains("with poll"), "{line}");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "hello");
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn echo_says_what_is_wrong_with_an_address() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_pelton")).args(["echo", "--listen", "nowhere"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("write 127.0.0.1:80"), "{output:?}");
}
