//! A file operation and the ways to start it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::threads::defer::{DeferFailure, Drain, Where};
use crate::threads::lane::{Lane, Refusal};
use crate::threads::reply::{Reply, reply};
use crate::{DeferId, Error, Handle, Promise, Reactor};

/// The operation and its paths, as text: "read /etc/hosts".
#[derive(Clone)]
pub(super) struct Doing {
    what: &'static str,
    path: Arc<Path>,
    to: Option<Arc<Path>>,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.path.display())?;
        match &self.to {
            None => Ok(()),
            Some(to) => write!(f, " to {}", to.display()),
        }
    }
}

/// A system error with the operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {error}")]
struct WhileDoing {
    doing: String,
    #[source]
    error: io::Error,
}

impl Doing {
    fn failed(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), WhileDoing { doing: self.to_string(), error })
    }

    fn outcome<T>(&self, outcome: Result<io::Result<T>, DeferFailure>) -> io::Result<T> {
        outcome.unwrap_or_else(|failure| Err(self.failed(io::Error::other(failure))))
    }

    fn refused(&self, refusal: Refusal) -> io::Error {
        let kind = match &refusal {
            Refusal::Full(_) => io::ErrorKind::ResourceBusy,
            Refusal::NoThread(error) => error.kind(),
            Refusal::Stopped | Refusal::Forked => io::ErrorKind::Other,
        };
        self.failed(io::Error::new(kind, refusal))
    }
}

/// A file operation. It does nothing until it is started, in one of these ways:
///
/// - [`then`](Operation::then) passes the outcome to a callback on the loop.
/// - [`promise`](Operation::promise) returns a [`Promise`] on the loop.
/// - [`reply`](Operation::reply) returns a [`Reply`], which other threads can wait for.
/// - `.await` runs it in code that has [entered](Reactor::enter) the reactor.
/// - [`now`](Operation::now) runs it on this thread, which blocks.
///
/// Its effects on files are those of [`std::fs`].
#[must_use = "an operation does nothing until it is started"]
pub struct Operation<T> {
    doing: Doing,
    lane: Lane,
    op: Box<dyn FnOnce() -> io::Result<T> + Send>,
}

