//! What a worker does: it takes the next turn from its own queue, from that of all, or from another worker's.

use std::cell::{Cell, OnceCell};
use std::iter::repeat_with;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use crossbeam_deque::{Stealer, Worker};
use pelton_os::fault;
use pelton_sync::{Parking, Schedule, Turn, Turns};

use super::{ActorFault, PoolStats};
use crate::reactor::callback::message;

/// After so many turns from its own queue, a worker looks into the queue of all first: so what comes from outside has its turn
/// however much actors send to each other. A prime, so that it does not fall into step with what they do.
const LOOK_OUTSIDE_EVERY: u32 = 61;

/// How often a worker looks round for work before it sleeps. To sleep and be woken takes as long as some hundred messages,
/// so it pays to look again shortly after; but not for long, as somebody else could use the processor.
const ROUNDS: u32 = 8;

/// Before each of these rounds the processor is offered to others, who may be about to send something.
const POLITE_ROUNDS: u32 = 4;

/// How far along its life a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Running,
    /// Nothing is accepted from outside; what there is goes on.
    Draining,
    /// Workers end.
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

/// What a builder settles.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) budget: usize,
    pub(super) fault: Option<FaultHook>,
}

/// What one worker counts. Nobody else writes it, so counting needs no exchange.
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

/// What workers and actors share.
pub(super) struct Shared {
    setup: Setup,
    /// What is scheduled from outside.
    injected: Turns,
    /// The other ends of the workers' own queues.
    stealers: Box<[Stealer<Turn>]>,
    parking: Parking,
    /// Known before there is an actor to wake anybody for.
    threads: OnceLock<Box<[Thread]>>,
    counters: Box<[Counters]>,
    pub(super) stage: AtomicU8,
    pub(super) actors: AtomicUsize,
    panics: AtomicU64,
    /// Whoever drains waits here for the workers to sleep.
    draining: (Mutex<()>, Condvar),
}

/// Schedules actors on their pool.
#[derive(Clone)]
pub(super) struct Scheduler(pub(super) Arc<Shared>);

/// The worker that a thread is.
struct Here {
    shared: Arc<Shared>,
    queue: Worker<Turn>,
    /// It ends, and takes on nothing more.
    leaving: Cell<bool>,
}

thread_local! {
    static HERE: OnceCell<Here> = const { OnceCell::new() };
    /// Turns are being dropped further up the stack.
    static DISCARDING: Cell<bool> = const { Cell::new(false) };
}

/// Has `f` look at the worker that this thread is, if it is one of this pool.
fn here<R>(shared: &Shared, f: impl FnOnce(&Here) -> R) -> Option<R> {
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
                // The fence in `wake` stands between the push and this look, as one does between `stop` and its discarding.
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
        // It is set once, by the builder.
        let _ = self.threads.set(threads);
    }

    /// Whether this thread is one of the workers.
    pub(super) fn is_here(&self) -> bool {
        here(self, |_| ()).is_some()
    }

    /// Whether a message from this thread comes too late.
    pub(super) fn refuses(&self) -> bool {
        match self.stage() {
            Stage::Running => false,
            Stage::Draining => !self.is_here(),
            Stage::Stopped => true,
        }
    }

    /// After a turn was added: wakes a worker, if that is needed.
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

    /// Waits until there is nothing left to do. `false`: not before the deadline.
    pub(super) fn drain(&self, deadline: Option<Instant>) -> bool {
        let _ = self.stage.compare_exchange(
            Stage::Running as u8,
            Stage::Draining as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // A worker that goes to sleep announces it, then looks at the stage; with a fence between, as here.
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

    /// Has the workers end, which these threads are.
    pub(super) fn stop<'a>(&self, threads: impl Iterator<Item = &'a Thread>) {
        self.stage.store(Stage::Stopped as u8, Ordering::Release);
        threads.for_each(Thread::unpark);
        self.discard();
    }

    /// In a pool that has stopped: drops what is scheduled, which closes the actors.
    fn discard(&self) {
        fence(Ordering::SeqCst);
        // To drop an actor may schedule others, and so on: one after the other, not one inside the other.
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
                if let Err(second) = catch_unwind(AssertUnwindSafe(|| hook(fault))) {
                    let fault_and_more = format_args!("{fault}; then the fault hook panicked: {}", message(&second));
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

/// Drops a turn, and with it whatever the user's messages and actors do when they are dropped.
fn drop_turn(turn: Turn) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(turn))) {
        fault::report_here("actor", &format_args!("dropping an actor panicked: {}", message(&panic)));
    }
}

