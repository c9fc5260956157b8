//! Settings, most of which only exist so that programs can set them: Pelton needs neither a quantum nor heartbeats.

use std::cell::Cell;

use magnus::{Error, Ruby, Value};
use pelton::DescriptorLimit;

use crate::access::machine;
use crate::errors;
use crate::machine::Source;

pub(crate) struct Settings {
    heartbeat: Cell<f64>,
    accepts: Cell<i64>,
    /// Timers are not rounded down to milliseconds.
    pub(crate) precise_timers: Cell<bool>,
    /// Names are looked up while the loop runs.
    pub(crate) happy_eyeballs: Cell<bool>,
    /// The next machine measures times.
    pub(crate) measures: Cell<bool>,
}

// SAFETY: it is accessed with the lock held only.
unsafe impl Sync for Settings {}

static SETTINGS: Settings = Settings {
    heartbeat: Cell::new(2.0),
    accepts: Cell::new(10),
    precise_timers: Cell::new(false),
    happy_eyeballs: Cell::new(false),
    measures: Cell::new(false),
};

/// Returns the settings of the process.
pub(crate) fn settings() -> &'static Settings {
    &SETTINGS
}

/// The range of `set_timer_quantum`, in milliseconds.
const QUANTUM: std::ops::RangeInclusive<i64> = 5..=300_000;

/// `set_timer_quantum`
pub(crate) fn set_timer_quantum(milliseconds: i64) -> Result<(), Error> {
    machine("set_timer_quantum")?;
    if QUANTUM.contains(&milliseconds) { Ok(()) } else { Err(errors::runtime("invalid timer-quantum")) }
}

/// `get_heartbeat_interval`
pub(crate) fn get_heartbeat_interval() -> Result<f64, Error> {
    machine("get_heartbeat_interval")?;
    Ok(SETTINGS.heartbeat.get())
}

/// `set_heartbeat_interval`
pub(crate) fn set_heartbeat_interval(seconds: f64) -> Result<bool, Error> {
    machine("set_heartbeat_interval")?;
    if seconds > 0.0 {
        SETTINGS.heartbeat.set(seconds);
        return Ok(true);
    }
    Ok(false)
}

/// `get_simultaneous_accept_count`
pub(crate) fn get_simultaneous_accept_count() -> Result<i64, Error> {
    Ok(SETTINGS.accepts.get())
}

/// `set_simultaneous_accept_count`
pub(crate) fn set_simultaneous_accept_count(count: i64) -> Result<i64, Error> {
    SETTINGS.accepts.set(count);
    Ok(count)
}

/// `set_rlimit_nofile`: sets the limit of open descriptors, or just returns it.
pub(crate) fn set_rlimit_nofile(count: Option<i64>) -> Result<u64, Error> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the system writes the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if let Some(count) = count.and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0) {
        limit.rlim_cur = count;
        limit.rlim_max = limit.rlim_max.max(count);
        // SAFETY: the system reads the structure.
        let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        if status != 0 {
            // Only root may raise the hard limit; then as much as is allowed.
            let _ = DescriptorLimit::raise();
        }
        // SAFETY: as above.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    }
    Ok(limit.rlim_cur)
}

/// `get_connection_count`: everything that has a descriptor.
pub(crate) fn get_connection_count() -> Result<usize, Error> {
    let machine = machine("get_connection_count")?;
    let entries = machine.entries.borrow();
    Ok(entries.values().filter(|entry| !matches!(entry.source, Source::Over(_))).count())
}

/// `num_close_scheduled`
pub(crate) fn num_close_scheduled() -> Result<usize, Error> {
    Ok(machine("num_close_scheduled")?.closing.get())
}

/// `current_time`: the time of the current turn.
pub(crate) fn current_time(ruby: &Ruby) -> Result<Option<Value>, Error> {
    if crate::machine::current().is_none() {
        return Ok(None);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time: magnus::Time = ruby.time_new(now.as_secs() as i64, i64::from(now.subsec_micros()))?;
    Ok(Some(magnus::value::ReprValue::as_value(time)))
}
