//! Lanes: threads for work that blocks, so that the loop does not.
//!
//! A lane is for one kind of work, so that no kind keeps another waiting. Its threads are started when there is something to
//! do and end when there has been nothing for a while. What is handed to a lane comes back to the loop as a post, and finds
//! its callback there by a key: a callback that has gone meanwhile, or a loop, is simply not found.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pelton_os::fork;
use pelton_sync::Closure;

use crate::callback::message;
use crate::slots::{Key, Slots};
use crate::ticks::Tick;
use crate::{Error, Reactor};

/// How wide and how long a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneSettings {
    /// How many threads it has at most. At least 1.
    pub threads: usize,
    /// How much may wait for a thread; more is refused with [`Error::LaneFull`].
    pub waiting: usize,
    /// How long a thread without work stays.
    pub linger: Duration,
}

impl LaneSettings {
    /// What [look-ups of names](crate::Builder::lookups) begin with: 4 threads, since a look-up that hangs in an unreachable
    /// name server should hold up few others, and threads that wait cost little; 256 that wait, which at a few milliseconds
    /// each is a second's worth; and 10 seconds.
    pub const LOOKUPS: LaneSettings = LaneSettings { threads: 4, waiting: 256, linger: Duration::from_secs(10) };
}

type Job = Box<dyn FnOnce() + Send>;

/// Names a job, to take it back while it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JobId(u64);

pub(crate) struct Lane {
    name: &'static str,
    settings: LaneSettings,
    shared: Arc<Shared>,
    last: u64,
    /// The process that its threads are in, as a number of forks.
    forks: u64,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(JobId, Job)>,
    threads: usize,
    /// Threads that have no work, or have just been started: each will look for a job before it ends.
    free: usize,
    quit: bool,
}

/// Why a lane did not take a job.
#[derive(Debug)]
pub(crate) enum Refused {
    /// So many wait already.
    Full(usize),
    /// There is no thread, and the system would not start one.
    NoThread(io::Error),
}

impl Refused {
    pub(crate) fn while_doing(self, doing: String) -> Error {
        match self {
            Refused::Full(waiting) => Error::LaneFull { doing, waiting },
            Refused::NoThread(error) => Error::system(doing, error),
        }
    }
}

impl Lane {
    pub(crate) fn new(name: &'static str, settings: LaneSettings) -> Lane {
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new() });
        Lane { name, settings, shared, last: 0, forks: fork::count() }
    }

    pub(crate) fn run(&mut self, job: impl FnOnce() + Send + 'static) -> Result<JobId, Refused> {
        let mut state = self.shared.lock();
        if state.jobs.len() >= state.free
            && state.threads < self.settings.threads.max(1)
            && let Err(error) = self.start(&mut state)
        {
            if state.threads == 0 {
                return Err(Refused::NoThread(error));
            }
            tracing::warn!(%error, lane = self.name, "could not start another thread");
        }
        // Those that a free thread is about to take do not wait.
        if state.jobs.len() >= state.free + self.settings.waiting {
            return Err(Refused::Full(self.settings.waiting));
        }
        self.last += 1;
        let id = JobId(self.last);
        state.jobs.push_back((id, Box::new(job)));
        drop(state);
        self.shared.work.notify_one();
        Ok(id)
    }

    fn start(&self, state: &mut State) -> io::Result<()> {
        let (shared, linger) = (self.shared.clone(), self.settings.linger);
        // Not joined: nobody waits for a look-up that hangs.
        std::thread::Builder::new().name(self.name.into()).spawn(move || shared.work(linger))?;
        state.threads += 1;
        state.free += 1;
        Ok(())
    }

    /// Takes a job back, unless it has begun.
    pub(crate) fn take_back(&self, id: JobId) {
        let mut state = self.shared.lock();
        if let Some(place) = state.jobs.iter().position(|(job, _)| *job == id) {
            let job = state.jobs.remove(place);
            // What it owns is the user's, and is not dropped under the lock.
            drop(state);
            drop(job);
        }
    }

    /// In a forked child: the threads have stayed in the parent, perhaps with the lock held.
    fn after_fork(&mut self) {
        *self = Lane::new(self.name, self.settings);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.forks == fork::count() {
            let mut state = self.shared.lock();
            state.quit = true;
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            self.shared.work.notify_all();
            drop(jobs);
        }
    }
}

