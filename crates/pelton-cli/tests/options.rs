//! Every option of every command, with invalid and extreme values: each is accepted or refused with an error; none panics.
//!
//! The options are taken from the program's own shell completions, so a new one is tested without being listed here.

#![forbid(unsafe_code)]

mod server;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use server::http::Directory;
use server::{DEADLINE, eventually};

/// The largest values that servers accept: calculations with them must not overflow. Not for the load generator, which would
/// run that long.
const CEILINGS: [&str; 8] = ["365d", "1024g", "1g", "1m", "1024", "1000000", "10000000", "2147483647"];

/// Zero, the largest numbers, a negative number and garbage, with and without units.
const VALUES: [&str; 9] = [
    "0",
    "0s",
    "-1",
    "4294967295",
    "18446744073709551615",
    "18446744073709551615s",
    "18446744073709551615g",
    "99999999999999999999999",
    "rubbish\u{1b}",
];

/// How many programs run at a time.
const AT_ONCE: usize = 4;

/// Returns the commands and their options that take a value, as the program lists them for a shell. A command of a command is both
/// words: `jobs work`.
fn options() -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_pelton")).args(["completions", "fish"]).output().unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    let option = |line: &str| {
        let rest = line.strip_prefix("complete -c pelton -n \"__fish_pelton_using_subcommand ")?;
        let (command, rest) = rest.split_once('"')?;
        let command = match command.split_once("; and ") {
            None => command.to_owned(),
            Some((command, condition)) => match condition.strip_prefix("__fish_seen_subcommand_from ") {
                Some(inner) => format!("{command} {inner}"),
                None => command.to_owned(),
            },
        };
        let name = rest.split_once(" -l ")?.1.split(' ').next()?;
        let takes_value = rest.split_once(" -d ").is_some_and(|(_, rest)| rest.contains("' -r"));
        takes_value.then(|| (command, name.to_owned()))
    };
    script.lines().filter_map(option).collect()
}

#[test]
fn every_option_is_found() {
    let found: HashSet<(String, String)> = options().into_iter().collect();
    for (command, name) in [
        ("serve", "max-header"),
        ("serve", "admin-socket-mode"),
        ("serve", "log-level"),
        ("bench", "timeout"),
        ("echo", "spin"),
        ("chat", "workers"),
        ("proxy", "check-interval"),
        ("get", "sha256"),
        ("man", "directory"),
        ("jobs work", "lease"),
        ("jobs enqueue", "delay"),
    ] {
        assert!(found.contains(&(command.to_owned(), name.to_owned())), "{command} --{name}: {found:?}");
    }
    // The help shows no option that the completions lack.
    let commands = ["serve", "proxy", "get", "bench", "echo", "chat", "man", "jobs work", "jobs enqueue", "jobs limit"];
    for command in commands {
        let words = command.split(' ').chain(["--help"]);
        let output = Command::new(env!("CARGO_BIN_EXE_pelton")).args(words).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for line in help
            .lines()
            .filter(|line| line.starts_with("  ") && line.trim_start().starts_with('-') && line.contains("--"))
        {
            let name = line.split("--").nth(1).unwrap().split([' ', ',']).next().unwrap();
            let takes_value = line.contains('<');
            let known = found.contains(&(command.to_owned(), name.to_owned()));
            assert_eq!(known, takes_value, "{command} --{name}");
        }
    }
}

/// A running program.
struct Program {
    child: Child,
    output: Receiver<String>,
    said: Receiver<Vec<u8>>,
}

