//! The `pelton` command, run as users do.

#![forbid(unsafe_code)]

mod server;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pelton::{ENGINE_VARIABLE, EngineKind};
use rustix::process::Signal;

use server::{Client, Server, socket_file};

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

/// Returns the engines that this system has, best first.
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
        assert_eq!(line.contains(" yes  "), present.contains(&kind), "{printed}");
        assert_eq!(line.starts_with('*'), present[0] == kind, "{printed}");
    }
    assert!(printed.contains(&format!("would run on {}: the best", present[0])), "{printed}");
    assert!(printed.contains("A process may have "), "{printed}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn engines_marks_the_one_that_the_environment_names() {
    let output = pelton(&["engines"], Some("poll"));
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("* poll"), "{printed}");
    assert!(printed.contains("would run on poll: because PELTON_ENGINE asks for it"), "{printed}");
}

#[test]
fn engines_says_why_a_requested_engine_is_not_used() {
    let present = present();
    for absent in EngineKind::ALL.into_iter().filter(|kind| !present.contains(kind)) {
        let output = pelton(&["engines"], Some(absent.name()));
        assert!(output.status.success(), "{output:?}");
        let printed = text(&output.stdout);
        assert!(printed.contains(&format!("asks for {absent}, which is unavailable")), "{printed}");
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
fn help_and_version_work_and_unknown_arguments_are_refused() {
    let help = pelton(&["--help"], None);
    assert!(help.status.success());
    assert!(text(&help.stdout).contains("engines") && text(&help.stdout).contains("PELTON_ENGINE"), "{help:?}");
    assert_eq!(text(&pelton(&["--version"], None).stdout), concat!("pelton ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(pelton(&["engins"], None).status.code(), Some(2));
}

#[test]
fn echo_sends_back_its_input_and_ends_on_a_signal_with_every_engine() {
    for engine in present() {
        for (workers, signal) in [("1", Signal::TERM), ("2", Signal::INT), ("auto", Signal::TERM)] {
            let arguments = ["--listen", "127.0.0.1:0", "--engine", engine.name(), "--workers", workers];
            let server = Server::start("echo", &arguments);
            assert!(server.said[0].contains(&format!("with {engine}")), "{:?}", server.said);
            let mut stream = TcpStream::connect(server.address(0)).unwrap();
            stream.write_all(b"hello").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            assert_eq!(back, "hello");
            server.signal(signal);
            server.succeed();
        }
    }
}

#[test]
fn echo_listens_on_several_addresses_and_spins_on_request() {
    let file = socket_file("echo");
    let unix = format!("unix:{}", file.display());
    let server =
        Server::start_on(2, "echo", &["--listen", "127.0.0.1:0", "--listen", &unix, "--workers", "2", "--spin", "50"]);
    assert!(server.said[0].contains("on 2 workers"), "{:?}", server.said);
    for mut client in [Client::tcp(server.address(0)), Client::unix(&file)] {
        for round in 0..20 {
            client.say(&format!("round {round}"));
            client.hear(&format!("round {round}"));
        }
    }
    server.signal(Signal::TERM);
    server.succeed();
    assert!(!file.exists(), "the socket's file is removed");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for workers in ["1", "2"] {
        let mut server = Server::start("echo", &["--listen", "127.0.0.1:0", "--workers", workers]);
        let mut stream = TcpStream::connect(server.address(0)).unwrap();
        // Nobody reads the output. Once the socket accepts no more, output is queued, and draining would take long.
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        while stream.write_all(&[b'x'; 65536]).is_ok() {}
        server.signal(Signal::TERM);
        until_refused(server.address(0));
        assert!(server.is_running(), "the server must drain");
        server.signal(Signal::INT);
        let time = server.succeed();
        assert!(time.as_secs() < 8, "ending took {time:?}");
    }
}

/// Waits until connections to this address are refused.
fn until_refused(address: &str) {
    let deadline = Instant::now() + server::DEADLINE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "connections are still accepted");
    }
}

#[test]
fn invalid_arguments_are_refused_with_an_explanation() {
    let cases: [(&[&str], &str); 6] = [
        (&["echo", "--listen", "nowhere"], "write 127.0.0.1:80"),
        (&["chat", "--listen", "unix:"], "write 127.0.0.1:80"),
        (&["echo", "--engine", "epol"], "the engines are epoll, kqueue, poll, select"),
        (&["chat", "--workers", "0"], "give a number from 1 to 1024, or auto"),
        (&["chat", "--workers", "many"], "give a number from 1 to 1024, or auto"),
        (&["echo", "--spin", "a bit"], "invalid digit"),
    ];
    for (arguments, explanation) in cases {
        let output = pelton(arguments, None);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(explanation) && said.contains(arguments[1]), "{arguments:?}: {said}");
    }
    // An error of the system is not a usage error, but it fails too.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in ["echo", "chat"] {
        for workers in ["1", "2"] {
            let output = pelton(&[command, "--listen", &address, "--workers", workers], None);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(text(&output.stderr).contains(&format!("listen on {address}: ")), "{output:?}");
        }
    }
    assert_eq!(pelton(&["chat"], Some("epol")).status.code(), Some(2));
}

#[test]
fn help_teaches_with_examples() {
    for command in ["serve", "bench", "completions", "man", "echo", "chat", "engines"] {
        let help = pelton(&[command, "--help"], None);
        assert!(help.status.success());
        assert!(text(&help.stdout).contains(&format!("  pelton {command}")), "{help:?}");
    }
}

