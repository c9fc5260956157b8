//! Jobs of one process, kept in a file.
//!
//! Requests that change something are appended to a log, synced, and only then applied and answered. Everything happens on the
//! file lane: the loop hands over the requests that have come in meanwhile and gets their answers. `log.rs` has the format of the
//! log, `disk.rs` the files.

mod disk;
mod log;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pelton::{DeferFailure, Lane, Reactor};

use self::disk::Disk;
use crate::Error;
use crate::bells::Bells;
use crate::store::{Listening, Request, Response, Ring, Store, Then};

/// When what was written is forced to the disk. It does not matter if only the process dies: the system has the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncPolicy {
    /// Before each answer. A job whose enqueueing was confirmed survives a power failure. Requests that come in while the
    /// disk is busy share one sync.
    #[default]
    Always,
    /// This long after it was written, at the latest. A power failure loses what was confirmed since then.
    Every(Duration),
    /// When the system likes.
    Never,
}

/// Where jobs are kept, and how.
///
/// ```
/// use pelton_jobs::{FileOptions, SyncPolicy};
/// use std::time::Duration;
///
/// let options = FileOptions::new("/var/lib/app/jobs").sync(SyncPolicy::Every(Duration::from_millis(100)));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct FileOptions {
    pub(crate) directory: PathBuf,
    pub(crate) sync: SyncPolicy,
    pub(crate) compact_at: u64,
}

/// A log of this size is worth replacing by what is left of it.
const COMPACT_AT: u64 = 4 << 20;

impl FileOptions {
    /// Keeps jobs in this directory, which is created if it does not exist.
    pub fn new(directory: impl Into<PathBuf>) -> FileOptions {
        FileOptions { directory: directory.into(), sync: SyncPolicy::default(), compact_at: COMPACT_AT }
    }

    /// Sets when data is forced to the disk. By default always.
    #[must_use]
    pub fn sync(mut self, sync: SyncPolicy) -> FileOptions {
        self.sync = sync;
        self
    }

    /// Sets at which size in bytes the log is first replaced by its contents. By default 4 MiB. Later it is replaced when it
    /// has grown to four times its size after the last time.
    #[must_use]
    pub fn compact_at(mut self, bytes: u64) -> FileOptions {
        self.compact_at = bytes;
        self
    }
}

/// Requests of this many bytes are written together. The others wait for the next round.
const BATCH_BYTES: usize = 32 << 20;

/// A lane that is full is asked again after this time.
const LANE_FULL: Duration = Duration::from_millis(10);

pub(crate) struct FileStore {
    inner: Rc<Inner>,
}

struct Inner {
    bells: Bells,
    state: RefCell<Waiting>,
}

struct Waiting {
    /// `None` until it is open.
    disk: Option<Arc<Mutex<Disk>>>,
    /// Why it cannot be used.
    failed: Option<Error>,
    /// A job of the lane uses the disk.
    busy: bool,
    requests: VecDeque<(Request, Then)>,
    /// A sync that is due later.
    sync_timer: bool,
}

impl FileStore {
    pub(crate) fn open(reactor: &mut Reactor, options: &FileOptions) -> Result<FileStore, Error> {
        let state = Waiting { disk: None, failed: None, busy: true, requests: VecDeque::new(), sync_timer: false };
        let inner = Rc::new(Inner { bells: Bells::default(), state: RefCell::new(state) });
        let (options, opened) = (options.clone(), inner.clone());
        let then = move |reactor: &mut Reactor, disk: Result<Result<Disk, Error>, DeferFailure>| {
            let mut state = opened.state.borrow_mut();
            state.busy = false;
            match disk {
                Ok(Ok(disk)) => state.disk = Some(Arc::new(Mutex::new(disk))),
                Ok(Err(error)) => state.failed = Some(error),
                Err(failure) => state.failed = Some(panicked(&failure)),
            }
            drop(state);
            opened.run(reactor);
        };
        reactor.defer(Lane::Files, move || Disk::open(options), then).map_err(pelton::Error::from)?;
        Ok(FileStore { inner })
    }
}

fn panicked(failure: &DeferFailure) -> Error {
    Error::Nonsense { request: "file", found: format!("with a failure: {failure}") }
}

impl Store for FileStore {
    fn ask(&self, reactor: &mut Reactor, request: Request, then: Then) {
        self.inner.state.borrow_mut().requests.push_back((request, then));
        if !self.inner.state.borrow().busy {
            self.inner.run(reactor);
        }
    }

    fn listen(&self, reactor: &mut Reactor, queue: &str, _: Duration, ring: Ring) -> Result<Rc<dyn Listening>, Error> {
        Ok(self.inner.bells.listen(reactor, queue, ring))
    }
}

