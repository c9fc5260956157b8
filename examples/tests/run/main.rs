//! Runs every example, and checks its output.

#![forbid(unsafe_code)]

/// The example's program.
macro_rules! example {
    ($name:literal) => {
        Command::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

mod connections;
mod http;
mod reactor;
mod steps;
mod tasks;

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pelton_testing::child::send_lines;
use rustix::process::{Pid, Signal, kill_process};

/// An example that takes longer than this is considered hung.
const DEADLINE: Duration = Duration::from_secs(10);

/// A running example. Killed if its test fails.
struct Running {
    child: Child,
    /// Its output, on standard output and error.
    lines: Receiver<String>,
    printed: Vec<String>,
    deadline: Instant,
}

fn start(mut example: Command) -> Running {
    example.env_remove("PELTON_ENGINE").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = example.spawn().unwrap();
    let (sender, lines) = channel();
    send_lines(child.stdout.take().unwrap(), sender.clone());
    send_lines(child.stderr.take().unwrap(), sender);
    Running { child, lines, printed: Vec::new(), deadline: Instant::now() + DEADLINE }
}

impl Running {
    /// Waits for a line that contains this.
    fn expect(&mut self, part: &str) {
        while let Some(line) = self.next_line() {
            if line.contains(part) {
                return;
            }
        }
        panic!("the example did not print {part:?}, but {:#?}", self.printed);
    }

    fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.printed.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("still running after {DEADLINE:?}; it printed {:#?}", self.printed)
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends.
    fn finish(mut self) -> (ExitStatus, Vec<String>) {
        while self.next_line().is_some() {}
        let status = self.child.wait().unwrap();
        (status, std::mem::take(&mut self.printed))
    }

    /// Waits until it ends, and checks that it succeeded.
    fn succeed(self) -> Vec<String> {
        let (status, printed) = self.finish();
        assert!(status.success(), "{status}, output {printed:#?}");
        printed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has already ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_example_is_listed_and_run() {
    let tests = concat!(
        include_str!("connections.rs"),
        include_str!("http.rs"),
        include_str!("reactor.rs"),
        include_str!("steps.rs"),
        include_str!("tasks.rs"),
    );
    let manifest = include_str!("../../Cargo.toml");
    let readme = include_str!("../../README.md");
    let files = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap().map(|entry| entry.unwrap().path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    for name in names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()) {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in Cargo.toml");
        assert!(tests.contains(&format!("example!(\"{name}\")")), "{name} is not run by any test");
        assert!(readme.contains(&format!("| [`{name}`]({name}.rs) |")), "{name} is not in README.md");
    }
    for step in 1..=5 {
        assert!(manifest.contains(&format!("path = \"steps/{step}-")), "step {step} is not in Cargo.toml");
        assert!(tests.contains(&format!("example!(\"step-{step}\")")), "step {step} is not run by any test");
    }
}
