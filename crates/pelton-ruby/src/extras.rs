//! What EventMachine does not have. Everything here has to be asked for.

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use magnus::{Error, RHash, Ruby};
use pelton::{CallbackKind, Throttle, WaterMarks};

use crate::access::{ask, machine};
use crate::errors;
use crate::machine::{Source, UNBOUNDED};
use crate::tuning::settings;

/// `set_outbound_marks`: bounds the bytes that are queued on a connection. 0 is no bound.
///
/// While more than `high` bytes are queued, an accepted connection is not read from. At `low` the program is told. A send that would
/// queue more than `most` bytes is refused.
pub(crate) fn set_outbound_marks(sig: u64, low: usize, high: usize, most: usize) -> Result<bool, Error> {
    ask("set_outbound_marks", move |machine, reactor| {
        let Some(Source::Connection(id)) = machine.source(sig) else { return false };
        let Some(mut io) = reactor.connection(id) else { return false };
        let bound = |count: usize| if count == 0 { UNBOUNDED } else { count.min(UNBOUNDED) };
        io.set_water_marks(WaterMarks { low: bound(low), high: bound(high), most: bound(most) });
        io.throttle_reading(if high == 0 { Throttle::Never } else { Throttle::WhenFull });
        true
    })
}

/// `precise_timers=`: timers are no longer rounded down to milliseconds.
pub(crate) fn set_precise_timers(on: bool) -> Result<(), Error> {
    settings().precise_timers.set(on);
    Ok(())
}

/// `happy_eyeballs=`: names are looked up while the loop runs, and their addresses are tried in parallel.
pub(crate) fn set_happy_eyeballs(on: bool) -> Result<(), Error> {
    settings().happy_eyeballs.set(on);
    Ok(())
}

/// `measure_times=`: the next reactor measures how long callbacks and passes take.
pub(crate) fn set_measure_times(on: bool) -> Result<(), Error> {
    settings().measures.set(on);
    Ok(())
}

/// `stats`: what the reactor has counted.
pub(crate) fn stats(ruby: &Ruby) -> Result<RHash, Error> {
    let stats = ask("stats", |_, reactor| reactor.stats())?;
    let hash = ruby.hash_new();
    let set = |hash: &RHash, name: &str, value: u64| hash.aset(ruby.to_symbol(name), value);
    hash.aset(ruby.to_symbol("engine"), stats.engine)?;
    set(&hash, "passes", stats.turns)?;
    set(&hash, "polls", stats.polls)?;
    set(&hash, "sleeps", stats.sleeps)?;
    set(&hash, "slow_callbacks", stats.slow_callbacks)?;
    set(&hash, "connections", stats.connections as u64)?;
    set(&hash, "watches", stats.watches as u64)?;
    set(&hash, "timers", machine("stats")?.timers.borrow().len() as u64)?;
    let callbacks = ruby.hash_new();
    for kind in CallbackKind::ALL {
        set(&callbacks, kind.name(), stats.calls(kind))?;
    }
    hash.aset(ruby.to_symbol("callbacks"), callbacks)?;
    for (name, histogram) in [("pass_time", &stats.turn_time), ("timer_lag", &stats.lag)] {
        let Some(histogram) = histogram else { continue };
        let times = ruby.hash_new();
        for (name, value) in [
            ("mean", histogram.mean()),
            ("median", histogram.quantile(0.5)),
            ("p99", histogram.quantile(0.99)),
            ("max", histogram.max()),
        ] {
            times.aset(ruby.to_symbol(name), value.as_secs_f64())?;
        }
        hash.aset(ruby.to_symbol(name), times)?;
    }
    Ok(hash)
}

/// `prometheus_stats`: the same as text, for Prometheus.
pub(crate) fn prometheus_stats() -> Result<String, Error> {
    ask("stats", |_, reactor| reactor.stats().to_prometheus())
}

/// `set_watchdog`: writes a line to a pipe when a callback takes longer than a number of seconds, while it still runs.
pub(crate) fn set_watchdog(seconds: f64, descriptor: i32) -> Result<(), Error> {
    let threshold = Duration::try_from_secs_f64(seconds).map_err(|error| errors::argument(error.to_string()))?;
    if threshold.is_zero() || descriptor < 0 {
        return Err(errors::argument("a watchdog needs a time and a pipe"));
    }
    // SAFETY: the descriptor is used for this call only. If it is not open, the call fails.
    let pipe = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
    let pipe = File::from(pipe.map_err(|error| errors::errno(&error))?);
    let set = ask("set_watchdog", move |_, reactor| {
        let report = move |slow: &pelton::SlowCallback| {
            if !slow.finished {
                // A full pipe means that nobody has read the reports before.
                let _ = (&pipe).write_all(format!("{} {}\n", slow.kind.name(), slow.elapsed.as_secs_f64()).as_bytes());
            }
        };
        reactor.on_slow_callback(threshold, report).map_err(|error| error.to_string())
    })?;
    set.map_err(errors::runtime)
}
