//! The workers' scheduling loop: take the next turn from the own queue, the injected queue, or another worker's queue.

use std::cell::{Cell, OnceCell};
use std::iter::repeat_with;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use crossbeam_deque::{Stealer, Worker};
use pelton_os::fault;
use pelton_sync::{Parking, Schedule, Turn, Turns};

use super::{ActorFault, PoolStats};
use crate::reactor::panics::catch;

/// After this many turns from its own queue, a worker checks the injected queue first, so that actors that send to each
/// other do not starve messages from outside. A prime, so that it does not fall into step with the actors' patterns.
const CHECK_INJECTED_EVERY: u32 = 61;

/// How many rounds a worker searches for work before it sleeps. Sleeping and waking take as long as a hundred messages
/// or so, which makes a short spin worthwhile. A long one would waste the processor.
const ROUNDS: u32 = 8;

/// In this many of the last rounds the worker yields the processor to threads that may be about to send.
const YIELD_ROUNDS: u32 = 4;

/// The stage of a pool's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Running,
    /// New messages from outside the pool are refused; those already queued are still delivered.
    Draining,
    /// The workers end.
    Stopped,
}

impl Stage {
    pub(super) fn of(number: u8) -> Stage {
        match number {
            0 => Stage::Running,
            1 => Stage::Draining,
            _ => Stage::Stopped,
        }
    }
}

type FaultHook = Box<dyn Fn(&ActorFault) + Send + Sync>;

/// The settings made by the builder.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) budget: usize,
    pub(super) fault: Option<FaultHook>,
}

