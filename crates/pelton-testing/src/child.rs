//! Runs a test again in a child process, which the parent limits, traces or kills.
//!
//! ```ignore
//! #[test]
//! fn a_panic_ends_the_process() {
//!     if child::role().is_some() {
//!         // In the child.
//!     }
//!     let output = child::command("a_panic_ends_the_process", "1").output().unwrap();
//!     assert!(!output.status.success());
//! }
//! ```

use std::io::{BufRead, BufReader, Read};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use pelton::ENGINE_VARIABLE;

/// The environment variable that tells a child its role.
pub const CHILD: &str = "PELTON_TEST_CHILD";

/// The role that the parent gave this process. `None` in the parent.
pub fn role() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// The command that runs the test of this name alone, in a child with this role. The child's output is not captured, and no variable
/// chooses its engine.
pub fn command(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, role).env_remove(ENGINE_VARIABLE);
    command
}

/// Reads lines on a thread of its own, so that the test can wait for the next one with a deadline.
pub fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    send_lines(from, sender);
    lines
}

/// Reads lines on a thread of its own, and sends them to a channel that others may send to as well.
pub fn send_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
}
