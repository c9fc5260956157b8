//! Runs a child and collects its output.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fmt;
use std::process::{ExitStatus, Output, Stdio};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::ChildId;
use super::command::Command;
use crate::tasks::task::{Chore, Local};
use crate::{
    Chunk, Connection, ConnectionId, Deferred, Error, Hold, Io, Limit, Promise, Reactor, Reason, Rejected, TimerId,
};

/// How much input for a child is queued at a time.
const PIECE: usize = 64 * 1024;

/// How long output is read after a child that took too long has ended. What it wrote is there already; the end of the output may
/// never come, because others have the pipe open.
const LAST_OUTPUT: Duration = Duration::from_millis(100);

/// One of the two outputs of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl fmt::Display for OutputStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OutputStream::Stdout => "standard output",
            OutputStream::Stderr => "standard error",
        })
    }
}

/// Why there is no output of a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It could not be started, its status is not known, or its output could not be read.
    #[error(transparent)]
    Failed(#[from] Error),

    /// The [time limit](Command::time_limit) was reached. The process was asked to end, or killed.
    #[error("run {program:?}: it took longer than {limit:?}")]
    TimedOut {
        /// The program.
        program: OsString,
        /// The limit.
        limit: Duration,
        /// How it ended.
        status: ExitStatus,
        /// What it had written.
        stdout: Vec<u8>,
        /// What it had written as errors.
        stderr: Vec<u8>,
    },

    /// It wrote more than the [limit](Command::output_limit). It was killed.
    #[error("run {program:?}: it wrote more than {limit} bytes to its {stream}")]
    TooMuchOutput {
        /// The program.
        program: OsString,
        /// Which output.
        stream: OutputStream,
        /// The limit.
        limit: usize,
    },
}

/// A child whose output is collected.
struct Run {
    program: OsString,
    deferred: Deferred<Output, ProcessError>,
    child: Option<ChildId>,
    output_limit: usize,
    time_limit: Option<Duration>,
    linger: Option<Duration>,
    timed_out: Rc<Cell<bool>>,
    status: Option<ExitStatus>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Outputs that have not ended.
    open: usize,
    connections: Vec<ConnectionId>,
    failed: Option<ProcessError>,
    timers: Vec<TimerId>,
    /// Draining waits for the exit, too, which may come after both outputs have ended.
    hold: Option<Hold>,
}

type Shared = Rc<RefCell<Run>>;

