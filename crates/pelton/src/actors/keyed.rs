//! Work by key: tasks of one key run one at a time and in order, tasks of different keys run in parallel.
//!
//! A key that has tasks is an actor, and its tasks are the actor's messages. A key without tasks has no entry. The
//! table of keys is split by hash into shards. Each shard has its own lock, held for a lookup and a send. An entry
//! counts the unfinished tasks of its key. The actor updates the count at the end of its turn, once for all tasks of
//! the turn, and removes the entry if none is left. Both happen under the shard's lock, so a task is never sent to an
//! actor that is about to end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Actor, ActorFault, ActorRef, Context, MAILBOX_BOUND, Pool, Spawn};
use crate::reactor::panics::catch;
use crate::threads::reply::{Reply, reply};

/// Default limit for the queued tasks of all keys together. At a hundred bytes each, this is a few megabytes.
const TASKS_BOUND: usize = 65_536;

/// The number of shards. Threads that submit at the same time rarely contend, and an empty shard is small.
const SHARDS: usize = 32;

/// An empty shard keeps capacity for this many keys, so that a few keys that come and go do not allocate. A larger
/// table is freed.
const ROOM_KEPT: usize = 64;

/// Runs tasks on a [`Pool`] by key. Tasks of one key run one at a time, in the order in which they were submitted.
/// Tasks of different keys run in parallel, on any free worker. Created by [`Pool::keyed`]; can be cloned, sent and
/// shared.
///
/// Use it for ordered work without state. Use an [`Actor`] to keep state between messages. A key uses memory only while
/// it has tasks. A task that panics is reported to the pool's [fault hook](super::PoolBuilder::on_fault), and the next
/// task of its key runs.
///
/// ```
/// # use pelton::Pool;
/// # use std::time::Duration;
/// let pool = Pool::builder().workers(2).build()?;
/// let accounts = pool.keyed();
/// let (sender, receiver) = std::sync::mpsc::channel();
/// for number in 0..3 {
///     let sender = sender.clone();
///     accounts.submit("alice", move || sender.send(number).unwrap())?;
/// }
/// let balance = accounts.submit_with_reply("bob", || 7)?;
/// assert_eq!(balance.wait(), Ok(7));
/// assert_eq!(receiver.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
/// pool.shutdown(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Keyed<K> {
    shared: Arc<Shared<K>>,
}

/// The error returned when a task cannot be submitted. It gives the task back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError<F> {
    /// The limit for the tasks of this [key](Keyed::bound_per_key) or of [all](Keyed::bound) keys is reached.
    #[error("submit a task: too many tasks are already waiting")]
    Full(F),
    /// The pool has shut down.
    #[error("submit a task: the pool has shut down")]
    Closed(F),
}

impl<F> SubmitError<F> {
    /// Returns the task.
    pub fn into_inner(self) -> F {
        match self {
            SubmitError::Full(task) | SubmitError::Closed(task) => task,
        }
    }
}

impl<F> fmt::Debug for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full(_) => "Full(..)",
            SubmitError::Closed(_) => "Closed(..)",
        })
    }
}

type Task = Box<dyn FnOnce() + Send>;

struct Shared<K> {
    pool: Pool,
    place: &'static Location<'static>,
    hasher: RandomState,
    shards: [Mutex<Shard<K>>; SHARDS],
    per_key: AtomicUsize,
    bound: AtomicUsize,
    /// Unfinished tasks of all keys, as of the last turn of each actor.
    tasks: AtomicUsize,
}

type Shard<K> = HashMap<K, Busy>;

/// A key that has tasks.
struct Busy {
    actor: ActorRef<(Task, &'static Location<'static>)>,
    /// How many tasks are unfinished, as of the actor's last turn.
    tasks: usize,
}

