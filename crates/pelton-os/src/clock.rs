//! The system's monotonic clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Time;

/// Reads the monotonic clock. It is the clock of the kernel's own timeouts and stands still while the machine is suspended.
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative, because the clock starts at boot.
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The longest timeout, in seconds, that every system accepts. A longer wait ends after this time (more than three years), as
/// if by a signal.
const LONGEST_TIMEOUT: u64 = 100_000_000;

/// Converts a timeout for system calls that count in nanoseconds.
pub(crate) fn timespec(timeout: Duration) -> libc::timespec {
    let timeout = timeout.min(Duration::from_secs(LONGEST_TIMEOUT));
    // Neither value overflows, not even in 32 bits.
    libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos() as _ }
}

/// Converts a timeout for system calls that count in milliseconds, where negative means "forever". Rounds up, so that no wait
/// ends early.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(crate) fn round_up_to_millis(timeout: Option<Duration>) -> i32 {
    match timeout {
        None => -1,
        // Fast path: the division below is one of 128 bits.
        Some(Duration::ZERO) => 0,
        Some(timeout) => i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    #[test]
    fn milliseconds_are_rounded_up_and_forever_is_negative() {
        assert_eq!(round_up_to_millis(None), -1);
        assert_eq!(round_up_to_millis(Some(Duration::ZERO)), 0);
        assert_eq!(round_up_to_millis(Some(Duration::from_nanos(1))), 1);
        assert_eq!(round_up_to_millis(Some(Duration::from_millis(2))), 2);
        assert_eq!(round_up_to_millis(Some(Duration::MAX)), i32::MAX);
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let first = now();
        assert!(now() >= first);
    }
}
