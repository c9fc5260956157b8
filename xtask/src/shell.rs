//! Running commands, with a word about each.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a chore was not done.
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

/// Where commands run, and how what is said about them looks.
pub struct Shell {
    root: PathBuf,
    cargo: OsString,
    colours: bool,
}

/// How a piece of text looks on a terminal.
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
            // The cargo that runs us, so that the whole chore uses one toolchain.
            cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            colours: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Where the workspace's builds go.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => self.root.join(target),
            None => self.root.join("target"),
        }
    }

    /// Something in the repository.
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

    /// `cargo` with these words as its arguments.
    pub fn cargo(&self, words: &str) -> Task<'_> {
        let mut task = self.program(&self.cargo, words);
        task.shown = format!("cargo {words}");
        // An engine that somebody prefers must not change what is tested.
        task.command.env_remove("PELTON_ENGINE");
        task
    }

    /// A program with these words as its arguments, run at the root of the repository.
    pub fn program(&self, program: impl AsRef<OsStr>, words: &str) -> Task<'_> {
        let program = program.as_ref();
        let mut command = Command::new(program);
        command.args(words.split_whitespace()).current_dir(&self.root);
        let shown = format!("{} {words}", program.to_string_lossy());
        Task { shell: self, command, shown }
    }
}

/// A command that is about to run.
pub struct Task<'a> {
    shell: &'a Shell,
    command: Command,
    /// As one would type it.
    shown: String,
}

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

    /// Says what it runs, runs it, and fails if it does.
    pub fn run(mut self) -> Result<(), Failure> {
        println!("{}", self.shell.paint(Look::Dim, format_args!("$ {}", self.shown)));
        match self.command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure(format!("`{}` failed: {status}", self.shown))),
            Err(error) => Err(Failure(format!("run `{}`: {error}", self.shown))),
        }
    }

    /// Runs it silently, and gives what it said: whether it did well, and all that it wrote.
    pub fn output(mut self) -> Result<(bool, String), Failure> {
        let output = self.command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure(format!("run `{}`: {error}", self.shown)))?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }

    /// Runs it silently, and says whether it did well.
    pub fn succeeds(mut self) -> bool {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.command.status().is_ok_and(|status| status.success())
    }
}