/// The counters of one worker. Only this worker writes them, so counting needs no read-modify-write operation.
#[derive(Default)]
#[repr(align(128))]
struct Counters {
    messages: AtomicU64,
    turns: AtomicU64,
    steals: AtomicU64,
    parks: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// The state that workers and actors share.
pub(super) struct Shared {
    setup: Setup,
    /// Turns scheduled from outside the pool.
    injected: Turns,
    /// The other ends of the workers' own queues.
    stealers: Box<[Stealer<Turn>]>,
    parking: Parking,
    /// Set before the first actor can be spawned.
    threads: OnceLock<Box<[Thread]>>,
    counters: Box<[Counters]>,
    pub(super) stage: AtomicU8,
    pub(super) actors: AtomicUsize,
    panics: AtomicU64,
    /// A drain waits here until all workers are asleep.
    draining: (Mutex<()>, Condvar),
}

/// Schedules actors on their pool.
#[derive(Clone)]
pub(super) struct Scheduler(pub(super) Arc<Shared>);

/// The worker that runs on this thread.
struct ThisWorker {
    shared: Arc<Shared>,
    queue: Worker<Turn>,
    /// The worker is ending and accepts no more turns.
    leaving: Cell<bool>,
}

thread_local! {
    static HERE: OnceCell<ThisWorker> = const { OnceCell::new() };
    /// An outer call on this thread is already dropping turns.
    static DISCARDING: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with this thread's worker, if it belongs to this pool.
fn here<R>(shared: &Shared, f: impl FnOnce(&ThisWorker) -> R) -> Option<R> {
    HERE.try_with(|here| here.get().filter(|here| std::ptr::eq(&*here.shared, shared)).map(f)).ok()?
}

impl Schedule for Scheduler {
    fn schedule(&self, turn: Turn) {
        let shared = &*self.0;
        let mut turn = Some(turn);
        here(shared, |here| {
            if !here.leaving.get()
                && let Some(turn) = turn.take()
            {
                here.queue.push(turn);
            }
        });
        match turn {
            None => shared.wake(),
            Some(turn) => {
                shared.injected.push(turn);
                shared.wake();
                // The fence in `wake` orders the push before this load. `discard` has the matching fence after `stop`'s
                // store.
                if shared.stage() == Stage::Stopped {
                    shared.discard();
                }
            }
        }
    }
}

impl Shared {
    pub(super) fn new(workers: usize, setup: Setup) -> (Arc<Shared>, Vec<Worker<Turn>>) {
        let queues: Vec<_> = repeat_with(Worker::new_fifo).take(workers).collect();
        let shared = Shared {
            setup,
            injected: Turns::new(),
            stealers: queues.iter().map(Worker::stealer).collect(),
            parking: Parking::new(workers),
            threads: OnceLock::new(),
            counters: repeat_with(Counters::default).take(workers).collect(),
            stage: AtomicU8::new(Stage::Running as u8),
            actors: AtomicUsize::new(0),
            panics: AtomicU64::new(0),
            draining: (Mutex::new(()), Condvar::new()),
        };
        (Arc::new(shared), queues)
    }

    pub(super) fn started(&self, threads: Box<[Thread]>) {
        // The builder sets it only once.
        let _ = self.threads.set(threads);
    }

    /// Returns whether this thread is one of the workers.
    pub(super) fn is_here(&self) -> bool {
        here(self, |_| ()).is_some()
    }

    /// Returns whether messages from this thread are refused.
    pub(super) fn refuses(&self) -> bool {
        match self.stage() {
            Stage::Running => false,
            Stage::Draining => !self.is_here(),
            Stage::Stopped => true,
        }
    }

    /// Wakes a worker if necessary, after a turn was added.
    fn wake(&self) {
        if let Some(worker) = self.parking.wake()
            && let Some(threads) = self.threads.get()
        {
            threads[worker].unpark();
        }
    }

    fn has_work(&self) -> bool {
        !self.injected.is_empty() || self.stealers.iter().any(|queue| !queue.is_empty())
    }

    /// Waits until there is no work left. Returns `false` if the deadline passes first.
    pub(super) fn drain(&self, deadline: Option<Instant>) -> bool {
        let _ = self.stage.compare_exchange(
            Stage::Running as u8,
            Stage::Draining as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // A worker that goes to sleep first announces it, then loads the stage, with a fence between. This is the
        // matching fence.
        fence(Ordering::SeqCst);
        let (lock, changed) = &self.draining;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.parking.asleep() < self.stealers.len() || self.has_work() {
            if self.stage() == Stage::Stopped {
                return false;
            }
            guard = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return false,
                Some(left) => changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
                None => changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
            };
        }
        true
    }

    /// Ends the workers, whose threads are given.
    pub(super) fn stop<'a>(&self, threads: impl Iterator<Item = &'a Thread>) {
        self.stage.store(Stage::Stopped as u8, Ordering::Release);
        threads.for_each(Thread::unpark);
        self.discard();
    }

    /// Drops all scheduled turns of a stopped pool, which closes their actors.
    fn discard(&self) {
        fence(Ordering::SeqCst);
        // Dropping an actor may schedule others, and so on. Drop them in a loop instead of recursively.
        if DISCARDING.try_with(|discarding| discarding.replace(true)).unwrap_or(true) {
            return;
        }
        while !self.injected.is_empty() {
            self.injected.take().for_each(drop_turn);
        }
        let _ = DISCARDING.try_with(|discarding| discarding.set(false));
    }

    /// Reports an actor that panicked.
    pub(super) fn fault(&self, fault: &ActorFault) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        match &self.setup.fault {
            None => fault::report("actor", fault.place, fault),
            Some(hook) => {
                if let Err(second) = catch(|| hook(fault)) {
                    let fault_and_more = format_args!("{fault}; then the fault hook panicked: {}", second.message());
                    fault::report("actor", fault.place, &fault_and_more);
                }
            }
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
        };
        PoolStats {
            workers: self.stealers.len(),
            actors: self.actors.load(Ordering::Relaxed),
            messages: sum(|counters| &counters.messages),
            turns: sum(|counters| &counters.turns),
            steals: sum(|counters| &counters.steals),
            parks: sum(|counters| &counters.parks),
            panics: self.panics.load(Ordering::Relaxed),
            asleep: self.parking.asleep(),
            injected: self.injected.len(),
            queued: self.stealers.iter().map(Stealer::len).collect(),
        }
    }
}

/// Drops a turn, catching panics from the destructors of the user's messages and actors.
fn drop_turn(turn: Turn) {
    if let Err(panic) = catch(|| drop(turn)) {
        fault::report_here("actor", &format_args!("dropping an actor panicked: {}", panic.message()));
    }
}

/// Runs a worker's thread until the pool stops.
pub(super) fn work(shared: Arc<Shared>, index: usize, queue: Worker<Turn>) {
    HERE.with(|here| {
        let here = here.get_or_init(|| ThisWorker { shared, queue, leaving: Cell::new(false) });
        let mut worker = WorkerLoop { here, index, turns: 0 };
        while let Some(turn) = worker.next() {
            worker.run(turn);
        }
        here.leaving.set(true);
        while let Some(turn) = here.queue.pop() {
            drop_turn(turn);
        }
        here.shared.discard();
    });
}

