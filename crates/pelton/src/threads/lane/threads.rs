//! The threads of a lane: what they run, and when they are woken.
//!
//! **Waking.** Jobs are often shorter than a wake-up, and one wake-up per job would dominate the cost. Therefore at
//! most one thread is being woken at a time. Jobs that are queued meanwhile wake nobody, and a thread that takes a job
//! and leaves others behind wakes the next thread. A burst of short jobs costs one wake-up. A burst of long jobs has
//! all threads running after as many wake-ups as there are threads.
//!
//! Before it sleeps, an idle thread spins for a short time, if that has paid off recently: falling asleep and being
//! woken takes longer than many jobs. One thread spins at a time, and while it does, nobody is woken.
//!
//! Jobs queued with [`Wake::Later`] wake nobody until all are queued. Otherwise a thread woken for the first of many
//! jobs would finish it, find no other, and sleep again before the second is queued.

use std::collections::VecDeque;
use std::io;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton_os::fork;
use pelton_sync::SendClosure;

use super::{Lane, LaneSettings, LaneStats, Refusal};
use crate::reactor::panics::catch;
use crate::threads::defer::DeferFailure;

/// When to wake a thread for a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    Now,
    /// When [`Threads::wake`] is called, after more jobs.
    Later,
}

/// Identifies a job, to take it back while it waits. Later jobs have larger ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct JobId(u64);

struct Job<C: 'static> {
    id: JobId,
    place: &'static Location<'static>,
    closure: SendClosure<Worker<C>>,
}

/// A thread of a lane, as its jobs see it.
pub(crate) struct Worker<C: 'static> {
    /// The lane's context for its jobs.
    pub(crate) context: C,
    /// Where the current job was created.
    pub(crate) place: &'static Location<'static>,
    shared: Arc<Shared<C>>,
}

impl<C> Worker<C> {
    /// Runs the current job. It is counted as done before anybody can see its result.
    pub(crate) fn attempt<T>(&self, op: impl FnOnce() -> T) -> Result<T, DeferFailure> {
        let outcome = attempt(op);
        if outcome.is_err() {
            self.shared.panicked.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.done.fetch_add(1, Ordering::Relaxed);
        outcome
    }
}

/// Calls `op` and converts a panic to an error.
pub(crate) fn attempt<T>(op: impl FnOnce() -> T) -> Result<T, DeferFailure> {
    catch(op).map_err(|panic| DeferFailure::Panicked(panic.message()))
}

/// The threads of a lane. Each has a `C` for its jobs.
pub(crate) struct Threads<C: 'static> {
    name: &'static str,
    settings: LaneSettings,
    shared: Arc<Shared<C>>,
    /// The fork count of the process that the threads are in.
    forks: u64,
}

struct Shared<C: 'static> {
    state: Mutex<State<C>>,
    work: Condvar,
    /// Whether there are jobs. A spinning thread checks it without the lock.
    has_jobs: AtomicBool,
    done: AtomicU64,
    panicked: AtomicU64,
}

struct State<C: 'static> {
    jobs: VecDeque<Job<C>>,
    last: JobId,
    threads: usize,
    /// Threads without work, including those just started. Each looks for a job before it ends.
    free: usize,
    /// Free threads that are asleep.
    sleeping: usize,
    /// A thread has been woken and has not looked for jobs yet.
    waking: bool,
    /// A thread is spinning. It will look for jobs once more under the lock.
    searching: bool,
    quit: bool,
    begun: u64,
    refused: u64,
}

