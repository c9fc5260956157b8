//! A Python process that runs one loop and receives commands: the other end of `bench/python/loops.py`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::machine::{Place, pin};

/// Makes glibc take blocks of up to a mebibyte from the heap. Otherwise the receive buffers of some loops are mapped and unmapped
/// for every message until glibc adapts, and whether it does depends on the history of the process: asyncio runs at half speed or
/// at full speed. The same for every loop.
const MALLOC: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "1048576"), ("MALLOC_TRIM_THRESHOLD_", "8388608")];

/// The Python interpreter, and where it finds `pelton`.
#[derive(Clone, Debug)]
pub struct Python {
    pub program: PathBuf,
    pub package: PathBuf,
    pub heap: Heap,
}

/// Configuration of its C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap {
    /// The default.
    Plain,
    /// The same for every loop: see [`MALLOC`].
    Tuned,
}

impl Python {
    /// Returns the command that starts Python.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("PYTHONPATH", &self.package).env_remove("PELTON_ENGINE");
        if self.heap == Heap::Tuned {
            command.envs(MALLOC);
        }
        command
    }

    /// Returns the same with the default C library.
    pub fn as_it_comes(&self) -> Python {
        Python { heap: Heap::Plain, ..self.clone() }
    }
}

pub struct Worker {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub version: String,
}

/// Why a loop cannot do something, in its own words.
pub struct Refused(pub String);

impl Worker {
    /// Starts Python on the loop's core. Refuses if that loop is not installed.
    pub fn start(python: &Python, name: &str) -> Result<Result<Worker, Refused>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/loops.py");
        let mut command = python.command();
        command.arg(&script).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Threads and processes that it starts are on the same core: all of its cost is on its side.
        pin(Place::Loop)?;
        let started = command.spawn();
        pin(Place::Partner)?;
        let mut child = started.with_context(|| format!("start {}", python.program.display()))?;
        let asks = child.stdin.take().context("Python without standard input")?;
        let answers = BufReader::new(child.stdout.take().context("Python without standard output")?);
        let mut worker = Worker { child, asks, answers, version: String::new() };
        match worker.answer()? {
            Ok(answer) => {
                worker.version = text(&answer, "version")?;
                Ok(Ok(worker))
            }
            Err(refused) => Ok(Err(refused)),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Runs a row for about this long. Returns operations per second, and microseconds of processor time per operation.
    pub fn run(&mut self, row: &str, seconds: f64) -> Result<Result<(f64, f64), Refused>> {
        self.ask(&json!({ "run": row, "seconds": seconds }))?;
        Ok(match self.answer()? {
            Ok(answer) => Ok((number(&answer, "rate")?, number(&answer, "cpu_us")?)),
            Err(refused) => Err(refused),
        })
    }

    /// Makes the loop serve. Returns where: a port, or a path.
    pub fn serve(&mut self, kind: &str) -> Result<Result<Value, Refused>> {
        let certificate = Path::new(env!("CARGO_MANIFEST_DIR")).join(super::CERTIFICATE);
        self.ask(&json!({ "serve": kind, "certificate": certificate }))?;
        Ok(self.answer()?.map(|mut answer| answer["at"].take()))
    }

    /// Ends serving.
    pub fn end(&mut self) -> Result<()> {
        self.ask(&json!({ "end": true }))?;
        match self.answer()? {
            Ok(answer) => ensure!(answer["ended"] == true, "asked to stop serving, a loop answered {answer}"),
            Err(Refused(why)) => bail!("asked to stop serving, a loop answered: {why}"),
        }
        Ok(())
    }

    fn ask(&mut self, what: &Value) -> Result<()> {
        writeln!(self.asks, "{what}").with_context(|| format!("ask Python for {what}"))
    }

    fn answer(&mut self) -> Result<Result<Value, Refused>> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("read what Python answers")?;
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("Python answered {line:?}"))?;
        Ok(match answer["error"].as_str() {
            Some(why) => Err(Refused(why.to_owned())),
            None => Ok(answer),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have exited already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(answer: &Value, field: &str) -> Result<f64> {
    answer[field].as_f64().with_context(|| format!("no number {field:?} in {answer}"))
}

fn text(answer: &Value, field: &str) -> Result<String> {
    Ok(answer[field].as_str().with_context(|| format!("no text {field:?} in {answer}"))?.to_owned())
}
