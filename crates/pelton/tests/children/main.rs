//! Child processes and watches of processes, on every engine.

mod crowds;
mod ending;
mod output;
mod pipes;
mod starting;
mod watching;

use std::fs;

use pelton::process::Command;
use pelton_testing::eventually;

/// A shell that runs a script.
fn sh(script: &str) -> Command {
    Command::new("sh").args(["-c", script])
}

/// Waits until the process is gone and has been waited for: a zombie is not gone.
fn expect_gone(pid: u32) {
    eventually("the process is gone", || (!fs::exists(format!("/proc/{pid}")).unwrap()).then_some(()));
}

/// Returns whether a process is running, so neither gone nor a zombie.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
