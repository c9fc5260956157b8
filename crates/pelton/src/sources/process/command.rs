//! Describes a child process.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::Stdio;
use super::child::{Child, Settings};
use crate::{Error, Reactor};

/// How long a child that has been asked to end (`SIGTERM`) may take before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// How many bytes [`output`](Command::output) collects from each of the two outputs.
const OUTPUT_LIMIT: usize = 16 * 1024 * 1024;

/// Describes a child process: a program, its arguments, its environment, its files.
///
/// It is a [`std::process::Command`] with what an event loop adds: limits on time and output. A command of the standard
/// library can be [converted](From).
pub struct Command {
    pub(super) inner: std::process::Command,
    pub(super) settings: Settings,
    pub(super) output_limit: usize,
    pub(super) input: Option<Bytes>,
    pub(super) linger: Option<Duration>,
    pub(super) stdin: Option<Stdio>,
    pub(super) stdout: Option<Stdio>,
    pub(super) stderr: Option<Stdio>,
}

impl From<std::process::Command> for Command {
    /// Takes over a command. Its standard input, output and error are inherited, whatever it said: set them here.
    fn from(inner: std::process::Command) -> Command {
        let settings = Settings { group: false, time_limit: None, grace: GRACE, kill_on_drop: false, inherit: false };
        let (output_limit, input, linger) = (OUTPUT_LIMIT, None, None);
        Command { inner, settings, output_limit, input, linger, stdin: None, stdout: None, stderr: None }
    }
}

impl Command {
    /// Describes a process that runs `program`, which is looked up in `PATH` if it contains no slash.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        std::process::Command::new(program).into()
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Command {
        self.inner.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        self.inner.args(arguments);
        self
    }

    /// Sets the name under which the program sees itself, its argument 0.
    pub fn arg0(mut self, argument: impl AsRef<OsStr>) -> Command {
        self.inner.arg0(argument);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Command {
        self.inner.env(key, value);
        self
    }

    /// Sets environment variables.
    pub fn envs(mut self, variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) -> Command {
        self.inner.envs(variables);
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Command {
        self.inner.env_remove(key);
        self
    }

    /// Passes on no environment variables of this process.
    pub fn env_clear(mut self) -> Command {
        self.inner.env_clear();
        self
    }

    /// Sets the working directory.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Command {
        self.inner.current_dir(directory);
        self
    }

    /// Sets standard input: [`Stdio::piped`], [`Stdio::null`], [`Stdio::inherit`] or any descriptor. By default it is
    /// inherited, and null for [`output`](Command::output).
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Command {
        self.stdin = Some(stdin.into());
        self
    }

    /// Sets standard output. By default it is inherited, and collected by [`output`](Command::output).
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Command {
        self.stdout = Some(stdout.into());
        self
    }

    /// Sets standard error. By default it is inherited, and collected by [`output`](Command::output).
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Command {
        self.stderr = Some(stderr.into());
        self
    }

    /// Lets the child inherit descriptors other than its standard files: those that this process has inherited, and those that
    /// were opened without close-on-exec.
    ///
    /// By default it gets none of them: starting a child marks all descriptors of this process, except its standard files, to be
    /// closed when a program is executed. Call this for every child if other code of the program relies on unmarked ones.
    pub fn inherit_descriptors(mut self) -> Command {
        self.settings.inherit = true;
        self
    }

    /// Gives the child a process group of its own. Signals then go to the whole group, so also to processes that the child
    /// starts, and ctrl-c in a terminal does not reach it.
    pub fn process_group(mut self) -> Command {
        self.inner.process_group(0);
        self.settings.group = true;
        self
    }

    /// Sets the user. This process needs the right to do so.
    pub fn uid(mut self, user: u32) -> Command {
        self.inner.uid(user);
        self
    }

    /// Sets the group of users.
    pub fn gid(mut self, group: u32) -> Command {
        self.inner.gid(group);
        self
    }

    /// Asks the child to end (`SIGTERM`) after this time, and kills it (`SIGKILL`) if it has not ended after the
    /// [grace](Command::grace). With a [process group](Command::process_group), both go to the whole group.
    pub fn time_limit(mut self, limit: Duration) -> Command {
        self.settings.time_limit = Some(limit);
        self
    }

    /// Sets how long the child may take to end after `SIGTERM`. 5 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Command {
        self.settings.grace = grace;
        self
    }

    /// Kills the child if its [`Child`] is dropped, or the reactor, while it runs.
    pub fn kill_on_drop(mut self) -> Command {
        self.settings.kill_on_drop = true;
        self
    }

    /// Sets how many bytes [`output`](Command::output) collects from each of the two outputs. 16 MiB by default. A child that
    /// writes more is killed.
    pub fn output_limit(mut self, bytes: usize) -> Command {
        self.output_limit = bytes;
        self
    }

    /// Passes these bytes to the child's standard input when it is run with [`output`](Command::output). A child that does
    /// not read all of them is not an error.
    pub fn input(mut self, bytes: impl Into<Bytes>) -> Command {
        self.input = Some(bytes.into());
        self
    }

    /// Sets how long [`output`](Command::output) waits for the end of the outputs after the child has exited.
    ///
    /// A process that the child has started may keep them open. By default, `output` waits until all of them are closed, as a
    /// shell does, or until the [time limit](Command::time_limit). With this, it returns what was written by then.
    pub fn linger(mut self, time: Duration) -> Command {
        self.linger = Some(time);
        self
    }

    /// Starts the process.
    ///
    /// Pipes of the child are in the returned [`Child`]. Make connections of them with [`adopt`](Reactor::adopt):
    ///
    /// ```
    /// use pelton::codec::Lines;
    /// use pelton::process::{Command, Stdio};
    /// use pelton::{Framed, Protocol, Reactor, Replies};
    ///
    /// struct Printer;
    ///
    /// impl Protocol for Printer {
    ///     type Message = String;
    ///     fn process(&mut self, line: String, _: &mut Replies<'_, String>) {
    ///         println!("it says {line}");
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// let mut child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn(&mut reactor)?;
    /// if let Some(stdout) = child.stdout.take() {
    ///     reactor.adopt(stdout, Framed::new(Lines::default(), Printer))?;
    /// }
    /// child.on_exit(&mut reactor, |reactor, status| {
    ///     assert!(status.is_ok_and(|status| status.success()));
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn spawn(mut self, reactor: &mut Reactor) -> Result<Child, Error> {
        self.set_files([None, None, None]);
        reactor.spawn_child(&mut self.inner, self.settings)
    }

    /// Sets the standard files of the child to what was asked for, or to these defaults.
    pub(super) fn set_files(&mut self, defaults: [Option<Stdio>; 3]) {
        let [stdin, stdout, stderr] = defaults;
        let inherited = Stdio::inherit;
        self.inner.stdin(self.stdin.take().or(stdin).unwrap_or_else(inherited));
        self.inner.stdout(self.stdout.take().or(stdout).unwrap_or_else(inherited));
        self.inner.stderr(self.stderr.take().or(stderr).unwrap_or_else(inherited));
    }

    /// Returns the program.
    pub(super) fn program(&self) -> OsString {
        self.inner.get_program().to_owned()
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
