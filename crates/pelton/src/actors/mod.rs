//! A pool of workers that run actors.
//!
//! This file is what a user sees of the pool. Next to it, `pool/actor.rs` is what actors are and how they are sent to,
//! `worker.rs` what a worker does and how it finds work. The mailboxes and the sleep of workers are pelton-sync's;
//! `docs/actors.md` says how it all fits together.

mod actor;
mod keyed;
mod worker;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pelton_os::fork;
use pelton_sync::Parking;

pub use actor::{Actor, ActorFault, ActorRef, Context, MailError, Spawn};
pub use keyed::{Keyed, SubmitError};
use worker::{Setup, Shared, Stage};

use crate::Error;

/// How many messages an actor receives before others have their turn: enough that changing actors costs next to nothing per
/// message, few enough that messages of a few microseconds keep nobody waiting for long.
pub const MESSAGES_PER_TURN: usize = 64;

/// How many messages may wait for an actor before [`ActorRef::try_send`] is refused, unless it is
/// [told otherwise](Spawn::bound): a burst fits, and at a hundred bytes each it is as much memory as a read buffer.
pub const MAILBOX_BOUND: usize = 1024;

/// Workers that run actors. May be cloned, sent and shared; its threads end when the last clone is dropped.
///
/// Each actor receives its messages one at a time, in the order in which they arrived, on whichever worker is free. No
/// worker ever waits for an actor, and sending takes no lock.
///
/// ```
/// use pelton::{Actor, Context, Pool};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// struct Sum {
///     total: u64,
///     result: mpsc::Sender<u64>,
/// }
///
/// impl Actor for Sum {
///     type Message = u64;
///
///     fn receive(&mut self, number: u64, _: &mut Context<'_, u64>) {
///         self.total += number;
///     }
///
///     fn stopped(&mut self) {
///         self.result.send(self.total).ok();
///     }
/// }
///
/// let pool = Pool::builder().workers(2).name("sums").build()?;
/// let (result, total) = mpsc::channel();
/// let sum = pool.spawn(Sum { total: 0, result });
/// for number in 1..=100 {
///     sum.send(number)?;
/// }
/// // When the last reference has gone and everything has been received, the actor ends.
/// drop(sum);
/// assert_eq!(total.recv()?, 5_050);
/// pool.shutdown(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// Ends the threads when it goes.
struct Owner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that the threads are in, as a number of forks.
    forks: u64,
}

/// Settings of a [`Pool`].
pub struct PoolBuilder {
    workers: usize,
    setup: Setup,
}

impl PoolBuilder {
    /// How many threads there are: by default one for each processor. At least one, at most
    /// [`Pool::MOST_WORKERS`].
    pub fn workers(mut self, workers: usize) -> PoolBuilder {
        self.workers = workers;
        self
    }

    /// What the threads are called, with a number after it. By default `actors`.
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        self.setup.name = name.into();
        self
    }

    /// How many messages an actor receives before others have their turn. By default [`MESSAGES_PER_TURN`].
    pub fn messages_per_turn(mut self, messages: usize) -> PoolBuilder {
        self.setup.budget = messages.max(1);
        self
    }

    /// Calls `hook`, on the worker, for every actor that panics. Without a hook, a panic goes where
    /// other faults [go](crate::Reactor::on_fault) without one.
    pub fn on_fault(mut self, hook: impl Fn(&ActorFault) + Send + Sync + 'static) -> PoolBuilder {
        self.setup.fault = Some(Box::new(hook));
        self
    }

    /// Starts the threads.
    pub fn build(self) -> Result<Pool, Error> {
        let workers = self.workers.clamp(1, Pool::MOST_WORKERS);
        let name = self.setup.name.clone();
        let (shared, queues) = Shared::new(workers, self.setup);
        let mut threads = Vec::with_capacity(workers);
        for (index, queue) in queues.into_iter().enumerate() {
            let name = format!("{name}-{index}");
            let started = std::thread::Builder::new().name(name.clone()).spawn({
                let shared = shared.clone();
                move || worker::work(shared, index, queue)
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.stop(threads.iter().map(JoinHandle::thread));
                    return Err(Error::system(format!("start thread {name}"), error));
                }
            }
        }
        shared.started(threads.iter().map(|thread| thread.thread().clone()).collect());
        Ok(Pool { owner: Arc::new(Owner { shared, threads: Mutex::new(threads), forks: fork::count() }) })
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("workers", &self.workers).finish_non_exhaustive()
    }
}

/// A [shutdown](Pool::shutdown) took longer than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "shut the pool down: at the deadline {busy} workers were busy, and {waiting} actors had messages, which are dropped"
)]
pub struct ShutdownError {
    /// So many workers were in the middle of a message, which they finish.
    pub busy: usize,
    /// So many actors had not received all their messages.
    pub waiting: usize,
}

/// What a pool knows about itself, as of when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Threads.
    pub workers: usize,
    /// Actors that have not ended.
    pub actors: usize,
    /// Messages received.
    pub messages: u64,
    /// Turns of actors: one is for up to [so many](PoolBuilder::messages_per_turn) messages.
    pub turns: u64,
    /// Times that a worker took turns from another one's queue.
    pub steals: u64,
    /// Times that a worker went to sleep.
    pub parks: u64,
    /// Actors that panicked.
    pub panics: u64,
    /// Workers that sleep.
    pub asleep: usize,
    /// Actors that wait for a turn, and were sent to from outside: no worker has taken them on yet.
    pub injected: usize,
    /// Actors that wait for a turn, by the worker in whose queue they are.
    pub queued: Vec<usize>,
}

