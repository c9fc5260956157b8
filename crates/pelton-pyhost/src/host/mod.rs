//! Hosting Python in a Rust program.
//!
//! A [`Host`] runs asyncio loops of this crate on their own threads. Any thread can submit calls and gets their
//! outcomes:
//!
//! ```no_run
//! use pelton_python::host::{Config, Host};
//!
//! let host = Host::start(Config::new())?;
//! let root = host.create_task("math", "sqrt", (2.0,), ())?;
//! println!("{:?}", root.wait()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! If a program does not start because it cannot find its Python library (`error while loading shared libraries:
//! libpython3.12.so.1.0: cannot open shared object file`), add a build script, `build.rs`, of one line:
//!
//! ```text
//! fn main() {
//!     println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_PELTON_PYTHON_LIBRARY_DIRECTORY").unwrap());
//! }
//! ```
//!
//! `docs/pyhost.md` explains how to ship programs to other machines.
//!
//! Submitting a call takes neither the interpreter lock nor any other. The call is queued as Rust data, and a
//! sleeping loop is woken once, however many calls are queued. The loop takes a batch out of the queue, acquires
//! the interpreter lock, and makes all calls of the batch.
//!
//! | file | contents |
//! |---|---|
//! | `config.rs`, `interpreter.rs`, `python/` | starting Python, and the package embedded in the program |
//! | `call.rs`, `submit.rs`, `loops.rs` | calls, and submitting them to a loop |
//! | `inbox.rs`, `execute.rs`, `callables.rs`, `returned.rs`, `callbacks.rs` | the loop's side: batches, calls, results |
//! | `completion.rs`, `reply.rs`, `batch.rs`, `stream.rs`, `waiters.rs`, `error.rs` | outcomes and their recipients |
//! | `foreign.rs` | tasks of other runtimes, with their own values; completion callbacks |
//! | `namespace.rs`, `namespaces.rs` | isolated namespaces: the handle, and a loop's table of them |
//! | `workers.rs` | threads for blocking functions |
//! | `thread.rs`, `worker.rs`, `current.rs`, `inner.rs` | handles of threads, threads without a loop, the current thread, calls inside others |
//! | `loop_thread.rs`, `shutdown.rs`, `watchdog.rs` | a loop's thread, its end, and reports of blocked loops |
//! | `lock_order.rs` | the lock order, checked in debug builds |

mod batch;
mod call;
mod callables;
mod callbacks;
mod completion;
mod config;
mod current;
mod error;
mod execute;
mod foreign;
mod inbox;
mod inner;
mod interpreter;
mod lock_order;
mod loop_thread;
mod loops;
mod namespace;
mod namespaces;

mod reply;
mod returned;
mod shutdown;
mod stream;
mod submit;
mod thread;
mod waiters;
mod watchdog;
mod worker;
mod workers;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use batch::{Batch, PartlyRefused};
pub use call::{Arguments, Call, Keywords, Name};
pub use config::Config;
pub use error::{Exception, RefusalKind, Refused, StartError, TaskError};
pub use foreign::{ArgumentList, Foreign, RefusedTask, Submitted};
pub use namespace::Namespace;
pub use reply::{Outcome, Reply};
pub use shutdown::Remains;
pub use stream::Stream;
pub use thread::PythonThread;
pub use watchdog::Stall;
pub use worker::Worker;

pub(crate) use inner::{InnerTask, current_thread, inner_call, prepare_inner};
use lock_order::{Rank, Ranked};
use loop_thread::Ended;
use loops::HostedLoop;
use watchdog::Watchdog;
use workers::Workers;

/// Starts the interpreter without a host, and makes the package `pelton` importable. The program then creates loops itself and
/// runs them on its own threads: see [`same_thread`](pelton_asyncio::same_thread). Of the settings, those about Python itself are used:
/// environment, paths and arguments.
pub fn prepare(config: &Config) -> Result<(), StartError> {
    interpreter::prepare(config)
}

/// Python running in this program. Clones are handles of the same host.
///
/// There can be one host at a time in a process. If all handles are dropped without [`shutdown`](Host::shutdown),
/// it shuts down with no time left.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Inner>,
}

struct Inner {
    loops: Vec<Arc<HostedLoop>>,
    workers: Arc<Workers>,
    /// The threads started by `worker`, and what new ones need.
    pinned: Mutex<Pinned>,
    /// Receives a message for each loop that has ended. `None` once a shutdown has taken it.
    ended: Mutex<Option<Receiver<Ended>>>,
    watchdog: Mutex<Option<Watchdog>>,
}

