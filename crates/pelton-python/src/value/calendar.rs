//! Dates and times as Python has them: years 1 to 9999, microseconds, with a zone or without.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ConversionError;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    pub(super) year: u16,
    pub(super) month: u8,
    pub(super) day: u8,
}

/// The time of a day.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Time {
    pub(super) hour: u8,
    pub(super) minute: u8,
    pub(super) second: u8,
    pub(super) microsecond: u32,
    pub(super) fold: bool,
    pub(super) zone: Option<Zone>,
}

/// A day and the time of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DateTime {
    pub(super) date: Date,
    pub(super) time: Time,
}

/// A span of time, which may be negative. At most 999,999,999 days either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeDelta {
    days: i32,
    seconds: i32,
    microseconds: i32,
}

/// What a time of day is relative to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Zone {
    /// So much ahead of UTC; less than a day either way. `datetime.timezone`, and all that is neither that nor named.
    Offset(TimeDelta),
    /// A zone of the time zone database: `zoneinfo.ZoneInfo`.
    Named {
        /// Its name, such as `Europe/Berlin`.
        key: String,
        /// How much ahead of UTC it is then, if that is known: a time without a date does not say. Python does not need to
        /// be told.
        offset: Option<TimeDelta>,
    },
}

const SECONDS_OF_DAY: i64 = 86_400;
pub(super) const MICROSECONDS: i64 = 1_000_000;
const MOST_DAYS: i64 = 999_999_999;

impl Date {
    /// A day, if there is such a one.
    pub fn new(year: i32, month: u32, day: u32) -> Result<Date, ConversionError> {
        let is_there = (1..=9_999).contains(&year) && (1..=12).contains(&month);
        if !is_there || day == 0 || day > days_of_month(year, month) {
            return Err(ConversionError::out_of_range(format_args!("there is no day {year:04}-{month:02}-{day:02}")));
        }
        Ok(Date { year: year as u16, month: month as u8, day: day as u8 })
    }

    /// The year, 1 to 9999.
    pub fn year(&self) -> i32 {
        self.year.into()
    }

    /// The month, 1 to 12.
    pub fn month(&self) -> u32 {
        self.month.into()
    }

    /// The day of the month, from 1.
    pub fn day(&self) -> u32 {
        self.day.into()
    }

    /// Days since 1970-01-01, negative before.
    fn since_epoch(&self) -> i64 {
        // Years that begin in March have their leap day at the end, and months whose lengths repeat every five.
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
    /// A time of day in no zone, if there is such a one. Python has no leap seconds.
    pub fn new(hour: u32, minute: u32, second: u32, microsecond: u32) -> Result<Time, ConversionError> {
        if hour > 23 || minute > 59 || second > 59 || microsecond > 999_999 {
            let text = format_args!("there is no time {hour:02}:{minute:02}:{second:02}.{microsecond:06}");
            return Err(ConversionError::out_of_range(text));
        }
        let (hour, minute, second) = (hour as u8, minute as u8, second as u8);
        Ok(Time { hour, minute, second, microsecond, fold: false, zone: None })
    }

    /// The same in a zone.
    pub fn in_zone(self, zone: Zone) -> Result<Time, ConversionError> {
        let offset = match &zone {
            Zone::Offset(offset) => Some(offset),
            Zone::Named { offset, .. } => offset.as_ref(),
        };
        if let Some(offset) = offset.filter(|offset| offset.total_microseconds().abs() >= DAY) {
            return Err(ConversionError::out_of_range(format_args!("the offset of a zone is {offset}, a day or more")));
        }
        Ok(Time { zone: Some(zone), ..self })
    }

    /// The second of two times that a clock shows when it is put back.
    pub fn folded(self) -> Time {
        Time { fold: true, ..self }
    }

    /// The hour, 0 to 23.
    pub fn hour(&self) -> u32 {
        self.hour.into()
    }

    /// The minute, 0 to 59.
    pub fn minute(&self) -> u32 {
        self.minute.into()
    }

    /// The second, 0 to 59.
    pub fn second(&self) -> u32 {
        self.second.into()
    }

    /// The microsecond, 0 to 999,999.
    pub fn microsecond(&self) -> u32 {
        self.microsecond
    }

    /// Whether it is the second of two such times.
    pub fn is_folded(&self) -> bool {
        self.fold
    }

    /// The zone it is in.
    pub fn zone(&self) -> Option<&Zone> {
        self.zone.as_ref()
    }
}

/// A day's microseconds.
pub(super) const DAY: i128 = SECONDS_OF_DAY as i128 * MICROSECONDS as i128;

impl DateTime {
    /// A day and the time of it.
    pub fn new(date: Date, time: Time) -> DateTime {
        DateTime { date, time }
    }