impl PoolStats {
    /// Everything in the Prometheus text format, for the pool by this name.
    ///
    /// ```
    /// # use pelton::Pool;
    /// let pool = Pool::builder().workers(1).build()?;
    /// assert!(pool.stats().to_prometheus("sums").contains("pelton_pool_workers{pool=\"sums\"} 1\n"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn to_prometheus(&self, pool: &str) -> String {
        let pool = pool.escape_default();
        let values = [
            ("workers", "gauge", "Threads of the pool.", self.workers as u64),
            ("actors", "gauge", "Actors that have not ended.", self.actors as u64),
            ("asleep", "gauge", "Workers that sleep.", self.asleep as u64),
            (
                "waiting",
                "gauge",
                "Actors that wait for a turn.",
                (self.injected + self.queued.iter().sum::<usize>()) as u64,
            ),
            ("messages_total", "counter", "Messages received.", self.messages),
            ("turns_total", "counter", "Turns of actors.", self.turns),
            ("steals_total", "counter", "Times that a worker took turns from another.", self.steals),
            ("parks_total", "counter", "Times that a worker went to sleep.", self.parks),
            ("panics_total", "counter", "Actors that panicked.", self.panics),
        ];
        let line = |(name, kind, help, value)| {
            format!(
                "# HELP pelton_pool_{name} {help}\n# TYPE pelton_pool_{name} {kind}\n\
                 pelton_pool_{name}{{pool=\"{pool}\"}} {value}\n"
            )
        };
        values.into_iter().map(line).collect()
    }
}

impl Pool {
    /// So many workers a pool has at most. Where there are more processors, several pools serve them better.
    pub const MOST_WORKERS: usize = Parking::MOST_WORKERS;

    /// Settings, to build a pool with.
    pub fn builder() -> PoolBuilder {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        PoolBuilder { workers, setup: Setup { name: "actors".to_owned(), budget: MESSAGES_PER_TURN, fault: None } }
    }

    /// A pool with a worker for each processor.
    pub fn new() -> Result<Pool, Error> {
        Pool::builder().build()
    }

    /// Takes on an actor.
    #[track_caller]
    pub fn spawn<A: Actor>(&self, actor: A) -> ActorRef<A::Message> {
        self.actor().spawn(actor)
    }

    /// Takes on an actor that is a closure.
    ///
    /// ```
    /// # use pelton::Pool;
    /// let pool = Pool::new()?;
    /// let mut count = 0;
    /// let counter = pool.spawn_fn(move |word: String, _| {
    ///     count += 1;
    ///     println!("{count}: {word}");
    /// });
    /// counter.send("hello".to_owned())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn spawn_fn<M: Send + 'static>(
        &self,
        receive: impl FnMut(M, &mut Context<'_, M>) + Send + 'static,
    ) -> ActorRef<M> {
        self.actor().spawn_fn(receive)
    }

    /// Settings, to take on an actor with.
    #[track_caller]
    pub fn actor(&self) -> Spawn<'_> {
        self.actor_at(Location::caller())
    }

    /// [`actor`](Pool::actor) for layers on top, whose callers have given a place: a panic is reported with it.
    #[doc(hidden)]
    pub fn actor_at(&self, place: &'static Location<'static>) -> Spawn<'_> {
        Spawn::new(&self.owner.shared, place)
    }

    /// What the pool knows about itself.
    pub fn stats(&self) -> PoolStats {
        self.owner.shared.stats()
    }

    /// Has what waits received, then ends the threads; after `deadline` in any case.
    ///
    /// From now on nothing is accepted from outside, while actors may go on sending to each other. At the deadline, what is
    /// left is dropped; a worker that is in the middle of a message finishes that, and nobody waits for it. An actor
    /// that calls this has the rest dropped at once, since it would wait for itself. A message that another thread
    /// sends at the very moment may be accepted, and dropped.
    ///
    /// In a forked child there is nothing to wait for: the threads have stayed in the parent, and what is sent there is never
    /// received. Make another pool.
    pub fn shutdown(&self, deadline: Duration) -> Result<(), ShutdownError> {
        let shared = &self.owner.shared;
        if self.owner.forks != fork::count() {
            return Err(shared.unfinished());
        }
        let deadline = Instant::now().checked_add(deadline);
        let quiet = !shared.is_here() && shared.drain(deadline);
        let unfinished = shared.unfinished();
        let threads = self.owner.stop();
        if quiet {
            join(threads);
            return Ok(());
        }
        // The threads that are left end by themselves.
        Err(unfinished)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stats", &self.stats()).finish()
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // What an actor panics with is reported when it does.
        let _ = thread.join();
    }
}

impl Owner {
    /// Tells the threads to end, and gives them to whoever is the first.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.stop(threads.iter().map(JoinHandle::thread));
        threads
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.forks != fork::count() {
            // The threads have stayed in the parent, perhaps in the middle of something.
            return;
        }
        let threads = self.stop();
        // An actor may have the last clone of its pool.
        if !self.shared.is_here() {
            join(threads);
        }
    }
}

impl Shared {
    fn unfinished(&self) -> ShutdownError {
        let stats = self.stats();
        ShutdownError {
            busy: stats.workers - stats.asleep,
            waiting: stats.injected + stats.queued.iter().sum::<usize>(),
        }
    }

    fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Relaxed))
    }
}
