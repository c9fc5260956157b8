//! Counts with callgrind the instructions that a server executes in user space per message. Other load on the machine does not
//! affect this number, so it shows even small changes in the code.
//!
//! The cost of reading the clock hardly counts here: valgrind hides the kernel's clock page, so it becomes a system call.

use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::client::{Client, Until};
use crate::process::Server;

pub const TOOL: &str = "valgrind";

/// Messages of the shorter run. The difference to the longer run is the cost of the additional messages.
const FEW: u64 = 500;

/// A server under callgrind, and its clients.
pub struct Counted<'a> {
    pub command: &'a dyn Fn() -> Result<Command>,
    /// Opens this many connections.
    pub client: &'a dyn Fn(SocketAddrV4, usize) -> Result<Client>,
    /// Number of connections with a message for the server in every turn.
    pub at_once: usize,
}

impl Counted<'_> {
    /// Returns the instructions in user space per message, over `messages` messages.
    pub fn per_message(&self, messages: u64) -> Result<f64> {
        let whole_rounds = |messages: u64| messages.next_multiple_of(self.at_once as u64);
        let (few, many) = (whole_rounds(FEW), whole_rounds(FEW + messages));
        let short = self.executed(few)?;
        let long = self.executed(many)?;
        Ok((long.saturating_sub(short)) as f64 / (many - few) as f64)
    }

    /// Returns all instructions of a server that has answered this many messages.
    fn executed(&self, messages: u64) -> Result<u64> {
        let profile = Profile::new();
        let own = (self.command)()?;
        let mut command = Command::new(TOOL);
        command.args(["--tool=callgrind", "--quiet", "--log-file=/dev/null"]);
        command.arg(format!("--callgrind-out-file={}", profile.0.display()));
        command.arg(own.get_program()).args(own.get_args());
        let server = Server::start(command).context("start a server under valgrind")?;
        let mut client = (self.client)(server.address, self.at_once)?;
        let at_once = self.at_once as u64;
        if at_once == 1 {
            client.run(Until::Sent(messages))?;
        } else {
            // Otherwise chance would decide how many messages a turn finds. So the server is stopped until all of them have
            // arrived. This costs one more turn, whose wait was interrupted.
            for _ in 0..messages / at_once {
                server.hold()?;
                client.run_held(Until::Sent(at_once), || server.let_go())?;
            }
        }
        // Valgrind writes the profile before it exits.
        server.end()?;
        let text = fs::read_to_string(&profile.0).with_context(|| format!("read {}", profile.0.display()))?;
        let total = total(&text).context("find the total in what callgrind wrote")?;
        ensure!(total > 0, "callgrind counted nothing");
        Ok(total)
    }
}

/// A file that is removed on drop.
struct Profile(PathBuf);

impl Profile {
    fn new() -> Self {
        let name = format!("pelton-bench-{}-{:x}.callgrind", std::process::id(), fastrand::u64(..));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        remove_if_there(&self.0);
    }
}

fn remove_if_there(path: &Path) {
    // The file is missing if valgrind did not get that far.
    let _ = fs::remove_file(path);
}

/// Returns the total of all parts of a profile.
fn total(profile: &str) -> Option<u64> {
    let totals = profile.lines().filter_map(|line| line.strip_prefix("totals:"));
    let parts: Option<Vec<u64>> = totals.map(|figure| figure.trim().parse().ok()).collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.iter().sum())
}

/// Prints the instructions of the floor and of pelton per `operation`, one line each: the name and the number. Fails if pelton
/// executes more than `most`.
pub fn print((floor, pelton): (f64, f64), operation: &str, connections: usize, most: Option<u64>) -> Result<()> {
    println!("floor {floor:.0}\npelton {pelton:.0}");
    match most {
        Some(most) if pelton > most as f64 => {
            bail!("{pelton:.0} instructions per {operation}, with {connections} at once: more than the limit of {most}")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_stands_in_a_line_of_its_own() {
        assert_eq!(total("events: Ir\nfn=(1) main\n12 34\n\ntotals: 5678\n"), Some(5678));
        assert_eq!(total("events: Ir\n"), None);
        assert_eq!(total("totals: many\n"), None);
    }
}
