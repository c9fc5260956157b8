//! A pool of workers that run actors.
//!
//! This file is the pool's public interface. `actor.rs` defines actors and the references that send to them, `keyed.rs`
//! runs tasks by key, and `worker.rs` is the workers' scheduling loop. The mailboxes and the parking of workers are in
//! pelton-sync. `docs/actors.md` describes how the parts fit together.

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

/// How many messages an actor receives per turn before other actors run. Large enough to amortise the switch between
/// actors; small enough that messages of a few microseconds do not delay other actors for long.
pub const MESSAGES_PER_TURN: usize = 64;

/// How many messages may be queued for an actor before [`ActorRef::try_send`] fails, by [default](Spawn::bound). A
/// burst fits, and at a hundred bytes each it takes as much memory as a read buffer.
pub const MAILBOX_BOUND: usize = 1024;

/// A pool of worker threads that run actors. Can be cloned, sent and shared. Its threads end when the last clone is
/// dropped.
///
/// Each actor receives its messages one at a time, in the order in which they arrived, on any free worker. Workers
/// never wait for an actor, and sending takes no lock.
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
/// // The actor ends when the last reference is gone and all messages have been received.
/// drop(sum);
/// assert_eq!(total.recv()?, 5_050);
/// pool.shutdown(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// Ends the threads when it is dropped.
struct Owner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The fork count of the process in which the threads were started.
    forks: u64,
}

/// Configures a [`Pool`].
pub struct PoolBuilder {
    workers: usize,
    setup: Setup,
}

impl PoolBuilder {
    /// Sets the number of threads, by default one per processor. At least one, at most [`Pool::MOST_WORKERS`].
    pub fn workers(mut self, workers: usize) -> PoolBuilder {
        self.workers = workers;
        self
    }

    /// Sets the name of the threads, which is followed by a number. By default `actors`.
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        self.setup.name = name.into();
        self
    }

    /// Sets how many messages an actor receives per turn before other actors run. By default [`MESSAGES_PER_TURN`].
    pub fn messages_per_turn(mut self, messages: usize) -> PoolBuilder {
        self.setup.budget = messages.max(1);
        self
    }

    /// Calls `hook`, on the worker, for every actor that panics. Without a hook, a panic is reported like other faults
    /// [without a hook](crate::Reactor::on_fault).
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

/// A [shutdown](Pool::shutdown) reached its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "shut the pool down: at the deadline {busy} workers were busy, and the messages of {waiting} actors were dropped"
)]
pub struct ShutdownError {
    /// How many workers were running an actor. They finish their current message.
    pub busy: usize,
    /// How many actors had messages left.
    pub waiting: usize,
}

/// A snapshot of a pool's statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Threads.
    pub workers: usize,
    /// Actors that have not ended.
    pub actors: usize,
    /// Messages received.
    pub messages: u64,
    /// Turns of actors. A turn receives up to [a set number](PoolBuilder::messages_per_turn) of messages.
    pub turns: u64,
    /// How often a worker stole turns from another worker's queue.
    pub steals: u64,
    /// How often a worker went to sleep.
    pub parks: u64,
    /// Actors that panicked.
    pub panics: u64,
    /// Workers that are asleep.
    pub asleep: usize,
    /// Actors that were scheduled from outside the pool and that no worker has taken yet.
    pub injected: usize,
    /// Actors waiting for a turn, by the worker whose queue they are in.
    pub queued: Vec<usize>,
}

impl PoolStats {
    /// Returns all statistics in the Prometheus text format, labelled with the pool's name.
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
            ("asleep", "gauge", "Workers that are asleep.", self.asleep as u64),
            (
                "waiting",
                "gauge",
                "Actors waiting for a turn.",
                (self.injected + self.queued.iter().sum::<usize>()) as u64,
            ),
            ("messages_total", "counter", "Messages received.", self.messages),
            ("turns_total", "counter", "Turns of actors.", self.turns),
            ("steals_total", "counter", "Times a worker stole turns from another.", self.steals),
            ("parks_total", "counter", "Times a worker went to sleep.", self.parks),
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
    /// The maximum number of workers in a pool. On machines with more processors, use several pools.
    pub const MOST_WORKERS: usize = Parking::MOST_WORKERS;

    /// Returns a builder with default settings.
    pub fn builder() -> PoolBuilder {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        PoolBuilder { workers, setup: Setup { name: "actors".to_owned(), budget: MESSAGES_PER_TURN, fault: None } }
    }

    /// Creates a pool with one worker per processor.
    pub fn new() -> Result<Pool, Error> {
        Pool::builder().build()
    }

    /// Spawns an actor.
    #[track_caller]
    pub fn spawn<A: Actor>(&self, actor: A) -> ActorRef<A::Message> {
        self.actor().spawn(actor)
    }

    /// Spawns a closure as an actor.
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

    /// Returns the settings of an actor to be spawned.
    #[track_caller]
    pub fn actor(&self) -> Spawn<'_> {
        self.actor_at(Location::caller())
    }

    /// Does the same as [`actor`](Pool::actor), for layers on top that pass on their caller's location. Panics are
    /// reported with it.
    #[doc(hidden)]
    pub fn actor_at(&self, place: &'static Location<'static>) -> Spawn<'_> {
        Spawn::new(&self.owner.shared, place)
    }

    /// Returns a snapshot of the pool's statistics.
    pub fn stats(&self) -> PoolStats {
        self.owner.shared.stats()
    }

    /// Lets the actors receive their queued messages, then ends the threads, at the latest after `deadline`.
    ///
    /// From now on the pool refuses messages from outside, while its actors may still send to each other. At the
    /// deadline all remaining messages are dropped. A worker that is in the middle of a message finishes it, but this
    /// call does not wait for it. If an actor calls this, it would wait for itself, so the remaining messages are
    /// dropped at once. A message that another thread sends during this call may be accepted and then dropped.
    ///
    /// In a forked child there is nothing to wait for: the threads stayed in the parent, and messages are never
    /// received. Create another pool.
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
        // The remaining threads end by themselves.
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
        // Panics of actors have already been reported.
        let _ = thread.join();
    }
}

impl Owner {
    /// Tells the threads to end. Returns them to the first caller.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.stop(threads.iter().map(JoinHandle::thread));
        threads
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.forks != fork::count() {
            // The threads stayed in the parent, perhaps in the middle of something.
            return;
        }
        let threads = self.stop();
        // An actor may drop the last clone of its pool.
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