impl Inner {
    /// Hands waiting requests to the lane.
    fn run(self: &Rc<Inner>, reactor: &mut Reactor) {
        let mut state = self.state.borrow_mut();
        if state.busy || state.requests.is_empty() {
            return;
        }
        let Some(disk) = state.disk.clone() else {
            let error = state.failed.clone().unwrap_or(Error::Closed);
            for (_, then) in std::mem::take(&mut state.requests) {
                let error = error.clone();
                reactor.next_tick(move |reactor| then(reactor, Err(error)));
            }
            return;
        };
        state.busy = true;
        drop(state);
        // In a tick: the requests of a turn go together.
        let inner = self.clone();
        reactor.next_tick(move |reactor| inner.commit(reactor, disk));
    }

    fn commit(self: &Rc<Inner>, reactor: &mut Reactor, disk: Arc<Mutex<Disk>>) {
        let mut state = self.state.borrow_mut();
        let (mut requests, mut thens, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((request, then)) = state.requests.pop_front() {
            bytes += request.bytes();
            requests.push(request);
            thens.push(then);
            if bytes > BATCH_BYTES {
                break;
            }
        }
        drop(state);
        self.defer(reactor, disk, Arc::new(Mutex::new(Some(requests))), thens);
    }

    fn defer(
        self: &Rc<Inner>,
        reactor: &mut Reactor,
        disk: Arc<Mutex<Disk>>,
        requests: Arc<Mutex<Option<Vec<Request>>>>,
        thens: Vec<Then>,
    ) {
        // If the lane refuses, the callback is dropped with the operation, so it must not own the callers.
        let thens = Rc::new(RefCell::new(Some(thens)));
        let (bells, kept) = (self.bells.clone(), thens.clone());
        let (working, asked) = (disk.clone(), requests.clone());
        let op = move || {
            let requests = asked.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
            // Only one job at a time uses the disk. A panic left it in an unknown state: it is not used again.
            let Ok(mut disk) = working.lock() else { return (Vec::new(), None) };
            (disk.commit(requests, |queue| bells.ring(queue)), disk.sync_due())
        };
        let inner = self.clone();
        let then = move |reactor: &mut Reactor, outcome: Result<Outcome, DeferFailure>| {
            let thens = thens.borrow_mut().take().unwrap_or_default();
            inner.committed(reactor, outcome, thens);
        };
        if reactor.defer(Lane::Files, op, then).is_err() {
            let (inner, thens) = (self.clone(), kept.borrow_mut().take().unwrap_or_default());
            reactor.after(LANE_FULL, move |reactor| inner.defer(reactor, disk, requests, thens));
        }
    }

    fn committed(self: &Rc<Inner>, reactor: &mut Reactor, outcome: Result<Outcome, DeferFailure>, thens: Vec<Then>) {
        let (answers, sync_due) = match outcome {
            Ok(outcome) => outcome,
            Err(failure) => {
                let error = panicked(&failure);
                let mut state = self.state.borrow_mut();
                state.disk = None;
                state.failed = Some(error.clone());
                (thens.iter().map(|_| Err(error.clone())).collect(), None)
            }
        };
        self.state.borrow_mut().busy = false;
        if let Some(wait) = sync_due {
            self.sync_later(reactor, wait);
        }
        self.run(reactor);
        for (then, answer) in thens.into_iter().zip(answers) {
            // In ticks of their own: if one panics, the others are called.
            reactor.next_tick(move |reactor| then(reactor, answer));
        }
    }

    /// Syncs after this time, even if nothing else is written.
    fn sync_later(self: &Rc<Inner>, reactor: &mut Reactor, wait: Duration) {
        if std::mem::replace(&mut self.state.borrow_mut().sync_timer, true) {
            return;
        }
        let inner: Weak<Inner> = Rc::downgrade(self);
        reactor.after(wait, move |reactor| {
            let Some(inner) = inner.upgrade() else { return };
            let mut state = inner.state.borrow_mut();
            state.sync_timer = false;
            // Any request syncs what is overdue.
            state.requests.push_back((Request::Queues, Box::new(|_, _| {})));
            drop(state);
            inner.run(reactor);
        });
    }
}

/// Answers, and after how long to sync.
type Outcome = (Vec<Result<Response, Error>>, Option<Duration>);

impl Request {
    /// Returns about how many bytes the request has.
    fn bytes(&self) -> usize {
        match self {
            Request::Enqueue { job, .. } => job.payload.len(),
            Request::Finish { outcome: crate::store::Outcome::Done(result), .. } => result.len(),
            Request::Progress { progress, .. } => progress.len(),
            _ => 0,
        }
    }
}
