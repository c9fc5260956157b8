//! Lanes: threads for work that blocks, so that the loop does not.
//!
//! A lane is for one kind of work, so that no kind keeps another waiting. Its threads are started when there is something to
//! do and end when there has been nothing for a while.

mod threads;

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use crate::Error;

pub(crate) use threads::{JobId, Threads, Wake, Worker, attempt};

/// What kind of work it is that blocks: each kind has threads of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lane {
    /// Files and directories: [`fs`](crate::fs).
    Files,
    /// Look-ups of names: [`resolve`](crate::Reactor::resolve).
    Names,
    /// Work for a processor.
    Cpu,
    /// What waits for somebody else, for as long as that takes: locks of files, other programs. In another lane, a handful of
    /// these would keep everything from running, perhaps even what they wait for.
    Waits,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Lane; 4] = [Lane::Files, Lane::Names, Lane::Cpu, Lane::Waits];

    /// Its name, as it stands in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Lane::Files => "files",
            Lane::Names => "names",
            Lane::Cpu => "cpu",
            Lane::Waits => "waits",
        }
    }

    const fn thread_name(self) -> &'static str {
        match self {
            Lane::Files => "pelton-files",
            Lane::Names => "pelton-names",
            Lane::Cpu => "pelton-cpu",
            Lane::Waits => "pelton-waits",
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How wide and how long a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneSettings {
    /// How many threads it has at most; 0 for as many as there are processors.
    pub threads: usize,
    /// How much may wait for a thread; more is refused.
    pub waiting: usize,
    /// How long a thread without work stays.
    pub linger: Duration,
}

impl LaneSettings {
    /// What the [files](Lane::Files) lane begins with: 4 threads, since most of what is read is in memory already, where more
    /// would only get in each other's way, and a disk is kept busy by a few; 16,384 that wait, so that a large directory can be
    /// asked for in one go, in less than 2 MiB; and 10 seconds.
    pub const FILES: LaneSettings = LaneSettings { threads: 4, waiting: 16_384, linger: Duration::from_secs(10) };

    /// What [look-ups of names](Lane::Names) begin with: 4 threads, since a look-up that hangs in an unreachable name server
    /// should hold up few others, and threads that wait cost little; 256 that wait, which at a few milliseconds each is a
    /// second's worth; and 10 seconds.
    pub const LOOKUPS: LaneSettings = LaneSettings { threads: 4, waiting: 256, linger: Duration::from_secs(10) };

    /// What the [processor](Lane::Cpu) lane begins with: as many threads as there are processors; 1,024 that wait, which at a
    /// millisecond each is a second's worth; and 10 seconds.
    pub const CPU: LaneSettings = LaneSettings { threads: 0, waiting: 1_024, linger: Duration::from_secs(10) };

    /// What the lane of [what waits](Lane::Waits) begins with: 256 threads, since each waits for something else, and one that
    /// sleeps costs a few pages; 256 that wait for them; and 1 second, since there is little to gain from keeping many.
    pub const WAITS: LaneSettings = LaneSettings { threads: 256, waiting: 256, linger: Duration::from_secs(1) };

    /// What a lane begins with.
    pub const fn of(lane: Lane) -> LaneSettings {
        match lane {
            Lane::Files => LaneSettings::FILES,
            Lane::Names => LaneSettings::LOOKUPS,
            Lane::Cpu => LaneSettings::CPU,
            Lane::Waits => LaneSettings::WAITS,
        }
    }

    fn most_threads(&self) -> usize {
        // Asking the system takes longer than many a job.
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        match self.threads {
            0 => *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)),
            threads => threads,
        }
    }
}

/// What a lane has done, and has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LaneStats {
    /// Its threads, idle ones included.
    pub threads: usize,
    /// How much waits for a thread.
    pub waiting: usize,
    /// How much is being done.
    pub running: usize,
    /// How much has been done, panics included.
    pub done: u64,
    /// How much was refused.
    pub refused: u64,
    /// How much has panicked.
    pub panicked: u64,
}

/// Why a lane did not take something on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// So much waits for a thread already. See [`LaneSettings`].
    #[error("{0} of its kind are waiting for a thread already, and no more may")]
    Full(usize),
    /// There is no thread, and the system would not start one.
    #[error("no thread could be started: {0}")]
    NoThread(#[source] io::Error),
    /// The reactor has stopped, or is gone.
    #[error("the reactor has stopped")]
    Stopped,
    /// The process was forked since the reactor was built, and this is the child. See
    /// [`after_fork`](crate::EventLoop::after_fork).
    #[error("the reactor belongs to the process that forked this one")]
    Forked,
}

impl Refusal {
    pub(crate) fn while_doing(self, doing: String) -> Error {
        match self {
            Refusal::Full(waiting) => Error::LaneFull { doing, waiting },
            Refusal::NoThread(error) => Error::system(doing, error),
            Refusal::Stopped => Error::Stopped,
            Refusal::Forked => Error::Forked,
        }
    }
}
