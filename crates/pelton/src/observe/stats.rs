//! What the reactor counts and measures about itself.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::reactor::callback::CallbackKind;
use crate::{Lane, LaneStats, Reactor, Time};

/// Times longer than this are counted as this long.
const LONGEST: Duration = Duration::from_secs(60);

/// Measured times are kept to two significant digits: a histogram then is 30 KiB.
const DIGITS: u8 = 2;

/// Ticks are often shorter than it takes to read the clock. While they take less than this each, so many in a row are
/// timed together, and each is taken to have run for an equal part of their time.
const SHORT_TICK: Duration = Duration::from_micros(1);
const SHORT_TICKS_TIMED_TOGETHER: u64 = 16;

/// Quantiles that are exported.
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// A distribution of measured times, exact to two digits.
#[derive(Clone)]
pub struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    sum: Duration,
}

impl Histogram {
    fn new() -> Histogram {
        let longest = LONGEST.as_nanos() as u64;
        let counts = hdrhistogram::Histogram::new_with_bounds(1, longest, DIGITS).expect("the bounds are in order");
        Histogram { counts, sum: Duration::ZERO }
    }

    /// Records `count` times that together are `time`.
    fn record(&mut self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let each = if count == 1 { nanos } else { nanos / count };
        self.counts.saturating_record_n(each, count);
        self.sum = self.sum.saturating_add(time);
    }

    /// How many times were measured.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.counts.max())
    }

    /// The mean; zero if there is none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.counts.mean() as u64)
    }

    /// The time that this part of them (0.5: half) does not exceed.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(quantile))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} times, p50 {:?}, p99 {:?}, max {:?}",
            self.count(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.max()
        )
    }
}

/// Counted always.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) turns: u64,
    pub(crate) sleeps: u64,
    pub(crate) posts: u64,
    pub(crate) panics: u64,
    pub(crate) slow: u64,
    calls: [u64; CallbackKind::ALL.len()],
    all_calls: u64,
}

impl Counters {
    /// How many callbacks of any kind have run.
    pub(crate) fn calls(&self) -> u64 {
        self.all_calls
    }
}

#[derive(Clone)]
struct Histograms {
    turn: Histogram,
    lag: Histogram,
    callbacks: [Histogram; CallbackKind::ALL.len()],
}

/// Callbacks that have I/O between them: of so many in a row, one is timed, by a reading of the clock before and after it.
const IO_CALLBACKS_PER_TIMED: u64 = 16;

/// One that takes this long is worth a reading of the clock, so that it is known what time it is while there are many of them.
const LONG_IO_CALLBACK: Duration = Duration::from_micros(200);

/// Measures the loop as it runs.
///
/// A callback's time is that between two readings of the clock, one after the callback before it and one after itself: one
/// reading per callback, at the price of counting the few nanoseconds between two callbacks with the second. Short ticks
/// are timed several together. Connections are read and written between their callbacks, which would be counted with these;
/// so only some are timed, each by itself. A watchdog wants to know about each callback.
pub(crate) struct Meter {
    pub(crate) counters: Counters,
    histograms: Option<Box<Histograms>>,
    /// The clock's reading after the last callback, or after the last wait.
    mark: Time,
    /// Ticks that have run since `mark` and have not been timed.
    untimed_ticks: u64,
    /// How many ticks are timed together.
    ticks_timed_together: u64,
    /// Callbacks with I/O between them that have run since one was timed.
    untimed_io: u64,
    /// The last of these that was timed took long.
    long_io: bool,
    /// The clock has not been read since such a callback.
    mark_is_old: bool,
    /// When the last wait was over.
    awake_since: Time,
}

impl Meter {
    pub(crate) fn new(measure: bool, now: Time) -> Meter {
        let histograms = measure.then(|| {
            Box::new(Histograms {
                turn: Histogram::new(),
                lag: Histogram::new(),
                callbacks: std::array::from_fn(|_| Histogram::new()),
            })
        });
        Meter {
            counters: Counters::default(),
            histograms,
            mark: now,
            untimed_ticks: 0,
            ticks_timed_together: 1,
            untimed_io: 0,
            long_io: false,
            mark_is_old: false,
            awake_since: now,
        }
    }

