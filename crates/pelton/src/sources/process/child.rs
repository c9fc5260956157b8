//! A running child process.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::panic::Location;
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::rc::Rc;
use std::time::Duration;

use pelton_os::process::{Process, withhold_descriptors};
use pelton_os::{Event, Interest, Mode, Token, fork};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::reaper;
use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::source::{Counted, Kind, Source};
use crate::tasks::task::{Chore, Local};
use crate::{Error, Promise, Reactor, TimerId};

/// How often a child is asked whether it has exited, where the system cannot report it.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Identifies a child of a reactor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChildId(Token);

/// What happens to a child, beside what the system is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) group: bool,
    pub(super) time_limit: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) kill_on_drop: bool,
    /// Whether it inherits descriptors besides its standard files.
    pub(super) inherit: bool,
}

type Callback = Box<dyn FnOnce(&mut Reactor, Result<ExitStatus, Error>)>;

/// The exit of a child, shared by the reactor and the [`Child`].
enum Exit {
    Awaited(Vec<(&'static Location<'static>, Callback)>),
    Known(Result<ExitStatus, Unknown>),
}

/// Why the status of a child is not known.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    pid: u32,
    kind: io::ErrorKind,
    raw: Option<i32>,
}

impl Unknown {
    fn error(self) -> Error {
        let error = self.raw.map_or_else(|| self.kind.into(), io::Error::from_raw_os_error);
        Error::system(format!("wait for process {}", self.pid), error)
    }
}

/// A child process, as the reactor stores it.
pub(crate) struct ChildProcess {
    /// `None` once it has been waited for.
    child: Option<std::process::Child>,
    /// `None` if the system does not report the exit of this child.
    process: Option<Process>,
    settings: Settings,
    exit: Rc<RefCell<Exit>>,
    /// The next step against a child that takes too long.
    timer: Option<TimerId>,
    timed_out: Rc<Cell<bool>>,
    /// The process that it is a child of, as a number of forks.
    forks: u64,
}

impl ChildProcess {
    fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, std::process::Child::id)
    }

    /// Sends a signal. The number cannot belong to another process, because the child has not been waited for.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        // In a forked process, it is not a child, and nothing keeps its number from being reused.
        let Some(child) = self.child.as_ref().filter(|_| self.forks == fork::count()) else { return Ok(()) };
        let pid = Pid::from_child(child);
        let sent = if self.settings.group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        match sent {
            // It has exited, and only its status remains.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }
}

impl Drop for ChildProcess {
    /// Leaves a child that is still there to the reaper.
    fn drop(&mut self) {
        if self.forks != fork::count() {
            return;
        }
        if self.settings.kill_on_drop {
            // Fails if the child runs as another user. It is left alone then.
            let _ = self.signal(Signal::KILL);
        }
        if let Some(child) = self.child.take() {
            reaper::take_over(child);
        }
    }
}

impl Kind for Box<ChildProcess> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Ready(..) => reactor.child_has_exited(token),
            other => reactor.unexpected_event(&other),
        }
    }
}

/// A child process, started by [`Command::spawn`](super::Command::spawn).
///
/// Dropping it neither ends the child nor leaves a zombie: the reactor waits for it when it exits.
pub struct Child {
    id: ChildId,
    pid: u32,
    exit: Rc<RefCell<Exit>>,
    timed_out: Rc<Cell<bool>>,
    local: Rc<Local>,
    kill_on_drop: bool,
    /// The pipe to its standard input, if that was asked for. Make a connection of it with [`adopt`](Reactor::adopt), or a
    /// [`Stream`](crate::net::Stream). The child sees the end of its input when that is closed, or dropped.
    pub stdin: Option<ChildStdin>,
    /// The pipe from its standard output.
    pub stdout: Option<ChildStdout>,
    /// The pipe from its standard error.
    pub stderr: Option<ChildStderr>,
}

impl Child {
    /// Gives the handle up, and leaves the child alone.
    pub(super) fn release(mut self) -> ChildId {
        self.kill_on_drop = false;
        self.id
    }

