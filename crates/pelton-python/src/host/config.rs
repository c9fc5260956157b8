//! How a host is set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Stall, StartError};

/// Tasks that may wait for a loop.
const QUEUE_BOUND: usize = 1 << 20;
/// Tasks per acquisition of the interpreter lock.
const BATCH: usize = 64;
/// Threads for functions that block.
const WORKERS: usize = 8;
/// What Python has on its main thread as a rule, and what its own limits to recursion in C reckon with.
const STACK: usize = 8 << 20;
/// Less than this is not enough for Python to import anything.
const LEAST_STACK: usize = 256 << 10;
/// A callback that takes longer than this is worth a word.
const STALL: Duration = Duration::from_secs(1);

pub(crate) type OnStall = Arc<dyn Fn(&Stall) + Send + Sync>;

/// How a [`Host`](super::Host) is set up.
///
/// ```no_run
/// use pelton_python::host::{Config, Host};
///
/// let host = Host::start(Config::new().environment("/srv/app/.venv").path("/srv/app").loops(2))?;
/// # Ok::<(), pelton_python::host::StartError>(())
/// ```
#[derive(Clone)]
#[must_use = "it is for `Host::start`"]
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
    /// One loop, no virtual environment, `sys.path` as Python has it.
    pub fn new() -> Config {
        Config::default()
    }

    /// Uses the packages of a virtual environment. It must be of the Python that the program is linked with.
    pub fn environment(mut self, directory: impl Into<PathBuf>) -> Config {
        self.environment = Some(directory.into());
        self
    }

    /// Puts a directory into `sys.path`, after those that were put there before it, ahead of everything else.
    pub fn path(mut self, directory: impl Into<PathBuf>) -> Config {
        self.paths.push(directory.into());
        self
    }

    /// What `sys.argv` is to be, the program's name first.
    pub fn arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Config {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// How many loops there are, each on its own thread: 1 unless set. A thread's tasks all go to one of them.
    ///
    /// With an interpreter lock, more loops do not make Python faster; a callback that blocks holds up one of them only.
    pub fn loops(mut self, loops: usize) -> Config {
        self.loops = loops;
        self
    }

    /// How many tasks may wait for a loop before more are refused: about a million unless set.
    pub fn queue_bound(mut self, tasks: usize) -> Config {
        self.queue_bound = tasks;
        self
    }

    /// How many tasks a loop starts in one turn: 64 unless set.
    pub fn batch(mut self, tasks: usize) -> Config {
        self.batch = tasks;
        self
    }

    /// How long a loop looks for new tasks before it sleeps, if that has paid last time: not at all unless set. It takes
    /// processor time, and saves the time that waking up takes.
    pub fn spin(mut self, time: Duration) -> Config {
        self.spin = time;
        self
    }

    /// How many threads there may be for [functions that block](super::Call::on_worker): 8 unless set. They are started when
    /// the first such function is called.
    pub fn workers(mut self, threads: usize) -> Config {
        self.workers = threads;
        self
    }

    /// The size of the stack of each thread that calls Python, loops and workers: 8 MiB unless set, as on Python's main thread. Code
    /// in C that calls itself, as a parser does or `repr` of nested data, ends the whole process where the stack ends.
    pub fn stack_size(mut self, bytes: usize) -> Config {
        self.stack = bytes;
        self
    }

    /// After which time a loop that does not turn is reported: after a second unless set. Zero turns that off.
    pub fn stall(mut self, time: Duration) -> Config {
        self.stall = time;
        self
    }

    /// Whom to tell of a loop that does not turn. It is called on a thread of its own, without the interpreter lock. Otherwise
    /// it is a warning in the log.
    pub fn on_stall(mut self, report: impl Fn(&Stall) + Send + Sync + 'static) -> Config {
        self.on_stall = Some(Arc::new(report));
        self
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        let problem = match self {
            Config { loops: 0, .. } => "a host needs at least one loop",
            Config { batch: 0, .. } => "a batch needs room for at least one task",
            Config { queue_bound: 0, .. } => "a queue needs room for at least one task",
            Config { stack: ..LEAST_STACK, .. } => "a stack of less than 256 KiB is not enough for Python",
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
