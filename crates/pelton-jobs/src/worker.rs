//! Takes jobs of a queue, calls their handler, and reports how it ended.
//!
//! A worker has room for some jobs at a time and asks for as many as it has room for. If it gets fewer, it waits: until the store
//! rings, until the time that the store has named, or until the next heartbeat. A heartbeat renews the leases of running jobs and
//! looks for jobs whose worker has died.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pelton::{Deferred, Hold, Promise, Reactor, Time, TimerId};

use crate::job::millis;
use crate::run::Flags;
use crate::store::{Finished, Held, Listening, Outcome, Request, Response, Store, Take, Taken};
use crate::{Error, JobId, Run};

/// How to work off a queue.
///
/// ```
/// use pelton_jobs::WorkOptions;
/// use std::time::Duration;
///
/// let options = WorkOptions::new("mail").concurrency(4).lease(Duration::from_secs(60));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct WorkOptions {
    pub(crate) queue: String,
    concurrency: usize,
    lease: Duration,
    name: Option<String>,
}

impl WorkOptions {
    /// Works off this queue, with the defaults of everything else.
    pub fn new(queue: impl Into<String>) -> WorkOptions {
        WorkOptions { queue: queue.into(), concurrency: 16, lease: Duration::from_secs(30), name: None }
    }

    /// Sets how many jobs this worker runs at the same time. By default 16. [`Limits`](crate::Limits) are for all workers of a
    /// queue together.
    #[must_use]
    pub fn concurrency(mut self, jobs: usize) -> WorkOptions {
        self.concurrency = jobs.max(1);
        self
    }

    /// Sets for how long this worker has a job without a sign of life. By default 30 seconds. A third of it is the heartbeat.
    /// After a crash, other workers take the jobs over after this time.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> WorkOptions {
        self.lease = lease.max(Duration::from_millis(30));
        self
    }

    /// Names the worker in lists. A random part is added: names are never reused.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> WorkOptions {
        self.name = Some(name.into());
        self
    }
}

/// The statistics of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Jobs that it has now.
    pub running: usize,
    /// Runs that it started.
    pub taken: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs whose end did not count, because their lease was over.
    pub stale: u64,
    /// Requests that the store did not answer, or answered with an error.
    pub errors: u64,
}

type CallHandler = Box<dyn FnMut(&mut Reactor, Run)>;

/// Works off a queue until it is [drained](Worker::drain). Draining the [loop](Reactor::drain) drains it as well.
#[derive(Clone)]
pub struct Worker {
    inner: Rc<Inner>,
}

struct Inner {
    id: u64,
    name: String,
    store: Rc<dyn Store>,
    options: WorkOptions,
    handler: RefCell<Option<CallHandler>>,
    state: RefCell<Inside>,
}

#[derive(Default)]
struct Inside {
    /// By the number of the run.
    running: HashMap<u64, Holding>,
    /// Runs whose end the store has not confirmed.
    ending: HashMap<u64, JobId>,
    taking: bool,
    /// Something rang while a request for jobs was on its way.
    rung: bool,
    pump_queued: bool,
    /// Jobs may have been lost with an answer.
    resync: bool,
    failures: u32,
    drain: Option<Vec<Deferred<(), Error>>>,
    left: bool,
    hold: Option<Hold>,
    listening: Option<Rc<dyn Listening>>,
    heartbeat: Option<TimerId>,
    again: Option<TimerId>,
    stats: WorkerStats,
}

struct Holding {
    id: JobId,
    flags: Arc<Flags>,
    /// When the lease was last known to be good.
    renewed: Time,
}

/// The workers of a loop, in the loop's state. Runs on other threads find them by number.
#[derive(Default)]
struct Workers(HashMap<u64, Rc<Inner>>);

