//! Dates and times as text: ISO 8601, with zones as in RFC 9557.

use std::fmt;
use std::str::FromStr;

use super::calendar::{DAY, MICROSECONDS};
use super::{ConversionError, Date, DateTime, Time, TimeDelta, Zone};

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// Writes hours and minutes, and seconds and a fraction if they are not zero.
fn write_offset(f: &mut fmt::Formatter<'_>, offset: TimeDelta) -> fmt::Result {
    let total = offset.total_microseconds();
    let seconds = total.unsigned_abs() / MICROSECONDS as u128;
    let (sign, microseconds) = (if total < 0 { '-' } else { '+' }, total.unsigned_abs() % MICROSECONDS as u128);
    write!(f, "{sign}{:02}:{:02}", seconds / 3_600, seconds / 60 % 60)?;
    if !seconds.is_multiple_of(60) || microseconds != 0 {
        write!(f, ":{:02}", seconds % 60)?;
    }
    if microseconds != 0 { write!(f, ".{microseconds:06}") } else { Ok(()) }
}

impl fmt::Display for Time {
    /// Formats as in RFC 9557: `12:30:00+01:00[Europe/Berlin]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)?;
        if self.microsecond != 0 {
            write!(f, ".{:06}", self.microsecond)?;
        }
        match &self.zone {
            None => {}
            Some(Zone::Offset(offset)) => write_offset(f, *offset)?,
            Some(Zone::Named { key, offset }) => {
                if let Some(offset) = offset {
                    write_offset(f, *offset)?;
                }
                write!(f, "[{key}]")?;
            }
        }
        if self.fold { f.write_str("[fold=1]") } else { Ok(()) }
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}T{}", self.date, self.time)
    }
}

impl fmt::Display for TimeDelta {
    /// Formats as in ISO 8601, in days and seconds: `P1DT0.5S`, `-PT2S`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total_microseconds();
        let (days, within) = (total.unsigned_abs() / DAY as u128, total.unsigned_abs() % DAY as u128);
        let (seconds, microseconds) = (within / MICROSECONDS as u128, within % MICROSECONDS as u128);
        f.write_str(if total < 0 { "-P" } else { "P" })?;
        if days != 0 {
            write!(f, "{days}D")?;
        }
        match microseconds {
            0 => write!(f, "T{seconds}S"),
            _ => write!(f, "T{seconds}.{microseconds:06}S"),
        }
    }
}

/// The error for text that cannot be parsed.
fn not_a(what: &str, text: &str) -> ConversionError {
    ConversionError::out_of_range(format_args!("{text:?} is not a {what}"))
}

/// Parses exactly `count` digits at the start of the text.
fn digits(text: &mut &str, count: usize) -> Option<u32> {
    let (number, rest) = text.split_at_checked(count)?;
    *text = rest;
    if number.bytes().all(|byte| byte.is_ascii_digit()) { number.parse().ok() } else { None }
}

/// Parses a fraction such as `.5` or `.000005` at the start of the text, in microseconds; 0 if there is none.
fn fraction(text: &mut &str) -> Option<u32> {
    let Some(rest) = text.strip_prefix('.') else { return Some(0) };
    let count = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(count);
    *text = rest;
    if (1..=6).contains(&count) { format!("{number:0<6}").parse().ok() } else { None }
}

impl FromStr for Date {
    type Err = ConversionError;

    fn from_str(text: &str) -> Result<Date, ConversionError> {
        let mut rest = text;
        let mut parse = || {
            let year = digits(&mut rest, 4)?;
            rest = rest.strip_prefix('-')?;
            let month = digits(&mut rest, 2)?;
            rest = rest.strip_prefix('-')?;
            Some((year, month, digits(&mut rest, 2)?))
        };
        match parse() {
            Some((year, month, day)) if rest.is_empty() => Date::new(year as i32, month, day),
            _ => Err(not_a("date", text)),
        }
    }
}

impl FromStr for Time {
    type Err = ConversionError;

    fn from_str(text: &str) -> Result<Time, ConversionError> {
        let mut rest = text;
        let mut parse = || {
            let hour = digits(&mut rest, 2)?;
            rest = rest.strip_prefix(':')?;
            let minute = digits(&mut rest, 2)?;
            rest = rest.strip_prefix(':')?;
            let second = digits(&mut rest, 2)?;
            Some((hour, minute, second, fraction(&mut rest)?))
        };
        let (hour, minute, second, microsecond) = parse().ok_or_else(|| not_a("time", text))?;
        let mut time = Time::new(hour, minute, second, microsecond)?;
        let offset = parse_offset(&mut rest).ok_or_else(|| not_a("time", text))?;
        let mut zone = offset.map(Zone::Offset);
        while let Some((tag, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            match tag {
                "fold=1" => time = time.folded(),
                key => zone = Some(Zone::Named { key: key.to_owned(), offset }),
            }
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(not_a("time", text));
        }
        match zone {
            Some(zone) => time.in_zone(zone),
            None => Ok(time),
        }
    }
}

/// Parses `Z`, `+01:00` or nothing at the start of the text. Returns `None` if the offset is malformed.
fn parse_offset(text: &mut &str) -> Option<Option<TimeDelta>> {
    if let Some(rest) = text.strip_prefix('Z') {
        *text = rest;
        return Some(Some(TimeDelta::default()));
    }
    let Some(rest) = text.strip_prefix(['+', '-']) else { return Some(None) };
    let sign = if text.starts_with('-') { -1 } else { 1 };
    *text = rest;
    let hours = digits(text, 2)?;
    *text = text.strip_prefix(':')?;
    let minutes = digits(text, 2)?;
    let (mut seconds, mut microseconds) = (0, 0);
    if let Some(rest) = text.strip_prefix(':') {
        *text = rest;
        seconds = digits(text, 2)?;
        microseconds = fraction(text)?;
    }
    let seconds = i64::from(hours) * 3_600 + i64::from(minutes) * 60 + i64::from(seconds);
    TimeDelta::new(0, sign * seconds, sign * i64::from(microseconds)).ok().map(Some)
}

impl FromStr for DateTime {
    type Err = ConversionError;

    fn from_str(text: &str) -> Result<DateTime, ConversionError> {
        let (date, time) = text.split_once(['T', ' ']).ok_or_else(|| not_a("date and time", text))?;
        Ok(DateTime::new(date.parse()?, time.parse()?))
    }
}

impl FromStr for TimeDelta {
    type Err = ConversionError;

    fn from_str(text: &str) -> Result<TimeDelta, ConversionError> {
        let parse = || {
            let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
            let (days, rest) = rest.strip_prefix('P')?.split_once('T')?;
            let days: i64 = if days.is_empty() { 0 } else { days.strip_suffix('D')?.parse().ok()? };
            let mut rest = rest.strip_suffix('S')?;
            let count = rest.bytes().take_while(u8::is_ascii_digit).count();
            let seconds: i64 = rest[..count].parse().ok()?;
            rest = &rest[count..];
            let microseconds = i64::from(fraction(&mut rest)?);
            // A second sign is not allowed.
            (rest.is_empty() && days >= 0).then_some((sign * days, sign * seconds, sign * microseconds))
        };
        let (days, seconds, microseconds) = parse().ok_or_else(|| not_a("duration", text))?;
        TimeDelta::new(days, seconds, microseconds)
    }
}
