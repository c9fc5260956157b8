//! `pelton jobs`: enqueues jobs, works them off with a command, and looks at them.
//!
//! `work.rs` runs a command per job, `metrics.rs` reports queues, `show.rs` prints jobs, and `top.rs` is the live table.

mod metrics;
mod show;
mod top;
mod work;

use std::io::{self, Read};
use std::time::Duration;

use clap::{Args, Subcommand};
use pelton::{EventLoop, Promise, Reactor, Rejected};
use pelton_jobs::{Cancelled, Error, Job, JobId, Jobs, Limits, Priority, Retry, State};

use crate::units;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

/// The store and the queue that most actions are about.
#[derive(Args)]
struct Queue {
    /// Where the jobs are: file:/directory, redis://host, rediss://host, unix:///path, redis+sentinel://host/name
    #[arg(value_name = "STORE")]
    store: String,

    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    queue: String,
}

#[derive(Subcommand)]
enum Action {
    /// Enqueues a job, and prints its identifier
    Enqueue(Box<EnqueueOptions>),
    /// Works off a queue by running a command for each job.
    ///
    /// The payload is the command's standard input. These variables tell about the job: PELTON_JOB_ID, PELTON_JOB_QUEUE,
    /// PELTON_JOB_KEY, PELTON_JOB_ATTEMPT, and PELTON_JOB_FENCE, a number that grows with each run: effects of an overtaken run can
    /// be recognised by it. The output is the job's result.
    ///
    /// Exit codes of the command: 0 the job is done; 65 it is rejected, and goes to the dead-letter list; others, and signals: it is
    /// tried again later. A job that is cancelled, or whose lease is over, has its command killed.
    ///
    /// SIGTERM and SIGINT finish the running commands and exit; the second time they are killed, and their jobs run elsewhere.
    #[command(verbatim_doc_comment)]
    Work(Box<work::Options>),
    /// Lists queues, or the jobs of one
    List {
        /// Where the jobs are
        #[arg(value_name = "STORE")]
        store: String,
        /// Name of the queue; without it, all queues are listed
        #[arg(value_name = "QUEUE")]
        queue: Option<String>,
        /// State of the jobs: ready, blocked, delayed, running, dead, done
        #[arg(long, value_name = "STATE", default_value = "ready", requires = "queue")]
        state: State,
        /// How many jobs at most
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        count: u64,
        /// How many jobs to leave out
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        skip: u64,
        /// Prints a JSON document per line
        #[arg(long)]
        json: bool,
    },
    /// Prints everything that is known about a job
    Show {
        #[command(flatten)]
        queue: Queue,
        /// Identifier of the job
        #[arg(value_name = "ID")]
        id: JobId,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Brings jobs back from the dead-letter list
    Requeue {
        #[command(flatten)]
        queue: Queue,
        /// Identifier of the job
        #[arg(value_name = "ID", required_unless_present = "all")]
        id: Option<JobId>,
        /// All jobs of the list
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Cancels a job: one that is running has its command killed
    Cancel {
        #[command(flatten)]
        queue: Queue,
        /// Identifier of the job
        #[arg(value_name = "ID")]
        id: JobId,
    },
    /// Removes all jobs in a state
    Purge {
        #[command(flatten)]
        queue: Queue,
        /// State of the jobs: ready, blocked, delayed, dead, done
        #[arg(long, value_name = "STATE")]
        state: State,
    },
    /// Sets the limits of a queue, for all its workers together. What is not given has no limit
    Limit {
        #[command(flatten)]
        queue: Queue,
        /// How many jobs run at the same time
        #[arg(long, value_name = "NUMBER")]
        concurrency: Option<u64>,
        /// How many jobs start per second
        #[arg(long, value_name = "NUMBER")]
        rate: Option<u64>,
        /// How many unfinished jobs the queue holds; more are refused
        #[arg(long, value_name = "NUMBER")]
        most: Option<u64>,
        /// Starts no job
        #[arg(long)]
        pause: bool,
    },
    /// Shows a live table of all queues
    Top(top::Options),
}

#[derive(Args)]
struct EnqueueOptions {
    #[command(flatten)]
    queue: Queue,

    /// Payload; `-` or nothing reads it from standard input
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,

    /// Jobs of one key run one at a time, in order
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Does nothing if an unfinished job has the same unique key
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,

    /// Priority: urgent, high, normal, low
    #[arg(long, value_name = "PRIORITY", default_value = "normal")]
    priority: Priority,

    /// Runs the job this much later
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    delay: Duration,

    /// How often the job is tried
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,

    /// Wait after the first failure; it doubles each time, up to an hour
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    first_wait: Duration,

    /// How long the result is kept
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    keep_result: Duration,
}

/// Why the command failed.
pub enum Failure {
    Usage(String),
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::BadUrl(_) | Error::Config(_) | Error::BadJob(_) => Failure::Usage(error.to_string()),
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl From<pelton::Error> for Failure {
    fn from(error: pelton::Error) -> Failure {
        match error {
            pelton::Error::UnknownEngine(_) => Failure::Usage(format!("{}: {error}", pelton::ENGINE_VARIABLE)),
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Other(format!("write to standard output: {error}"))
    }
}

/// Runs an action, and returns the exit code.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()> + Clone + 'static) -> Result<u8, Failure> {
    let mut reactor = Reactor::new()?;
    match &options.action {
        Action::Work(options) => return work::run(reactor, options, say),
        Action::Top(options) => return top::run(reactor, options, say),
        Action::Enqueue(options) => return enqueue(&mut reactor, options, &say),
        Action::List { store, queue: None, json, .. } => {
            let jobs = Jobs::open(&mut reactor, store)?;
            let queues = metrics::of_all(&mut reactor, &jobs)?;
            say(&if *json { show::queues_as_json(&queues) } else { top::table(&queues, None) })?;
        }
        Action::List { store, queue: Some(queue), state, count, skip, json } => {
            let jobs = Jobs::open(&mut reactor, store)?;
            let list = wait(&mut reactor, |reactor| jobs.list(reactor, queue, *state, *skip, *count))?;
            say(&if *json { list.iter().map(show::as_json).collect() } else { show::list(&list) })?;
        }
        Action::Show { queue, id, json } => {
            let jobs = Jobs::open(&mut reactor, &queue.store)?;
            let Some(info) = wait(&mut reactor, |reactor| jobs.inspect(reactor, &queue.queue, id))? else {
                return Err(Failure::Other(format!("no job {id} in this queue")));
            };
            say(&if *json { show::as_json(&info) } else { show::details(&info) })?;
        }
        Action::Requeue { queue, id, .. } => {
            let jobs = Jobs::open(&mut reactor, &queue.store)?;
            let count = wait(&mut reactor, |reactor| jobs.requeue(reactor, &queue.queue, id.as_ref()))?;
            if let (Some(id), 0) = (id, count) {
                return Err(Failure::Other(format!("{id} is not in the dead-letter list of this queue")));
            }
            say(&format!("{count} brought back\n"))?;
        }
        Action::Cancel { queue, id } => {
            let jobs = Jobs::open(&mut reactor, &queue.store)?;
            say(match wait(&mut reactor, |reactor| jobs.cancel(reactor, &queue.queue, id))? {
                Cancelled::Yes => "cancelled\n",
                Cancelled::Requested => "running; its worker will stop it\n",
                Cancelled::Unknown => return Err(Failure::Other(format!("no unfinished job {id} in this queue"))),
            })?;
        }
        Action::Purge { queue, state } => {
            if *state == State::Running {
                return Err(Failure::Usage("running jobs cannot be purged; cancel them".into()));
            }
            let jobs = Jobs::open(&mut reactor, &queue.store)?;
            let count = wait(&mut reactor, |reactor| jobs.purge(reactor, &queue.queue, *state))?;
            say(&format!("{count} removed\n"))?;
        }
        Action::Limit { queue, concurrency, rate, most, pause } => {
            let jobs = Jobs::open(&mut reactor, &queue.store)?;
            let rate = rate.map(|rate| (rate, 1000));
            let limits = Limits { concurrency: *concurrency, rate, most: *most, paused: *pause };
            wait(&mut reactor, |reactor| jobs.configure(reactor, &queue.queue, limits))?;
        }
    }
    Ok(0)
}

fn enqueue(
    reactor: &mut EventLoop,
    options: &EnqueueOptions,
    say: impl Fn(&str) -> io::Result<()>,
) -> Result<u8, Failure> {
    let payload = match options.payload.as_deref() {
        Some("-") | None => {
            let mut bytes = Vec::new();
            let most = pelton_jobs::PAYLOAD_LIMIT as u64 + 1;
            let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
            read.map_err(|error| Failure::Other(format!("read standard input: {error}")))?;
            bytes
        }
        Some(text) => text.as_bytes().to_vec(),
    };
    let retry = Retry::times(options.attempts).first_wait(options.first_wait);
    let mut job = Job::new(payload).priority(options.priority).retry(retry).keep_result(options.keep_result);
    if let Some(key) = &options.key {
        job = job.key(key);
    }
    if let Some(unique) = &options.unique {
        job = job.unique(unique);
    }
    if !options.delay.is_zero() {
        job = job.delay(options.delay);
    }
    let jobs = Jobs::open(reactor, &options.queue.store)?;
    let enqueued = wait(reactor, |reactor| jobs.enqueue(reactor, &options.queue.queue, job))?;
    say(&format!("{}{}\n", enqueued.id, if enqueued.new { "" } else { " (was there already)" }))?;
    Ok(0)
}

/// Runs the loop until a promise is settled.
fn wait<T: 'static>(
    reactor: &mut EventLoop,
    ask: impl FnOnce(&mut Reactor) -> Promise<T, Error>,
) -> Result<T, Failure> {
    let promise = ask(reactor);
    match reactor.block_on(promise)? {
        Ok(value) => Ok(value),
        Err(Rejected::Failed(error)) => Err(error.into()),
        Err(_) => Err(Error::Closed.into()),
    }
}
