//! A Rust program that hosts Python.
//!
//! A [`Host`] runs asyncio loops of this crate on threads of their own. Any thread hands calls to it, and gets an answer:
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
//! A program that does not start, because it cannot find its Python library (`error while loading shared libraries:
//! libpython3.12.so.1.0: cannot open shared object file`), needs a build script, `build.rs`, of one line:
//!
//! ```text
//! fn main() {
//!     println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_PELTON_PYTHON_LIBRARY_DIRECTORY").unwrap());
//! }
//! ```
//!
//! `docs/pyhost.md` says what to do for programs that are shipped to other machines.
//!
//! Handing over takes neither the interpreter lock nor any other: the call goes into a queue as Rust has it, and if the loop
//! sleeps it is woken, once however many come. The loop takes out a batch, then takes the interpreter lock, and makes all
//! calls of the batch.
//!
//! | file | what is in it |
//! |---|---|
//! | `config.rs`, `interpreter.rs`, `python/` | starting Python, and the package that it finds in the program |
//! | `call.rs`, `submit.rs`, `loops.rs` | what is to be called; handing it to a loop |
//! | `inbox.rs`, `execute.rs`, `callables.rs`, `returned.rs`, `callbacks.rs` | the loop's side: batches, calls, what they return |
//! | `completion.rs`, `reply.rs`, `batch.rs`, `stream.rs`, `waiters.rs`, `error.rs` | outcomes, and who gets them |
//! | `process.rs`, `namespaces.rs` | isolated namespaces |
//! | `workers.rs` | threads for functions that block |
//! | `loop_thread.rs`, `shutdown.rs`, `watchdog.rs` | a loop's life, its end, and who holds it up |
//! | `lock_order.rs` | which lock is taken before which, checked |

mod batch;
mod call;
mod callables;
mod callbacks;
mod completion;
mod config;
mod error;
mod execute;
mod inbox;
mod interpreter;
mod lock_order;
mod loop_thread;
mod loops;
mod namespaces;
mod process;
mod reply;
mod returned;
mod shutdown;
mod stream;
mod submit;
mod waiters;
mod watchdog;
mod workers;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use batch::{Batch, PartlyRefused};
pub use call::{Arguments, Call, Keywords, Name};
pub use config::Config;
pub use error::{Exception, RefusalKind, Refused, StartError, TaskError};
pub use process::Process;
pub use reply::{Outcome, Reply};
pub use shutdown::Remains;
pub use stream::Stream;
pub use watchdog::Stall;

use lock_order::{Rank, Ranked};
use loop_thread::Ended;
use loops::LoopShared;
use watchdog::Watchdog;
use workers::Workers;

/// Python, running in this program. Copies of this are handles of the same one.
///
/// There can be one at a time in a process. If all handles are dropped without [`shutdown`](Host::shutdown), it ends as if that
/// had been called with no time left.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

struct Shared {
    loops: Vec<Arc<LoopShared>>,
    workers: Arc<Workers>,
    /// Loops that have ended are heard of here, by whoever shuts down. `None` once somebody has.
    ended: Mutex<Option<Receiver<Ended>>>,
    watchdog: Mutex<Option<Watchdog>>,
}

