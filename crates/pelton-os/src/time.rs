//! Points in time.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time, in whole nanoseconds on the engine's clock.
///
/// Real engines count from an arbitrary start (the system's monotonic clock), so only differences between times of the same
/// engine have a meaning. Arithmetic saturates. [`Time::MAX`], 584 years after the start, stands for "never".
///
/// ```
/// use pelton_os::Time;
/// use std::time::Duration;
///
/// let start = Time::from_nanos(1_000);
/// assert_eq!(start + Duration::from_micros(2), Time::from_nanos(3_000));
/// assert_eq!(Time::from_nanos(3_000) - start, Duration::from_micros(2));
/// assert_eq!(start - Time::from_nanos(3_000), Duration::ZERO);
/// assert_eq!(start + Duration::MAX, Time::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The earliest time. No clock reading is earlier.
    pub const ZERO: Time = Time(0);
    /// The latest time. No clock reaches it.
    pub const MAX: Time = Time(u64::MAX);

    /// Returns the time `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Converts to nanoseconds, at most `u64::MAX`.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Time {
    type Output = Duration;
    /// Returns the duration from `earlier` to this time, or zero if this time is not later.
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Time::MAX => f.write_str("never"),
            Time(nanos) => write!(f, "{}.{:09}s", nanos / 1_000_000_000, nanos % 1_000_000_000),
        }
    }
}
