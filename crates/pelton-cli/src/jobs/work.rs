//! `pelton jobs work`: runs a command for each job.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use pelton::process::{Command, ProcessError};
use pelton::{Address, EventLoop, Exit, ListenOptions};
use pelton_http::Server;
use pelton_jobs::{Failure as JobFailure, Jobs, Run, WorkOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Failure, Queue, metrics};
use crate::serve::admin::{self, Hosts};
use crate::units;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    queue: Queue,

    /// How many commands run at the same time
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    concurrency: u64,

    /// After this time without a sign of life from this process, another one takes its jobs
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, default_value = "30s")]
    lease: Duration,

    /// How long a command may run; it is then ended, and the job tried again
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    time_limit: Option<Duration>,

    /// How much a command may write; one that writes more is killed
    #[arg(long, value_name = "SIZE", value_parser = units::size_within(0..=16 << 20), default_value = "1m")]
    output_limit: u64,

    /// How long running commands may take to end after a signal
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "30s")]
    drain_time: Duration,

    /// Name of this worker in lists
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Address for /metrics and /health: 127.0.0.1:9090, unix:/path
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Address>,

    /// A name or address, without a port, by which clients may call the admin address besides localhost. May be repeated
    #[arg(long, value_name = "HOST", requires = "admin", value_parser = admin::host_name)]
    admin_host: Vec<String>,

    /// Command to run for each job
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

/// The exit code of a command that rejects its job (`EX_DATAERR`).
const REJECTED: i32 = 65;

/// How long a command may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(5);

pub fn run(mut reactor: EventLoop, options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<u8, Failure> {
    let jobs = Jobs::open(&mut reactor, &options.queue.store)?;
    // A store that cannot be used is an error now. A server that is away is waited for.
    if let Err(error) = super::wait(&mut reactor, |reactor| jobs.ready(reactor)) {
        if options.queue.store.starts_with("file:") {
            return Err(error);
        }
        let (Failure::Usage(why) | Failure::Other(why)) = error;
        tracing::warn!(why, "the store does not answer yet");
    }
    let mut work = WorkOptions::new(&options.queue.queue).lease(options.lease);
    work = work.concurrency(usize::try_from(options.concurrency).unwrap_or(1));
    if let Some(name) = &options.name {
        work = work.name(name);
    }
    let command = Rc::new(Template {
        program: options.command[0].clone(),
        arguments: options.command[1..].to_vec(),
        queue: options.queue.queue.clone(),
        time_limit: options.time_limit,
        output_limit: usize::try_from(options.output_limit).unwrap_or(usize::MAX),
    });
    let worker = jobs.work_async(&mut reactor, work, move |run| {
        let command = command.clone();
        async move { command.run(&run).await }
    })?;
    let draining = Rc::new(Cell::new(false));
    let mut lines = vec![format!("working on {} as {}; press Ctrl-C to stop\n", options.queue.queue, worker.name())];
    if let Some(address) = &options.admin {
        let hosts = match address {
            Address::Tcp(_) => Hosts::LoopbackAnd(options.admin_host.clone()),
            _ => Hosts::Any,
        };
        let server = Server::new(metrics::handler(jobs.clone(), worker.clone(), draining.clone(), hosts));
        let listen = ListenOptions::default();
        let listener = reactor.listen_with(address, &listen, move |_| server.connection())?;
        let bound = reactor.listening_on(listener).map_or_else(|| address.to_string(), |bound| bound.to_string());
        lines.push(format!("metrics and health on {bound}\n"));
    }
    for signal in [SIGINT, SIGTERM] {
        let (draining, deadline) = (draining.clone(), options.drain_time);
        reactor.on_signal(signal, move |reactor, _| {
            if draining.replace(true) {
                reactor.stop();
            } else {
                reactor.drain(deadline);
            }
        })?;
    }
    for line in lines {
        // Work even if nobody can read this.
        let _ = say(&line);
    }
    match reactor.run()? {
        Exit::Drained => Ok(0),
        // Their jobs run elsewhere when the leases are over.
        _ => Ok(4),
    }
}

/// The command, and what is the same for all jobs.
struct Template {
    program: OsString,
    arguments: Vec<OsString>,
    queue: String,
    time_limit: Option<Duration>,
    output_limit: usize,
}

impl Template {
    async fn run(&self, run: &Run) -> Result<Vec<u8>, JobFailure> {
        let mut command = Command::new(&self.program)
            .args(&self.arguments)
            .env("PELTON_JOB_ID", run.id().as_str())
            .env("PELTON_JOB_QUEUE", &self.queue)
            .env("PELTON_JOB_KEY", run.key().unwrap_or_default())
            .env("PELTON_JOB_ATTEMPT", run.attempt().to_string())
            .env("PELTON_JOB_FENCE", run.fence().to_string())
            .input(run.payload().to_vec())
            .output_limit(self.output_limit)
            .process_group()
            .grace(GRACE)
            .kill_on_drop();
        if let Some(limit) = self.time_limit {
            command = command.time_limit(limit);
        }
        let (mut output, mut unwanted) = (pin!(command.run()), pin!(run.unwanted()));
        // Dropping the first one kills the command.
        let output = std::future::poll_fn(|context| match output.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => unwanted.as_mut().poll(context).map(|()| None),
        });
        match output.await {
            None => Err(JobFailure::new("its command was killed: it was cancelled, or its lease was over")),
            Some(Ok(output)) if output.status.success() => Ok(output.stdout),
            Some(Ok(output)) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                let why = format!("{}: {last}", output.status);
                tracing::warn!(job = run.id().as_str(), attempt = run.attempt(), why, "a command failed");
                Err(match output.status.code() {
                    Some(REJECTED) => JobFailure::reject(why),
                    _ => JobFailure::new(why),
                })
            }
            Some(Err(error @ ProcessError::TooMuchOutput { .. })) => Err(JobFailure::reject(error.to_string())),
            Some(Err(error)) => {
                tracing::warn!(job = run.id().as_str(), attempt = run.attempt(), %error, "a command failed");
                Err(JobFailure::new(error.to_string()))
            }
        }
    }
}