impl Shared {
    /// No job runs under the lock, so what a panic left behind is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does, all its life.
    fn work(&self, linger: Duration) {
        let mut state = self.lock();
        loop {
            if let Some((_, job)) = state.jobs.pop_front() {
                state.free -= 1;
                drop(state);
                // What it comes to is told inside; only dropping what it owned can still panic.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                state.free += 1;
                continue;
            }
            if state.quit {
                break;
            }
            let waited = self.work.wait_timeout(state, linger).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.free -= 1;
        state.threads -= 1;
    }
}

/// Why a job came to nothing.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Panicked(String),
    /// It has stayed in the process that was forked.
    LeftBehind,
}

type Outcome = Result<Box<dyn Any + Send>, Failure>;
type Then = Box<dyn FnOnce(&mut Reactor, Outcome)>;

/// Callbacks that wait for what a lane does.
#[derive(Default)]
pub(crate) struct Deferred(Slots<Awaiting>);

struct Awaiting {
    place: &'static Location<'static>,
    then: Then,
    /// Where it can be taken back. `None` if it is done on the loop.
    job: Option<(LaneOf, JobId)>,
}

/// Which of a reactor's lanes.
pub(crate) type LaneOf = fn(&mut Reactor) -> &mut Lane;

/// Where to do something.
pub(crate) enum Where {
    /// On a thread: it may block.
    Lane(LaneOf),
    /// On the loop, at the next tick.
    Loop,
}