    pub(crate) fn mark(&self) -> Time {
        self.mark
    }

    pub(crate) fn set_mark(&mut self, now: Time) {
        self.mark = now;
        self.mark_is_old = false;
    }

    /// A callback is about to run. Says whether the clock has to be read for it.
    pub(crate) fn needs_mark(&self, kind: CallbackKind, each: bool) -> bool {
        if has_io_between(kind) { each || self.times_next_io() } else { self.mark_is_old && (each || self.measures()) }
    }

    fn times_next_io(&self) -> bool {
        self.measures() && self.untimed_io.is_multiple_of(IO_CALLBACKS_PER_TIMED)
    }

    /// Whether several ticks are one to it.
    pub(crate) fn times_ticks_together(&self) -> bool {
        self.ticks_timed_together > 1 || !self.measures()
    }

    fn measures(&self) -> bool {
        self.histograms.is_some()
    }

    /// The work of a turn is done; the loop is about to wait.
    pub(crate) fn work_ends(&mut self) {
        self.counters.turns += 1;
        let work = self.mark - self.awake_since;
        if let Some(histograms) = &mut self.histograms {
            histograms.turn.record(work, 1);
        }
    }

    pub(crate) fn wait_ends(&mut self, now: Time) {
        self.set_mark(now);
        self.awake_since = now;
    }

    /// A timer fired this late.
    pub(crate) fn lag(&mut self, lag: Duration) {
        if let Some(histograms) = &mut self.histograms {
            histograms.lag.record(lag, 1);
        }
    }

    /// A callback has run. Says whether it is to be timed now.
    fn count(&mut self, kind: CallbackKind, each: bool) -> bool {
        self.counters.calls[kind as usize] += 1;
        self.counters.all_calls += 1;
        if kind == CallbackKind::Tick && !each {
            self.untimed_ticks += 1;
            return self.untimed_ticks >= self.ticks_timed_together && self.measures();
        }
        if has_io_between(kind) {
            let timed = each || self.times_next_io();
            self.untimed_io += 1;
            self.mark_is_old = !timed;
            return timed;
        }
        each || self.measures()
    }

    /// Whether there are ticks that have run and have not been timed.
    fn has_untimed_ticks(&self) -> bool {
        self.untimed_ticks > 0 && self.histograms.is_some()
    }

    /// A callback, or several ticks, have run until now; says how long it took.
    fn lap(&mut self, kind: CallbackKind, now: Time) -> Duration {
        let time = now - self.mark;
        self.mark = now;
        let count = if kind == CallbackKind::Tick { std::mem::take(&mut self.untimed_ticks).max(1) } else { 1 };
        if let Some(histograms) = &mut self.histograms {
            histograms.callbacks[kind as usize].record(time, count);
        }
        if has_io_between(kind) {
            self.long_io = time >= LONG_IO_CALLBACK;
        }
        if kind == CallbackKind::Tick {
            let short = time < SHORT_TICK * count as u32;
            self.ticks_timed_together = if short { SHORT_TICKS_TIMED_TOGETHER } else { 1 };
        }
        time
    }
}

/// Whether the reactor reads or writes between callbacks of this kind.
fn has_io_between(kind: CallbackKind) -> bool {
    matches!(kind, CallbackKind::Connection | CallbackKind::Datagrams)
}

