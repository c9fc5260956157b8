//! Jobs, on every store.

/// Runs each test on the named stores.
macro_rules! on_stores {
    ($($store:ident)*: $tests:tt) => {
        $(on_stores! { @one $store $tests })*
    };
    (@one $store:ident [$($test:ident),* $(,)?]) => {
        mod $store {
            $(#[test] fn $test() { super::$test(&$crate::Place::$store()); })*
        }
    };
}

/// Runs each test on every store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        on_stores! { memory file redis: [$($test),*] }
    };
}

mod chaos;
mod crashes;
mod faults;
mod forms;
mod idle;
mod liars;
mod limits;
mod order;
mod running;
mod stores;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{EventLoop, Promise, Reactor, Rejected};
use pelton_jobs::{Enqueued, Error, Job, JobId, Jobs, Memory, QueueStats, Retry, Run, WorkOptions, Worker};
use pelton_testing::{RedisServer, run_until};

/// A store for one test.
enum Place {
    Memory(Memory),
    File(RefCell<Option<Jobs>>, std::path::PathBuf),
    Redis(RedisServer),
}

impl Place {
    fn memory() -> Place {
        Place::Memory(Memory::new())
    }

    fn file() -> Place {
        Place::File(RefCell::default(), temporary_directory())
    }

    fn redis() -> Place {
        Place::Redis(RedisServer::start(&[]))
    }

    /// Opens the store. Each call is another machine, as far as the store allows.
    fn open(&self, reactor: &mut Reactor) -> Jobs {
        match self {
            Place::Memory(memory) => Jobs::on(reactor, memory),
            Place::File(jobs, path) => {
                let url = format!("file:{}", path.display());
                jobs.borrow_mut().get_or_insert_with(|| Jobs::open(reactor, &url).unwrap()).clone()
            }
            Place::Redis(server) => Jobs::open(reactor, &server.url()).unwrap(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::File(_, path) = self {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn temporary_directory() -> std::path::PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("pelton-jobs-{}-{number}", std::process::id()))
}

fn settled<T: 'static>(reactor: &mut EventLoop, promise: Promise<T, Error>) -> Result<T, Error> {
    let outcome = Rc::new(RefCell::new(None));
    let filled = outcome.clone();
    promise.done(move |_, result| *filled.borrow_mut() = Some(result));
    run_until(reactor, |_| outcome.borrow().is_some());
    let outcome = outcome.borrow_mut().take().unwrap();
    outcome.map_err(|rejected| match rejected {
        Rejected::Failed(error) => error,
        other => panic!("{other}"),
    })
}

fn enqueue(reactor: &mut EventLoop, jobs: &Jobs, job: Job) -> Enqueued {
    let promise = jobs.enqueue(reactor, "q", job);
    settled(reactor, promise).unwrap()
}

fn stats(reactor: &mut EventLoop, jobs: &Jobs) -> QueueStats {
    let promise = jobs.stats(reactor, "q");
    settled(reactor, promise).unwrap()
}

/// Runs the loop until the statistics of the queue are as expected.
fn until_stats(reactor: &mut EventLoop, jobs: &Jobs, expected: impl Fn(&QueueStats) -> bool) -> QueueStats {
    let end = std::time::Instant::now() + pelton_testing::DEADLINE;
    loop {
        let found = stats(reactor, jobs);
        if expected(&found) {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{found:?}");
        reactor.turn(Some(Duration::from_millis(5))).unwrap();
    }
}

fn inspect(reactor: &mut EventLoop, jobs: &Jobs, id: &JobId) -> Option<pelton_jobs::JobInfo> {
    let promise = jobs.inspect(reactor, "q", id);
    settled(reactor, promise).unwrap()
}

/// Runs that a handler has got.
type Runs = Rc<RefCell<Vec<Run>>>;

/// Starts a worker that keeps the runs it gets.
fn keep_runs(reactor: &mut Reactor, jobs: &Jobs, options: WorkOptions) -> (Worker, Runs) {
    let runs = Runs::default();
    let kept = runs.clone();
    let worker = jobs.work(reactor, options, move |_, run| kept.borrow_mut().push(run)).unwrap();
    (worker, runs)
}

/// Starts a worker that finishes everything at once, and records payloads.
fn finish_all(reactor: &mut Reactor, jobs: &Jobs, options: WorkOptions) -> Rc<RefCell<Vec<String>>> {
    let log = Rc::new(RefCell::new(Vec::new()));
    let filled = log.clone();
    let done = move |_: &mut Reactor, run: Run| {
        filled.borrow_mut().push(text(&run));
        run.done("");
    };
    jobs.work(reactor, options, done).unwrap();
    log
}

fn text(run: &Run) -> String {
    String::from_utf8(run.payload().to_vec()).unwrap()
}

fn queue() -> WorkOptions {
    WorkOptions::new("q")
}

/// Retries without waiting long.
fn quick(attempts: u32) -> Retry {
    Retry::times(attempts).first_wait(Duration::from_millis(20))
}