/// Connects and enters the room as `name`.
fn chatter(address: &str, name: &str) -> Client {
    let mut client = Client::tcp(address);
    client.hear("Welcome.");
    client.say(name);
    client.hear("Type /help for the commands.");
    client
}

#[test]
fn chatters_hear_each_other_with_every_engine_on_one_worker_and_on_two() {
    for engine in present() {
        for workers in ["1", "2"] {
            let arguments = ["--listen", "127.0.0.1:0", "--engine", engine.name(), "--workers", workers];
            let server = Server::start("chat", &arguments);
            let mut ann = chatter(server.address(0), "Ann");
            let mut bob = chatter(server.address(0), "bob");
            ann.hear("* bob has joined");
            ann.say("hello, everybody");
            bob.hear("Ann: hello, everybody");
            bob.say("/me waves");
            ann.hear("* bob waves");
            bob.say("/who");
            bob.hear("Here: Ann, bob.");
            bob.say("/dance");
            bob.hear("Unknown command /dance");
            bob.say("/help");
            bob.hear("/quit");
            bob.say("/quit");
            bob.hear("Goodbye.");
            bob.hear_end();
            ann.hear("* bob has left");
            // The name is free again.
            let carl = chatter(server.address(0), "BOB");
            ann.hear("* BOB has joined");
            drop(carl);
            ann.hear("* BOB has left");
            server.signal(Signal::TERM);
            ann.hear("* The room is closing.");
            ann.hear_end();
            server.succeed();
        }
    }
}

#[test]
fn chat_asks_for_a_name_until_it_is_valid_and_free() {
    for workers in ["1", "2"] {
        let server = Server::start("chat", &["--listen", "127.0.0.1:0", "--workers", workers]);
        let mut ann = chatter(server.address(0), "ann");
        let mut other = Client::tcp(server.address(0));
        // All at once: input after the name waits until the room has answered.
        other.send(b"a name\r\nANN\r\n\r\nben\r\nhello\r\n");
        other.hear("Welcome.");
        other.hear("A name has up to 20 letters");
        other.hear("ANN is taken.");
        other.hear("A name has up to 20 letters");
        other.hear("Also here: ann.");
        ann.hear("* ben has joined");
        ann.hear("ben: hello");
        // A guest that leaves without a name was never in the room.
        let mut nobody = Client::tcp(server.address(0));
        nobody.hear("Welcome.");
        nobody.say("/quit");
        nobody.hear("Goodbye.");
        nobody.hear_end();
        ann.say("/who");
        ann.hear("Here: ann, ben.");
    }
}

#[test]
fn chat_accepts_the_input_of_telnet_and_other_clients() {
    let server = Server::start("chat", &["--listen", "127.0.0.1:0"]);
    let (mut ann, mut bob) = (chatter(server.address(0), "ann"), chatter(server.address(0), "bob"));
    ann.hear("* bob has joined");
    // In pieces, with both line endings, invalid UTF-8, escape codes that would clear a screen, and far too long.
    for piece in [&b"one\n"[..], b"tw", b"o\r", b"\nno \xff text\r\n", b"\x1b[2Jclear\n"] {
        bob.send(piece);
    }
    for line in ["bob: one", "bob: two", "bob: no \u{fffd} text", "bob: [2Jclear"] {
        assert_eq!(ann.next_line(), line);
    }
    bob.say(&"x".repeat(3000));
    bob.hear("too long");
    bob.say("short");
    assert_eq!(ann.next_line(), "bob: short");
}

#[test]
fn one_room_can_have_several_addresses() {
    let file = socket_file("chat");
    let unix = format!("unix:{}", file.display());
    let server = Server::start_on(2, "chat", &["--listen", "127.0.0.1:0", "--listen", &unix, "--workers", "2"]);
    let mut ann = chatter(server.address(0), "ann");
    let mut bob = Client::unix(&file);
    bob.say("bob");
    ann.hear("* bob has joined");
    ann.say("which way did you come?");
    bob.hear("ann: which way did you come?");
    server.signal(Signal::INT);
    bob.hear("* The room is closing.");
    server.succeed();
    assert!(!file.exists());
}

#[test]
fn a_guest_that_does_not_read_is_dropped() {
    for workers in ["1", "2"] {
        let mut server = Server::start("chat", &["--listen", "127.0.0.1:0", "--workers", workers]);
        let mut deaf = chatter(server.address(0), "deaf");
        let mut loud = chatter(server.address(0), "loud");
        let mut ears = chatter(server.address(0), "ears");
        deaf.hear("* loud has joined");
        deaf.hear("* ears has joined");
        // Sends more each round, until it exceeds the kernel's buffers for the deaf guest. The others hear everything in time.
        let lines = format!("{}\r\n", "x".repeat(1000)).repeat(50);
        let mut dropped = false;
        let mut round = 0;
        while !dropped {
            round += 1;
            loud.send(lines.as_bytes());
            loud.say(&format!("round {round}"));
            loop {
                let line = ears.next_line();
                dropped |= line == "* deaf has left";
                if line == format!("loud: round {round}") {
                    break;
                }
            }
        }
        server.log("dropping a guest that does not read name=\"deaf\"");
        server.signal(Signal::TERM);
        server.succeed();
    }
}