/// What the reactor knows about itself, as of when it was asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The engine's name.
    pub engine: &'static str,
    /// Turns of the loop.
    pub turns: u64,
    /// Waits in which the loop was ready to sleep, because there was nothing to do.
    pub sleeps: u64,
    /// Ticks that came from other threads, and tasks that were woken.
    pub posts: u64,
    /// Callbacks that panicked.
    pub panics: u64,
    /// Callbacks that took longer than [`Reactor::on_slow_callback`] allows.
    pub slow_callbacks: u64,
    /// Timers that are set.
    pub timers: usize,
    /// Descriptors that are watched.
    pub watches: usize,
    /// Connections, established or on their way.
    pub connections: usize,
    /// Ticks that wait.
    pub pending_ticks: usize,
    /// Posts that wait to be picked up.
    pub pending_posts: usize,
    /// Idle work that waits.
    pub pending_idle: usize,
    /// How long the work of a turn took, without the wait. `None` if measuring is off, as are those below.
    pub turn_time: Option<Histogram>,
    /// How late timers fired.
    pub lag: Option<Histogram>,
    calls: [u64; CallbackKind::ALL.len()],
    callbacks: Option<[Histogram; CallbackKind::ALL.len()]>,
    lanes: [LaneStats; Lane::ALL.len()],
}

impl Stats {
    /// What is and was [deferred](Reactor::defer) to this lane.
    pub fn lane(&self, lane: Lane) -> LaneStats {
        self.lanes[lane as usize]
    }

    /// How many callbacks of this kind have run.
    pub fn calls(&self, kind: CallbackKind) -> u64 {
        self.calls[kind as usize]
    }

    /// How long callbacks of this kind took. Of those of connections and datagrams, one in sixteen is timed, unless a
    /// [watchdog](Reactor::on_slow_callback) wants to know about each.
    pub fn callback_time(&self, kind: CallbackKind) -> Option<&Histogram> {
        self.callbacks.as_ref().map(|callbacks| &callbacks[kind as usize])
    }

    /// Everything in the Prometheus text format.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let reactor = Reactor::new()?;
    /// assert!(reactor.stats().to_prometheus().contains("pelton_turns_total 0\n"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        self.write_prometheus(&mut text).expect("a String takes any text");
        text
    }

    fn write_prometheus(&self, text: &mut String) -> fmt::Result {
        let counters = [
            ("turns", "Turns of the loop.", self.turns),
            ("sleeps", "Waits with nothing to do.", self.sleeps),
            ("posts", "Ticks from other threads, and woken tasks.", self.posts),
            ("panics", "Callbacks that panicked.", self.panics),
            ("slow_callbacks", "Callbacks that took too long.", self.slow_callbacks),
        ];
        for (name, help, value) in counters {
            writeln!(text, "# HELP pelton_{name}_total {help}\n# TYPE pelton_{name}_total counter")?;
            writeln!(text, "pelton_{name}_total {value}")?;
        }
        let gauges = [
            ("timers", "Timers that are set.", self.timers),
            ("watches", "Descriptors that are watched.", self.watches),
            ("connections", "Connections, established or on their way.", self.connections),
            ("pending_ticks", "Ticks that wait.", self.pending_ticks),
            ("pending_posts", "Posts that wait to be picked up.", self.pending_posts),
            ("pending_idle", "Idle work that waits.", self.pending_idle),
        ];
        for (name, help, value) in gauges {
            writeln!(text, "# HELP pelton_{name} {help}\n# TYPE pelton_{name} gauge\npelton_{name} {value}")?;
        }
        writeln!(text, "# HELP pelton_callbacks_total Callbacks run.\n# TYPE pelton_callbacks_total counter")?;
        for kind in CallbackKind::ALL {
            writeln!(text, "pelton_callbacks_total{{kind=\"{kind}\"}} {}", self.calls(kind))?;
        }
        self.write_lanes(text)?;
        if let Some(callbacks) = &self.callbacks {
            summary_head(text, "callback_seconds", "Time per callback.")?;
            for (kind, histogram) in CallbackKind::ALL.into_iter().zip(callbacks) {
                summary(text, "callback_seconds", &format!("kind=\"{kind}\""), histogram)?;
            }
        }
        let others = [
            ("turn_seconds", "Work per turn, without the wait.", &self.turn_time),
            ("timer_lag_seconds", "How late timers fired.", &self.lag),
        ];
        for (name, help, histogram) in others {
            if let Some(histogram) = histogram {
                summary_head(text, name, help)?;
                summary(text, name, "", histogram)?;
            }
        }
        Ok(())
    }
}

