//! Configuration of a host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Stall, StartError};

/// Default maximum number of tasks queued for a loop.
const QUEUE_BOUND: usize = 1 << 20;
/// Default number of tasks per acquisition of the interpreter lock.
const BATCH: usize = 64;
/// Default number of threads for blocking functions.
const WORKERS: usize = 8;
/// The usual stack size of Python's main thread, which its limits for recursion in C assume.
const STACK: usize = 8 << 20;
/// The minimum stack size, in bytes. With less, Python cannot import anything.
const LEAST_STACK: usize = 256 << 10;
/// Callbacks that take longer than this are reported by default.
const STALL: Duration = Duration::from_secs(1);

pub(crate) type OnStall = Arc<dyn Fn(&Stall) + Send + Sync>;

/// Configuration of a [`Host`](super::Host).
///
/// ```no_run
/// use pelton_python::host::{Config, Host};
///
/// let host = Host::start(Config::new().environment("/srv/app/.venv").path("/srv/app").loops(2))?;
/// # Ok::<(), pelton_python::host::StartError>(())
/// ```
#[derive(Clone)]
#[must_use = "a configuration has no effect until it is passed to `Host::start`"]
pub struct Config {
    pub(crate) environment: Option<PathBuf>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) arguments: Vec<String>,
    pub(crate) loops: usize,
    pub(crate) queue_bound: usize,
    pub(crate) batch: usize,
    pub(crate) spin: Duration,
    pub(crate) workers: usize,
    pub(crate) stack: usize,
    pub(crate) stall: Duration,
    pub(crate) on_stall: Option<OnStall>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            environment: None,
            paths: Vec::new(),
            arguments: vec![String::new()],
            loops: 1,
            queue_bound: QUEUE_BOUND,
            batch: BATCH,
            spin: Duration::ZERO,
            workers: WORKERS,
            stack: STACK,
            stall: STALL,
            on_stall: None,
        }
    }
}

impl Config {
    /// Creates the default configuration: one loop, no virtual environment, Python's own `sys.path`.
    pub fn new() -> Config {
        Config::default()
    }

    /// Uses the packages of a virtual environment. It must be for the Python that the program is linked with.
    pub fn environment(mut self, directory: impl Into<PathBuf>) -> Config {
        self.environment = Some(directory.into());
        self
    }

    /// Adds a directory to the start of `sys.path`, after those added before.
    pub fn path(mut self, directory: impl Into<PathBuf>) -> Config {
        self.paths.push(directory.into());
        self
    }

    /// Sets `sys.argv`, starting with the program's name.
    pub fn arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Config {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the number of loops, each on its own thread; the default is 1. All tasks submitted by a thread go to
    /// the same loop.
    ///
    /// Because of the interpreter lock, more loops do not make Python faster, but a blocking callback then blocks
    /// only one of them.
    pub fn loops(mut self, loops: usize) -> Config {
        self.loops = loops;
        self
    }

    /// Sets how many tasks may be queued for a loop before more are refused; the default is about a million.
    pub fn queue_bound(mut self, tasks: usize) -> Config {
        self.queue_bound = tasks;
        self
    }

    /// Sets how many tasks a loop starts in one turn; the default is 64.
    pub fn batch(mut self, tasks: usize) -> Config {
        self.batch = tasks;
        self
    }

    /// Sets how long a loop spins for new tasks before it sleeps, if spinning was successful last time; the default
    /// is not to spin. Spinning uses processor time and saves the latency of a wake-up.
    pub fn spin(mut self, time: Duration) -> Config {
        self.spin = time;
        self
    }

    /// Sets the maximum number of threads for [blocking functions](super::Call::on_worker); the default is 8. They
    /// are started on demand.
    pub fn workers(mut self, threads: usize) -> Config {
        self.workers = threads;
        self
    }

    /// Sets the stack size of each thread that calls Python, loops and workers; the default is 8 MiB, as on
    /// Python's main thread. Recursive C code, such as a parser or the `repr` of nested data, crashes the process
    /// when it overflows the stack.
    pub fn stack_size(mut self, bytes: usize) -> Config {
        self.stack = bytes;
        self
    }

    /// Sets the time after which a blocked loop is reported; the default is one second. Zero disables the reports.
    pub fn stall(mut self, time: Duration) -> Config {
        self.stall = time;
        self
    }

    /// Sets a callback for reports of blocked loops. It is called on its own thread, without the interpreter lock.
    /// By default, reports are logged as warnings.
    pub fn on_stall(mut self, report: impl Fn(&Stall) + Send + Sync + 'static) -> Config {
        self.on_stall = Some(Arc::new(report));
        self
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        let problem = match self {
            Config { loops: 0, .. } => "the number of loops must be at least 1",
            Config { batch: 0, .. } => "the batch size must be at least 1",
            Config { queue_bound: 0, .. } => "the queue bound must be at least 1",
            Config { stack: ..LEAST_STACK, .. } => "the stack size must be at least 256 KiB",
            _ => return Ok(()),
        };
        Err(StartError::Setting(problem))
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("environment", &self.environment)
            .field("paths", &self.paths)
            .field("loops", &self.loops)
            .finish_non_exhaustive()
    }
}
