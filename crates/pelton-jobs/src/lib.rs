//! Jobs: work that is done later, at least once, by this process or another, with retries, leases, order and limits.
//!
//! ```
//! use pelton::Reactor;
//! use pelton_jobs::{Failure, Job, Jobs, WorkOptions};
//!
//! let mut reactor = Reactor::new()?;
//! // Or "file:/var/lib/app/jobs", or "redis://localhost".
//! let jobs = Jobs::open(&mut reactor, "memory:")?;
//! jobs.work_async(&mut reactor, WorkOptions::new("mail"), |run| async move {
//!     println!("to {}", std::str::from_utf8(run.payload())?);
//!     pelton::task::spawn(async {}).await.ok();
//!     Ok::<_, Failure>(b"sent".to_vec())
//! })?;
//! let job = Job::new("ana@example.org").key("ana").keep_result(std::time::Duration::from_secs(60));
//! let sent = jobs.enqueue(&mut reactor, "mail", job);
//! let sent = reactor.block_on(sent)??;
//! assert!(sent.new);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to … | use |
//! |---|---|
//! | keep jobs in memory, in a file, on Redis | [`Jobs::open`] with `memory:`, `file:/directory`, `redis://host` |
//! | share jobs in memory among loops | [`Memory`], [`Jobs::on`] |
//! | enqueue: at once, later, at a time, one per key | [`Jobs::enqueue`], [`Job`] |
//! | enqueue again and again | [`Jobs::repeat`] |
//! | enqueue from other threads | [`Jobs::sender`] |
//! | run jobs on the loop, as tasks, on a lane, a pool, an actor | [`Jobs::work`], [`Jobs::work_async`], [`Jobs::work_on_lane`], [`Jobs::work_on_pool`], [`Jobs::work_on_actor`] |
//! | limit a queue | [`Jobs::configure`] |
//! | look at jobs, cancel them, bring dead ones back | [`Jobs::inspect`], [`Jobs::list`], [`Jobs::cancel`], [`Jobs::requeue`], [`Jobs::stats`] |
//!
//! A job runs at least once. It runs again if its worker dies or loses its lease before the store knows that it is done, so its
//! effects must bear that: see [`Run::fence`]. `docs/many-machines.md` lists what each store guarantees under which fault.

#![forbid(unsafe_code)]

mod bells;
mod error;
mod file;
mod job;
mod jobs;
mod ledger;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod run;
mod store;
mod worker;

pub use error::Error;
pub use file::{FileOptions, SyncPolicy};
pub use job::{Job, JobId, NAME_LIMIT, PAYLOAD_LIMIT, Priority, Retry};
pub use jobs::{JobSender, Jobs};
pub use memory::Memory;
pub use run::{Failure, Run};
pub use store::{Cancelled, Enqueued, JobInfo, Limits, QueueStats, State};
pub use worker::{WorkOptions, Worker, WorkerStats};