impl Worker {
    pub(crate) fn start(
        reactor: &mut Reactor,
        store: Rc<dyn Store>,
        options: WorkOptions,
        handler: CallHandler,
    ) -> Result<Worker, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        crate::job::check_name("queue's name", &options.queue)?;
        if let Some(name) = &options.name {
            crate::job::check_name("worker's name", name)?;
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let name = format!("{}-{process}-{:08x}", options.name.as_deref().unwrap_or("worker"), fastrand::u32(..));
        let heartbeat = options.lease / 3;
        let state = Inside { hold: Some(reactor.hold()), ..Inside::default() };
        let (handler, state) = (RefCell::new(Some(handler)), RefCell::new(state));
        let inner = Rc::new(Inner { id, name, store, options, handler, state });
        let weak = Rc::downgrade(&inner);
        let ring = move |reactor: &mut Reactor| {
            if let Some(inner) = weak.upgrade() {
                inner.rung(reactor);
            }
        };
        let listening = inner.store.listen(reactor, &inner.options.queue, heartbeat, Rc::new(ring))?;
        let beating = inner.clone();
        let timer = reactor.every(heartbeat, move |reactor, _| beating.beat(reactor));
        {
            let mut state = inner.state.borrow_mut();
            state.listening = Some(listening);
            state.heartbeat = Some(timer);
        }
        reactor.state::<Workers>().0.insert(id, inner.clone());
        let worker = Worker { inner };
        let drained = worker.clone();
        reactor.on_drain(move |reactor| drained.inner.begin_drain(reactor, None));
        worker.inner.pump(reactor, true);
        Ok(worker)
    }

    /// Takes no more jobs, and returns a promise that is resolved when the running ones have ended.
    pub fn drain(&self, reactor: &mut Reactor) -> Promise<(), Error> {
        let (deferred, promise) = reactor.promise();
        self.inner.begin_drain(reactor, Some(deferred));
        promise
    }

    /// Returns the statistics.
    pub fn stats(&self) -> WorkerStats {
        let state = self.inner.state.borrow();
        WorkerStats { running: state.running.len(), ..state.stats }
    }

    /// Returns the name, as in [`JobInfo::worker`](crate::JobInfo::worker).
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn end(reactor: &mut Reactor, worker: u64, fence: u64, outcome: Outcome) {
        if let Some(inner) = reactor.state::<Workers>().0.get(&worker).cloned() {
            inner.end(reactor, fence, outcome);
        }
    }

