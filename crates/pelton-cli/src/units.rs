//! Parses and prints durations and sizes.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest duration accepted: a year. Longer ones are rejected, because they are probably meant as "never".
const MOST_DURATION: Duration = Duration::from_secs(365 * 86400);

/// Parses a duration: a number and a unit, such as `250ms`, `1.5s`, `2m`. At most a year.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" if number == "0" => 1.0,
        _ => return Err("give a number and a unit: 250ms, 30s, 5m, 2h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "give a number and a unit: 250ms, 30s, 5m, 2h".to_owned())?;
    let duration = Duration::try_from_secs_f64(number * seconds).ok().filter(|duration| *duration <= MOST_DURATION);
    duration.ok_or_else(|| "too long; the maximum is 365d".to_owned())
}

/// Parses a duration that is not zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be greater than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses a number of bytes: `4096`, `64k`, `2MiB`, `1g`. Units are powers of 1,024.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a number of bytes: 4096, 64k, 2m, 1g".to_owned();
    let (number, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Parses a number of bytes within a range.
pub fn size_within(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match size(text) {
        Ok(bytes) if range.contains(&bytes) => Ok(bytes),
        Ok(_) => Err(format!("give a size from {} to {}", written(*range.start()), written(*range.end()))),
        Err(why) => Err(why),
    }
}

/// Formats a size as one would type it.
fn written(bytes: u64) -> String {
    let units = [(1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or(bytes.to_string(), |(unit, letter)| format!("{}{letter}", bytes / unit))
}

/// Splits a text into the leading number and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Formats a duration with three digits and a suitable unit.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a number of bytes with a suitable unit.
pub fn show_bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_units() {
        for (text, meant) in
            [("250ms", 250), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000), ("0", 0), ("3 s", 3000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(meant)), "{text}");
        }
        assert_eq!(duration("365d"), Ok(MOST_DURATION));
        for nonsense in ["", "5", "s", "-1s", "1 fortnight", "1.2.3s", "1e400s", "366d", "99999999999999999999d"] {
            assert!(duration(nonsense).is_err(), "{nonsense}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn sizes_are_parsed_with_their_units() {
        for (text, meant) in [("0", 0), ("4096", 4096), ("64k", 65536), ("2MiB", 2 << 20), ("1g", 1 << 30)] {
            assert_eq!(size(text), Ok(meant), "{text}");
        }
        for nonsense in ["", "k", "-1", "1.5m", "1t", "99999999999g"] {
            assert!(size(nonsense).is_err(), "{nonsense}");
        }
        let within = size_within(100..=3 << 20);
        assert_eq!((within("100"), within("3m")), (Ok(100), Ok(3 << 20)));
        for outside in ["99", "3145729", "18446744073709551615"] {
            assert_eq!(within(outside), Err("give a size from 100 to 3m".to_owned()), "{outside}");
        }
    }

    #[test]
    fn values_are_printed_with_a_suitable_unit() {
        assert_eq!(show_duration(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(show_duration(Duration::from_secs(75)), "75.0 s");
        assert_eq!(show_duration(Duration::from_nanos(800)), "0.80 µs");
        assert_eq!(show_bytes(1536.0), "1.5 KiB");
        assert_eq!(show_bytes(12.0), "12 B");
    }
}