impl<C: Send + 'static> Threads<C> {
    pub(crate) fn of(lane: Lane, settings: LaneSettings) -> Threads<C> {
        Threads::new(lane.thread_name(), settings)
    }

    fn new(name: &'static str, settings: LaneSettings) -> Threads<C> {
        let state = Mutex::new(State {
            jobs: VecDeque::new(),
            last: JobId(0),
            threads: 0,
            free: 0,
            sleeping: 0,
            waking: false,
            searching: false,
            quit: false,
            begun: 0,
            refused: 0,
        });
        let (done, panicked) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { state, work: Condvar::new(), has_jobs: AtomicBool::new(false), done, panicked });
        Threads { name, settings, shared, forks: fork::count() }
    }

    /// Runs the job made by `job(op)` on a thread. Returns `op` if it is refused.
    pub(crate) fn run<Op>(
        &self,
        context: impl FnOnce() -> C,
        place: &'static Location<'static>,
        wake: Wake,
        op: Op,
        job: impl FnOnce(Op) -> SendClosure<Worker<C>>,
    ) -> Result<JobId, (Op, Refusal)> {
        if self.is_inherited() {
            return Err((op, Refusal::Forked));
        }
        let mut state = self.shared.lock();
        if state.quit {
            return Err((op, Refusal::Stopped));
        }
        if state.jobs.len() >= state.free
            && state.threads < self.settings.most_threads()
            && let Err(error) = self.start(&mut state, context())
        {
            if state.threads == 0 {
                state.refused += 1;
                return Err((op, Refusal::NoThread(error)));
            }
            let name = self.name;
            pelton_os::fault::report_here("lane", &format_args!("cannot start another thread {name}: {error}"));
        }
        // Jobs that a free thread is about to take do not count as waiting.
        if state.jobs.len() >= state.free + self.settings.waiting {
            state.refused += 1;
            return Err((op, Refusal::Full(self.settings.waiting)));
        }
        state.last.0 += 1;
        let id = state.last;
        state.jobs.push_back(Job { id, place, closure: job(op) });
        self.shared.has_jobs.store(true, Ordering::Relaxed);
        self.shared.wake_one(state, wake);
        Ok(id)
    }

    /// Starts the jobs that were queued with [`Wake::Later`].
    pub(crate) fn wake(&self) {
        if !self.is_inherited() {
            self.shared.wake_one(self.shared.lock(), Wake::Now);
        }
    }

    fn start(&self, state: &mut State<C>, context: C) -> io::Result<()> {
        let (shared, linger) = (self.shared.clone(), self.settings.linger);
        let worker = Worker { context, place: Location::caller(), shared };
        // Not joined: nobody waits for a lookup that hangs.
        std::thread::Builder::new().name(self.name.into()).spawn(move || work(worker, linger))?;
        state.threads += 1;
        state.free += 1;
        Ok(())
    }

    /// Takes a job back, unless it has begun.
    pub(crate) fn take_back(&self, id: JobId) -> bool {
        if self.is_inherited() {
            return false;
        }
        let mut state = self.shared.lock();
        let Ok(index) = state.jobs.binary_search_by_key(&id, |job| job.id) else { return false };
        let job = state.jobs.remove(index);
        self.shared.has_jobs.store(!state.jobs.is_empty(), Ordering::Relaxed);
        // The job may own user data, which must not be dropped under the lock.
        drop(state);
        drop(job);
        true
    }

    /// Closes the lane: starts no more jobs, and does not wait for running ones.
    pub(crate) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        let mut state = self.shared.lock();
        state.quit = true;
        self.shared.has_jobs.store(true, Ordering::Relaxed);
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.shared.work.notify_all();
        drop(jobs);
    }

    pub(crate) fn stats(&self) -> LaneStats {
        if self.is_inherited() {
            return LaneStats::default();
        }
        let state = self.shared.lock();
        let done = self.shared.done.load(Ordering::Relaxed);
        LaneStats {
            threads: state.threads,
            waiting: state.jobs.len(),
            running: state.begun.saturating_sub(done) as usize,
            done,
            refused: state.refused,
            panicked: self.shared.panicked.load(Ordering::Relaxed),
        }
    }

    /// Returns whether this is a forked child. The threads stayed in the parent, perhaps holding the lock.
    fn is_inherited(&self) -> bool {
        self.forks != fork::count()
    }

    /// Creates new threads with the same settings, in a forked child.
    pub(crate) fn succeed(&self) -> Threads<C> {
        Threads::new(self.name, self.settings)
    }
}