/// The threads that programs started for themselves.
struct Pinned {
    homes: Vec<Arc<HostedLoop>>,
    /// Number of the next one. They follow those of the loops.
    next: usize,
    /// `None` once a shutdown has begun.
    ending: Option<Sender<Ended>>,
    queue_bound: usize,
    batch: usize,
    stack: usize,
    executors: Arc<Ranked<Vec<Arc<loops::Executor>>>>,
}

/// Whether a host is running.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Threads are numbered at their first call, which spreads them over the loops.
static CALLERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLER: Cell<Option<usize>> = const { Cell::new(None) };
}

fn caller() -> usize {
    CALLER.with(|caller| {
        caller.get().unwrap_or_else(|| {
            let number = CALLERS.fetch_add(1, Ordering::Relaxed);
            caller.set(Some(number));
            number
        })
    })
}

impl Host {
    /// Starts Python, unless it was started before, and the loops.
    pub fn start(config: Config) -> Result<Host, StartError> {
        config.check()?;
        if RUNNING.swap(true, Ordering::AcqRel) {
            return Err(StartError::AlreadyRunning);
        }
        let running = Running;
        interpreter::prepare(&config)?;
        let executors = Arc::new(Ranked::new(Rank::Loop, Vec::new()));
        let workers = Workers::new((config.workers, config.stack), config.queue_bound, executors.clone());
        let (ending, ended) = std::sync::mpsc::channel();
        let pinned = Pinned {
            homes: Vec::new(),
            next: config.loops,
            ending: Some(ending.clone()),
            queue_bound: config.queue_bound,
            batch: config.batch,
            stack: config.stack,
            executors: executors.clone(),
        };
        let mut shared = Inner {
            loops: Vec::new(),
            workers,
            pinned: Mutex::new(pinned),
            ended: Mutex::new(Some(ended)),
            watchdog: Mutex::new(None),
        };
        // From here on, dropping `shared` ends everything that was started, if the rest fails.
        std::mem::forget(running);
        for index in 0..config.loops {
            let (home, receiver) = HostedLoop::new(index, (config.queue_bound, config.batch), executors.clone());
            loop_thread::start(home.clone(), receiver, shared.workers.clone(), &config, ending.clone())?;
            shared.loops.push(home);
        }
        shared.watchdog = Mutex::new(Watchdog::start(&shared.loops, config.stall, config.on_stall)?);
        Ok(Host { shared: Arc::new(shared) })
    }

    /// Returns the loop of the calling thread.
    fn home(&self) -> &Arc<HostedLoop> {
        &self.shared.loops[caller() % self.shared.loops.len()]
    }

    /// Calls a function or starts a coroutine, with arguments and keyword arguments (`()` for none).
    /// [`submit`](Host::submit) accepts calls with more options.
    pub fn create_task(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Result<Reply, Refused> {
        self.submit(Call::new(module, function).args(args).keywords(keywords))
    }

    /// Submits a call to the loop of the calling thread.
    pub fn submit(&self, call: Call) -> Result<Reply, Refused> {
        submit::reply(self.home(), 0, call)
    }

    /// Returns the loop with this number, modulo the number of loops.
    pub fn thread(&self, index: usize) -> PythonThread {
        PythonThread { home: self.shared.loops[index % self.shared.loops.len()].clone() }
    }

    /// Submits a call to the loop with this number, modulo the number of loops.
    pub fn submit_on(&self, index: usize, call: Call) -> Result<Reply, Refused> {
        self.thread(index).submit(call)
    }

    /// Creates a namespace on the loop with this number, modulo the number of loops.
    pub fn namespace_on(&self, index: usize) -> Namespace {
        self.thread(index).namespace()
    }

    /// Returns the number of loops.
    pub fn loops(&self) -> usize {
        self.shared.loops.len()
    }

    /// Submits a call whose outcome is passed to a closure. See
    /// [`PythonThread::submit_with`](PythonThread::submit_with).
    pub fn submit_with(&self, call: Call, then: impl FnOnce(Outcome) + Send + 'static) -> Result<Submitted, Refused> {
        PythonThread { home: self.home().clone() }.submit_with(call, then)
    }

    /// Starts a thread that runs Python one call after the other, without a running loop. See [`Worker`].
    pub fn worker(&self) -> Result<Worker, StartError> {
        let mut pinned = self.shared.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ending) = pinned.ending.clone() else { return Err(StartError::Setting("the host has shut down")) };
        let index = pinned.next;
        pinned.next += 1;
        let sizes = (pinned.queue_bound, pinned.batch);
        let (home, receiver) = HostedLoop::new(index, sizes, pinned.executors.clone());
        worker::start(home.clone(), receiver, self.shared.workers.clone(), (pinned.batch, pinned.stack), ending)?;
        // Workers that have ended need no shutdown.
        pinned.homes.retain(|other| !other.waiters.is_gone() && !other.has_ended());
        pinned.homes.push(home.clone());
        Ok(Worker { thread: PythonThread { home } })
    }

