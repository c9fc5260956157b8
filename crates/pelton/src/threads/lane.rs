//! Lanes: threads for blocking work, so that the loop does not block.
//!
//! Each lane serves one kind of work, so that one kind does not delay another. Threads start when there is work and end
//! after a while without any.

mod threads;

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use crate::Error;

pub(crate) use threads::{JobId, Threads, Wake, Worker, attempt};

/// A kind of blocking work. Each kind has its own threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lane {
    /// Files and directories: [`fs`](crate::fs).
    Files,
    /// Name lookups: [`resolve`](crate::Reactor::resolve).
    Names,
    /// CPU-bound work.
    Cpu,
    /// Waiting for something else for any length of time, such as file locks or other programs. In another lane, a few
    /// of these could block all threads, perhaps even the work that they wait for.
    Waits,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Lane; 4] = [Lane::Files, Lane::Names, Lane::Cpu, Lane::Waits];

    /// Returns the name used in reports.
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

/// The limits of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneSettings {
    /// The maximum number of threads. 0 means the number of processors.
    pub threads: usize,
    /// How many jobs may wait for a thread. More are refused.
    pub waiting: usize,
    /// How long an idle thread stays alive.
    pub linger: Duration,
}

impl LaneSettings {
    /// The default of the [files](Lane::Files) lane. 4 threads: most reads are served from memory, where more threads
    /// would only contend, and a few keep a disk busy. 16,384 waiting jobs: a large directory can be requested at once,
    /// in less than 2 MiB. Idle threads stay for 10 seconds.
    pub const FILES: LaneSettings = LaneSettings { threads: 4, waiting: 16_384, linger: Duration::from_secs(10) };

    /// The default of the [names](Lane::Names) lane. 4 threads: a lookup that hangs in an unreachable name server
    /// should block few others, and waiting threads cost little. 256 waiting jobs: at a few milliseconds each, one
    /// second of work. Idle threads stay for 10 seconds.
    pub const LOOKUPS: LaneSettings = LaneSettings { threads: 4, waiting: 256, linger: Duration::from_secs(10) };

    /// The default of the [CPU](Lane::Cpu) lane. One thread per processor. 1,024 waiting jobs: at a millisecond each,
    /// one second of work. Idle threads stay for 10 seconds.
    pub const CPU: LaneSettings = LaneSettings { threads: 0, waiting: 1_024, linger: Duration::from_secs(10) };

    /// The default of the [waits](Lane::Waits) lane. 256 threads: each waits for something different, and a sleeping
    /// thread costs a few pages. 256 waiting jobs. Idle threads stay for 1 second, because keeping many gains little.
    pub const WAITS: LaneSettings = LaneSettings { threads: 256, waiting: 256, linger: Duration::from_secs(1) };

    /// Returns the default settings of a lane.
    pub const fn of(lane: Lane) -> LaneSettings {
        match lane {
            Lane::Files => LaneSettings::FILES,
            Lane::Names => LaneSettings::LOOKUPS,
            Lane::Cpu => LaneSettings::CPU,
            Lane::Waits => LaneSettings::WAITS,
        }
    }

    fn most_threads(&self) -> usize {
        // Cached, because asking the system takes longer than many jobs.
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        match self.threads {
            0 => *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)),
            threads => threads,
        }
    }
}

/// The statistics of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LaneStats {
    /// Threads, including idle ones.
    pub threads: usize,
    /// Jobs waiting for a thread.
    pub waiting: usize,
    /// Running jobs.
    pub running: usize,
    /// Finished jobs, including those that panicked.
    pub done: u64,
    /// Refused jobs.
    pub refused: u64,
    /// Jobs that panicked.
    pub panicked: u64,
}

/// Why a lane refused a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// This many jobs are already waiting for a thread. See [`LaneSettings`].
    #[error("the lane is full, with {0} waiting for a thread")]
    Full(usize),
    /// The lane has no thread, and the system could not start one.
    #[error("no thread could be started: {0}")]
    NoThread(#[source] io::Error),
    /// The reactor has stopped or was dropped.
    #[error("the reactor has stopped")]
    Stopped,
    /// The process was forked after the reactor was built, and this is the child. See
    /// [`after_fork`](crate::Reactor::after_fork).
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
