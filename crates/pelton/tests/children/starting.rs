//! How children are started, and what they inherit.

use std::io::Read;
use std::os::unix::net::UnixStream;

use pelton::process::{Command, Output, ProcessError, Stdio};
use pelton::{Error, EventLoop, PathWatchOptions};
use pelton_testing::{Echo, On, block_on, listen, on_every_engine};

use super::sh;

on_every_engine![
    arguments_environment_and_directory_are_passed_on,
    a_missing_program_is_an_error_that_names_it,
    a_program_without_permission_is_an_error,
    a_missing_directory_is_an_error_that_names_it,
    a_descriptor_can_be_passed_on,
    files_can_be_null,
    a_child_inherits_nothing_that_it_was_not_given,
    a_command_of_the_standard_library_can_be_used,
    a_stopped_reactor_starts_nothing,
    a_group_of_its_own,
];

fn output(reactor: &mut EventLoop, command: Command) -> Output {
    let output = command.output(reactor);
    block_on(reactor, output).unwrap()
}

fn failure(reactor: &mut EventLoop, command: Command) -> String {
    let spawned = command.spawn(reactor);
    assert_eq!(reactor.child_count(), 0);
    spawned.unwrap_err().to_string()
}

fn arguments_environment_and_directory_are_passed_on(on: On) {
    let mut reactor = on.reactor();
    let command = Command::new("sh")
        .arg("-c")
        .args(["printf '%s|%s|%s|%s' \"$1\" \"$ONE\" \"${HOME-none}\" \"$PWD\"", "name", "an argument"])
        .env("ONE", "1")
        .envs([("TWO", "2")])
        .env_remove("HOME")
        .current_dir("/");
    assert_eq!(output(&mut reactor, command).stdout, b"an argument|1|none|/");
    let command = Command::new("/bin/sh").args(["-c", "echo $0"]).arg0("another").env_clear();
    assert_eq!(output(&mut reactor, command).stdout, b"another\n");
}

fn a_missing_program_is_an_error_that_names_it(on: On) {
    let mut reactor = on.reactor();
    let error = failure(&mut reactor, Command::new("/there/is/no/such-program"));
    assert!(error.starts_with("start /there/is/no/such-program: No such file"), "{error}");
    let promise = Command::new("/there/is/no/such-program").output(&mut reactor);
    let rejected = block_on(&mut reactor, promise).unwrap_err().to_string();
    assert_eq!(rejected, error);
}

fn a_program_without_permission_is_an_error(on: On) {
    let mut reactor = on.reactor();
    let error = failure(&mut reactor, Command::new("/etc/passwd"));
    assert!(error.starts_with("start /etc/passwd: Permission denied"), "{error}");
}

fn a_missing_directory_is_an_error_that_names_it(on: On) {
    let mut reactor = on.reactor();
    let error = failure(&mut reactor, Command::new("true").current_dir("/there/is/none"));
    assert!(error.starts_with("start true in the directory /there/is/none: No such file"), "{error}");
}

fn a_descriptor_can_be_passed_on(on: On) {
    let mut reactor = on.reactor();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let status = Command::new("echo").arg("through a socket").stdout(std::os::fd::OwnedFd::from(theirs));
    let status = status.status(&mut reactor);
    assert!(block_on(&mut reactor, status).unwrap().success());
    let mut received = String::new();
    ours.read_to_string(&mut received).unwrap();
    assert_eq!(received, "through a socket\n");
}

fn files_can_be_null(on: On) {
    let mut reactor = on.reactor();
    let command = sh("cat; echo lost; echo kept >&2").stdout(Stdio::null());
    let output = output(&mut reactor, command);
    assert_eq!((output.stdout, output.stderr), (Vec::new(), b"kept\n".to_vec()));
}

/// With something of everything that has a descriptor.
fn a_child_inherits_nothing_that_it_was_not_given(on: On) {
    let mut reactor = on.reactor();
    let _address = listen(&mut reactor, |_| Echo);
    reactor.on_signal(signal_hook::consts::SIGWINCH, |_, _| {}).unwrap();
    reactor.watch_path_with("/etc/hostname", &PathWatchOptions::default(), |_, _| {}).unwrap();
    let other = sh("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn(&mut reactor).unwrap();
    reactor.watch_process(other.pid(), |_, _| {}).unwrap();
    let (socket, peer) = UnixStream::pair().unwrap();
    reactor.adopt(socket, Echo).unwrap();
    // Without close-on-exec, as a library in C might leave it.
    let _unmarked = rustix::io::dup(&peer).unwrap();
    let listed = output(&mut reactor, Command::new("ls").arg("/proc/self/fd"));
    let listed = String::from_utf8(listed.stdout).unwrap();
    // The fourth is the directory that ls reads.
    assert_eq!(descriptors(&listed), [0, 1, 2, 3]);
    drop(other);
}

fn descriptors(listed: &str) -> Vec<i32> {
    let mut numbers: Vec<i32> = listed.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn a_command_of_the_standard_library_can_be_used(on: On) {
    let mut reactor = on.reactor();
    let mut command = std::process::Command::new("echo");
    command.arg("converted");
    assert_eq!(output(&mut reactor, command.into()).stdout, b"converted\n");
}

fn a_stopped_reactor_starts_nothing(on: On) {
    let mut reactor = on.reactor();
    reactor.stop();
    assert!(matches!(Command::new("true").spawn(&mut reactor), Err(Error::Stopped)));
}

fn a_group_of_its_own(on: On) {
    let mut reactor = on.reactor();
    let command = sh("ps -o pgid= -p $$ | tr -d ' '; echo $$").process_group();
    let output = output(&mut reactor, command);
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<&str> = text.lines().collect();
    assert_eq!(numbers[0], numbers[1]);
    assert!(matches!(ProcessError::from(Error::Stopped), ProcessError::Failed(_)));
}