impl Command {
    /// Runs the process and collects its output, until it has exited and both outputs are closed.
    ///
    /// Standard input is empty, or what [`input`](Command::input) says. Each output is bounded by
    /// [`output_limit`](Command::output_limit); a child that writes more is killed, and the promise rejected. So it is if the
    /// [time limit](Command::time_limit) is reached. A status other than success is not an error.
    ///
    /// ```
    /// use pelton::process::{Command, ProcessError};
    /// use pelton::Reactor;
    /// use std::time::Duration;
    ///
    /// let mut reactor = Reactor::new()?;
    /// let sorted = Command::new("sort").input("b\na\n").output(&mut reactor);
    /// assert_eq!(reactor.block_on(sorted)??.stdout, b"a\nb\n");
    ///
    /// let endless = Command::new("sleep").arg("60").time_limit(Duration::from_millis(10)).output(&mut reactor);
    /// let error = reactor.block_on(endless)?.unwrap_err();
    /// assert!(matches!(error, pelton::Rejected::Failed(ProcessError::TimedOut { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn output(mut self, reactor: &mut Reactor) -> Promise<Output, ProcessError> {
        let stdin = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        self.set_files([Some(stdin), Some(Stdio::piped()), Some(Stdio::piped())]);
        self.run_with(reactor).0
    }

    /// Runs the process and waits for its status. Its files are inherited unless they were set.
    #[track_caller]
    pub fn status(mut self, reactor: &mut Reactor) -> Promise<ExitStatus, ProcessError> {
        let stdin = self.input.is_some().then(Stdio::piped);
        self.set_files([stdin, None, None]);
        self.run_with(reactor).0.map(|output| output.status)
    }

    /// Runs the process and collects its output, for `async` code: like [`output`](Command::output), with the current
    /// reactor. If the future is dropped and the command says [`kill_on_drop`](Command::kill_on_drop), the child is killed.
    pub async fn run(mut self) -> Result<Output, ProcessError> {
        let started = Reactor::with_current(|reactor| {
            let stdin = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
            self.set_files([Some(stdin), Some(Stdio::piped()), Some(Stdio::piped())]);
            let kill_on_drop = self.settings.kill_on_drop;
            let (promise, child) = self.run_with(reactor);
            let local = Rc::clone(&reactor.local);
            let guard = child.filter(|_| kill_on_drop).map(|child| Guard { child, local, waiting: true });
            (promise, guard)
        });
        let Some((promise, mut guard)) = started else {
            let error = std::io::Error::other("there is no current reactor: call this inside one of its tasks");
            return Err(Error::system("start a process", error).into());
        };
        let outcome = promise.await;
        if let Some(guard) = &mut guard {
            guard.waiting = false;
        }
        outcome.map_err(|rejected| match rejected {
            Rejected::Failed(error) => error,
            _ => Error::Stopped.into(),
        })
    }

    #[track_caller]
    fn run_with(mut self, reactor: &mut Reactor) -> (Promise<Output, ProcessError>, Option<ChildId>) {
        let mut child = match reactor.spawn_child(&mut self.inner, self.settings) {
            Ok(child) => child,
            Err(error) => return (Promise::rejected(reactor, error.into()), None),
        };
        let (deferred, promise) = reactor.promise();
        let run = Rc::new(RefCell::new(Run {
            program: self.program(),
            deferred,
            child: Some(child.id()),
            output_limit: self.output_limit,
            time_limit: self.settings.time_limit,
            linger: self.linger,
            timed_out: child.timeliness(),
            status: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
            open: 0,
            connections: Vec::new(),
            failed: None,
            timers: Vec::new(),
            hold: Some(reactor.hold()),
        }));
        if let Some(stdin) = child.stdin.take() {
            let opened = reactor.adopt(stdin, Feeder(self.input.take().unwrap_or_default()));
            note(reactor, &run, opened, 0);
        }
        if let Some(stdout) = child.stdout.take() {
            let opened = reactor.adopt(stdout, Collector { run: Rc::clone(&run), stream: OutputStream::Stdout });
            note(reactor, &run, opened, 1);
        }
        if let Some(stderr) = child.stderr.take() {
            let opened = reactor.adopt(stderr, Collector { run: Rc::clone(&run), stream: OutputStream::Stderr });
            note(reactor, &run, opened, 1);
        }
        let exited = Rc::clone(&run);
        child.on_exit(reactor, move |reactor, outcome| has_exited(reactor, &exited, outcome));
        if let Some(limit) = self.settings.time_limit {
            let late = Rc::clone(&run);
            let timer = reactor.after(limit, move |reactor| is_late(reactor, &late));
            run.borrow_mut().timers.push(timer);
        }
        (promise, Some(child.release()))
    }
}

/// Kills a child whose output nobody waits for any more.
struct Guard {
    child: ChildId,
    local: Rc<Local>,
    waiting: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.waiting {
            self.local.leave(Chore::KillChild(self.child));
        }
    }
}

/// Records a connection to the child.
fn note(reactor: &mut Reactor, run: &Shared, opened: Result<ConnectionId, Error>, outputs: usize) {
    match opened {
        Ok(id) => {
            let mut run = run.borrow_mut();
            run.connections.push(id);
            run.open += outputs;
        }
        Err(error) => give_up(reactor, run, error.into()),
    }
}

/// Kills the child, and rejects the promise when it has exited.
fn give_up(reactor: &mut Reactor, run: &Shared, error: ProcessError) {
    let child = {
        let mut run = run.borrow_mut();
        run.failed.get_or_insert(error);
        run.child
    };
    if let Some(child) = child {
        reactor.kill_child(child);
    }
    close_connections(reactor, run);
}

fn close_connections(reactor: &mut Reactor, run: &Shared) {
    let connections = std::mem::take(&mut run.borrow_mut().connections);
    for id in connections {
        if let Some(mut io) = reactor.connection(id) {
            io.close();
        }
    }
}