impl<T: Send + 'static> Operation<T> {
    pub(super) fn on(
        what: &'static str,
        path: impl AsRef<Path>,
        op: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        Operation::new(Doing { what, path: path.as_ref().into(), to: None }, move |doing| op(&doing.path))
    }

    pub(super) fn between(
        what: &'static str,
        path: impl AsRef<Path>,
        to: impl AsRef<Path>,
        op: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let to: Arc<Path> = to.as_ref().into();
        let doing = Doing { what, path: path.as_ref().into(), to: Some(to.clone()) };
        Operation::new(doing, move |doing| op(&doing.path, &to))
    }

    /// Creates an operation on an open file.
    pub(super) fn of(
        what: &'static str,
        path: &Arc<Path>,
        op: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        Operation::new(Doing { what, path: path.clone(), to: None }, move |_| op())
    }

    fn new(doing: Doing, op: impl FnOnce(&Doing) -> io::Result<T> + Send + 'static) -> Operation<T> {
        let about = doing.clone();
        Operation { doing, lane: Lane::Files, op: Box::new(move || op(&about).map_err(|error| about.failed(error))) }
    }

    /// Runs the operation on this thread and blocks until it is done. Use it while a program starts, and on threads
    /// that may block, such as those of a lane or a pool. On a loop it would block everything else.
    pub fn now(self) -> io::Result<T> {
        (self.op)()
    }

    /// Runs it on the `Waits` lane: it waits for others, so it must not occupy a thread that other operations need.
    pub(super) fn on_waits_lane(self) -> Operation<T> {
        Operation { lane: Lane::Waits, ..self }
    }

    /// Starts the operation and passes its outcome to `then`, on the loop, never before this returns. Fails with
    /// [`Error::LaneFull`] if too many operations are already waiting.
    ///
    /// It can be [cancelled](Reactor::cancel_deferred) until it begins.
    #[track_caller]
    pub fn then(
        self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, io::Result<T>) + 'static,
    ) -> Result<DeferId, Error> {
        let doing = self.doing.clone();
        let then = move |reactor: &mut Reactor, outcome| then(reactor, doing.outcome(outcome));
        let deferred = reactor.defer_to(Where::Lane(self.lane), Drain::Waits, Location::caller(), self.op, then);
        deferred.map(DeferId).map_err(|(_, refusal)| refusal.while_doing(self.doing.to_string()))
    }

    /// Starts the operation. Its outcome settles the promise. A refusal rejects it.
    ///
    /// ```
    /// # use pelton::{Reactor, fs};
    /// let mut reactor = Reactor::new()?;
    /// fs::exists("/").promise(&mut reactor).done(|reactor, exists| {
    ///     assert!(exists.unwrap());
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn promise(self, reactor: &mut Reactor) -> Promise<T, io::Error> {
        let (deferred, promise) = reactor.promise();
        let deferred = Rc::new(deferred);
        let (settle, doing) = (Rc::clone(&deferred), self.doing.clone());
        // Nothing else settles it.
        let then = move |_: &mut Reactor, outcome| drop(settle.settle(doing.outcome(outcome)));
        let started = reactor.defer_to(Where::Lane(self.lane), Drain::Waits, Location::caller(), self.op, then);
        if let Err((_, refusal)) = started {
            let _ = deferred.reject(self.doing.refused(refusal));
        }
        promise
    }

    /// Starts the operation. The reply is its outcome, or the error if it is refused.
    ///
    /// ```
    /// # use pelton::{Reactor, fs};
    /// let reactor = Reactor::new()?;
    /// let reply = fs::exists("/").reply(&reactor);
    /// assert!(reply.wait().unwrap().unwrap());
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn reply(self, reactor: &Reactor) -> Reply<io::Result<T>> {
        self.reply_by(&reactor.handle())
    }

    /// Starts the operation from any thread. See [`reply`](Operation::reply).
    #[track_caller]
    pub fn reply_by(self, handle: &Handle) -> Reply<io::Result<T>> {
        let (replier, answer) = reply();
        let Operation { doing, lane, op } = self;
        let about = doing.clone();
        let refused = handle.defer_answer(lane, op, replier, move |outcome| about.outcome(outcome));
        if let Err((_, replier, refusal)) = refused {
            replier.give(Err(doing.refused(refusal)));
        }
        answer
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({})", self.doing)
    }
}

/// The future of an awaited [`Operation`].
#[must_use = "futures do nothing unless awaited"]
pub struct OperationFuture<T> {
    doing: Doing,
    reply: Reply<io::Result<T>>,
}

impl<T: Send + 'static> IntoFuture for Operation<T> {
    type Output = io::Result<T>;
    type IntoFuture = OperationFuture<T>;

    /// Starts the operation on the reactor that this code has [entered](Reactor::enter).
    #[track_caller]
    fn into_future(self) -> OperationFuture<T> {
        let doing = self.doing.clone();
        let handle = Reactor::with_current(|reactor| reactor.handle());
        let reply = match handle {
            Some(handle) => self.reply_by(&handle),
            None => {
                let (replier, answer) = reply();
                replier.give(Err(doing.failed(io::Error::other("there is no current reactor to run it"))));
                answer
            }
        };
        OperationFuture { doing, reply }
    }
}

impl<T> Future for OperationFuture<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let answer = Pin::new(&mut self.reply).poll(context);
        answer.map(|answer| answer.unwrap_or_else(|lost| Err(self.doing.failed(io::Error::other(lost)))))
    }
}

impl<T> fmt::Debug for OperationFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationFuture({})", self.doing)
    }
}
