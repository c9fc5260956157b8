//! Terminals.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use pelton::codec::Lines;
use pelton::{Framed, Protocol, Reactor, Reason, Replies, SendError, StreamKind};
use pelton_testing::{Log, On, child, eventually, on_every_engine, poll, run_until};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Logging, adopt, is_blocking, read_to_the_end, run_to_the_end, run_until_more};

on_every_engine![
    a_terminal_receives_lines_and_sends,
    a_terminal_ends_when_its_other_side_is_gone,
    the_other_side_of_a_terminal_ends_when_the_terminal_is_closed,
    a_terminal_that_has_finished_still_receives,
    the_mode_of_a_terminal_stays_as_it_was,
    the_mode_of_the_other_side_is_restored,
];

/// The two sides of a pseudo-terminal: what a terminal emulator has, and what a program has.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let flags = OFlags::NOCTTY.bits() as i32;
    let terminal = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    (File::from(master), terminal)
}

fn a_terminal_receives_lines_and_sends(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut screen, terminal) = terminal();
    let id = reactor.adopt(terminal, Logging::and(&log, |io| io.send(b"name? ").unwrap())).unwrap();
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::TwoWay);
    screen.write_all(b"pel").unwrap();
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.entries(), ["opened"], "a terminal gives whole lines");
    screen.write_all(b"ton\n").unwrap();
    run_until_more(&mut reactor, &log);
    assert_eq!(log.entries(), ["opened", "received pelton\n"]);
    // What was typed is echoed, before or after what was sent.
    let (mut shown, mut buffer) = (String::new(), [0; 100]);
    while !(shown.contains("name? ") && shown.contains("ton\r\n")) {
        let count = screen.read(&mut buffer).unwrap();
        shown.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    screen.write_all(b"\x04").unwrap();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("pelton\n"), "ctrl-d ends the input");
}

fn a_terminal_ends_when_its_other_side_is_gone(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (screen, terminal) = terminal();
    adopt(&mut reactor, terminal, &log);
    poll(&mut reactor);
    drop(screen);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "peer finished", "closed: finished by the other side"]);
}

fn the_other_side_of_a_terminal_ends_when_the_terminal_is_closed(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (screen, mut terminal) = terminal();
    adopt(&mut reactor, screen, &log);
    terminal.write_all(b"bye").unwrap();
    run_until_more(&mut reactor, &log);
    drop(terminal);
    run_to_the_end(&mut reactor);
    // The system says EIO here.
    assert_eq!(log.take(), read_to_the_end("bye"));
}

fn a_terminal_that_has_finished_still_receives(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut screen, terminal) = terminal();
    let id = reactor.adopt(terminal, Logging::and(&log, |io| io.finish())).unwrap();
    poll(&mut reactor);
    assert_eq!(reactor.connection(id).unwrap().send(b"x"), Err(SendError::Closed));
    screen.write_all(b"typed\n").unwrap();
    run_until_more(&mut reactor, &log);
    assert_eq!(log.entries(), ["opened", "received typed\n"]);
    drop(screen);
    run_to_the_end(&mut reactor);
}

/// The duplicate stands for the shell, which shares its terminal with the programs that it starts.
fn the_mode_of_a_terminal_stays_as_it_was(on: On) {
    let mut reactor = on.reactor();
    let (mut screen, terminal) = terminal();
    let shell = terminal.try_clone().unwrap();
    let id = adopt(&mut reactor, terminal, &Log::default());
    poll(&mut reactor);
    assert!(is_blocking(&shell), "while it is in use");
    // It has a mode of its own.
    let descriptor = reactor.connection(id).unwrap().descriptor().unwrap().try_clone_to_owned().unwrap();
    assert!(!is_blocking(&descriptor));
    reactor.connection(id).unwrap().close();
    run_to_the_end(&mut reactor);
    assert!(is_blocking(&shell));
    screen.write_all(b"x\n").unwrap();
    let mut line = [0; 2];
    (&shell).read_exact(&mut line).unwrap();
    assert_eq!(&line, b"x\n");
}

