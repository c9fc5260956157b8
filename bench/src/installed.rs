//! Other software on this machine.

use std::process::{Command, Stdio};

/// Returns a program's output without a leading `v`; `None` if it is not installed or fails.
pub fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let printed = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| printed.trim().trim_start_matches('v').to_owned())
}

/// Returns whether a tool is installed.
pub fn is_installed(tool: &str) -> bool {
    answer(tool, &["--version"]).is_some()
}
