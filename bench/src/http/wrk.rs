//! The load: wrk, a client that keeps a number of connections busy, with one thread on the core next to the server's.

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub const TOOL: &str = "wrk";

/// Whether there is TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub scheme: Scheme,
    pub path: &'static str,
    pub connections: u32,
    /// Requests that are pipelined on each connection.
    pub depth: u32,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    pub requests: u64,
    pub wall: Duration,
    pub p50: Duration,
    pub p99: Duration,
}

/// Returns whether wrk is installed. It has no `--version` that succeeds.
pub fn is_installed() -> bool {
    let mut command = Command::new(TOOL);
    command.arg("-v").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Loads a server for this many seconds; wrk needs at least one.
pub fn run(script: &Path, server: SocketAddrV4, shape: Shape, seconds: u32) -> Result<Burst> {
    let mut command = Command::new(TOOL);
    command.args(["--threads", "1", "--connections"]).arg(shape.connections.to_string());
    command.arg("--duration").arg(format!("{seconds}s"));
    command.arg("--script").arg(script);
    let scheme = match shape.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    command.arg(format!("{scheme}://{server}{}", shape.path)).arg("--").arg(shape.depth.to_string());
    let output = command.stdin(Stdio::null()).output().context("start wrk")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {printed}{}", String::from_utf8_lossy(&output.stderr));
    read(&printed).with_context(|| format!("read the output of wrk: {printed}"))
}

/// Parses the line of figures. Fails if any request was not answered properly.
fn read(printed: &str) -> Result<Burst> {
    let line = printed.lines().find_map(|line| line.strip_prefix("figures: ")).context("there are no figures")?;
    let figure = |name: &str| -> Result<u64> {
        let mut pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name).with_context(|| format!("{name} is missing"))?;
        value.parse().with_context(|| format!("{name} is no number"))
    };
    for error in ["connect", "read", "write", "status", "timeout"] {
        let count = figure(error)?;
        ensure!(count == 0, "{count} requests failed ({error})");
    }
    let time = |name| figure(name).map(Duration::from_micros);
    let burst = Burst { requests: figure("requests")?, wall: time("us")?, p50: time("p50")?, p99: time("p99")? };
    ensure!(burst.requests > 0, "no request was answered");
    Ok(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found_among_other_lines() {
        let line = "figures: requests=1000 us=500000 connect=0 read=0 write=0 status=0 timeout=0 p50=70 p99=200";
        let burst = read(&format!("Running 1s test\n{line}\nRequests/sec: 2000\n")).unwrap();
        let expected = Burst {
            requests: 1000,
            wall: Duration::from_millis(500),
            p50: Duration::from_micros(70),
            p99: Duration::from_micros(200),
        };
        assert_eq!(burst, expected);
        let error = read(&line.replace("status=0", "status=3")).unwrap_err().to_string();
        assert!(error.contains("3 requests") && error.contains("status"), "{error}");
        assert!(read(&line.replace("requests=1000", "requests=0")).is_err());
        assert!(read("Running 1s test\n").is_err());
    }
}