/// Opening the other side again would make a new terminal, so its mode is set and restored.
fn the_mode_of_the_other_side_is_restored(on: On) {
    let mut reactor = on.reactor();
    let (screen, _terminal) = terminal();
    let shared = screen.try_clone().unwrap();
    let id = adopt(&mut reactor, screen, &Log::default());
    poll(&mut reactor);
    assert!(!is_blocking(&shared));
    reactor.connection(id).unwrap().close();
    run_to_the_end(&mut reactor);
    assert!(is_blocking(&shared));
}

struct Typed;

impl Protocol for Typed {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<'_, String>) {
        println!("typed {line}.");
        if line == "answer" {
            replies.send("there is nobody to answer".into());
        }
    }

    fn closed(&mut self, reason: &Reason) {
        println!("over: {reason}.");
    }
}

/// In a child: reads lines from standard input, until it ends.
fn read_lines() -> ! {
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.open_stdin(Framed::new(Lines::default(), Typed)).unwrap();
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::ReadOnly);
    assert_eq!(reactor.connection(id).unwrap().send(b"x"), Err(SendError::ReadOnly));
    println!("ready.");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    std::process::exit(0)
}

fn next(lines: &std::sync::mpsc::Receiver<String>, part: &str) {
    while !lines.recv_timeout(pelton_testing::DEADLINE).unwrap().contains(part) {}
}

#[test]
fn standard_input_is_read_as_lines_and_stays_as_it_was() {
    if child::role().is_some() {
        read_lines();
    }
    let (mut screen, terminal) = terminal();
    let shell = terminal.try_clone().unwrap();
    let mut command = child::command("terminals::standard_input_is_read_as_lines_and_stays_as_it_was", "keyboard");
    let mut running = command.stdin(terminal).stdout(Stdio::piped()).spawn().unwrap();
    let lines = child::lines(running.stdout.take().unwrap());
    next(&lines, "ready.");
    screen.write_all(b"one\ntwo\n").unwrap();
    next(&lines, "typed two.");
    assert!(is_blocking(&shell), "while the program runs");
    screen.write_all(b"\x04").unwrap();
    next(&lines, "over: finished by the other side.");
    assert!(running.wait().unwrap().success());
    assert!(is_blocking(&shell), "after the program");
}

#[test]
fn a_killed_program_leaves_the_terminal_as_it_was() {
    if child::role().is_some() {
        read_lines();
    }
    let (mut screen, terminal) = terminal();
    let shell = terminal.try_clone().unwrap();
    let mut command = child::command("terminals::a_killed_program_leaves_the_terminal_as_it_was", "killed");
    let mut running = command.stdin(terminal).stdout(Stdio::piped()).spawn().unwrap();
    let lines = child::lines(running.stdout.take().unwrap());
    screen.write_all(b"one\n").unwrap();
    next(&lines, "typed one.");
    running.kill().unwrap();
    running.wait().unwrap();
    eventually("the terminal blocks", || is_blocking(&shell).then_some(()));
}

#[test]
fn an_answer_on_standard_input_closes_the_connection_with_a_clear_reason() {
    if child::role().is_some() {
        read_lines();
    }
    let name = "terminals::an_answer_on_standard_input_closes_the_connection_with_a_clear_reason";
    let mut running = child::command(name, "answer").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = child::lines(running.stdout.take().unwrap());
    running.stdin.take().unwrap().write_all(b"answer\n").unwrap();
    next(&lines, "over: send: the descriptor is open for reading only.");
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_file_as_standard_input_is_received_to_its_end() {
    if child::role().is_some() {
        let (mut reactor, log) = (Reactor::new().unwrap(), Log::default());
        reactor.open_stdin(Logging::and(&log, |_| {})).unwrap();
        run_to_the_end(&mut reactor);
        println!("{:?}", log.take());
        std::process::exit(0);
    }
    let path = std::env::temp_dir().join(format!("pelton-stdin-{}", std::process::id()));
    std::fs::write(&path, "some water").unwrap();
    let mut file = File::open(&path).unwrap();
    let mut command = child::command("terminals::a_file_as_standard_input_is_received_to_its_end", "file");
    let output = command.stdin(file.try_clone().unwrap()).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let told = ["opened", "received some water", "peer finished", "closed: finished by the other side"];
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("{told:?}")), "{text}");
    assert_eq!(std::io::Seek::stream_position(&mut file).unwrap(), 10, "the position is shared");
}
