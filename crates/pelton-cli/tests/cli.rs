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
