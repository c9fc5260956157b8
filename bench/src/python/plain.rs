//! A load like that of ordinary programs: a Python process with blocking sockets, Nagle's algorithm and unaligned buffers.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::worker::Python;

/// The other end of `bench/python/client.py`.
pub struct PlainClient {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PlainClient {
    /// Starts the client on this process's core, and connects it.
    pub fn open(python: &Python, port: u16, size: usize, connections: usize, tls: bool) -> Result<PlainClient> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
        let mut command = python.command();
        command.arg(script).args([usize::from(port), size, connections].map(|number| number.to_string()));
        if tls {
            command.arg("tls");
        }
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("start {}", python.program.display()))?;
        let asks = child.stdin.take().context("a client without standard input")?;
        let answers = BufReader::new(child.stdout.take().context("a client without standard output")?);
        let mut client = PlainClient { child, asks, answers };
        let answer = client.answer()?;
        ensure!(answer["connected"] == connections, "asked to connect, the client said {answer}");
        Ok(client)
    }

    /// Sends messages for this long. Returns how many were echoed, and how long that took.
    pub fn run(&mut self, window: Duration) -> Result<(u64, Duration)> {
        writeln!(self.asks, "{}", json!({ "seconds": window.as_secs_f64() })).context("ask the client")?;
        let answer = self.answer()?;
        let messages = answer["messages"].as_u64();
        let seconds = answer["seconds"].as_f64();
        let (Some(messages), Some(seconds)) = (messages, seconds) else { anyhow::bail!("the client said {answer}") };
        Ok((messages, Duration::from_secs_f64(seconds)))
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("read what the client answers")?;
        serde_json::from_str(&line).with_context(|| format!("the client answered {line:?}"))
    }
}

impl Drop for PlainClient {
    fn drop(&mut self) {
        // It may have exited already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