    pub(crate) fn report(reactor: &mut Reactor, worker: u64, id: JobId, fence: u64, progress: Vec<u8>) {
        let Some(inner) = reactor.state::<Workers>().0.get(&worker).cloned() else { return };
        let request = Request::Progress { queue: inner.options.queue.clone(), id, fence, progress };
        let asking = inner.clone();
        asking.store.ask(reactor, request, Box::new(move |_, answer| inner.count_error(&answer)));
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("name", &self.inner.name).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The first wait after a request failed. It doubles up to a heartbeat.
const FIRST_WAIT: Duration = Duration::from_millis(50);

impl Inner {
    /// Asks for jobs, if there is room for any.
    fn pump(self: &Rc<Inner>, reactor: &mut Reactor, sweep: bool) {
        let mut state = self.state.borrow_mut();
        if state.drain.is_some() {
            return;
        }
        if state.taking {
            state.rung = true;
            return;
        }
        let room = self.options.concurrency.saturating_sub(state.running.len());
        if room == 0 {
            return;
        }
        state.taking = true;
        state.rung = false;
        if let Some(timer) = state.again.take() {
            reactor.cancel(timer);
        }
        let known = state.resync.then(|| {
            let running = state.running.values().map(|holding| &holding.id);
            running.chain(state.ending.values()).cloned().collect()
        });
        let take = Take {
            queue: self.options.queue.clone(),
            worker: self.name.clone(),
            count: room as u64,
            lease: millis(self.options.lease),
            sweep: sweep || known.is_some(),
            known,
        };
        drop(state);
        let (inner, asked) = (self.clone(), reactor.clock());
        self.store.ask(
            reactor,
            Request::Take(take),
            Box::new(move |reactor, answer| inner.taken(reactor, asked, answer)),
        );
    }

    fn rung(self: &Rc<Inner>, reactor: &mut Reactor) {
        let state = self.state.borrow();
        let full = state.running.len() >= self.options.concurrency;
        let listening = state.listening.clone();
        drop(state);
        match listening {
            Some(listening) if full => listening.pass_on(reactor),
            _ => self.pump(reactor, false),
        }
    }

    fn pump_soon(self: &Rc<Inner>, reactor: &mut Reactor) {
        // The ends of many runs in one turn make one request.
        if !std::mem::replace(&mut self.state.borrow_mut().pump_queued, true) {
            let inner = self.clone();
            reactor.next_tick(move |reactor| {
                inner.state.borrow_mut().pump_queued = false;
                inner.pump(reactor, false);
            });
        }
    }

    fn taken(self: &Rc<Inner>, reactor: &mut Reactor, asked: Time, answer: Result<Response, Error>) {
        self.count_error(&answer);
        let mut state = self.state.borrow_mut();
        state.taking = false;
        let taken = match answer {
            Ok(Response::Taken(taken)) => taken,
            Ok(_) | Err(_) => {
                state.resync = true;
                state.failures = (state.failures + 1).min(16);
                let most = self.options.lease / 3;
                let wait = FIRST_WAIT.saturating_mul(1 << (state.failures - 1)).min(most);
                self.ask_again(&mut state, reactor, wait);
                return;
            }
        };
        state.failures = 0;
        state.resync = false;
        let Taken { jobs, again } = taken;
        let handle = reactor.handle();
        for job in jobs {
            let flags = Arc::<Flags>::default();
            state.stats.taken += 1;
            state.running.insert(job.fence, Holding { id: job.id.clone(), flags: flags.clone(), renewed: asked });
            let run = Run::new(job, handle.clone(), self.id, flags);
            if state.drain.is_some() {
                run.release();
                continue;
            }
            // In a tick of its own: if the handler panics, the others run.
            let inner = self.clone();
            reactor.next_tick(move |reactor| inner.call(reactor, run));
        }
        if state.drain.is_some() {
            drop(state);
            return self.leave_if_drained(reactor);
        }
        if let Some(again) = again {
            self.ask_again(&mut state, reactor, Duration::from_millis(again));
        }
        let has_room = state.running.len() < self.options.concurrency;
        let listening = state.listening.clone().filter(|_| has_room);
        let rung = std::mem::take(&mut state.rung);
        drop(state);
        if let Some(listening) = listening {
            listening.wait(reactor);
        }
        if rung {
            self.pump_soon(reactor);
        }
    }

    fn ask_again(self: &Rc<Inner>, state: &mut Inside, reactor: &mut Reactor, wait: Duration) {
        let inner = self.clone();
        let timer = reactor.after(wait, move |reactor| {
            inner.state.borrow_mut().again = None;
            inner.pump(reactor, true);
        });
        if let Some(before) = state.again.replace(timer) {
            reactor.cancel(before);
        }
    }

    fn call(self: &Rc<Inner>, reactor: &mut Reactor, run: Run) {
        /// Puts the handler back, also if it panics.
        struct Lent<'a>(&'a Inner, CallHandler);
        impl Drop for Lent<'_> {
            fn drop(&mut self) {
                let handler = std::mem::replace(&mut self.1, Box::new(|_, run| run.release()));
                *self.0.handler.borrow_mut() = Some(handler);
            }
        }
        // A handler is never called from inside of itself, because this is a tick.
        let Some(handler) = self.handler.borrow_mut().take() else { return run.release() };
        let mut lent = Lent(self, handler);
        (lent.1)(reactor, run);
    }

    fn end(self: &Rc<Inner>, reactor: &mut Reactor, fence: u64, outcome: Outcome) {
        let mut state = self.state.borrow_mut();
        let Some(holding) = state.running.remove(&fence) else { return };
        state.ending.insert(fence, holding.id.clone());
        drop(state);
        self.send_end(reactor, fence, holding.id, outcome, 0);
        self.pump_soon(reactor);
    }

    fn send_end(self: &Rc<Inner>, reactor: &mut Reactor, fence: u64, id: JobId, outcome: Outcome, failures: u32) {
        let queue = self.options.queue.clone();
        let request = Request::Finish { queue, id: id.clone(), fence, outcome: outcome.clone() };
        let inner = self.clone();
        let then = move |reactor: &mut Reactor, answer: Result<Response, Error>| {
            inner.count_error(&answer);
            match answer {
                // If an earlier attempt got no answer, it may be the one that counted.
                Ok(Response::Finished(Finished::Stale)) if failures > 0 => {}
                Ok(Response::Finished(finished)) => inner.state.borrow_mut().stats.count(&outcome, finished),
                Err(error) if error.is_temporary() && failures < 64 => {
                    // The lease is renewed as long as the store can be reached, so this is worth another attempt.
                    let wait = FIRST_WAIT.saturating_mul(1 << failures.min(8)).min(inner.options.lease / 3);
                    let again = inner.clone();
                    reactor.after(wait, move |reactor| again.send_end(reactor, fence, id, outcome, failures + 1));
                    return;
                }
                _ => inner.state.borrow_mut().stats.stale += 1,
            }
            inner.state.borrow_mut().ending.remove(&fence);
            inner.leave_if_drained(reactor);
        };
        self.store.ask(reactor, request, Box::new(then));
    }

