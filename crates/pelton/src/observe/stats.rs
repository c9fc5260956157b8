//! The reactor's counters and measurements.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::reactor::callback::CallbackKind;
use crate::{Lane, LaneStats, Reactor, Time};

/// The longest time recorded. Longer ones count as this one.
const LONGEST: Duration = Duration::from_secs(60);

/// Times are recorded with two significant digits, so that a histogram takes 30 KiB.
const DIGITS: u8 = 2;

/// Ticks are often shorter than a clock reading. While each takes less than this, several in a row are timed together,
/// and each is recorded with an equal share of the total.
const SHORT_TICK: Duration = Duration::from_micros(1);
const SHORT_TICKS_TIMED_TOGETHER: u64 = 16;

/// The exported quantiles.
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// A distribution of measured times, accurate to two significant digits.
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

    /// Records `count` times whose sum is `time`.
    fn record(&mut self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let each = if count == 1 { nanos } else { nanos / count };
        self.counts.saturating_record_n(each, count);
        self.sum = self.sum.saturating_add(time);
    }

    /// Returns the number of measurements.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the sum of all measurements.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns the longest measurement.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.counts.max())
    }

    /// Returns the mean, or zero without measurements.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.counts.mean() as u64)
    }

    /// Returns the time that this fraction of the measurements (0.5: half) does not exceed.
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

/// Counters that are always kept.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) turns: u64,
    pub(crate) polls: u64,
    pub(crate) sleeps: u64,
    pub(crate) posts: u64,
    pub(crate) panics: u64,
    pub(crate) slow: u64,
    pub(crate) guest_callbacks: u64,
    calls: [u64; CallbackKind::ALL.len()],
    all_calls: u64,
}

impl Counters {
    /// Returns how many callbacks of any kind have run.
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

/// Of callbacks with I/O between them, one in this many is timed, with a clock reading before and after it.
const IO_CALLBACKS_PER_TIMED: u64 = 16;

/// After an I/O callback this long, the clock is read after every one, so that `mark` stays current while there are
/// many of them.
const LONG_IO_CALLBACK: Duration = Duration::from_micros(200);

/// Measures the loop as it runs.
///
/// The time of a callback is the difference of two clock readings, one after the previous callback and one after this
/// one. This takes one reading per callback, and attributes the few nanoseconds between two callbacks to the second.
/// Several short ticks are timed together. Connections are read and written between their callbacks, and that time must
/// not count as the callback's. Therefore only some of them are timed, individually. A watchdog needs the time of every
/// callback.
pub(crate) struct Meter {
    pub(crate) counters: Counters,
    histograms: Option<Box<Histograms>>,
    /// The clock reading after the last callback or the last wait.
    mark: Time,
    /// Ticks since `mark` that have not been timed.
    untimed_ticks: u64,
    /// How many ticks are timed together.
    ticks_timed_together: u64,
    /// I/O callbacks since one was timed.
    untimed_io: u64,
    /// The last timed one was long.
    long_io: bool,
    /// The clock has not been read since the last I/O callback.
    mark_is_old: bool,
    /// The end of the last wait.
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

    /// Returns whether the clock must be read before the next callback.
    pub(crate) fn needs_mark(&self, kind: CallbackKind, each: bool) -> bool {
        if has_io_between(kind) { each || self.times_next_io() } else { self.mark_is_old && (each || self.measures()) }
    }

    fn times_next_io(&self) -> bool {
        self.measures() && self.untimed_io.is_multiple_of(IO_CALLBACKS_PER_TIMED)
    }

    /// Returns whether several ticks may be timed together.
    pub(crate) fn times_ticks_together(&self) -> bool {
        self.ticks_timed_together > 1 || !self.measures()
    }

    fn measures(&self) -> bool {
        self.histograms.is_some()
    }

    /// Records the work of a turn. The loop is about to wait.
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

    /// Records how late a timer fired.
    pub(crate) fn lag(&mut self, lag: Duration) {
        if let Some(histograms) = &mut self.histograms {
            histograms.lag.record(lag, 1);
        }
    }

    /// Counts a callback of a kind without I/O, if nothing is timed. Returns `false` if it may have to be timed.
    #[inline]
    pub(crate) fn only_counts(&mut self, kind: CallbackKind) -> bool {
        let only_counts = !self.measures();
        if only_counts {
            self.counters.calls[kind as usize] += 1;
            self.counters.all_calls += 1;
        }
        only_counts
    }

    /// Counts a callback. Returns whether to time it now.
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

    /// Returns whether some ticks have not been timed.
    fn has_untimed_ticks(&self) -> bool {
        self.untimed_ticks > 0 && self.histograms.is_some()
    }

    /// Records the time of one callback, or of several ticks, up to `now`.
    fn lap(&mut self, kind: CallbackKind, now: Time) {
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
    }
}

/// Returns whether the reactor reads or writes between callbacks of this kind.
fn has_io_between(kind: CallbackKind) -> bool {
    matches!(kind, CallbackKind::Connection | CallbackKind::Datagrams)
}

/// Counters of a reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// See [`Stats::turns`].
    pub turns: u64,
    /// See [`Stats::polls`].
    pub polls: u64,
    /// See [`Stats::sleeps`].
    pub sleeps: u64,
    /// See [`Stats::panics`].
    pub panics: u64,
    /// See [`Stats::slow_callbacks`].
    pub slow_callbacks: u64,
    /// Callbacks of all kinds, apart from batches of the guest.
    pub callbacks: u64,
}

