//! Requests as arguments of scripts, and their answers as responses. Nothing that a server answers is trusted.

use std::collections::HashMap;

use bytes::Bytes;
use pelton_redis::{Command, FromValue, Value};

use crate::job::Start;
use crate::store::{
    Cancelled, Enqueued, Finished, Held, JobInfo, Limits, Outcome, QueueStats, Request, Response, State, Taken,
    TakenJob,
};
use crate::{Error, Job, JobId, PAYLOAD_LIMIT, Priority, Retry};

/// Returns the prefix of all keys of a queue. The braces keep them together in a cluster.
pub(super) fn prefix(queue: &str) -> String {
    format!("pelton:jobs:{{{queue}}}:")
}

impl Request {
    pub(super) fn queue(&self) -> &str {
        match self {
            Request::Enqueue { queue, .. }
            | Request::Take(crate::store::Take { queue, .. })
            | Request::Finish { queue, .. }
            | Request::Renew { queue, .. }
            | Request::Progress { queue, .. }
            | Request::Cancel { queue, .. }
            | Request::Requeue { queue, .. }
            | Request::Purge { queue, .. }
            | Request::Repeat { queue, .. }
            | Request::Configure { queue, .. }
            | Request::Leave { queue, .. }
            | Request::Inspect { queue, .. }
            | Request::List { queue, .. }
            | Request::Stats { queue } => queue,
            Request::Queues | Request::Recover => "",
        }
    }

    /// Returns the command that runs the script with this hash.
    pub(super) fn command(&self, hash: &str) -> Command {
        let command = Command::new("EVALSHA").arg(hash).arg(1).arg(prefix(self.queue()));
        let command = match self {
            Request::Enqueue { id, job, .. } => with_job(command.arg(&id.0), job),
            Request::Take(take) => {
                let command = command.arg(&take.worker).arg(take.count).arg(take.lease);
                let command = command.arg(u8::from(take.sweep)).arg(u8::from(take.known.is_some()));
                // Not idempotent: the worker asks again with what it knows.
                return command.args(take.known.iter().flatten().map(|id| id.as_str()));
            }
            Request::Finish { id, fence, outcome, .. } => {
                let command = command.arg(&id.0).arg(*fence);
                match outcome {
                    Outcome::Done(result) => command.arg("done").arg(result),
                    Outcome::Retry(wait, why) => command.arg("retry").arg(why).arg(*wait),
                    Outcome::Dead(why) => command.arg("dead").arg(why),
                    Outcome::Released => command.arg("released").arg(""),
                }
            }
            Request::Renew { worker, jobs, .. } => {
                let mut command = command.arg(worker);
                for (id, fence) in jobs {
                    command = command.arg(&id.0).arg(*fence);
                }
                command
            }
            Request::Progress { id, fence, progress, .. } => command.arg(&id.0).arg(*fence).arg(progress),
            Request::Cancel { id, .. } | Request::Inspect { id, .. } => command.arg(&id.0),
            Request::Requeue { id, .. } => command.arg(id.as_ref().map_or("", JobId::as_str)),
            Request::Purge { state, .. } => command.arg(state.name()),
            Request::Repeat { name, every, job, .. } => match job {
                Some(job) => with_job(command.arg(name).arg(*every), job),
                None => command.arg(name).arg(0),
            },
            Request::Configure { limits, .. } => {
                let (count, period) = limits.rate.unwrap_or((0, 0));
                let command = command.arg(limits.concurrency.unwrap_or(0)).arg(count).arg(period);
                command.arg(limits.most.unwrap_or(0)).arg(u8::from(limits.paused))
            }
            Request::Leave { worker, .. } => command.arg(worker),
            Request::List { state, skip, count, .. } => command.arg(state.name()).arg(*skip).arg(*count),
            Request::Stats { .. } | Request::Queues | Request::Recover => command,
        };
        command.idempotent()
    }

    /// Reads the answer of the script.
    pub(super) fn response(&self, value: Value) -> Result<Response, Error> {
        let shown = value.kind();
        self.read(value)
            .ok_or_else(|| Error::Nonsense { request: self.name(), found: format!("{shown} that makes no sense") })
    }

