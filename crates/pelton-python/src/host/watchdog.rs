//! Who blocks a loop, while it does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::config::OnStall;
use super::interpreter::{self, known};
use super::loops::LoopShared;

/// How many times a loop is looked at in the time after which it counts as blocked.
const LOOKS: u32 = 4;

/// A loop that does not turn: some callback has not returned for a while.
#[derive(Clone, Debug)]
pub struct Stall {
    pub(crate) loop_index: usize,
    pub(crate) time: Duration,
    pub(crate) traceback: String,
}

impl Stall {
    /// Which loop it is, counting from 0.
    pub fn loop_index(&self) -> usize {
        self.loop_index
    }

    /// For how long it has been blocked, at least.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Where it is, as Python prints it. Code that holds the interpreter lock all the time delays this report until it lets
    /// go of it.
    pub fn traceback(&self) -> &str {
        &self.traceback
    }
}

/// Looks at the loops until it is dropped.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ended: Mutex<bool>,
    changed: Condvar,
}

struct Watched {
    home: Arc<LoopShared>,
    activity: u64,
    since: Instant,
    reported: bool,
}

impl Watchdog {
    pub(crate) fn start(
        loops: &[Arc<LoopShared>],
        after: Duration,
        report: Option<OnStall>,
    ) -> std::io::Result<Option<Watchdog>> {
        if after.is_zero() {
            return Ok(None);
        }
        let shared = Arc::new(Shared::default());
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

impl Shared {
    /// Waits a while. Says whether it is over.
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
            // By the time that the lock was to be had, it may be over.
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
