//! What else is installed on this machine.

use std::process::{Command, Stdio};

/// What a program prints, without a leading `v`; `None` if it is not there, or not happy.
pub fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let printed = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| printed.trim().trim_start_matches('v').to_owned())
}

/// Whether a tool is installed.
pub fn is_installed(tool: &str) -> bool {
    answer(tool, &["--version"]).is_some()
}
