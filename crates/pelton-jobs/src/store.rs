//! What a store must do: answer requests, and ring when jobs may be ready.
//!
//! A request either happens as a whole or not at all. All rules about jobs (order, leases, limits) are the store's; workers only
//! ask. The in-process and the file store share one implementation, the [`Ledger`](crate::ledger::Ledger); that of Redis is a
//! set of scripts which do the same.

use std::rc::Rc;
use std::time::Duration;

use pelton::Reactor;
use serde::{Deserialize, Serialize};

use crate::{Error, Job, JobId, Priority};

/// Keeps jobs.
pub(crate) trait Store: 'static {
    /// Answers a request, never before this returns.
    fn ask(&self, reactor: &mut Reactor, request: Request, then: Then);

    /// Calls `ring` when jobs of the queue may be ready, until the returned value is dropped. It may call too often, and it
    /// may miss some if a connection ends: workers ask anyway at each heartbeat.
    fn listen(
        &self,
        reactor: &mut Reactor,
        queue: &str,
        heartbeat: Duration,
        ring: Ring,
    ) -> Result<Rc<dyn Listening>, Error>;
}

/// A worker that listens. A ring may wake only one worker of many, so a worker that has no room must not keep it to itself.
pub(crate) trait Listening {
    /// The worker has room, and waits.
    fn wait(&self, reactor: &mut Reactor);

    /// The worker was rung, and has no room.
    fn pass_on(&self, reactor: &mut Reactor);
}

/// Called with the answer of a store.
pub(crate) type Then = Box<dyn FnOnce(&mut Reactor, Result<Response, Error>)>;

/// Called when jobs may be ready.
pub(crate) type Ring = Rc<dyn Fn(&mut Reactor)>;

/// What can be asked of a store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Answered by `Enqueued`. Asking twice with one identifier enqueues once, as long as the job is known.
    Enqueue { queue: String, id: JobId, job: Job },
    /// Answered by `Taken`.
    Take(Take),
    /// Answered by `Finished`.
    Finish { queue: String, id: JobId, fence: u64, outcome: Outcome },
    /// Prolongs leases. Answered by `Renewed`, in the same order.
    Renew { queue: String, worker: String, jobs: Vec<(JobId, u64)>, lease: u64 },
    /// Answered by `Finished`.
    Progress { queue: String, id: JobId, fence: u64, progress: Vec<u8> },
    /// Answered by `Cancelled`.
    Cancel { queue: String, id: JobId },
    /// Answered by `Count`: 1 if the job was in the dead-letter list. Without an identifier, all of the list.
    Requeue { queue: String, id: Option<JobId> },
    /// Removes jobs in this state, except running ones. Answered by `Count`.
    Purge { queue: String, state: State },
    /// Sets or removes a repeated job. Answered by `Count`: 1 if something changed.
    Repeat { queue: String, name: String, every: u64, job: Option<Job> },
    /// Answered by `Count`.
    Configure { queue: String, limits: Limits },
    /// A worker leaves. Others are told if jobs are ready. Answered by `Count`.
    Leave { queue: String, worker: String },
    /// Answered by `Info`.
    Inspect { queue: String, id: JobId },
    /// Answered by `List`.
    List { queue: String, state: State, skip: u64, count: u64 },
    /// Answered by `Stats`.
    Stats { queue: String },
    /// Answered by `Queues`.
    Queues,
    /// The process that held all leases is gone. Answered by `Count`.
    Recover,
}

/// Asks for jobs to run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Take {
    pub(crate) queue: String,
    pub(crate) worker: String,
    pub(crate) count: u64,
    /// Milliseconds.
    pub(crate) lease: u64,
    /// Look for jobs whose lease is over.
    pub(crate) sweep: bool,
    /// The jobs that the worker knows to have. Others that the store has given it are given again: their answer was lost.
    pub(crate) known: Option<Vec<JobId>>,
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done(Vec<u8>),
    /// Try again after these milliseconds.
    Retry(u64, String),
    /// Never again.
    Dead(String),
    /// Try again at once, and do not count this attempt.
    Released,
}