    /// Renews leases, and looks for jobs whose worker has died.
    fn beat(self: &Rc<Inner>, reactor: &mut Reactor) {
        let now = reactor.clock();
        let state = self.state.borrow();
        for holding in state.running.values().filter(|holding| holding.renewed + self.options.lease < now) {
            holding.flags.set_lost(true);
        }
        let mut held: Vec<(u64, JobId)> =
            state.running.iter().map(|(fence, holding)| (*fence, holding.id.clone())).collect();
        held.extend(state.ending.iter().map(|(fence, id)| (*fence, id.clone())));
        drop(state);
        if !held.is_empty() {
            let fences: Vec<u64> = held.iter().map(|(fence, _)| *fence).collect();
            let request = Request::Renew {
                queue: self.options.queue.clone(),
                worker: self.name.clone(),
                jobs: held.into_iter().map(|(fence, id)| (id, fence)).collect(),
                lease: millis(self.options.lease),
            };
            let inner = self.clone();
            let then = move |_: &mut Reactor, answer: Result<Response, Error>| {
                inner.count_error(&answer);
                if let Ok(Response::Renewed(leases)) = answer {
                    inner.renewed(now, &fences, &leases);
                }
            };
            self.store.ask(reactor, request, Box::new(then));
        }
        self.pump(reactor, true);
    }

    fn renewed(&self, asked: Time, fences: &[u64], leases: &[Held]) {
        let mut state = self.state.borrow_mut();
        for (fence, held) in fences.iter().zip(leases) {
            let Some(holding) = state.running.get_mut(fence) else { continue };
            match held {
                Held::Lost => holding.flags.set_lost(true),
                Held::Cancel => {
                    holding.flags.cancel();
                    holding.renewed = asked;
                }
                Held::Yes => {
                    // It may have been thought lost while the store could not be reached.
                    holding.flags.set_lost(false);
                    holding.renewed = asked;
                }
            }
        }
    }

    fn begin_drain(self: &Rc<Inner>, reactor: &mut Reactor, waiter: Option<Deferred<(), Error>>) {
        let mut state = self.state.borrow_mut();
        if state.left {
            drop(state);
            let _ = waiter.map(|waiter| waiter.resolve(()));
            return;
        }
        state.drain.get_or_insert_default().extend(waiter);
        let listening = state.listening.take();
        if let Some(timer) = state.again.take() {
            reactor.cancel(timer);
        }
        drop(state);
        drop(listening);
        self.leave_if_drained(reactor);
    }

    fn leave_if_drained(self: &Rc<Inner>, reactor: &mut Reactor) {
        let mut state = self.state.borrow_mut();
        let idle = state.running.is_empty() && state.ending.is_empty() && !state.taking;
        if state.drain.is_none() || !idle || std::mem::replace(&mut state.left, true) {
            return;
        }
        if let Some(timer) = state.heartbeat.take() {
            reactor.cancel(timer);
        }
        drop(state);
        let request = Request::Leave { queue: self.options.queue.clone(), worker: self.name.clone() };
        let inner = self.clone();
        let then = move |reactor: &mut Reactor, answer: Result<Response, Error>| {
            inner.count_error(&answer);
            reactor.state::<Workers>().0.remove(&inner.id);
            let mut state = inner.state.borrow_mut();
            let (waiters, hold) = (state.drain.replace(Vec::new()), state.hold.take());
            drop(state);
            for waiter in waiters.into_iter().flatten() {
                // Nobody may be waiting any more.
                let _ = waiter.resolve(());
            }
            drop(hold);
        };
        self.store.ask(reactor, request, Box::new(then));
    }

    fn count_error(&self, answer: &Result<Response, Error>) {
        if let Err(error) = answer {
            self.state.borrow_mut().stats.errors += 1;
            tracing::warn!(queue = self.options.queue, "a store of jobs: {error}");
        }
    }
}

impl WorkerStats {
    fn count(&mut self, outcome: &Outcome, finished: Finished) {
        match (finished, outcome) {
            (Finished::Stale, _) => self.stale += 1,
            (Finished::Counted, Outcome::Done(_)) => self.done += 1,
            (Finished::Counted, Outcome::Retry(..) | Outcome::Dead(_)) => self.failed += 1,
            (Finished::Counted, Outcome::Released) => {}
        }
    }
}