    /// Returns a cell that says whether the time limit was reached, also after the handle is gone.
    pub(super) fn timeliness(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.timed_out)
    }

    /// Returns its id, for [`Reactor::label`].
    pub fn id(&self) -> ChildId {
        self.id
    }

    /// Returns its number. Another process may have it once this one has exited.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the [time limit](super::Command::time_limit) was reached.
    pub fn timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// Returns the status if the child has exited.
    pub fn status(&self) -> Option<ExitStatus> {
        match &*self.exit.borrow() {
            Exit::Known(outcome) => outcome.ok(),
            Exit::Awaited(_) => None,
        }
    }

    /// Calls `callback` once, when the child has exited, or in the next turn if it has already. It gets an error if the
    /// status is not known because something else in this process has waited for the child, or because this process ignores
    /// `SIGCHLD`.
    ///
    /// The outputs of the child may still contain data then.
    #[track_caller]
    pub fn on_exit(
        &self,
        reactor: &mut Reactor,
        callback: impl FnOnce(&mut Reactor, Result<ExitStatus, Error>) + 'static,
    ) {
        match &mut *self.exit.borrow_mut() {
            Exit::Awaited(callbacks) => callbacks.push((Location::caller(), Box::new(callback))),
            Exit::Known(outcome) => {
                let outcome = *outcome;
                reactor.next_tick(move |reactor| callback(reactor, outcome.map_err(Unknown::error)));
            }
        }
    }

    /// Returns a promise for the status. It is also a future.
    #[track_caller]
    pub fn exit(&self, reactor: &mut Reactor) -> Promise<ExitStatus, Error> {
        let (deferred, promise) = reactor.promise();
        self.on_exit(reactor, move |_, outcome| {
            // Called once, and nothing else settles it.
            let _ = deferred.settle(outcome);
        });
        promise
    }

    /// Kills the child (`SIGKILL`), or its [process group](super::Command::process_group). Returns `false` if it has exited
    /// already.
    pub fn kill(&self, reactor: &mut Reactor) -> Result<bool, Error> {
        self.signal(reactor, Signal::KILL.as_raw())
    }

    /// Sends a signal to the child, or to its [process group](super::Command::process_group). Returns `false` if it has
    /// exited already.
    pub fn signal(&self, reactor: &mut Reactor, signal: i32) -> Result<bool, Error> {
        reactor.check_not_forked()?;
        let doing = || format!("send signal {signal} to process {}", self.pid);
        let Some(named) = Signal::from_named_raw(signal) else {
            return Err(Error::system(doing(), io::ErrorKind::InvalidInput.into()));
        };
        match reactor.child(self.id.0) {
            Some(child) => child.signal(named).map(|()| true).map_err(|error| Error::system(doing(), error)),
            None => Ok(false),
        }
    }

    /// Asks the child to end (`SIGTERM`), and kills it if it has not after the [grace](super::Command::grace). Returns
    /// `false` if it has exited already.
    pub fn terminate(&self, reactor: &mut Reactor) -> Result<bool, Error> {
        let running = self.signal(reactor, Signal::TERM.as_raw())?;
        if running {
            reactor.kill_child_later(self.id.0);
        }
        Ok(running)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.kill_on_drop && matches!(&*self.exit.borrow(), Exit::Awaited(_)) {
            self.local.leave(Chore::KillChild(self.id));
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Reactor {
    /// Returns the number of children that have not exited yet.
    pub fn child_count(&self) -> usize {
        self.sources.count(Counted::Child)
    }

    pub(super) fn spawn_child(
        &mut self,
        command: &mut std::process::Command,
        settings: Settings,
    ) -> Result<Child, Error> {
        self.check_takes_on()?;
        if !settings.inherit {
            withhold_descriptors();
        }
        let mut child = command.spawn().map_err(|error| {
            // The standard library does not say which of the two is missing.
            let directory = command.get_current_dir().filter(|directory| !directory.is_dir());
            let program = command.get_program().display();
            match directory {
                Some(directory) => {
                    Error::system(format!("start {program} in the directory {}", directory.display()), error)
                }
                None => Error::system(format!("start {program}"), error),
            }
        })?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let (id, exit, timed_out) = self.take_on_child(child, settings);
        let (local, kill_on_drop) = (Rc::clone(&self.local), settings.kill_on_drop);
        Ok(Child { id, pid, exit, timed_out, local, kill_on_drop, stdin, stdout, stderr })
    }

    /// Waits for a child that another reactor has left.
    pub(super) fn adopt_child(&mut self, child: std::process::Child) {
        let settings =
            Settings { group: false, time_limit: None, grace: Duration::ZERO, kill_on_drop: false, inherit: true };
        self.take_on_child(child, settings);
    }

    #[allow(clippy::type_complexity, reason = "the parts of a Child, used twice")]
    fn take_on_child(
        &mut self,
        child: std::process::Child,
        settings: Settings,
    ) -> (ChildId, Rc<RefCell<Exit>>, Rc<Cell<bool>>) {
        let exit = Rc::new(RefCell::new(Exit::Awaited(Vec::new())));
        let timed_out = Rc::default();
        // Fails where a child that has exited cannot be watched any more, or without descriptors.
        let process = Process::open(child.id()).ok();
        let forks = fork::count();
        let process_of = ChildProcess {
            child: Some(child),
            process,
            settings,
            exit: Rc::clone(&exit),
            timer: None,
            timed_out: Rc::clone(&timed_out),
            forks,
        };
        let token = self.sources.insert(Source::Child(Box::new(process_of)));
        self.watch_child(token);
        if let Some(limit) = settings.time_limit {
            let timer = self.after(limit, move |reactor| reactor.child_takes_too_long(token));
            if let Some(child) = self.child(token) {
                child.timer = Some(timer);
            }
        }
        (ChildId(token), exit, timed_out)
    }

    /// Arranges that the loop learns about the exit of a child.
    fn watch_child(&mut self, token: Token) {
        let Some(Source::Child(child)) = self.sources.get_mut(token) else { return };
        let watched = match &child.process {
            Some(process) => self.engine.watch(token, process.as_fd(), Interest::READABLE, Mode::Level).is_ok(),
            None => false,
        };
        if !watched {
            child.process = None;
            self.next_tick(move |reactor| reactor.ask_child(token));
        }
    }

    fn ask_child(&mut self, token: Token) {
        self.child_has_exited(token);
        if self.child(token).is_some() {
            self.after(ASK_AGAIN, move |reactor| reactor.ask_child(token));
        }
    }

    fn child(&mut self, token: Token) -> Option<&mut ChildProcess> {
        match self.sources.get_mut(token) {
            Some(Source::Child(child)) => Some(child),
            _ => None,
        }
    }

    /// Kills a child. Returns `false` if it has exited already.
    pub(crate) fn kill_child(&mut self, id: ChildId) -> bool {
        let Some(child) = self.child(id.0) else { return false };
        // Fails if the child runs as another user. It is left alone then.
        let _ = child.signal(Signal::KILL);
        true
    }

    fn child_takes_too_long(&mut self, token: Token) {
        let Some(child) = self.child(token) else { return };
        child.timed_out.set(true);
        // If this fails, so does the next step, and the status will never come. There is nothing else to try.
        let _ = child.signal(Signal::TERM);
        self.kill_child_later(token);
    }

    fn kill_child_later(&mut self, token: Token) {
        let Some(child) = self.child(token) else { return };
        let (grace, old) = (child.settings.grace, child.timer.take());
        if let Some(timer) = old {
            self.cancel(timer);
        }
        let timer = self.after(grace, move |reactor| {
            reactor.kill_child(ChildId(token));
        });
        if let Some(child) = self.child(token) {
            child.timer = Some(timer);
        }
    }

    /// Reaps a child that has exited, and calls the callbacks that wait for it.
    fn child_has_exited(&mut self, token: Token) {
        let Some(child) = self.child(token) else { return };
        let pid = child.pid();
        let outcome = match child.child.as_mut().map(std::process::Child::try_wait) {
            Some(Ok(Some(status))) => Ok(status),
            Some(Ok(None)) | None => return,
            Some(Err(error)) => Err(Unknown { pid, kind: error.kind(), raw: error.raw_os_error() }),
        };
        child.child = None;
        let (timer, exit) = (child.timer.take(), Rc::clone(&child.exit));
        if let Some(timer) = timer {
            self.cancel(timer);
        }
        self.end_source(token);
        let id = ChildId(token);
        let before = exit.replace(Exit::Known(outcome));
        if let Exit::Awaited(callbacks) = before {
            for (place, callback) in callbacks {
                let site = Site { kind: CallbackKind::Watch, place, source: Some(id.into()) };
                self.call_last(site, |reactor| callback(reactor, outcome.map_err(Unknown::error)));
            }
        }
        self.callbacks.ended(id);
    }
}