/// What a store answers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Response {
    Enqueued(Enqueued),
    Taken(Taken),
    Finished(Finished),
    Renewed(Vec<Held>),
    Cancelled(Cancelled),
    Count(u64),
    Info(Option<Box<JobInfo>>),
    List(Vec<JobInfo>),
    Stats(Box<QueueStats>),
    Queues(Vec<String>),
}

/// The answer to [`Jobs::enqueue`](crate::Jobs::enqueue).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enqueued {
    /// The job, or the one that has its unique key.
    pub id: JobId,
    /// Whether the job is new. Otherwise, an unfinished one has its unique key.
    pub new: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) jobs: Vec<TakenJob>,
    /// After how many milliseconds to ask again, even if nothing rings.
    pub(crate) again: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TakenJob {
    pub(crate) id: JobId,
    pub(crate) payload: Vec<u8>,
    pub(crate) key: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) retry: Retry,
    pub(crate) progress: Vec<u8>,
}

use crate::Retry;

/// Whether the end of a run counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finished {
    Counted,
    /// The lease was over, and the job was taken by another, or is gone.
    Stale,
}

/// The state of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    Yes,
    /// The job should be cancelled.
    Cancel,
    Lost,
}

/// The answer to [`Jobs::cancel`](crate::Jobs::cancel).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// The job will not run.
    Yes,
    /// The job is running. Its worker hears of it at its next heartbeat, and the job is not tried again.
    Requested,
    /// There is no such job, or it is finished.
    Unknown,
}

/// The state of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum State {
    /// It can be run.
    Ready,
    /// An earlier job of its key is unfinished.
    Blocked,
    /// It waits for its time: it was delayed, or has failed.
    Delayed,
    /// A worker has it.
    Running,
    /// It is in the dead-letter list.
    Dead,
    /// It is done, and its result is kept for a while.
    Done,
}

impl State {
    /// Every state.
    pub const ALL: [State; 6] =
        [State::Ready, State::Blocked, State::Delayed, State::Running, State::Dead, State::Done];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Blocked => "blocked",
            State::Delayed => "delayed",
            State::Running => "running",
            State::Dead => "dead",
            State::Done => "done",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for State {
    type Err = Error;

    fn from_str(name: &str) -> Result<State, Error> {
        let found = State::ALL.into_iter().find(|state| state.name() == name);
        found.ok_or_else(|| Error::BadJob("a state is one of ready, blocked, delayed, running, dead and done".into()))
    }
}

/// Limits of a queue, for all its workers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// How many jobs may run at the same time.
    pub concurrency: Option<u64>,
    /// How many jobs may start within this many milliseconds. As many may start at once; after that, they are spread evenly.
    pub rate: Option<(u64, u64)>,
    /// How many unfinished jobs the queue may hold. More are [refused](Error::Full).
    pub most: Option<u64>,
    /// No job is started.
    pub paused: bool,
}

/// What is known about a job.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Its key.
    pub key: Option<String>,
    /// Its priority.
    pub priority: Priority,
    /// How often it was tried.
    pub attempt: u32,
    /// How often it is tried at most.
    pub attempts: u32,
    /// When it was enqueued, in milliseconds since 1970, by the clock of the store.
    pub enqueued: u64,
    /// When it is due, if it is delayed.
    pub due: Option<u64>,
    /// The worker that has it, if it is running.
    pub worker: Option<String>,
    /// The number of its last run, if there was one. See [`Run::fence`](crate::Run::fence).
    pub fence: u64,
    /// Why it failed the last time.
    pub error: Option<String>,
    /// What its handler reported last.
    pub progress: Vec<u8>,
    /// Its result, if it is done.
    pub result: Option<Vec<u8>>,
}

/// The statistics of a queue. Totals count since the queue exists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Jobs that can be run.
    pub ready: u64,
    /// Jobs that wait for an earlier one of their key.
    pub blocked: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Jobs that are running.
    pub running: u64,
    /// Jobs in the dead-letter list.
    pub dead: u64,
    /// For how many milliseconds the oldest ready job has been ready.
    pub oldest: u64,
    /// Jobs that were enqueued.
    pub enqueued: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that were moved to the dead-letter list.
    pub buried: u64,
    /// Jobs that were taken over because their lease was over.
    pub taken_over: u64,
    /// Ends of runs that came too late and did not count.
    pub stale: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// The limits.
    pub limits: Limits,
}
