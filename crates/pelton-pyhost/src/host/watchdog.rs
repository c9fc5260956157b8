//! Reports callbacks that block a loop while they run.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::config::OnStall;
use super::interpreter::{self, known};
use super::loops::HostedLoop;

/// Number of checks within the time after which a loop counts as blocked.
const LOOKS: u32 = 4;

/// A blocked loop: some callback has not returned for a while.
#[derive(Clone, Debug)]
pub struct Stall {
    pub(crate) loop_index: usize,
    pub(crate) time: Duration,
    pub(crate) traceback: String,
}

impl Stall {
    /// Returns the number of the loop, from 0.
    pub fn loop_index(&self) -> usize {
        self.loop_index
    }

    /// Returns for how long it has been blocked, at least.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Returns where it is blocked, as Python prints it. Code that never releases the interpreter lock delays this
    /// report until it does.
    pub fn traceback(&self) -> &str {
        &self.traceback
    }
}

/// Checks the loops until it is dropped.
pub(crate) struct Watchdog {
    shared: Arc<Stop>,
}

#[derive(Default)]
struct Stop {
    ended: Mutex<bool>,
    changed: Condvar,
}

struct Watched {
    home: Arc<HostedLoop>,
    activity: u64,
    since: Instant,
    reported: bool,
}

impl Watchdog {
    pub(crate) fn start(
        loops: &[Arc<HostedLoop>],
        after: Duration,
        report: Option<OnStall>,
    ) -> std::io::Result<Option<Watchdog>> {
        if after.is_zero() {
            return Ok(None);
        }
        let shared = Arc::new(Stop::default());
        let mut watched: Vec<Watched> = loops
            .iter()
            .map(|home| Watched { home: home.clone(), activity: 0, since: Instant::now(), reported: false })
            .collect();
        let until = shared.clone();
        std::thread::Builder::new().name("pelton-python-watchdog".to_owned()).spawn(move || {
            while !until.wait(after / LOOKS) {
                for watched in &mut watched {
                    if let Some(stall) = watched.look(after) {
                        tell(&stall, report.as_ref());
                    }
                }
            }
        })?;
        Ok(Some(Watchdog { shared }))
    }
}

impl Stop {
    /// Waits for some time. Returns whether the watchdog should end.
    fn wait(&self, time: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Watched {
    fn look(&mut self, after: Duration) -> Option<Stall> {
        let activity = self.home.activity.load(Ordering::Relaxed);
        if activity != self.activity || self.home.asleep.load(Ordering::Relaxed) {
            (self.activity, self.since, self.reported) = (activity, Instant::now(), false);
            return None;
        }
        let time = self.since.elapsed();
        if time < after || self.reported {
            return None;
        }
        self.reported = true;
        let thread = self.home.executor.thread.load(Ordering::Relaxed);
        let traceback = interpreter::attach(|py| {
            // While this thread waited for the lock, the callback may have returned.
            if self.home.activity.load(Ordering::Relaxed) != activity {
                return None;
            }
            let text = known().stack_of.bind(py).call1((thread,)).and_then(|text| text.extract::<String>());
            Some(text.unwrap_or_default())
        });
        traceback.map(|traceback| Stall { loop_index: self.home.index, time, traceback })
    }
}

fn tell(stall: &Stall, report: Option<&OnStall>) {
    match report {
        Some(report) => report(stall),
        None => tracing::warn!(
            loop_index = stall.loop_index,
            time = ?stall.time,
            "a Python callback blocks its loop:\n{}",
            stall.traceback
        ),
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
    }
}
