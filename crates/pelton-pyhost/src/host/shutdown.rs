//! Shutdown of a host.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::interpreter;
use super::loop_thread::Ended;
use super::loops::{Control, HostedLoop};
use super::workers::Workers;

/// How long cancelled tasks may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// What was left when a host shut down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remains {
    /// Tasks that were not done at the deadline and were cancelled.
    pub cancelled: usize,
    /// Cancelled tasks that did not end either. Their outcome is that the loop has ended.
    pub abandoned: usize,
    /// The numbers of loops that are blocked in a call that could not be interrupted. Their threads keep running.
    /// Their tasks are included in `abandoned`, and no more of them are started.
    pub stuck: Vec<usize>,
}

impl Remains {
    /// Returns whether everything finished in time.
    pub fn is_clean(&self) -> bool {
        *self == Remains::default()
    }
}

/// Ends the loops: gracefully until the deadline, then by cancelling, then by force.
pub(crate) fn shut_down(
    loops: &[Arc<HostedLoop>],
    workers: &Workers,
    ended: &Receiver<Ended>,
    deadline: Duration,
) -> Remains {
    let mut end =
        Ending { loops, ended, alive: loops.iter().map(|home| home.index).collect(), remains: Remains::default() };
    for home in loops {
        home.closing.store(true, Ordering::Relaxed);
        home.control(Control::Look);
    }
    if !end.wait(deadline) {
        for home in loops {
            home.cancelling.store(true, Ordering::Relaxed);
        }
        let mut unfinished = 0;
        for home in end.alive() {
            unfinished += home.unfinished();
            home.control(Control::CancelAll);
        }
        end.remains.cancelled = unfinished;
        for job in workers.close() {
            job.settle(Err(super::TaskError::Cancelled));
        }
        if !end.wait(GRACE) {
            end.force();
        }
    }
    for job in workers.close() {
        job.settle(Err(super::TaskError::Cancelled));
    }
    for home in loops {
        // A loop that has ended has reported what it left, except for functions that do not return on worker threads.
        let stuck = end.alive.contains(&home.index);
        let left = if stuck { home.unfinished() } else { home.on_workers.load(Ordering::Relaxed) };
        end.remains.abandoned += left;
        drop(home.waiting.lock().drain().collect::<Vec<_>>());
        // Nothing else can settle the remaining waiters.
        home.waiters.abandon();
    }
    end.remains.stuck = end.alive;
    end.remains
}

struct Ending<'a> {
    loops: &'a [Arc<HostedLoop>],
    ended: &'a Receiver<Ended>,
    alive: Vec<usize>,
    remains: Remains,
}

impl Ending<'_> {
    fn alive(&self) -> Vec<&Arc<HostedLoop>> {
        self.loops.iter().filter(|home| self.alive.contains(&home.index)).collect()
    }

    /// Waits for loops to end. Returns whether all have.
    fn wait(&mut self, time: Duration) -> bool {
        let until = Instant::now().checked_add(time);
        while !self.alive.is_empty() {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let Ok(ended) = self.ended.recv_timeout(left) else { return false };
            self.alive.retain(|index| *index != ended.index);
            self.remains.abandoned += ended.abandoned;
        }
        true
    }

    /// Stops loops with tasks that do not end, and interrupts calls that do not return.
    fn force(&mut self) {
        for home in self.alive() {
            home.control(Control::Stop);
            let thread = home.executor.thread.load(Ordering::Relaxed);
            if home.executor.task.load(Ordering::Relaxed) != 0 {
                // On another thread, because code that never releases the interpreter lock would block this one too.
                let interrupting = std::thread::Builder::new().name("pelton-python-interrupt".to_owned());
                let _ = interrupting.spawn(move || interpreter::attach(|py| interpreter::raise_in(py, thread)));
            }
        }
        self.wait(GRACE);
    }
}
