//! Dates and times with Python's range and precision: years 1 to 9999, microseconds, with or without a zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ConversionError;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    pub(super) year: u16,
    pub(super) month: u8,
    pub(super) day: u8,
}

/// A time of day.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Time {
    pub(super) hour: u8,
    pub(super) minute: u8,
    pub(super) second: u8,
    pub(super) microsecond: u32,
    pub(super) fold: bool,
    pub(super) zone: Option<Zone>,
}

/// A date and a time of day.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DateTime {
    pub(super) date: Date,
    pub(super) time: Time,
}

/// A duration, which may be negative. At most 999,999,999 days in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeDelta {
    days: i32,
    seconds: i32,
    microseconds: i32,
}

/// The time zone of a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Zone {
    /// Offset from UTC, less than a day in either direction. `datetime.timezone`, and every other zone without a name.
    Offset(TimeDelta),
    /// A zone of the time zone database: `zoneinfo.ZoneInfo`.
    Named {
        /// Its name, such as `Europe/Berlin`.
        key: String,
        /// Its offset from UTC at that time, if known: it is unknown for a time without a date. Python does not
        /// need it.
        offset: Option<TimeDelta>,
    },
}

const SECONDS_OF_DAY: i64 = 86_400;
pub(super) const MICROSECONDS: i64 = 1_000_000;
const MOST_DAYS: i64 = 999_999_999;

impl Date {
    /// Creates a date. Fails if it does not exist.
    pub fn new(year: i32, month: u32, day: u32) -> Result<Date, ConversionError> {
        let is_there = (1..=9_999).contains(&year) && (1..=12).contains(&month);
        if !is_there || day == 0 || day > days_of_month(year, month) {
            return Err(ConversionError::out_of_range(format_args!("no such date: {year:04}-{month:02}-{day:02}")));
        }
        Ok(Date { year: year as u16, month: month as u8, day: day as u8 })
    }

    /// Returns the year, 1 to 9999.
    pub fn year(&self) -> i32 {
        self.year.into()
    }

    /// Returns the month, 1 to 12.
    pub fn month(&self) -> u32 {
        self.month.into()
    }

    /// Returns the day of the month, from 1.
    pub fn day(&self) -> u32 {
        self.day.into()
    }

    /// Returns the number of days since 1970-01-01, negative before.
    fn since_epoch(&self) -> i64 {
        // With years starting in March, the leap day is the last day, and month lengths repeat every five months.
        let shifted = i64::from(self.month + 9) % 12;
        let year = i64::from(self.year) - i64::from(self.month <= 2);
        let day_of_year = (153 * shifted + 2) / 5 + i64::from(self.day) - 1;
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
    }

    fn from_days_since_epoch(days: i64) -> Result<Date, ConversionError> {
        let days = days + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let year = i32::try_from(year).unwrap_or(i32::MAX);
        Date::new(year, month as u32, (day_of_year - (153 * shifted + 2) / 5 + 1) as u32)
    }
}

fn days_of_month(year: i32, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Time {
    /// Creates a time of day without a zone. Fails if it does not exist; Python has no leap seconds.
    pub fn new(hour: u32, minute: u32, second: u32, microsecond: u32) -> Result<Time, ConversionError> {
        if hour > 23 || minute > 59 || second > 59 || microsecond > 999_999 {
            let text = format_args!("no such time: {hour:02}:{minute:02}:{second:02}.{microsecond:06}");
            return Err(ConversionError::out_of_range(text));
        }
        let (hour, minute, second) = (hour as u8, minute as u8, second as u8);
        Ok(Time { hour, minute, second, microsecond, fold: false, zone: None })
    }

    /// Sets the zone.
    pub fn in_zone(self, zone: Zone) -> Result<Time, ConversionError> {
        let offset = match &zone {
            Zone::Offset(offset) => Some(offset),
            Zone::Named { offset, .. } => offset.as_ref(),
        };
        if let Some(offset) = offset.filter(|offset| offset.total_microseconds().abs() >= DAY) {
            return Err(ConversionError::out_of_range(format_args!(
                "the zone's offset {offset} is not less than a day"
            )));
        }
        Ok(Time { zone: Some(zone), ..self })
    }

    /// Marks it as the second of two equal times when clocks are set back.
    pub fn folded(self) -> Time {
        Time { fold: true, ..self }
    }

    /// Returns the hour, 0 to 23.
    pub fn hour(&self) -> u32 {
        self.hour.into()
    }

    /// Returns the minute, 0 to 59.
    pub fn minute(&self) -> u32 {
        self.minute.into()
    }

    /// Returns the second, 0 to 59.
    pub fn second(&self) -> u32 {
        self.second.into()
    }

    /// Returns the microsecond, 0 to 999,999.
    pub fn microsecond(&self) -> u32 {
        self.microsecond
    }

    /// Returns whether it is the second of two equal times.
    pub fn is_folded(&self) -> bool {
        self.fold
    }

    /// Returns the zone.
    pub fn zone(&self) -> Option<&Zone> {
        self.zone.as_ref()
    }
}

/// Microseconds per day.
pub(super) const DAY: i128 = SECONDS_OF_DAY as i128 * MICROSECONDS as i128;

impl DateTime {
    /// Combines a date and a time.
    pub fn new(date: Date, time: Time) -> DateTime {
        DateTime { date, time }
    }

    /// Returns the date.
    pub fn date(&self) -> Date {
        self.date
    }

    /// Returns the time of day with its zone.
    pub fn time(&self) -> &Time {
        &self.time
    }
}

impl TryFrom<SystemTime> for DateTime {
    type Error = ConversionError;

    /// Converts to UTC, truncated to microseconds.
    fn try_from(time: SystemTime) -> Result<DateTime, ConversionError> {
        let microseconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_micros() as i128,
            Err(before) => -(before.duration().as_nanos().div_ceil(1_000) as i128),
        };
        let days = i64::try_from(microseconds.div_euclid(DAY))
            .map_err(|_| ConversionError::out_of_range("the time is outside of years 1 to 9999"))?;
        let within = microseconds.rem_euclid(DAY) as i64;
        let (seconds, microsecond) = ((within / MICROSECONDS) as u32, (within % MICROSECONDS) as u32);
        let time = Time::new(seconds / 3_600, seconds / 60 % 60, seconds % 60, microsecond)?;
        Ok(DateTime::new(Date::from_days_since_epoch(days)?, time.in_zone(Zone::Offset(TimeDelta::default()))?))
    }
}