impl<C> Shared<C> {
    /// Locks the state. No job runs under the lock, so a panic leaves it consistent.
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spins for a short time until there are jobs or the lane closes. Returns whether that happened.
    fn search(&self) -> bool {
        let begun = Instant::now();
        loop {
            if self.has_jobs.load(Ordering::Relaxed) {
                return true;
            }
            if begun.elapsed() >= SEARCH {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Wakes a thread if there are jobs and one has to be woken.
    fn wake_one(&self, mut state: MutexGuard<'_, State<C>>, wake: Wake) {
        let awaited = state.waking || state.searching;
        let wake = wake == Wake::Now && state.sleeping > 0 && !awaited && !state.jobs.is_empty();
        state.waking |= wake;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }
}

/// How long a thread spins before it sleeps. Waking it takes about as long.
const SEARCH: Duration = Duration::from_micros(50);

/// The maximum number of searches to skip after failures.
const MOST_SKIPPED: u32 = 255;

/// Decides whether to spin. On a busy machine, the thread that queues jobs may have to wait for the processor that this
/// one occupies, and spinning only delays it. Therefore each failure doubles the number of searches to skip.
#[derive(Default)]
struct SpinPolicy {
    skip: u32,
    left: u32,
}

impl SpinPolicy {
    fn should_search(&mut self) -> bool {
        let searches = self.left == 0;
        self.left = self.left.saturating_sub(1);
        searches
    }

    fn searched(&mut self, found: bool) {
        self.skip = if found { 0 } else { (2 * self.skip + 1).min(MOST_SKIPPED) };
        self.left = self.skip;
    }
}

/// Runs a thread for its whole life.
fn work<C>(mut worker: Worker<C>, linger: Duration) {
    let shared = worker.shared.clone();
    let mut spin_policy = SpinPolicy::default();
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            state.free -= 1;
            state.begun += 1;
            shared.has_jobs.store(!state.jobs.is_empty(), Ordering::Relaxed);
            shared.wake_one(state, Wake::Now);
            worker.place = job.place;
            // The closure delivers its result itself. Only dropping its captures can still panic.
            let _ = catch(|| job.closure.call(&mut worker));
            state = shared.lock();
            state.free += 1;
            continue;
        }
        if state.quit {
            break;
        }
        if !state.searching && spin_policy.should_search() {
            state.searching = true;
            drop(state);
            spin_policy.searched(shared.search());
            state = shared.lock();
            state.searching = false;
            continue;
        }
        state.sleeping += 1;
        let waited = shared.work.wait_timeout(state, linger).unwrap_or_else(PoisonError::into_inner);
        state = waited.0;
        state.sleeping -= 1;
        // It may have been woken just as it timed out, so it looks in any case.
        state.waking = false;
        if waited.1.timed_out() && state.jobs.is_empty() {
            break;
        }
    }
    state.free -= 1;
    state.threads -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Long enough for everything that the tests wait for.
    const DEADLINE: Duration = Duration::from_secs(20);

    fn lane(threads: usize, waiting: usize, linger: Duration) -> Threads<()> {
        Threads::new("pelton-test", LaneSettings { threads, waiting, linger })
    }

    impl Threads<()> {
        fn run_job(&self, job: impl FnOnce() + Send + 'static) -> Result<JobId, Refusal> {
            let closure = |job| SendClosure::new(move |worker: &mut Worker<()>| worker.attempt(job).unwrap());
            self.run(|| (), Location::caller(), Wake::Now, job, closure).map_err(|(_, refusal)| refusal)
        }
    }

    /// A job that reports that it has begun, and ends when the returned sender is dropped.
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
    fn threads_start_on_demand_and_further_jobs_wait_up_to_a_limit() {
        let (begun, beginning) = channel();
        let lane = lane(2, 1, DEADLINE);
        let mut releases = Vec::new();
        for number in 0..3 {
            let (release, job) = stuck(&begun, number);
            lane.run_job(job).unwrap();
            releases.push(release);
            assert_eq!(lane.shared.lock().threads, (number as usize + 1).min(2));
        }
        let mut first = [beginning.recv_timeout(DEADLINE).unwrap(), beginning.recv_timeout(DEADLINE).unwrap()];
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert!(matches!(lane.run_job(|| {}), Err(Refusal::Full(1))));
        releases.remove(0);
        assert_eq!(beginning.recv_timeout(DEADLINE).unwrap(), 2, "the queued job");
        lane.run_job(|| {}).unwrap();
    }

    #[test]
    fn waiting_job_can_be_taken_back_and_makes_room() {
        let (begun, beginning) = channel();
        let lane = lane(1, 1, DEADLINE);
        let (release, job) = stuck(&begun, 0);
        let running = lane.run_job(job).unwrap();
        beginning.recv_timeout(DEADLINE).unwrap();
        let (_, job) = stuck(&begun, 1);
        let waiting = lane.run_job(job).unwrap();
        assert!(lane.run_job(|| {}).is_err());
        assert!(lane.take_back(waiting) && !lane.take_back(waiting));
        assert!(!lane.take_back(running), "it has already started");
        let (_, job) = stuck(&begun, 2);
        lane.run_job(job).unwrap();
        drop(release);
        assert_eq!(beginning.recv_timeout(DEADLINE).unwrap(), 2);
    }

    #[test]
    fn idle_threads_end_and_new_ones_start_on_demand() {
        let (done, doing) = channel();
        let lane = lane(3, 8, Duration::from_millis(1));
        for _ in 0..3 {
            let done = done.clone();
            lane.run_job(move || done.send(()).unwrap()).unwrap();
            doing.recv_timeout(DEADLINE).unwrap();
            // The threads hold the shared state as long as they exist.
            let start = Instant::now();
            while Arc::strong_count(&lane.shared) > 1 {
                assert!(start.elapsed() < DEADLINE, "an idle thread does not end");
                std::thread::yield_now();
            }
            let state = lane.shared.lock();
            assert_eq!((state.threads, state.free), (0, 0));
        }
    }

    #[test]
    fn closed_lane_waits_for_nothing_and_starts_nothing() {
        let (begun, beginning) = channel();
        let lane = lane(1, 8, DEADLINE);
        let (release, job) = stuck(&begun, 0);
        lane.run_job(job).unwrap();
        beginning.recv_timeout(DEADLINE).unwrap();
        let (_, job) = stuck(&begun, 1);
        lane.run_job(job).unwrap();
        let shared = lane.shared.clone();
        lane.close();
        assert!(matches!(lane.run_job(|| {}), Err(Refusal::Stopped)));
        drop(lane);
        drop(release);
        let start = Instant::now();
        while Arc::strong_count(&shared) > 1 {
            assert!(start.elapsed() < DEADLINE, "its thread does not end");
            std::thread::yield_now();
        }
        assert!(beginning.try_recv().is_err());
    }

    #[test]
    fn jobs_for_later_wake_nobody_until_all_are_queued() {
        let (begun, beginning) = channel();
        let lane = lane(1, 8, DEADLINE);
        let run = |number, wake| {
            let begun = begun.clone();
            let closure = |()| SendClosure::new(move |_: &mut Worker<()>| begun.send(number).unwrap());
            lane.run(|| (), Location::caller(), wake, (), closure).map_err(|(_, refusal)| refusal).unwrap();
        };
        run(0, Wake::Now);
        assert_eq!(beginning.recv_timeout(DEADLINE), Ok(0));
        let start = Instant::now();
        while lane.shared.lock().sleeping == 0 {
            assert!(start.elapsed() < DEADLINE, "the thread does not sleep");
            std::thread::yield_now();
        }
        run(1, Wake::Later);
        run(2, Wake::Later);
        let state = lane.shared.lock();
        assert_eq!((state.jobs.len(), state.sleeping, state.waking), (2, 1, false));
        drop(state);
        lane.wake();
        assert_eq!([beginning.recv_timeout(DEADLINE), beginning.recv_timeout(DEADLINE)], [Ok(1), Ok(2)]);
    }

    #[test]
    fn failed_searches_back_off_and_a_successful_one_resets() {
        let mut spin_policy = SpinPolicy::default();
        let mut until_next = || {
            let passed = (0..).take_while(|_| !spin_policy.should_search()).count();
            spin_policy.searched(false);
            passed
        };
        assert_eq!([(); 10].map(|()| until_next()), [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]);
        while !spin_policy.should_search() {}
        spin_policy.searched(true);
        assert!(spin_policy.should_search());
    }

    #[test]
    fn a_thread_sleeps_after_the_only_job_was_taken_back() {
        let lane = lane(1, 8, DEADLINE);
        let start = Instant::now();
        lane.run_job(|| {}).unwrap();
        for _ in 0..100 {
            let job = |()| SendClosure::new(|_: &mut Worker<()>| {});
            let id = lane.run(|| (), Location::caller(), Wake::Later, (), job).map_err(|(_, refusal)| refusal).unwrap();
            // The thread may have been faster.
            lane.take_back(id);
            while lane.shared.lock().sleeping == 0 {
                assert!(start.elapsed() < DEADLINE, "the thread does not sleep");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn burst_runs_on_all_threads_although_each_wakes_only_the_next() {
        let (begun, beginning) = channel();
        let lane = lane(4, 8, DEADLINE);
        for _ in 0..50 {
            let releases: Vec<_> = (0..4)
                .map(|number| {
                    let (release, job) = stuck(&begun, number);
                    lane.run_job(job).unwrap();
                    release
                })
                .collect();
            let mut numbers: Vec<u32> = (0..4).map(|_| beginning.recv_timeout(DEADLINE).unwrap()).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, [0, 1, 2, 3], "all run at once, because none has ended");
            drop(releases);
            let start = Instant::now();
            while lane.shared.lock().sleeping < 4 {
                assert!(start.elapsed() < DEADLINE, "a thread does not sleep");
                std::thread::yield_now();
            }
        }
        let expected = LaneStats { threads: 4, done: 200, ..LaneStats::default() };
        assert_eq!(lane.stats(), expected);
    }
}
