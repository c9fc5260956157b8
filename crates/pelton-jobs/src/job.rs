//! What is enqueued: a job and its settings.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The most bytes that a payload or a result may have. Larger values belong into a file or an object store, and their name into
/// the job.
pub const PAYLOAD_LIMIT: usize = 16 << 20;

/// The most bytes that the name of a queue, a key, a unique key or the name of a repeated job may have.
pub const NAME_LIMIT: usize = 255;

/// A job to [enqueue](crate::Jobs::enqueue): bytes for a handler, and when and how to run it.
///
/// ```
/// use pelton_jobs::{Job, Priority, Retry};
/// use std::time::Duration;
///
/// let job = Job::new("welcome ana@example.org")
///     .key("user:7")
///     .unique("welcome:7")
///     .delay(Duration::from_secs(60))
///     .priority(Priority::High)
///     .retry(Retry::times(5).first_wait(Duration::from_secs(2)));
/// # let _ = job;
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[must_use = "a job does nothing until it is enqueued"]
pub struct Job {
    pub(crate) payload: Vec<u8>,
    pub(crate) key: Option<String>,
    pub(crate) unique: Option<String>,
    pub(crate) priority: Priority,
    pub(crate) start: Start,
    pub(crate) retry: Retry,
    /// For how many milliseconds the result is kept.
    pub(crate) keep: u64,
}

/// When a job may run first.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Start {
    Now,
    /// Milliseconds after it was enqueued, by the clock of the store.
    In(u64),
    /// Milliseconds since 1970.
    At(u64),
}

/// Which of several ready jobs is run first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Priority {
    /// Before all others.
    Urgent = 0,
    /// Before normal ones.
    High = 1,
    /// The default.
    #[default]
    Normal = 2,
    /// If there is nothing else to do.
    Low = 3,
}

impl Priority {
    /// Every priority, the most urgent one first.
    pub const ALL: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Urgent => "urgent",
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Priority {
    type Err = Error;

    fn from_str(name: &str) -> Result<Priority, Error> {
        let found = Priority::ALL.into_iter().find(|priority| priority.name() == name);
        found.ok_or_else(|| Error::BadJob("a priority is one of urgent, high, normal and low".into()))
    }
}

/// How often a job is tried, and how long the waits between attempts are. A wait is twice the one before, and varies by a
/// tenth, so that jobs that failed together are not repeated together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retry {
    pub(crate) attempts: u32,
    /// Milliseconds.
    pub(crate) first: u64,
    /// Milliseconds.
    pub(crate) most: u64,
}

impl Default for Retry {
    /// Eight attempts, with waits of 1 second to 1 hour.
    fn default() -> Retry {
        Retry { attempts: 8, first: 1000, most: 3_600_000 }
    }
}

impl Retry {
    /// Tries a job this many times, at least once, and then moves it to the dead-letter list.
    pub fn times(attempts: u32) -> Retry {
        Retry { attempts: attempts.max(1), ..Retry::default() }
    }

    /// Sets the wait after the first failure. By default 1 second.
    #[must_use]
    pub fn first_wait(mut self, wait: Duration) -> Retry {
        self.first = millis(wait);
        self
    }

    /// Sets the longest wait. By default 1 hour.
    #[must_use]
    pub fn longest_wait(mut self, wait: Duration) -> Retry {
        self.most = millis(wait);
        self
    }

    /// Returns the wait after this attempt failed, or `None` if it was the last one.
    pub(crate) fn wait_after(&self, attempt: u32) -> Option<u64> {
        if attempt >= self.attempts {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << attempt.saturating_sub(1).min(40));
        let wait = doubled.min(self.most);
        Some(wait - wait / 20 + fastrand::u64(0..=wait / 10))
    }
}

impl Job {
    /// Makes a job with these bytes for its handler.
    pub fn new(payload: impl Into<Vec<u8>>) -> Job {
        Job {
            payload: payload.into(),
            key: None,
            unique: None,
            priority: Priority::default(),
            start: Start::Now,
            retry: Retry::default(),
            keep: 0,
        }
    }

    /// Runs jobs of this key one at a time, in the order in which they became ready, whichever worker runs them. A job that
    /// waits to be retried keeps those after it waiting. A delayed job takes its place when its delay is over.
    pub fn key(mut self, key: impl Into<String>) -> Job {
        self.key = Some(key.into());
        self
    }

    /// Does not enqueue the job while another one of the queue with the same unique key is unfinished.
    pub fn unique(mut self, unique: impl Into<String>) -> Job {
        self.unique = Some(unique.into());
        self
    }

    /// Runs the job before those with a lower priority. Jobs of one key keep their order.
    pub fn priority(mut self, priority: Priority) -> Job {
        self.priority = priority;
        self
    }

    /// Runs the job this much later, by the clock of the store.
    pub fn delay(mut self, delay: Duration) -> Job {
        // A store counts from the millisecond that has begun, so one more must pass.
        let wait = if delay.is_zero() { 0 } else { millis_up(delay) + 1 };
        self.start = Start::In(wait);
        self
    }

    /// Runs the job at this time, by the clock of the store.
    pub fn at(mut self, time: SystemTime) -> Job {
        self.start = Start::At(time.duration_since(UNIX_EPOCH).map_or(0, millis_up));
        self
    }

    /// Sets how often the job is tried.
    pub fn retry(mut self, retry: Retry) -> Job {
        self.retry = retry;
        self
    }

    /// Keeps the result for this long. By default, nothing remains of a job that is done.
    pub fn keep_result(mut self, time: Duration) -> Job {
        self.keep = millis(time);
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.payload.len() > PAYLOAD_LIMIT {
            let bytes = self.payload.len();
            return Err(Error::BadJob(format!(
                "its payload has {bytes} bytes, and at most {PAYLOAD_LIMIT} are allowed"
            )));
        }
        for (what, name) in [("key", &self.key), ("unique key", &self.unique)] {
            if let Some(name) = name {
                check_name(what, name)?;
            }
        }
        Ok(())
    }
}

/// Without the payload, which may be long or secret.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("bytes", &self.payload.len())
            .field("key", &self.key)
            .field("unique", &self.unique)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// Characters of a bad name that an error shows.
const SHOWN: usize = 40;

/// Checks a name. Control characters would garble lists, and braces have a meaning in keys of Redis.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let bad = |character: char| character.is_control() || character == '{' || character == '}';
    if name.is_empty() || name.len() > NAME_LIMIT || name.contains(bad) {
        let rule = format!("has 1 to {NAME_LIMIT} bytes, without braces and control characters");
        let shown: String = name.chars().take(SHOWN).collect();
        let dots = if shown.len() < name.len() { "…" } else { "" };
        return Err(Error::BadJob(format!("a {what} {rule}, unlike {shown:?}{dots}")));
    }
    Ok(())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    // Far enough in the future, and exact in the numbers of Lua.
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(1 << 50)
}

/// Rounds up, so that nothing is early.
fn millis_up(duration: Duration) -> u64 {
    millis(duration.saturating_add(Duration::from_nanos(999_999)))
}

/// Identifies a job. Unique across queues and machines.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct JobId(pub(crate) String);

impl JobId {
    /// Makes a new identifier: the time, a counter and random bits. Those of one process are in order, which decides between
    /// delayed jobs that are due at the same time.
    pub(crate) fn random() -> JobId {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        JobId(format!("{now:011x}{count:04x}{:012x}", fastrand::u64(..1 << 48)))
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<JobId, Error> {
        check_name("job's identifier", text)?;
        Ok(JobId(text.to_owned()))
    }
}
