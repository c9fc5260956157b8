//! The `Date` field, formatted once a second.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pelton::Time;

/// The length of the line `Date: Sun, 06 Nov 1994 08:49:37 GMT` with its line break.
pub const DATE_LENGTH: usize = 37;

/// A cached `Date` field. It is formatted again when it is used after a second has passed.
#[derive(Clone, Debug)]
pub struct Date {
    line: [u8; DATE_LENGTH],
    /// When the line expires, by the reactor's cached clock.
    until: Time,
}

impl Default for Date {
    fn default() -> Date {
        Date { line: [b' '; DATE_LENGTH], until: Time::ZERO }
    }
}

impl Date {
    /// The line, with its line break, as of `now`.
    #[inline]
    pub fn line(&mut self, now: Time) -> &[u8; DATE_LENGTH] {
        if now >= self.until {
            self.write(SystemTime::now(), now);
        }
        &self.line
    }

    fn write(&mut self, date: SystemTime, now: Time) {
        let mut line = &mut self.line[..];
        // It has exactly this length until the year 10000.
        let _ = write!(line, "Date: {}\r\n", httpdate::HttpDate::from(date));
        let into_second = date.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        self.until = now + (Duration::from_secs(1) - Duration::from_nanos(into_second.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_formatted_again_after_a_second() {
        let mut date = Date::default();
        let noon = UNIX_EPOCH + Duration::from_millis(784_111_777_400);
        date.write(noon, Time::from_nanos(5_000_000_000));
        let line = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        assert_eq!(date.line(Time::from_nanos(5_599_999_999)), line);
        assert_ne!(date.line(Time::from_nanos(5_600_000_000)), line);
    }
}