/// A worker and its scheduling state.
struct WorkerLoop<'a> {
    here: &'a ThisWorker,
    index: usize,
    turns: u32,
}

impl WorkerLoop<'_> {
    fn counters(&self) -> &Counters {
        &self.here.shared.counters[self.index]
    }

    fn run(&mut self, turn: Turn) {
        let ThisWorker { shared, queue, .. } = self.here;
        let outcome = catch(|| turn.run(shared.setup.budget));
        count(&self.counters().turns, 1);
        match outcome {
            Ok(ran) => {
                count(&self.counters().messages, ran.messages as u64);
                if let Some(turn) = ran.again {
                    // Queue injected turns ahead, so that an actor that is always busy does not starve them.
                    self.queue_injected();
                    let alone = queue.is_empty();
                    queue.push(turn);
                    // The turns ahead of this one may take a long time, so wake another worker to share the queue.
                    if !alone {
                        shared.wake();
                    }
                }
            }
            // Panics while receiving are caught in the actor's cell. This one came from dropping a message or an actor.
            Err(panic) => {
                fault::report_here("actor", &format_args!("dropping an actor panicked: {}", panic.message()));
            }
        }
    }

    /// Returns the next turn, or `None` once the pool has stopped.
    fn next(&mut self) -> Option<Turn> {
        let ThisWorker { shared, queue, .. } = self.here;
        if shared.stage() == Stage::Stopped {
            return None;
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(CHECK_INJECTED_EVERY) {
            self.queue_injected();
        }
        queue.pop().or_else(|| self.take_injected()).or_else(|| self.search())
    }

    /// Moves injected turns to the own queue, where other workers can steal them.
    fn queue_injected(&self) {
        let ThisWorker { shared, queue, .. } = self.here;
        shared.injected.take().for_each(|turn| queue.push(turn));
    }

    /// Takes an injected turn.
    fn take_injected(&self) -> Option<Turn> {
        self.queue_injected();
        self.share(self.here.queue.pop())
    }

    /// Steals turns from another worker.
    fn steal(&self) -> Option<Turn> {
        let ThisWorker { shared, queue, .. } = self.here;
        let workers = shared.stealers.len();
        let first = fastrand::usize(..workers);
        for offset in 0..workers {
            let other = (first + offset) % workers;
            if other == self.index {
                continue;
            }
            let stealer = &shared.stealers[other];
            let stolen = repeat_with(|| stealer.steal_batch_and_pop(queue)).find(|steal| !steal.is_retry())?.success();
            if stolen.is_some() {
                count(&self.counters().steals, 1);
                return self.share(stolen);
            }
        }
        None
    }

    /// Wakes a worker if more than one turn was moved. The turns were invisible while they moved, so a worker that
    /// searched at that moment may have gone to sleep.
    fn share(&self, turn: Option<Turn>) -> Option<Turn> {
        if !self.here.queue.is_empty() {
            self.here.shared.wake();
        }
        turn
    }

    /// Searches for work until there is some, and sleeps in between.
    fn search(&self) -> Option<Turn> {
        let shared = &*self.here.shared;
        let mut searching = shared.parking.search();
        loop {
            for round in 0..if searching { ROUNDS } else { 0 } {
                if let Some(turn) = self.take_injected().or_else(|| self.steal()) {
                    if shared.parking.found() {
                        shared.wake();
                    }
                    return Some(turn);
                }
                if round >= ROUNDS - YIELD_ROUNDS {
                    thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
            shared.parking.sleep(self.index, searching);
            if shared.has_work() {
                shared.parking.get_up(self.index);
            } else {
                self.park();
            }
            if shared.stage() == Stage::Stopped {
                return None;
            }
            searching = true;
        }
    }

    fn park(&self) {
        let shared = &*self.here.shared;
        count(&self.counters().parks, 1);
        if shared.stage() != Stage::Running {
            let (lock, changed) = &shared.draining;
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
            changed.notify_all();
        }
        while shared.parking.is_asleep(self.index) && shared.stage() != Stage::Stopped {
            thread::park();
        }
    }
}