/// What a worker's thread does until the pool stops.
pub(super) fn work(shared: Arc<Shared>, index: usize, queue: Worker<Turn>) {
    HERE.with(|here| {
        let here = here.get_or_init(|| Here { shared, queue, leaving: Cell::new(false) });
        let mut seat = Seat { here, index, turns: 0 };
        while let Some(turn) = seat.next() {
            seat.run(turn);
        }
        here.leaving.set(true);
        while let Some(turn) = here.queue.pop() {
            drop_turn(turn);
        }
        here.shared.discard();
    });
}

/// A worker at work.
struct Seat<'a> {
    here: &'a Here,
    index: usize,
    turns: u32,
}

impl Seat<'_> {
    fn counters(&self) -> &Counters {
        &self.here.shared.counters[self.index]
    }

    fn run(&mut self, turn: Turn) {
        let Here { shared, queue, .. } = self.here;
        let outcome = catch_unwind(AssertUnwindSafe(|| turn.run(shared.setup.budget)));
        count(&self.counters().turns, 1);
        match outcome {
            Ok(ran) => {
                count(&self.counters().messages, ran.messages as u64);
                if let Some(turn) = ran.again {
                    // Nobody has to wait for one that never rests.
                    self.queue_injected();
                    let alone = queue.is_empty();
                    queue.push(turn);
                    // The next one may take long: somebody else should look after this one.
                    if !alone {
                        shared.wake();
                    }
                }
            }
            // What actors do when they receive is caught before; this is a message or an actor that was dropped.
            Err(panic) => {
                fault::report_here("actor", &format_args!("dropping an actor panicked: {}", message(&panic)));
            }
        }
    }

    /// The next turn. `None`: the pool has stopped.
    fn next(&mut self) -> Option<Turn> {
        let Here { shared, queue, .. } = self.here;
        if shared.stage() == Stage::Stopped {
            return None;
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_OUTSIDE_EVERY) {
            self.queue_injected();
        }
        queue.pop().or_else(|| self.take_injected()).or_else(|| self.search())
    }

    /// Queues what came from outside, where others can steal it.
    fn queue_injected(&self) {
        let Here { shared, queue, .. } = self.here;
        shared.injected.take().for_each(|turn| queue.push(turn));
    }

    /// Takes what came from outside.
    fn take_injected(&self) -> Option<Turn> {
        self.queue_injected();
        self.share(self.here.queue.pop())
    }

    /// Takes some of what another worker has.
    fn steal(&self) -> Option<Turn> {
        let Here { shared, queue, .. } = self.here;
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

    /// What was taken along is in nobody's sight while it moves: a worker that looked for it then may have gone to sleep.
    fn share(&self, turn: Option<Turn>) -> Option<Turn> {
        if !self.here.queue.is_empty() {
            self.here.shared.wake();
        }
        turn
    }

    /// Looks for work until there is some, and sleeps in between.
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
                if round >= ROUNDS - POLITE_ROUNDS {
                    thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
            shared.parking.sleep(self.index, searching);
            if shared.has_work() {
                shared.parking.get_up(self.index);
            } else {
                self.rest();
            }
            if shared.stage() == Stage::Stopped {
                return None;
            }
            searching = true;
        }
    }

    fn rest(&self) {
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