impl Program {
    fn start(directory: &Path, arguments: &[String]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
        command.args(arguments).current_dir(directory).env_remove(pelton::ENGINE_VARIABLE);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, output) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let (all, said) = channel();
        let mut stderr = child.stderr.take().unwrap();
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            all.send(text)
        });
        Program { child, output, said }
    }

    /// Returns the address it serves on, or nothing if it has ended.
    fn serves(&mut self) -> Option<String> {
        match self.output.recv_timeout(DEADLINE) {
            Ok(line) => Some(line.split_once(" on ").unwrap().1.split(',').next().unwrap().to_owned()),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program neither serves nor ends"),
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    fn ends(&mut self) -> (ExitStatus, String) {
        let status = eventually("it ends", || self.child.try_wait().unwrap());
        (status, String::from_utf8_lossy(&self.said.recv_timeout(DEADLINE).unwrap()).into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the other arguments that a command needs.
fn others(command: &str, option: &str, target: &str) -> Vec<String> {
    let address = target.trim_start_matches("http://").trim_end_matches('/');
    // One process opens a directory at a time.
    static STORES: AtomicUsize = AtomicUsize::new(0);
    let store = format!("file:jobs-{}", STORES.fetch_add(1, Ordering::Relaxed));
    let given: &[&[&str]] = match command {
        "proxy" => &[&["--to", address], &["--listen", "127.0.0.1:0"], &["--admin", "127.0.0.1:0"]],
        "get" => &[&[target], &["--output", "-"]],
        "serve" => &[&["."], &["--listen", "127.0.0.1:0"], &["--admin", "127.0.0.1:0"]],
        "echo" | "chat" => &[&["--listen", "127.0.0.1:0"]],
        "bench" if matches!(option, "duration" | "requests") => &[&[target], &["--connections", "1"]],
        "bench" => &[&[target], &["--connections", "1"], &["--requests", "1"]],
        "completions" => &[&["bash"]],
        "jobs purge" => &[&[&store, "q"], &["--state", "dead"]],
        "jobs list" | "jobs limit" => &[&[&store, "q"]],
        "jobs enqueue" | "jobs show" | "jobs requeue" | "jobs cancel" => &[&[&store, "q", "x"]],
        "jobs work" => &[&[&store, "q", "--", "true"]],
        "jobs top" => &[&[&store]],
        _ => &[],
    };
    let others = given.iter().filter(|given| given[0] != format!("--{option}"));
    others.flat_map(|given| given.iter().map(|&text| text.to_owned())).collect()
}

/// Sends a part of a head, then a complete request on another connection.
fn use_server(command: &str, address: &str) {
    let Some(address) = address.strip_prefix("http://").map(|address| address.trim_end_matches('/')).or_else(|| {
        let is_tcp = !address.starts_with("unix:");
        is_tcp.then_some(address)
    }) else {
        return;
    };
    let exchange = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    if command == "serve" {
        exchange(b"GET / HTTP/1.1\r\nHost: x\r\nA");
        let answer = exchange(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&answer));
    } else {
        // A proxied server answers the empty line.
        exchange(b"hello\r\n\r\n");
    }
}

/// Runs an option with a value. Fails with a description of what went wrong.
fn try_it(
    directory: &Path,
    command: &str,
    option: &str,
    value: &str,
    target: &(String, &AtomicUsize),
) -> Result<(), String> {
    let mut arguments: Vec<String> = command.split(' ').map(str::to_owned).collect();
    arguments.push(format!("--{option}={value}"));
    arguments.extend(others(command, option, &target.0));
    let before = target.1.load(Ordering::Relaxed);
    let mut program = Program::start(directory, &arguments);
    let served = match command {
        "serve" | "proxy" | "echo" | "chat" => program.serves().inspect(|address| {
            use_server(command, address);
            program.signal(Signal::TERM);
        }),
        "bench" => {
            // Some would run forever.
            eventually("the program ends or sends a request", || {
                let ended = program.child.try_wait().unwrap().is_some();
                (ended || target.1.load(Ordering::Relaxed) > before).then_some(())
            });
            None
        }
        _ => None,
    };
    let is_endless = matches!(command, "bench" | "jobs work" | "jobs top");
    if is_endless {
        eventually("it ends", || {
            program.signal(Signal::INT);
            thread::sleep(Duration::from_millis(5));
            program.child.try_wait().unwrap()
        });
    }
    let (status, said) = program.ends();
    let explained = said.contains("error: ")
        && (said.contains(&format!("--{option}")) || said.contains(value.trim_end_matches('\u{1b}')));
    let fine = match status.code() {
        Some(0) => true,
        // The server was cut short, as requested.
        Some(4) => served.is_some(),
        Some(1..=3) => explained || command == "bench",
        // The codes of curl.
        Some(_) if command == "get" => said.contains("error: "),
        // A program that has not installed its signal handler yet.
        None => is_endless && status.signal() == Some(Signal::INT.as_raw()),
        _ => false,
    };
    if fine && !said.contains("panicked") { Ok(()) } else { Err(format!("{arguments:?}: {status}: {said}")) }
}

/// Starts a server that answers every request. Returns its URL and a counter of requests.
fn target() -> (String, &'static AtomicUsize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let asked: &AtomicUsize = Box::leak(Box::default());
    // The thread ends with the test process.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line.is_empty() {
                        asked.fetch_add(1, Ordering::Relaxed);
                        if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (url, asked)
}

#[test]
fn no_value_of_any_option_causes_a_panic() {
    let directory = Directory::new("options");
    let path = directory.file("");
    let options = options();
    let values = |command: &str| [&VALUES[..], if command == "bench" { &[] } else { &CEILINGS }].concat();
    let cases: Vec<(&str, &str, &str)> = options
        .iter()
        .flat_map(|(command, option)| {
            values(command).into_iter().map(|value| (command.as_str(), option.as_str(), value))
        })
        .collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // A path for each, to tell the requests apart.
                let target = target();
                while let Some((command, option, value)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = try_it(&path, command, option, value, &target) {
                        wrong.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), cases.len());
}

#[test]
fn no_value_of_any_argument_causes_a_panic() {
    let directory = Directory::new("arguments");
    for command in ["", "serve", "proxy", "get", "bench", "echo", "chat", "man", "completions", "engines", "help"] {
        for value in VALUES {
            let arguments: Vec<String> =
                [command, "--", value].iter().filter(|text| !text.is_empty()).map(|&text| text.to_owned()).collect();
            let mut program = Program::start(&directory.file(""), &arguments);
            let (status, said) = program.ends();
            assert!(
                matches!(status.code(), Some(1..=3)) && said.contains("error: "),
                "{arguments:?}: {status}: {said}"
            );
            assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        }
    }
}
