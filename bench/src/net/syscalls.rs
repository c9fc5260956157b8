//! System calls per message, counted by strace.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::echo::Shape;
use super::entrants::{Entrant, FLOOR};
use crate::client::{Client, Exchange, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading};
use crate::mark::Mark;
use crate::process::Server;

pub const TOOL: &str = "strace";

/// A read, a write, and a share of the wait.
const MOST: f64 = 2.1;

/// Returns the contest over `messages` messages.
pub fn contest<'a>(servers: &'a [(Entrant, Server)], shape: Shape, messages: u64) -> Contest<'a> {
    let contenders = servers.iter().map(|(entrant, server)| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let mut client = Client::open(server.address, shape.connections, Exchange::echo(shape.size))?;
            let tracer = Tracer::attach(server.id())?;
            let burst = client.run(Until::Sent(messages))?;
            let counts = tracer.detach()?;
            let reading = |calls: u64| {
                let value = calls as f64 / burst.messages as f64;
                Some(Reading { value, cpu_us: None, syscalls: Some(value) })
            };
            Ok(vec![reading(counts.all()), reading(counts.of("epoll_ctl"))])
        })
    });
    let case = |what, at_most| {
        let case = Case::new(format!("{what}, {}", shape.name()), "each", Better::Lower);
        case.relative_to(FLOOR).mark(Mark::Limit { at_most }).table_only()
    };
    let cases = vec![case("system calls", MOST), case("epoll_ctl", 0.0)];
    Contest { name: format!("system calls, {}", shape.name()), cases, contenders: contenders.collect() }
}

/// Fails if servers cannot be traced.
pub fn try_out(server: &Server) -> Result<()> {
    Tracer::attach(server.id()).map(drop)
}

/// An strace that is attached to a process until it is dropped.
struct Tracer {
    strace: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Tracer {
    /// Attaches to all threads of a process, and waits until that is done.
    fn attach(process: u32) -> Result<Self> {
        let mut strace = Command::new(TOOL)
            .args(["-c", "-f", "-p", &process.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start strace")?;
        let stderr = strace.stderr.take().context("strace without standard error")?;
        let mut tracer = Self { strace, said: BufReader::new(stderr) };
        let mut line = String::new();
        tracer.said.read_line(&mut line).context("read what strace says")?;
        ensure!(line.contains("attached"), "strace did not attach: {}", line.trim());
        Ok(tracer)
    }

    fn detach(mut self) -> Result<Counts> {
        // An interrupt makes it print its summary.
        kill_process(Pid::from_child(&self.strace), Signal::INT).context("interrupt strace")?;
        let mut summary = String::new();
        self.said.read_to_string(&mut summary).context("read the summary of strace")?;
        let counts = Counts::from_summary(&summary);
        ensure!(!counts.0.is_empty(), "strace counted nothing: {summary}");
        Ok(counts)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It has already exited if it was interrupted.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// How often each system call was made.
#[derive(Debug, PartialEq, Eq)]
struct Counts(Vec<(String, u64)>);

impl Counts {
    /// Parses the table of `strace -c`: share, seconds, microseconds per call, calls, errors if any, name.
    fn from_summary(summary: &str) -> Self {
        let row = |line: &str| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let name = *columns.last()?;
            let calls = columns.get(3)?.parse().ok()?;
            let counted = matches!(columns.len(), 5 | 6) && name != "total";
            counted.then(|| (name.to_owned(), calls))
        };
        Self(summary.lines().filter_map(row).collect())
    }

    fn all(&self) -> u64 {
        self.0.iter().map(|(_, calls)| calls).sum()
    }

    fn of(&self, name: &str) -> u64 {
        self.0.iter().filter(|(call, _)| call == name).map(|(_, calls)| calls).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_the_summary_with_and_without_errors() {
        let summary = "strace: Process 17 detached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.02    0.012345           6      2000           sendto
 38.00    0.006789           3      2050        50 recvfrom
  1.98    0.000100           2        41           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.019234           4      4091        50 total
";
        let counts = Counts::from_summary(summary);
        assert_eq!((counts.all(), counts.of("recvfrom"), counts.of("epoll_ctl")), (4091, 2050, 0));
        assert_eq!(Counts::from_summary("strace: attach: Operation not permitted\n"), Counts(Vec::new()));
    }
}
