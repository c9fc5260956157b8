//! Runs commands, and prints them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Why a command failed.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(message: impl Into<String>) -> Failure {
        Failure(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where commands run, and how their announcements look.
pub struct Shell {
    root: PathBuf,
    cargo: OsString,
    colours: bool,
}

/// Style of a piece of text on a terminal.
#[derive(Clone, Copy)]
pub enum Look {
    Bold,
    Dim,
    Green,
    Red,
}

impl Shell {
    pub fn new() -> Shell {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        Shell {
            root: manifest.parent().unwrap_or(manifest).to_owned(),
            // The cargo that runs this program, so that everything uses one toolchain.
            cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            colours: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Returns the target directory of the workspace.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => self.root.join(target),
            None => self.root.join("target"),
        }
    }

    /// Returns a path in the repository.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    pub fn paint(&self, look: Look, text: impl fmt::Display) -> String {
        let code = match look {
            Look::Bold => 1,
            Look::Dim => 2,
            Look::Green => 32,
            Look::Red => 31,
        };
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Returns `cargo` with these arguments, separated by spaces.
    pub fn cargo(&self, words: &str) -> Task<'_> {
        let mut task = self.program(&self.cargo, words);
        task.shown = format!("cargo {words}");
        // The engine that a user prefers must not change what is tested.
        task.command.env_remove("PELTON_ENGINE");
        task
    }

    /// Returns a program with these arguments, run at the root of the repository.
    pub fn program(&self, program: impl AsRef<OsStr>, words: &str) -> Task<'_> {
        let program = program.as_ref();
        let mut command = Command::new(program);
        command.args(words.split_whitespace()).current_dir(&self.root);
        let shown = format!("{} {words}", program.to_string_lossy());
        Task { shell: self, command, shown, deadline: None }
    }
}

/// A command to run.
pub struct Task<'a> {
    shell: &'a Shell,
    command: Command,
    /// As one would type it.
    shown: String,
    deadline: Option<Duration>,
}

/// How often a running command is polled.
const POLL_EVERY: Duration = Duration::from_millis(50);

impl Task<'_> {
    pub fn args(mut self, arguments: impl IntoIterator<Item = OsString>) -> Self {
        for argument in arguments {
            self.shown.push(' ');
            self.shown.push_str(&argument.to_string_lossy());
            self.command.arg(argument);
        }
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let value = value.as_ref();
        self.shown = format!("{name}=\"{}\" {}", value.to_string_lossy(), self.shown);
        self.command.env(name, value);
        self
    }

    /// Kills the command at this deadline, which makes it a failure. For commands that might hang.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    fn status(&mut self) -> io::Result<ExitStatus> {
        let Some(deadline) = self.deadline else { return self.command.status() };
        let mut child = self.command.spawn()?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > deadline {
                child.kill()?;
                child.wait()?;
                let message = format!("killed: it did not finish within {} s", deadline.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Prints the command, runs it, and fails if it does.
    pub fn run(mut self) -> Result<(), Failure> {
        println!("{}", self.shell.paint(Look::Dim, format_args!("$ {}", self.shown)));
        match self.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure(format!("`{}` failed: {status}", self.shown))),
            Err(error) => Err(Failure(format!("run `{}`: {error}", self.shown))),
        }
    }

    /// Runs the command silently. Returns whether it succeeded, and its output.
    pub fn output(mut self) -> Result<(bool, String), Failure> {
        let output = self.command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure(format!("run `{}`: {error}", self.shown)))?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }

    /// Runs the command silently. Returns whether it succeeded.
    pub fn succeeds(mut self) -> bool {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.command.status().is_ok_and(|status| status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_misses_its_deadline_is_killed_and_fails() {
        let shell = Shell::new();
        let start = Instant::now();
        let failure = shell.program("sleep", "60").within(Duration::from_millis(10)).run().unwrap_err().to_string();
        assert!(failure.contains("sleep 60") && failure.contains("did not finish"), "{failure}");
        assert!(start.elapsed() < Duration::from_secs(30));
        shell.program("true", "").within(Duration::from_secs(60)).run().unwrap();
        assert!(shell.program("false", "").within(Duration::from_secs(60)).run().is_err());
    }
}