fn has_exited(reactor: &mut Reactor, run: &Shared, outcome: Result<ExitStatus, Error>) {
    let mut this = run.borrow_mut();
    this.child = None;
    match outcome {
        Ok(status) => this.status = Some(status),
        Err(error) => {
            this.failed.get_or_insert(error.into());
        }
    }
    let has_failed = this.failed.is_some();
    let linger = if this.timed_out.get() { Some(LAST_OUTPUT) } else { this.linger };
    let linger = linger.filter(|_| this.open > 0);
    drop(this);
    if has_failed {
        close_connections(reactor, run);
    } else if let Some(linger) = linger {
        let lingering = Rc::clone(run);
        let timer = reactor.after(linger, move |reactor| close_connections(reactor, &lingering));
        run.borrow_mut().timers.push(timer);
    }
    settle(reactor, run);
}

/// The time limit is reached. If the child is still running, its own limit ends it.
fn is_late(reactor: &mut Reactor, run: &Shared) {
    let has_exited = run.borrow().status.is_some();
    if has_exited {
        run.borrow().timed_out.set(true);
        close_connections(reactor, run);
        settle(reactor, run);
    }
}

/// Settles the promise if the child has exited and its outputs are closed.
fn settle(reactor: &mut Reactor, run: &Shared) {
    let mut this = run.borrow_mut();
    let over = this.child.is_none() && this.open == 0 && (this.status.is_some() || this.failed.is_some());
    if !over || this.deferred.is_settled() {
        return;
    }
    let (stdout, stderr) = (std::mem::take(&mut this.stdout), std::mem::take(&mut this.stderr));
    let outcome = match (this.failed.take(), this.status) {
        (Some(error), _) => Err(error),
        (None, Some(status)) if this.timed_out.get() => {
            let (program, limit) = (this.program.clone(), this.time_limit.unwrap_or_default());
            Err(ProcessError::TimedOut { program, limit, status, stdout, stderr })
        }
        (None, Some(status)) => Ok(Output { status, stdout, stderr }),
        (None, None) => return,
    };
    // It is not settled yet, as was checked.
    let _ = this.deferred.settle(outcome);
    let timers = std::mem::take(&mut this.timers);
    let hold = this.hold.take();
    drop(this);
    drop(hold);
    for timer in timers {
        reactor.cancel(timer);
    }
    close_connections(reactor, run);
}

/// Collects an output.
struct Collector {
    run: Shared,
    stream: OutputStream,
}

impl Connection for Collector {
    fn opened(&mut self, io: &mut Io<'_>) {
        // A draining loop waits for it, even if nothing has been written yet.
        io.count_as_used();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut run = self.run.borrow_mut();
        let limit = run.output_limit;
        let collected = match self.stream {
            OutputStream::Stdout => &mut run.stdout,
            OutputStream::Stderr => &mut run.stderr,
        };
        if collected.len() + chunk.len() <= limit {
            return collected.extend_from_slice(&chunk);
        }
        let error = ProcessError::TooMuchOutput { program: run.program.clone(), stream: self.stream, limit };
        drop(run);
        give_up(io.reactor(), &self.run, error);
    }

    fn draining(&mut self, _: &mut Io<'_>) {}

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let mut run = self.run.borrow_mut();
        run.open = run.open.saturating_sub(1);
        if let Reason::Failed(error) = reason {
            let doing = format!("read the {} of {:?}", self.stream, run.program);
            run.failed.get_or_insert(Error::system(doing, error).into());
        }
        drop(run);
        settle(reactor, &self.run);
    }
}

/// Writes the input of a child.
struct Feeder(Bytes);

impl Feeder {
    fn feed(&mut self, io: &mut Io<'_>) {
        let piece = self.0.split_to(self.0.len().min(PIECE));
        // A piece fits into an empty queue. If the child has closed its input, nothing more needs to be sent.
        if piece.is_empty() || io.send_bytes(piece).is_err() {
            return io.close_after_writing();
        }
        io.tell_when_sent();
    }
}

impl Connection for Feeder {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.count_as_used();
        // A child may work for a long time before it reads more. Its own time limit bounds that.
        io.set_limit(Limit::WriteStall, None);
        self.feed(io);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn sent(&mut self, io: &mut Io<'_>) {
        self.feed(io);
    }

    fn peer_finished(&mut self, _: &mut Io<'_>) {}

    fn draining(&mut self, _: &mut Io<'_>) {}
}