    /// Calls a function or coroutine and waits for its outcome.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop, where waiting would deadlock.
    pub fn run(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Outcome {
        self.create_task(module, function, args, keywords)?.wait()
    }

    /// Submits a call without waiting for its outcome. Errors are logged.
    pub fn spawn(&self, call: Call) -> Result<(), Refused> {
        submit::spawn(self.home(), 0, call)
    }

    /// Submits many calls that are awaited together, which costs one allocation and one wake-up for all of them.
    pub fn batch(&self, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
        submit::batch(self.home(), 0, calls)
    }

    /// Submits many calls and waits for all outcomes, each a value or an error. Refused calls have a refusal as
    /// their outcome.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop, where waiting would deadlock.
    pub fn gather(&self, calls: Vec<Call>) -> Vec<Outcome> {
        match self.batch(calls) {
            Ok(batch) => batch.wait(),
            Err(PartlyRefused { kind, accepted, rest }) => {
                let mut outcomes = accepted.wait();
                outcomes.extend(rest.iter().map(|_| Err(TaskError::Refused(kind))));
                outcomes
            }
        }
    }

    /// Streams the items of a generator, asynchronous or not. The generator runs at most `credit` items ahead of
    /// the reader.
    pub fn stream(&self, call: Call, credit: usize) -> Result<Stream, Refused> {
        submit::stream(self.home(), 0, call, credit)
    }

    /// Creates a namespace on the loop of the calling thread. See [`Namespace`].
    pub fn namespace(&self) -> Namespace {
        Namespace::new(self.home().clone())
    }

    /// Reloads an imported module. The next call uses it.
    pub fn reload(&self, module: &str) -> Outcome {
        let module = self.submit(Call::new("importlib", "import_module").arg(module).as_object())?.wait()?;
        self.submit(Call::new("importlib", "reload").arg(module).as_object())?.wait()
    }

    /// Returns the statistics of each loop.
    pub fn stats(&self) -> Vec<HostStats> {
        self.shared.loops.iter().map(|home| HostStats::of(home)).collect()
    }

    /// Shuts the host down. New calls are refused from now on. Tasks in progress may run until the deadline; then
    /// they are cancelled. Returns what was left. A second call does nothing.
    ///
    /// # Panics
    ///
    /// Panics on the thread of a loop, which cannot wait for its own end.
    pub fn shutdown(&self, deadline: Duration) -> Remains {
        self.shared.loops.iter().for_each(|home| home.refuse_to_wait());
        self.shared.end(deadline)
    }
}

impl Inner {
    fn end(&self, deadline: Duration) -> Remains {
        let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Remains::default();
        };
        let mut threads = self.loops.clone();
        {
            let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
            pinned.ending = None;
            threads.extend(pinned.homes.drain(..).filter(|home| !home.has_ended()));
        }
        let remains = shutdown::shut_down(&threads, &self.workers, &ended, deadline);
        drop(self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(Running);
        remains
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The permission to be the one host.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} loops)", self.shared.loops.len())
    }
}

/// Statistics of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStats {
    /// Tasks started.
    pub tasks: u64,
    /// Batches in which they arrived.
    pub batches: u64,
    /// Acquisitions of the interpreter lock.
    pub locks: u64,
    /// Wake-ups for new tasks.
    pub wakeups: u64,
    /// Tasks queued, approximately.
    pub queued: usize,
    /// Tasks started and pending.
    pub waiting: usize,
    /// Namespaces in use.
    pub namespaces: usize,
    /// Functions running on worker threads or queued for one.
    pub on_workers: usize,
    /// Whether the loop is asleep.
    pub asleep: bool,
}

impl HostStats {
    fn of(home: &HostedLoop) -> HostStats {
        HostStats {
            tasks: home.counters.tasks.load(Ordering::Relaxed),
            batches: home.counters.batches.load(Ordering::Relaxed),
            locks: home.counters.locks.load(Ordering::Relaxed),
            wakeups: home.counters.wakeups.load(Ordering::Relaxed),
            queued: home.queued(),
            waiting: home.waiting.lock().len(),
            namespaces: home.counters.namespaces.load(Ordering::Relaxed),
            on_workers: home.on_workers.load(Ordering::Relaxed),
            asleep: home.asleep.load(Ordering::Relaxed),
        }
    }
}