impl Reactor {
    /// Does `op` elsewhere, then calls `then` with what came of it, on the loop and not before this has returned.
    pub(crate) fn defer_to<T: Send + 'static>(
        &mut self,
        to: Where,
        place: &'static Location<'static>,
        op: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(&mut Reactor, Result<T, Failure>) + 'static,
    ) -> Result<Key, Refused> {
        let then = move |reactor: &mut Reactor, outcome: Outcome| {
            let outcome = outcome.map(|value| *value.downcast::<T>().expect("what `op` gives is a `T`"));
            then(reactor, outcome);
        };
        let key = self.deferred.0.insert(Awaiting { place, then: Box::new(then), job: None });
        let attempt = move || -> Outcome {
            let outcome = catch_unwind(AssertUnwindSafe(op));
            outcome.map(|value| Box::new(value) as _).map_err(|panic| Failure::Panicked(message(&panic)))
        };
        match to {
            Where::Lane(lane_of) => {
                let handle = self.handle();
                let job = move || {
                    let outcome = attempt();
                    // A loop that is gone wants no answer.
                    let _ = handle.post_from(place, move |reactor| reactor.deferred_is_done(key, outcome), None);
                };
                match lane_of(self).run(job) {
                    Ok(job) => {
                        if let Some(awaiting) = self.deferred.0.get_mut(key) {
                            awaiting.job = Some((lane_of, job));
                        }
                    }
                    Err(refused) => {
                        self.deferred.0.remove(key);
                        return Err(refused);
                    }
                }
            }
            Where::Loop => {
                let closure = Closure::new(move |reactor: &mut Reactor| {
                    // It may have been cancelled since.
                    if reactor.deferred.0.get(key).is_some() {
                        reactor.deferred_is_done(key, attempt());
                    }
                });
                self.ticks.push_back(Tick { place, closure, after_posts: self.shared.posted() });
            }
        }
        Ok(key)
    }

    fn deferred_is_done(&mut self, key: Key, outcome: Outcome) {
        if let Some(awaiting) = self.deferred.0.remove(key) {
            (awaiting.then)(self, outcome);
        }
    }

    /// Drops a callback that waits, and takes its job back if that has not begun. `false` if it has been called.
    pub(crate) fn cancel_deferred(&mut self, key: Key) -> bool {
        let Some(awaiting) = self.deferred.0.remove(key) else { return false };
        // A child does not touch locks that its parent's threads may have held.
        if let Some((lane_of, job)) = awaiting.job
            && self.check_not_forked().is_ok()
        {
            lane_of(self).take_back(job);
        }
        true
    }

    /// In a forked child: nothing comes back from the threads of the parent, so the callbacks are told that.
    pub(crate) fn renew_lane(&mut self, lane_of: LaneOf) {
        lane_of(self).after_fork();
        let left = self.deferred.0.iter().filter(|(_, awaiting)| awaiting.job.is_some());
        for (key, place) in left.map(|(key, awaiting)| (key, awaiting.place)).collect::<Vec<_>>() {
            let closure =
                Closure::new(move |reactor: &mut Reactor| reactor.deferred_is_done(key, Err(Failure::LeftBehind)));
            self.ticks.push_back(Tick { place, closure, after_posts: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Long enough for whatever is waited for.
    const DEADLINE: Duration = Duration::from_secs(20);

    fn lane(threads: usize, waiting: usize, linger: Duration) -> Lane {
        Lane::new("pelton-test", LaneSettings { threads, waiting, linger })
    }

    /// A job that says that it has begun, and ends when the sender it comes with is dropped.
    fn stuck(begun: &Sender<u32>, number: u32) -> (Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, released) = channel::<()>();
        let begun = begun.clone();
        let job = move || {
            begun.send(number).unwrap();
            let _ = released.recv();
        };
        (release, job)
    }

    #[test]
    fn threads_are_started_as_needed_and_what_is_beyond_them_waits_until_that_is_too_much() {
        let (begun, beginning) = channel();
        let mut lane = lane(2, 1, DEADLINE);
        let mut releases = Vec::new();
        for number in 0..3 {
            let (release, job) = stuck(&begun, number);
            lane.run(job).unwrap();
            releases.push(release);
            assert_eq!(lane.shared.lock().threads, (number as usize + 1).min(2));
        }
        let mut first = [beginning.recv_timeout(DEADLINE).unwrap(), beginning.recv_timeout(DEADLINE).unwrap()];
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert!(matches!(lane.run(|| {}), Err(Refused::Full(1))));
        releases.remove(0);
        assert_eq!(beginning.recv_timeout(DEADLINE).unwrap(), 2, "the one that waited");
        lane.run(|| {}).unwrap();
    }

    #[test]
    fn a_job_that_waits_can_be_taken_back_and_makes_room() {
        let (begun, beginning) = channel();
        let mut lane = lane(1, 1, DEADLINE);
        let (release, job) = stuck(&begun, 0);
        let running = lane.run(job).unwrap();
        beginning.recv_timeout(DEADLINE).unwrap();
        let (_, job) = stuck(&begun, 1);
        let waiting = lane.run(job).unwrap();
        assert!(lane.run(|| {}).is_err());
        lane.take_back(waiting);
        lane.take_back(running);
        let (_, job) = stuck(&begun, 2);
        lane.run(job).unwrap();
        drop(release);
        assert_eq!(beginning.recv_timeout(DEADLINE).unwrap(), 2);
    }

    #[test]
    fn threads_without_work_end_and_others_are_started_when_there_is_some_again() {
        let (done, doing) = channel();
        let mut lane = lane(3, 8, Duration::from_millis(1));
        for _ in 0..3 {
            let done = done.clone();
            lane.run(move || done.send(()).unwrap()).unwrap();
            doing.recv_timeout(DEADLINE).unwrap();
            // They hold the shared state for as long as they are there.
            let start = std::time::Instant::now();
            while Arc::strong_count(&lane.shared) > 1 {
                assert!(start.elapsed() < DEADLINE, "a thread without work stays");
                std::thread::yield_now();
            }
            let state = lane.shared.lock();
            assert_eq!((state.threads, state.free), (0, 0));
        }
    }

    #[test]
    fn a_lane_that_is_dropped_waits_for_nothing_and_begins_nothing() {
        let (begun, beginning) = channel();
        let mut lane = lane(1, 8, DEADLINE);
        let (release, job) = stuck(&begun, 0);
        lane.run(job).unwrap();
        beginning.recv_timeout(DEADLINE).unwrap();
        let (_, job) = stuck(&begun, 1);
        lane.run(job).unwrap();
        let shared = lane.shared.clone();
        drop(lane);
        drop(release);
        let start = std::time::Instant::now();
        while Arc::strong_count(&shared) > 1 {
            assert!(start.elapsed() < DEADLINE, "its thread stays");
            std::thread::yield_now();
        }
        assert!(beginning.try_recv().is_err());
    }
}