impl Pool {
    /// Runs tasks by key on this pool: see [`Keyed`]. Each call creates a separate table with separate keys.
    #[track_caller]
    pub fn keyed<K: Hash + Eq + Clone + Send + 'static>(&self) -> Keyed<K> {
        let shards = std::array::from_fn(|_| Mutex::default());
        let (per_key, bound) = (AtomicUsize::new(MAILBOX_BOUND), AtomicUsize::new(TASKS_BOUND));
        let (pool, place, tasks) = (self.clone(), Location::caller(), AtomicUsize::new(0));
        Keyed { shared: Arc::new(Shared { pool, place, hasher: RandomState::new(), shards, per_key, bound, tasks }) }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Keyed<K> {
    /// Sets how many tasks of one key may be waiting before another is refused. At least 1; by default 1,024.
    #[must_use]
    pub fn bound_per_key(self, tasks: usize) -> Keyed<K> {
        self.shared.per_key.store(tasks.max(1), Ordering::Relaxed);
        self
    }

    /// Sets how many tasks of all keys together may be waiting before another is refused. At least 1; by default
    /// 65,536.
    #[must_use]
    pub fn bound(self, tasks: usize) -> Keyed<K> {
        self.shared.bound.store(tasks.max(1), Ordering::Relaxed);
        self
    }

    /// Runs `task` on the pool after the earlier tasks of the same key. Does not block: returns the task if too many
    /// are already waiting.
    ///
    /// A running task counts as well, and a finished one may count until its worker switches to another key. A key
    /// therefore never exceeds its limit, but may reach it slightly early.
    #[track_caller]
    pub fn submit<F: FnOnce() + Send + 'static>(&self, key: K, task: F) -> Result<(), SubmitError<F>> {
        self.submit_as(Location::caller(), key, task, |task| Box::new(task))
    }

    /// Submits a task that returns a value. The reply is [lost](crate::Lost) if the task panics, or if the pool stops
    /// before it has run.
    #[track_caller]
    pub fn submit_with_reply<T, F>(&self, key: K, task: F) -> Result<Reply<T>, SubmitError<F>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (replier, answer) = reply();
        self.submit_as(Location::caller(), key, task, move |task| Box::new(move || replier.give(task())))?;
        Ok(answer)
    }

    /// Submits the result of `make(task)`, unless the task is refused.
    fn submit_as<F>(
        &self,
        place: &'static Location<'static>,
        key: K,
        task: F,
        make: impl FnOnce(F) -> Task,
    ) -> Result<(), SubmitError<F>> {
        let shared = &self.shared;
        if shared.pool.owner.shared.refuses() {
            return Err(SubmitError::Closed(task));
        }
        // Threads that check at the same time may all pass: the sum can exceed its limit by the number of such threads.
        if shared.tasks.load(Ordering::Relaxed) >= shared.bound.load(Ordering::Relaxed) {
            return Err(SubmitError::Full(task));
        }
        let mut shard = shared.shard(&key);
        let busy = match shard.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let runner = Runner { shared: Arc::downgrade(shared), key: entry.key().clone(), ended: 0, done: false };
                let actor = Spawn::new(&shared.pool.owner.shared, shared.place).spawn(runner);
                entry.insert(Busy { actor, tasks: 0 })
            }
        };
        if busy.tasks >= shared.per_key.load(Ordering::Relaxed) {
            return Err(SubmitError::Full(task));
        }
        busy.tasks += 1;
        shared.tasks.fetch_add(1, Ordering::Relaxed);
        let actor = busy.actor.clone();
        // If the pool is stopping, the send may drop the task, which runs user code. It must not run under the lock.
        drop(shard);
        // The task is counted, so it must reach the actor even if the pool is starting to shut down: the actor
        // subtracts it from the count. An actor that has ended meanwhile has subtracted all of its tasks, and this one
        // is dropped.
        let _ = actor.send_accepted((make(task), place));
        Ok(())
    }

    /// Returns how many keys have tasks.
    pub fn busy_keys(&self) -> usize {
        self.shared.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Returns approximately how many tasks are waiting or running.
    pub fn tasks(&self) -> usize {
        self.shared.tasks.load(Ordering::Relaxed)
    }
}