impl Stats {
    fn write_lanes(&self, text: &mut String) -> fmt::Result {
        type Value = fn(&LaneStats) -> u64;
        let values: [(&str, &str, &str, Value); 6] = [
            ("threads", "gauge", "Threads of the lane.", |lane| lane.threads as u64),
            ("waiting", "gauge", "What waits for a thread.", |lane| lane.waiting as u64),
            ("running", "gauge", "What is being done.", |lane| lane.running as u64),
            ("done_total", "counter", "What has been done.", |lane| lane.done),
            ("refused_total", "counter", "What was refused.", |lane| lane.refused),
            ("panicked_total", "counter", "What has panicked.", |lane| lane.panicked),
        ];
        for (name, kind, help, value) in values {
            writeln!(text, "# HELP pelton_lane_{name} {help}\n# TYPE pelton_lane_{name} {kind}")?;
            for lane in Lane::ALL {
                writeln!(text, "pelton_lane_{name}{{lane=\"{lane}\"}} {}", value(&self.lane(lane)))?;
            }
        }
        Ok(())
    }
}

fn summary_head(text: &mut String, name: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP pelton_{name} {help}\n# TYPE pelton_{name} summary")
}

fn summary(text: &mut String, name: &str, label: &str, histogram: &Histogram) -> fmt::Result {
    let comma = if label.is_empty() { "" } else { "," };
    for quantile in QUANTILES {
        let seconds = histogram.quantile(quantile).as_secs_f64();
        writeln!(text, "pelton_{name}{{{label}{comma}quantile=\"{quantile}\"}} {seconds}")?;
    }
    let braces = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
    writeln!(text, "pelton_{name}_sum{braces} {}", histogram.sum().as_secs_f64())?;
    writeln!(text, "pelton_{name}_count{braces} {}", histogram.count())
}

impl Reactor {
    /// What the reactor knows about itself.
    pub fn stats(&self) -> Stats {
        let counters = &self.meter.counters;
        let histograms = self.meter.histograms.as_deref().cloned();
        let (turn_time, lag, callbacks) = match histograms {
            Some(histograms) => (Some(histograms.turn), Some(histograms.lag), Some(histograms.callbacks)),
            None => (None, None, None),
        };
        Stats {
            engine: self.engine.name(),
            turns: counters.turns,
            sleeps: counters.sleeps,
            posts: counters.posts,
            panics: counters.panics,
            slow_callbacks: counters.slow,
            timers: self.timers.len(),
            watches: self.watch_count(),
            connections: self.connection_count(),
            pending_ticks: self.ticks.len(),
            pending_posts: self.shared.waiting(),
            pending_idle: self.idles.len(),
            turn_time,
            lag,
            calls: counters.calls,
            callbacks,
            lanes: Lane::ALL.map(|lane| self.shared.lane(lane).stats()),
        }
    }

    /// A callback has returned or panicked.
    pub(crate) fn finished(&mut self, site: crate::reactor::callback::Site) {
        if !self.meter.count(site.kind, self.watchdog.is_some()) {
            if self.meter.long_io && has_io_between(site.kind) {
                self.meter.set_mark(self.engine.now());
            }
            return;
        }
        let time = self.meter.lap(site.kind, self.engine.now());
        if let Some(watchdog) = &self.watchdog
            && watchdog.end(time)
        {
            self.meter.counters.slow += 1;
        }
    }

    /// Times the last few ticks of a phase.
    pub(crate) fn ticks_finished(&mut self) {
        if self.meter.has_untimed_ticks() {
            self.meter.lap(CallbackKind::Tick, self.engine.now());
        }
    }
}