    /// The day.
    pub fn date(&self) -> Date {
        self.date
    }

    /// The time of the day, and its zone.
    pub fn time(&self) -> &Time {
        &self.time
    }
}

impl TryFrom<SystemTime> for DateTime {
    type Error = ConversionError;

    /// In UTC, cut to microseconds.
    fn try_from(time: SystemTime) -> Result<DateTime, ConversionError> {
        let microseconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_micros() as i128,
            Err(before) => -(before.duration().as_nanos().div_ceil(1_000) as i128),
        };
        let days = i64::try_from(microseconds.div_euclid(DAY))
            .map_err(|_| ConversionError::out_of_range("a time that is too far from now"))?;
        let within = microseconds.rem_euclid(DAY) as i64;
        let (seconds, microsecond) = ((within / MICROSECONDS) as u32, (within % MICROSECONDS) as u32);
        let time = Time::new(seconds / 3_600, seconds / 60 % 60, seconds % 60, microsecond)?;
        Ok(DateTime::new(Date::from_days_since_epoch(days)?, time.in_zone(Zone::Offset(TimeDelta::default()))?))
    }
}

impl TryFrom<&DateTime> for SystemTime {
    type Error = ConversionError;

    /// Needs a zone, of which the offset is known.
    fn try_from(time: &DateTime) -> Result<SystemTime, ConversionError> {
        let (Some(Zone::Offset(offset)) | Some(Zone::Named { offset: Some(offset), .. })) = time.time.zone() else {
            return Err(ConversionError::out_of_range(format_args!("{time} does not say how far from UTC it is")));
        };
        let Time { hour, minute, second, microsecond, .. } = time.time;
        let seconds = i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second);
        let seconds = time.date.since_epoch() * SECONDS_OF_DAY + seconds;
        let total = i128::from(seconds) * i128::from(MICROSECONDS) + i128::from(microsecond);
        let total = total - offset.total_microseconds();
        let distance = Duration::from_micros(total.unsigned_abs() as u64);
        let there = if total < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
        there.ok_or_else(|| ConversionError::out_of_range(format_args!("{time} is not on this system's clock")))
    }
}

impl TimeDelta {
    /// So many days, seconds and microseconds together, each of which may be negative.
    pub fn new(days: i64, seconds: i64, microseconds: i64) -> Result<TimeDelta, ConversionError> {
        let microseconds = i128::from(microseconds) + i128::from(seconds) * i128::from(MICROSECONDS);
        TimeDelta::from_microseconds(i128::from(days) * DAY + microseconds)
    }

    /// So many microseconds.
    pub fn from_microseconds(total: i128) -> Result<TimeDelta, ConversionError> {
        let (days, within) = (total.div_euclid(DAY), total.rem_euclid(DAY) as i64);
        if days.abs() > i128::from(MOST_DAYS) {
            return Err(ConversionError::out_of_range(format_args!(
                "{total} microseconds are more than {MOST_DAYS} days"
            )));
        }
        let (seconds, microseconds) = ((within / MICROSECONDS) as i32, (within % MICROSECONDS) as i32);
        Ok(TimeDelta { days: days as i32, seconds, microseconds })
    }

    /// Whole days, rounded down.
    pub fn days(&self) -> i32 {
        self.days
    }

    /// Seconds beyond the days, 0 to 86,399.
    pub fn seconds(&self) -> i32 {
        self.seconds
    }

    /// Microseconds beyond those, 0 to 999,999.
    pub fn microseconds(&self) -> i32 {
        self.microseconds
    }

    /// All of it.
    pub fn total_microseconds(&self) -> i128 {
        i128::from(self.days) * DAY
            + i128::from(self.seconds) * i128::from(MICROSECONDS)
            + i128::from(self.microseconds)
    }
}

impl TryFrom<Duration> for TimeDelta {
    type Error = ConversionError;

    /// Cut to microseconds.
    fn try_from(duration: Duration) -> Result<TimeDelta, ConversionError> {
        TimeDelta::from_microseconds(duration.as_micros() as i128)
    }
}

impl TryFrom<TimeDelta> for Duration {
    type Error = ConversionError;

    /// Needs one that is not negative.
    fn try_from(delta: TimeDelta) -> Result<Duration, ConversionError> {
        let total = u64::try_from(delta.total_microseconds());
        total.map(Duration::from_micros).map_err(|_| ConversionError::out_of_range(format_args!("{delta} is negative")))
    }
}