impl<K: Hash> Shared<K> {
    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K>> {
        lock(self.shard_of(key))
    }

    fn shard_of(&self, key: &K) -> &Mutex<Shard<K>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

/// Locks a shard. The only user code that runs under the lock is a key's `Hash`, `Eq` and `Clone`, and it runs before
/// any change, so a poisoned lock still protects consistent data.
fn lock<K>(shard: &Mutex<Shard<K>>) -> MutexGuard<'_, Shard<K>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clones refer to the same keys.
impl<K> Clone for Keyed<K> {
    fn clone(&self) -> Self {
        Keyed { shared: self.shared.clone() }
    }
}

impl<K> fmt::Debug for Keyed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("tasks", &self.shared.tasks).finish_non_exhaustive()
    }
}

/// Runs the tasks of one key.
struct Runner<K: Hash + Eq + Clone + Send + 'static> {
    shared: Weak<Shared<K>>,
    key: K,
    /// Tasks that have finished since the end of the last turn.
    ended: usize,
    /// The key has been removed from the table.
    done: bool,
}

impl<K: Hash + Eq + Clone + Send + 'static> Actor for Runner<K> {
    type Message = (Task, &'static Location<'static>);

    fn receive(&mut self, (task, place): Self::Message, context: &mut Context<'_, Self::Message>) {
        self.ended += 1;
        if let Err(panic) = catch(task) {
            let label = Some(Arc::from("task"));
            context.shared.fault(&ActorFault { label, place, message: panic.message() });
        }
    }

    fn rested(&mut self) {
        // `rested` is called once more when the last reference is gone. By then the key may have a new entry with
        // another actor.
        let Some(shared) = self.shared.upgrade().filter(|_| !self.done) else { return };
        let ended = std::mem::take(&mut self.ended);
        let mut shard = shared.shard(&self.key);
        let Some(busy) = shard.get_mut(&self.key) else { return };
        busy.tasks -= ended;
        self.done = busy.tasks == 0;
        let left = if self.done { shard.remove_entry(&self.key) } else { None };
        // After a burst of keys, free the shard's table as well.
        let room = (shard.is_empty() && shard.capacity() > ROOM_KEPT).then(|| std::mem::take(&mut *shard));
        // Under the lock: once no key is busy, no task counts.
        shared.tasks.fetch_sub(ended, Ordering::Relaxed);
        drop(shard);
        drop(room);
        // This drops the last reference, so the actor ends after this call.
        drop(left);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Runner<K> {
    fn drop(&mut self) {
        // The pool has stopped, and the tasks are dropped with it.
        if !self.done
            && let Some(shared) = self.shared.upgrade()
        {
            let mut shard = shared.shard(&self.key);
            let left = shard.remove_entry(&self.key);
            shared.tasks.fetch_sub(left.as_ref().map_or(0, |(_, busy)| busy.tasks), Ordering::Relaxed);
            drop(shard);
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn capacity_of_many_keys_is_freed_when_they_are_idle() {
        let pool = Pool::builder().workers(1).build().unwrap();
        let keyed = pool.keyed();
        let (release, released) = channel::<()>();
        keyed.submit(0, move || _ = released.recv()).unwrap();
        for key in 1..10_000 {
            keyed.submit(key, || {}).unwrap();
        }
        let room = || keyed.shared.shards.iter().map(|shard| lock(shard).capacity()).sum::<usize>();
        assert!(room() >= 10_000);
        drop(release);
        let start = Instant::now();
        while keyed.busy_keys() > 0 || room() > SHARDS * ROOM_KEPT {
            assert!(start.elapsed() < Duration::from_secs(20), "capacity for {} keys is kept", room());
            std::thread::yield_now();
        }
    }
}