/// Whether there is a host.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Threads are numbered as they first call, and so spread over the loops.
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
    /// Starts Python, unless it has been started before, and the loops.
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
        let mut shared =
            Shared { loops: Vec::new(), workers, ended: Mutex::new(Some(ended)), watchdog: Mutex::new(None) };
        // From here on `shared` ends what has been started, if the rest fails.
        std::mem::forget(running);
        for index in 0..config.loops {
            let (home, receiver) = LoopShared::new(index, (config.queue_bound, config.batch), executors.clone());
            loop_thread::start(home.clone(), receiver, shared.workers.clone(), &config, ending.clone())?;
            shared.loops.push(home);
        }
        shared.watchdog = Mutex::new(Watchdog::start(&shared.loops, config.stall, config.on_stall)?);
        Ok(Host { shared: Arc::new(shared) })
    }

    /// The loop of the calling thread.
    fn home(&self) -> &Arc<LoopShared> {
        &self.shared.loops[caller() % self.shared.loops.len()]
    }

    /// Calls a function, or begins a coroutine, with arguments and keyword arguments (`()` for none). See
    /// [`submit`](Host::submit) for what else can be asked of a call.
    pub fn create_task(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Result<Reply, Refused> {
        self.submit(Call::new(module, function).args(args).keywords(keywords))
    }

    /// Has a call made, on the loop that belongs to the calling thread.
    pub fn submit(&self, call: Call) -> Result<Reply, Refused> {
        submit::reply(self.home(), 0, call)
    }

    /// Calls a function or coroutine, and waits for its outcome.
    ///
    /// # Panics
    ///
    /// On the thread of the loop, where it would wait for ever.
    pub fn run(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Outcome {
        self.create_task(module, function, args, keywords)?.wait()
    }

    /// Has a call made whose outcome nobody waits for. What goes wrong is logged.
    pub fn spawn(&self, call: Call) -> Result<(), Refused> {
        submit::spawn(self.home(), 0, call)
    }

    /// Has many calls made, to be waited for together: that costs one allocation and one wake-up for all of them.
    pub fn batch(&self, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
        submit::batch(self.home(), 0, calls)
    }

    /// Has many calls made, and waits for all outcomes, each a value or an error of its own. Calls that are not taken on have an
    /// outcome that says so.
    ///
    /// # Panics
    ///
    /// On the thread of the loop, where it would wait for ever.
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

    /// Streams what a generator, asynchronous or not, yields. It runs ahead of whoever reads by `credit` items at most.
    pub fn stream(&self, call: Call, credit: usize) -> Result<Stream, Refused> {
        submit::stream(self.home(), 0, call, credit)
    }

    /// A new namespace, on the loop of the calling thread. See [`Process`].
    pub fn process(&self) -> Process {
        Process::new(self.home().clone())
    }

    /// Reloads a module that has been imported. The next call sees it.
    pub fn reload(&self, module: &str) -> Outcome {
        let module = self.submit(Call::new("importlib", "import_module").arg(module).as_object())?.wait()?;
        self.submit(Call::new("importlib", "reload").arg(module).as_object())?.wait()
    }

    /// What the loops have counted, one after the other.
    pub fn stats(&self) -> Vec<HostStats> {
        self.shared.loops.iter().map(|home| HostStats::of(home)).collect()
    }

    /// Ends the host. New calls are refused from now on. What there is gets until the deadline to come to its end; then it is
    /// cancelled. Says what was left. A second call has nothing to do.
    ///
    /// # Panics
    ///
    /// On the thread of a loop, which cannot wait for its own end.
    pub fn shutdown(&self, deadline: Duration) -> Remains {
        self.shared.loops.iter().for_each(|home| home.refuse_to_wait());
        self.shared.end(deadline)
    }
}

impl Shared {
    fn end(&self, deadline: Duration) -> Remains {
        let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Remains::default();
        };
        let remains = shutdown::shut_down(&self.loops, &self.workers, &ended, deadline);
        drop(self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(Running);
        remains
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The right to be the one host.
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

/// What a loop has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStats {
    /// Tasks begun.
    pub tasks: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// Times that the loop has taken the interpreter lock.
    pub locks: u64,
    /// Times that the loop was woken for new tasks.
    pub wakeups: u64,
    /// Tasks that wait to be begun, about.
    pub queued: usize,
    /// Tasks that have begun and wait for something.
    pub waiting: usize,
    /// Namespaces in use.
    pub namespaces: usize,
    /// Functions that run on other threads, or wait for one.
    pub on_workers: usize,
    /// Whether it sleeps, having nothing to do.
    pub asleep: bool,
}

impl HostStats {
    fn of(home: &LoopShared) -> HostStats {
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