/// A snapshot of a reactor's statistics.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The engine's name.
    pub engine: &'static str,
    /// Turns of the loop.
    pub turns: u64,
    /// How often the engine was polled, sleeps included.
    pub polls: u64,
    /// Waits in which the loop was ready to sleep because there was nothing to do.
    pub sleeps: u64,
    /// Ticks from other threads, and woken tasks.
    pub posts: u64,
    /// Callbacks that panicked.
    pub panics: u64,
    /// Callbacks that took longer than the limit of [`Reactor::on_slow_callback`].
    pub slow_callbacks: u64,
    /// Callbacks that the [guest](crate::Guest) has run in its batches, as far as it has
    /// [counted](Reactor::count_guest_callbacks) them.
    pub guest_callbacks: u64,
    /// Active timers.
    pub timers: usize,
    /// Watched descriptors.
    pub watches: usize,
    /// Connections, established or being established.
    pub connections: usize,
    /// Queued ticks.
    pub pending_ticks: usize,
    /// Posts that the loop has not taken yet.
    pub pending_posts: usize,
    /// Queued idle work.
    pub pending_idle: usize,
    /// The working time of turns, without the wait. `None` if measuring is off. The same applies to the fields below.
    pub turn_time: Option<Histogram>,
    /// How late timers fired.
    pub lag: Option<Histogram>,
    calls: [u64; CallbackKind::ALL.len()],
    callbacks: Option<[Histogram; CallbackKind::ALL.len()]>,
    lanes: [LaneStats; Lane::ALL.len()],
}

impl Stats {
    /// Returns the statistics of a [lane](Reactor::defer).
    pub fn lane(&self, lane: Lane) -> LaneStats {
        self.lanes[lane as usize]
    }

    /// Returns how many callbacks of this kind have run.
    pub fn calls(&self, kind: CallbackKind) -> u64 {
        self.calls[kind as usize]
    }

    /// Returns the time of callbacks of this kind. For connections and datagrams, one callback in sixteen is timed,
    /// unless a [watchdog](Reactor::on_slow_callback) is set.
    pub fn callback_time(&self, kind: CallbackKind) -> Option<&Histogram> {
        self.callbacks.as_ref().map(|callbacks| &callbacks[kind as usize])
    }

    /// Returns all statistics in the Prometheus text format.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let reactor = Reactor::new()?;
    /// assert!(reactor.stats().to_prometheus().contains("pelton_turns_total 0\n"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        self.write_prometheus(&mut text).expect("writing to a String cannot fail");
        text
    }

    fn write_prometheus(&self, text: &mut String) -> fmt::Result {
        let counters = [
            ("turns", "Turns of the loop.", self.turns),
            ("polls", "Times the engine was polled, sleeps included.", self.polls),
            ("sleeps", "Waits with nothing to do.", self.sleeps),
            ("posts", "Ticks from other threads, and woken tasks.", self.posts),
            ("panics", "Callbacks that panicked.", self.panics),
            ("slow_callbacks", "Callbacks that took too long.", self.slow_callbacks),
            ("guest_callbacks", "Callbacks that the guest has run.", self.guest_callbacks),
        ];
        for (name, help, value) in counters {
            writeln!(text, "# HELP pelton_{name}_total {help}\n# TYPE pelton_{name}_total counter")?;
            writeln!(text, "pelton_{name}_total {value}")?;
        }
        let gauges = [
            ("timers", "Active timers.", self.timers),
            ("watches", "Watched descriptors.", self.watches),
            ("connections", "Connections, established or being established.", self.connections),
            ("pending_ticks", "Queued ticks.", self.pending_ticks),
            ("pending_posts", "Posts that the loop has not taken yet.", self.pending_posts),
            ("pending_idle", "Queued idle work.", self.pending_idle),
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
            ("waiting", "gauge", "Jobs waiting for a thread.", |lane| lane.waiting as u64),
            ("running", "gauge", "Running jobs.", |lane| lane.running as u64),
            ("done_total", "counter", "Finished jobs.", |lane| lane.done),
            ("refused_total", "counter", "Refused jobs.", |lane| lane.refused),
            ("panicked_total", "counter", "Jobs that panicked.", |lane| lane.panicked),
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
    /// Returns the counters among the reactor's statistics. Unlike [`stats`](Reactor::stats), this is cheap enough for every
    /// turn.
    #[inline]
    pub fn counts(&self) -> Counts {
        let Counters { turns, polls, sleeps, panics, slow, .. } = self.meter.counters;
        let callbacks = self.meter.counters.all_calls - self.meter.counters.calls[CallbackKind::Guest as usize];
        Counts { turns, polls, sleeps, panics, slow_callbacks: slow, callbacks }
    }

    /// Returns a snapshot of the reactor's statistics.
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
            polls: counters.polls,
            sleeps: counters.sleeps,
            posts: counters.posts,
            panics: counters.panics,
            slow_callbacks: counters.slow,
            guest_callbacks: counters.guest_callbacks,
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

    /// Counts and times a callback that has returned or panicked.
    pub(crate) fn finished(&mut self, site: crate::reactor::callback::Site) {
        if !self.meter.count(site.kind, self.watchdog.is_some()) {
            if self.meter.long_io && has_io_between(site.kind) {
                self.meter.set_mark(self.engine.now());
            }
            return;
        }
        let now = self.engine.now();
        self.meter.lap(site.kind, now);
        if let Some(watchdog) = &self.watchdog
            && watchdog.end(now).is_some()
        {
            self.meter.counters.slow += 1;
        }
    }

    /// Times the last ticks of a phase.
    pub(crate) fn ticks_finished(&mut self) {
        if self.meter.has_untimed_ticks() {
            self.meter.lap(CallbackKind::Tick, self.engine.now());
        }
    }
}