    fn read(&self, value: Value) -> Option<Response> {
        Some(match self {
            Request::Enqueue { .. } => {
                let [id, new] = value.into_elements()?.try_into().ok()?;
                Response::Enqueued(Enqueued { id: job_id(id)?, new: number(new)? == 1 })
            }
            Request::Take(take) => {
                let [again, jobs] = value.into_elements()?.try_into().ok()?;
                let again = i64::from_value(again).ok()?;
                let jobs: Option<Vec<TakenJob>> = jobs.into_elements()?.into_iter().map(taken_job).collect();
                // More than was asked for would not be run.
                let jobs = jobs.filter(|jobs| jobs.len() as u64 <= take.count)?;
                Response::Taken(Taken { jobs, again: u64::try_from(again).ok() })
            }
            Request::Finish { .. } | Request::Progress { .. } => Response::Finished(match number(value)? {
                0 => Finished::Stale,
                1 => Finished::Counted,
                _ => return None,
            }),
            Request::Renew { jobs, .. } => {
                let held = |value| match number(value)? {
                    0 => Some(Held::Lost),
                    1 => Some(Held::Yes),
                    2 => Some(Held::Cancel),
                    _ => None,
                };
                let held: Option<Vec<Held>> = value.into_elements()?.into_iter().map(held).collect();
                Response::Renewed(held.filter(|held| held.len() == jobs.len())?)
            }
            Request::Cancel { .. } => Response::Cancelled(match number(value)? {
                0 => Cancelled::Yes,
                1 => Cancelled::Requested,
                2 => Cancelled::Unknown,
                _ => return None,
            }),
            Request::Requeue { .. }
            | Request::Purge { .. }
            | Request::Repeat { .. }
            | Request::Configure { .. }
            | Request::Leave { .. } => Response::Count(number(value)?),
            Request::Inspect { id, .. } => {
                let fields = value.into_pairs()?;
                Response::Info(if fields.is_empty() { None } else { Some(Box::new(info(id.clone(), fields)?)) })
            }
            Request::List { .. } => {
                let mut list = Vec::new();
                for element in value.into_elements()? {
                    let [id, fields] = element.into_elements()?.try_into().ok()?;
                    let (id, fields) = (job_id(id)?, fields.into_pairs()?);
                    // A result whose time is over.
                    if !fields.is_empty() {
                        list.push(info(id, fields)?);
                    }
                }
                Response::List(list)
            }
            Request::Stats { .. } => Response::Stats(Box::new(stats(value)?)),
            Request::Queues | Request::Recover => {
                let names: Option<Vec<String>> =
                    value.into_elements()?.into_iter().map(|name| String::from_value(name).ok()).collect();
                let mut names = names?;
                names.sort();
                Response::Queues(names)
            }
        })
    }
}

fn with_job(command: Command, job: &Job) -> Command {
    let (start, time) = match job.start {
        Start::Now => ("now", 0),
        Start::In(delay) => ("in", delay),
        Start::At(time) => ("at", time),
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let command = command.arg(&job.payload).arg(text(&job.key)).arg(text(&job.unique)).arg(job.priority as u8);
    let Retry { attempts, first, most } = job.retry;
    command.arg(start).arg(time).arg(attempts).arg(first).arg(most).arg(job.keep)
}

fn number(value: Value) -> Option<u64> {
    u64::from_value(value).ok()
}

fn job_id(value: Value) -> Option<JobId> {
    String::from_value(value).ok()?.parse().ok()
}

fn payload(value: Value) -> Option<Vec<u8>> {
    Bytes::from_value(value).ok().filter(|bytes| bytes.len() <= PAYLOAD_LIMIT).map(Into::into)
}

fn taken_job(value: Value) -> Option<TakenJob> {
    let [id, bytes, key, attempt, fence, attempts, first, most, progress] = value.into_elements()?.try_into().ok()?;
    let retry = Retry { attempts: number(attempts)?.try_into().ok()?, first: number(first)?, most: number(most)? };
    Some(TakenJob {
        id: job_id(id)?,
        payload: payload(bytes)?,
        key: Some(String::from_value(key).ok()?).filter(|key| !key.is_empty()),
        attempt: number(attempt)?.try_into().ok()?,
        fence: number(fence)?,
        retry,
        progress: payload(progress)?,
    })
}

fn info(id: JobId, pairs: Vec<(Value, Value)>) -> Option<JobInfo> {
    let mut fields = HashMap::new();
    for (name, value) in pairs {
        fields.insert(String::from_value(name).ok()?, value);
    }
    let mut text = |name: &str| match fields.remove(name) {
        Some(value) => String::from_value(value).ok().map(Some),
        None => Some(None),
    };
    let state: State = text("st")??.parse().ok()?;
    let (key, worker, error) = (text("k")?, text("w")?, text("err")?);
    let mut number_or_zero = |name: &str| fields.remove(name).map_or(Some(0), number);
    let priority = *Priority::ALL.get(usize::try_from(number_or_zero("pr")?).ok()?)?;
    let (attempt, attempts) = (number_or_zero("a")?, number_or_zero("m")?);
    let (enqueued, fence, due) = (number_or_zero("e")?, number_or_zero("f")?, number_or_zero("due")?);
    let mut bytes = |name: &str| match fields.remove(name) {
        Some(value) => payload(value).map(Some),
        None => Some(None),
    };
    Some(JobInfo {
        id,
        state,
        payload: bytes("p")??,
        key,
        priority,
        attempt: attempt.try_into().ok()?,
        attempts: attempts.try_into().ok()?,
        enqueued,
        due: (state == State::Delayed).then_some(due),
        worker: worker.filter(|_| state == State::Running),
        fence,
        error,
        progress: bytes("g")?.unwrap_or_default(),
        result: bytes("res")?,
    })
}

fn stats(value: Value) -> Option<QueueStats> {
    let numbers: Option<Vec<u64>> = value.into_elements()?.into_iter().map(number).collect();
    let [
        ready,
        blocked,
        delayed,
        running,
        dead,
        oldest,
        enqueued,
        done,
        failed,
        buried,
        taken_over,
        stale,
        cancelled,
        concurrency,
        rate,
        period,
        most,
        paused,
    ] = numbers?.try_into().ok()?;
    let some = |number: u64| Some(number).filter(|number| *number > 0);
    let limits = Limits {
        concurrency: some(concurrency),
        rate: some(rate).map(|rate| (rate, period)),
        most: some(most),
        paused: paused == 1,
    };
    Some(QueueStats {
        ready,
        blocked,
        delayed,
        running,
        dead,
        oldest,
        enqueued,
        done,
        failed,
        buried,
        taken_over,
        stale,
        cancelled,
        limits,
    })
}
