//! The watchdog: reports the callback that blocks the loop.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pelton_os::{clock, fork};

use crate::reactor::callback::{CallbackKind, Named, Site};
use crate::{Error, Reactor, Time};

/// A callback that took or is taking too long.
#[derive(Debug, Clone)]
pub struct SlowCallback {
    /// The kind of the callback.
    pub kind: CallbackKind,
    /// The label, if one was set with [`Reactor::label`].
    pub label: Option<Arc<str>>,
    /// Where it was registered.
    pub place: &'static Location<'static>,
    /// How long it has been running, or how long it ran.
    pub elapsed: Duration,
    /// Whether it has returned. If `false`, it is still blocking the loop.
    pub finished: bool,
}

impl SlowCallback {
    /// Returns the callback's name, as reports print it: kind, label and place.
    pub fn name(&self) -> String {
        self.named().to_string()
    }

    fn named(&self) -> Named<'_> {
        Named { kind: self.kind.name(), label: &self.label, place: self.place }
    }
}

impl fmt::Display for SlowCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.named();
        let verb = if self.finished { "took" } else { "has been blocking the loop for" };
        write!(f, "{name} {verb} {:?}", self.elapsed)
    }
}

/// After a report, the helper looks again this often at most, however short the threshold is.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

type Hook = dyn Fn(&SlowCallback) + Send + Sync;

pub(crate) struct Watchdog {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
    forks: u64,
}

struct Watched {
    threshold: Duration,
    hook: Box<Hook>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    running: Option<Running>,
    /// The helper sleeps until something runs. An idle loop therefore causes no wake-ups, and a busy one wakes the
    /// helper at most once per threshold.
    helper_sleeps: bool,
    quit: bool,
}

#[derive(Clone)]
struct Running {
    site: Site,
    label: Option<Arc<str>>,
    since: Time,
    reported: bool,
}

impl Running {
    fn report(&self, elapsed: Duration, finished: bool) -> SlowCallback {
        SlowCallback { kind: self.site.kind, label: self.label.clone(), place: self.site.place, elapsed, finished }
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the helper thread: reports a callback that is still running when the threshold has passed.
    fn watch(&self) {
        let mut state = self.lock();
        while !state.quit {
            let left = match &mut state.running {
                None => None,
                Some(running) if running.reported => Some(self.threshold.max(LOOK_AT_MOST_EVERY)),
                Some(running) => {
                    let elapsed = clock::now() - running.since;
                    if elapsed >= self.threshold {
                        running.reported = true;
                        let slow = running.report(elapsed, false);
                        drop(state);
                        (self.hook)(&slow);
                        state = self.lock();
                        continue;
                    }
                    Some(self.threshold - elapsed)
                }
            };
            state.helper_sleeps = left.is_none();
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

impl Watchdog {
    pub(crate) fn begin(&self, site: Site, label: Option<Arc<str>>, since: Time) {
        let mut state = self.watched.lock();
        state.running = Some(Running { site, label, since, reported: false });
        if std::mem::take(&mut state.helper_sleeps) {
            self.watched.changed.notify_one();
        }
    }

    /// Ends the callback that is running. If it took too long, reports it and returns how long.
    pub(crate) fn end(&self, now: Time) -> Option<Duration> {
        let running = self.watched.lock().running.take()?;
        let elapsed = now - running.since;
        if elapsed < self.watched.threshold {
            return None;
        }
        (self.watched.hook)(&running.report(elapsed, true));
        Some(elapsed)
    }

    /// Starts another helper thread in a forked child. The old one stayed in the parent.
    pub(crate) fn after_fork(&mut self) -> Result<(), Error> {
        // Joining would block forever.
        std::mem::forget(self.thread.take());
        self.forks = fork::count();
        self.thread = Some(start(&self.watched)?);
        Ok(())
    }
}

fn start(watched: &Arc<Watched>) -> Result<JoinHandle<()>, Error> {
    let watched = watched.clone();
    std::thread::Builder::new()
        .name("pelton-watchdog".into())
        .spawn(move || watched.watch())
        .map_err(|error| Error::system("start the watchdog's thread", error))
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.forks != fork::count() {
            // The thread is in the parent.
            std::mem::forget(thread);
            return;
        }
        self.watched.lock().quit = true;
        self.watched.changed.notify_one();
        if let Some(thread) = thread {
            // The panic of a hook has already been reported by the thread.
            let _ = thread.join();
        }
    }
}

impl Reactor {
    /// Calls `hook` for every callback that takes `threshold` or longer. A helper thread calls it while the callback is
    /// still running, so that one that never returns is reported too. The loop calls it again when the callback has
    /// returned. There is one such hook.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// reactor.on_slow_callback(Duration::from_millis(100), |slow| eprintln!("{slow}"))?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn on_slow_callback(
        &mut self,
        threshold: Duration,
        hook: impl Fn(&SlowCallback) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.check_takes_on()?;
        // Ends the old helper thread before starting another.
        self.watchdog = None;
        let state = Mutex::new(State { running: None, helper_sleeps: false, quit: false });
        let watched = Arc::new(Watched { threshold, hook: Box::new(hook), state, changed: Condvar::new() });
        let thread = Some(start(&watched)?);
        // The time since the last callback does not count for the next one.
        self.meter.set_mark(self.engine.now());
        self.watchdog = Some(Watchdog { watched, thread, forks: fork::count() });
        Ok(())
    }

    /// Ends the reports of slow callbacks.
    pub fn ignore_slow_callbacks(&mut self) {
        self.watchdog = None;
    }

    /// Returns whether slow callbacks are [reported](Reactor::on_slow_callback).
    #[inline]
    pub fn reports_slow_callbacks(&self) -> bool {
        self.watchdog.is_some()
    }
}
