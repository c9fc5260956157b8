//! The Java program next to this file, compiled at the start. It is one process for the whole run, because it gets faster while
//! it runs.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{APART, Play, Size, WORKERS};
use crate::harness::Elapsed;

const PROGRAM: &str = include_str!("Actors.java");

pub struct Pool {
    pub version: String,
    process: RefCell<Process>,
    /// The directory of the compiled program.
    _directory: TempDir,
}

struct Process {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pool {
    /// Compiles the program and starts it. Returns `None` if there is no compiler.
    pub fn start(actors: usize) -> Result<Option<Self>> {
        let Ok(printed) = Command::new("javac").arg("-version").stdin(Stdio::null()).output() else { return Ok(None) };
        // "javac 17.0.15"
        let version = String::from_utf8_lossy(&printed.stdout);
        let version = version.split_whitespace().nth(1).unwrap_or("unknown").to_owned();

        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let source = directory.path().join("Actors.java");
        fs::write(&source, PROGRAM).with_context(|| format!("write {}", source.display()))?;
        let compiled = Command::new("javac").arg("-d").arg(directory.path()).arg(&source).status();
        ensure!(compiled.context("run javac")?.success(), "javac could not compile {}", source.display());

        let mut command = Command::new("java");
        command.arg("-cp").arg(directory.path()).args(["Actors", &actors.to_string(), &WORKERS.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start java")?;
        let asks = child.stdin.take().context("java without standard input")?;
        let answers = BufReader::new(child.stdout.take().context("java without standard output")?);
        let process = RefCell::new(Process { child, asks, answers });
        Ok(Some(Self { version, process, _directory: directory }))
    }

    /// Runs one window.
    pub fn play(&self, play: Play, size: Size) -> Result<Elapsed> {
        let (line, expected) = match play {
            Play::Outside { senders } => {
                let numbers: u64 = (0..size.each).sum();
                (format!("outside {senders} {}", size.each), numbers * senders * size.actors as u64)
            }
            Play::Ring => (format!("ring {APART} {}", size.hops()), size.tokens()),
        };
        let mut process = self.process.borrow_mut();
        writeln!(process.asks, "{line}").context("ask java for a run")?;
        let mut answer = String::new();
        process.answers.read_line(&mut answer).context("read what java says of a run")?;
        let numbers: Result<Vec<u64>, _> = answer.split_whitespace().map(str::parse).collect();
        let [wall, cpu, sum] = numbers
            .ok()
            .and_then(|numbers| <[u64; 3]>::try_from(numbers).ok())
            .with_context(|| format!("java should have printed the time of a run, but printed {answer:?}"))?;
        ensure!(sum == expected, "the actors report {sum} instead of {expected}");
        Ok(Elapsed { wall: Duration::from_nanos(wall), cpu: Duration::from_nanos(cpu) })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