impl TryFrom<&DateTime> for SystemTime {
    type Error = ConversionError;

    /// Requires a zone with a known offset.
    fn try_from(time: &DateTime) -> Result<SystemTime, ConversionError> {
        let (Some(Zone::Offset(offset)) | Some(Zone::Named { offset: Some(offset), .. })) = time.time.zone() else {
            return Err(ConversionError::out_of_range(format_args!("{time} has no known offset from UTC")));
        };
        let Time { hour, minute, second, microsecond, .. } = time.time;
        let seconds = i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second);
        let seconds = time.date.since_epoch() * SECONDS_OF_DAY + seconds;
        let total = i128::from(seconds) * i128::from(MICROSECONDS) + i128::from(microsecond);
        let total = total - offset.total_microseconds();
        let distance = Duration::from_micros(total.unsigned_abs() as u64);
        let there = if total < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
        there.ok_or_else(|| ConversionError::out_of_range(format_args!("{time} cannot be represented as a SystemTime")))
    }
}

impl TimeDelta {
    /// Creates a duration from days, seconds and microseconds, each of which may be negative.
    pub fn new(days: i64, seconds: i64, microseconds: i64) -> Result<TimeDelta, ConversionError> {
        let microseconds = i128::from(microseconds) + i128::from(seconds) * i128::from(MICROSECONDS);
        TimeDelta::from_microseconds(i128::from(days) * DAY + microseconds)
    }

    /// Creates a duration from microseconds.
    pub fn from_microseconds(total: i128) -> Result<TimeDelta, ConversionError> {
        let (days, within) = (total.div_euclid(DAY), total.rem_euclid(DAY) as i64);
        if days.abs() > i128::from(MOST_DAYS) {
            return Err(ConversionError::out_of_range(format_args!("{total} microseconds exceed {MOST_DAYS} days")));
        }
        let (seconds, microseconds) = ((within / MICROSECONDS) as i32, (within % MICROSECONDS) as i32);
        Ok(TimeDelta { days: days as i32, seconds, microseconds })
    }

    /// Returns the days, rounded down.
    pub fn days(&self) -> i32 {
        self.days
    }

    /// Returns the seconds in addition to the days, 0 to 86,399.
    pub fn seconds(&self) -> i32 {
        self.seconds
    }

    /// Returns the microseconds in addition to the seconds, 0 to 999,999.
    pub fn microseconds(&self) -> i32 {
        self.microseconds
    }

    /// Returns the whole duration in microseconds.
    pub fn total_microseconds(&self) -> i128 {
        i128::from(self.days) * DAY
            + i128::from(self.seconds) * i128::from(MICROSECONDS)
            + i128::from(self.microseconds)
    }
}

impl TryFrom<Duration> for TimeDelta {
    type Error = ConversionError;

    /// Truncates to microseconds.
    fn try_from(duration: Duration) -> Result<TimeDelta, ConversionError> {
        TimeDelta::from_microseconds(duration.as_micros() as i128)
    }
}

impl TryFrom<TimeDelta> for Duration {
    type Error = ConversionError;

    /// Fails if it is negative.
    fn try_from(delta: TimeDelta) -> Result<Duration, ConversionError> {
        let total = u64::try_from(delta.total_microseconds());
        total.map(Duration::from_micros).map_err(|_| ConversionError::out_of_range(format_args!("{delta} is negative")))
    }
}
