//! Selects byte ranges of a body (RFC 9110, section 14).

use std::ops::Range;

use super::decimal;
use super::token::{list, trim};

/// More ranges than this are refused. Document readers request a handful, and only attackers request dozens.
pub const MOST_RANGES: usize = 32;

/// How many pairs of ranges may overlap. The RFC suggests suspecting more than two.
const MOST_OVERLAPS: usize = 2;

/// The part of a body to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// All of it, with a 200: there is no range, or none that is understood.
    Whole,
    /// This part, which is not empty.
    One(Range<u64>),
    /// These parts, in this order. None is empty, and together they are shorter than the whole.
    Several(Vec<Range<u64>>),
    /// Nothing, with a 416: every range is empty, or there are so many or they overlap so much that the answer costs far more
    /// than the request.
    Unsatisfiable,
}

/// Returns what a `Range` field selects from a body of `length` bytes.
///
/// ```
/// use pelton_http::wire::{Selection, select_ranges};
///
/// assert_eq!(select_ranges(b"bytes=-3", 10), Selection::One(7..10));
/// assert_eq!(select_ranges(b"bytes=10-", 10), Selection::Unsatisfiable);
/// assert_eq!(select_ranges(b"lines=1-2", 10), Selection::Whole);
/// ```
pub fn select_ranges(value: &[u8], length: u64) -> Selection {
    let Some((first, rest)) = specs(value) else { return Selection::Whole };
    let Some(first) = parse(first) else { return Selection::Whole };
    if rest.is_empty() {
        return match first.within(length) {
            Within::Part(part) => Selection::One(part),
            Within::Nothing => Selection::Unsatisfiable,
            Within::WholeOfNothing => Selection::Whole,
        };
    }
    several(first, rest, length)
}

/// Splits the first range off the set. `None` if this is not a set of byte ranges.
fn specs(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (unit, set) = value.split_at(value.iter().position(|byte| *byte == b'=')?);
    if !trim(unit).eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut set = &set[1..];
    loop {
        let end = memchr::memchr(b',', set).unwrap_or(set.len());
        let (spec, rest) = (trim(&set[..end]), set.get(end + 1..).unwrap_or_default());
        // Lists may have empty members.
        if !spec.is_empty() || rest.is_empty() {
            return Some((spec, rest));
        }
        set = rest;
    }
}

fn several(first: Spec, rest: &[u8], length: u64) -> Selection {
    let mut parts = Vec::new();
    let mut count = 0;
    for spec in std::iter::once(Some(first)).chain(list(rest).map(parse)) {
        // One invalid range invalidates the whole field.
        let Some(spec) = spec else { return Selection::Whole };
        count += 1;
        if count > MOST_RANGES {
            return Selection::Unsatisfiable;
        }
        match spec.within(length) {
            Within::Part(part) => parts.push(part),
            Within::Nothing => {}
            Within::WholeOfNothing => return Selection::Whole,
        }
    }
    if overlaps(&parts) > MOST_OVERLAPS {
        return Selection::Unsatisfiable;
    }
    match parts.as_slice() {
        [] => Selection::Unsatisfiable,
        [part] => Selection::One(part.clone()),
        // The whole body costs less and includes all ranges.
        _ if parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.end - part.start)) >= length => {
            Selection::Whole
        }
        _ => Selection::Several(parts),
    }
}

/// Counts the pairs that overlap. There are few ranges.
fn overlaps(parts: &[Range<u64>]) -> usize {
    let pairs = parts.iter().enumerate().flat_map(|(at, one)| parts[at + 1..].iter().map(move |other| (one, other)));
    pairs.filter(|(one, other)| one.start < other.end && other.start < one.end).count()
}

/// A range as requested.
#[derive(Clone, Copy)]
enum Spec {
    /// From one position to another, inclusive.
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

enum Within {
    Part(Range<u64>),
    Nothing,
    /// Empty, at the end of an empty body. `Content-Range` cannot express it.
    WholeOfNothing,
}

fn parse(spec: &[u8]) -> Option<Spec> {
    let dash = memchr::memchr(b'-', spec)?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    match (first, last) {
        ([], last) => Some(Spec::Last(number(last)?)),
        (first, []) => Some(Spec::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Spec::From(first, Some(last)))
        }
    }
}

/// Parses a number. Values that do not fit become the maximum.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(decimal(digits).unwrap_or(u64::MAX))
}

impl Spec {
    fn within(self, length: u64) -> Within {
        match self {
            Spec::From(first, _) if first >= length => Within::Nothing,
            Spec::From(first, last) => {
                Within::Part(first..last.map_or(length, |last| last.saturating_add(1).min(length)))
            }
            Spec::Last(0) => Within::Nothing,
            Spec::Last(_) if length == 0 => Within::WholeOfNothing,
            Spec::Last(count) => Within::Part(length.saturating_sub(count)..length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn select(value: &str, length: u64) -> Selection {
        select_ranges(value.as_bytes(), length)
    }

    #[test]
    fn single_ranges() {
        use Selection::{One, Unsatisfiable, Whole};
        for (value, length, expected) in [
            ("bytes=0-0", 10, One(0..1)),
            ("bytes=0-", 10, One(0..10)),
            ("bytes=2-5", 10, One(2..6)),
            ("bytes=2-99", 10, One(2..10)),
            ("bytes=9-9", 10, One(9..10)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=10-20", 10, Unsatisfiable),
            ("bytes=-1", 10, One(9..10)),
            ("bytes=-10", 10, One(0..10)),
            ("bytes=-11", 10, One(0..10)),
            ("bytes=-0", 10, Unsatisfiable),
            ("Bytes=0-0", 10, One(0..1)),
            ("bytes = 0-0 ", 10, One(0..1)),
            ("bytes=,0-0,", 10, One(0..1)),
            ("bytes=0-99999999999999999999999999", 10, One(0..10)),
            ("bytes=99999999999999999999999999-", 10, Unsatisfiable),
            ("bytes=0-18446744073709551615", u64::MAX, One(0..u64::MAX)),
            ("bytes=-99999999999999999999999999", 10, One(0..10)),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-1", 0, Whole),
            ("bytes=-0", 0, Unsatisfiable),
            ("bytes=5-2", 10, Whole),
            ("bytes=", 10, Whole),
            ("bytes=,", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=--1", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("bytes=1 -2", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("bytes", 10, Whole),
            ("", 10, Whole),
            ("items=0-1", 10, Whole),
        ] {
            assert_eq!(select(value, length), expected, "{value} of {length}");
        }
    }

    #[test]
    fn several_ranges_keep_their_order_and_cost_less_than_the_whole() {
        use Selection::{One, Several, Unsatisfiable, Whole};
        for (value, expected) in [
            ("bytes=0-1,5-6", Several(vec![0..2, 5..7])),
            ("bytes=90-91 , 0-1", Several(vec![90..92, 0..2])),
            ("bytes=0-1,,5-6", Several(vec![0..2, 5..7])),
            ("bytes=0-1,100-", One(0..2)),
            ("bytes=100-,200-", Unsatisfiable),
            ("bytes=0-1,x", Whole),
            ("bytes=0-49,50-", Whole),
            ("bytes=0-1,1-2,2-3", Several(vec![0..2, 1..3, 2..4])),
            ("bytes=0-1,0-1,0-1", Unsatisfiable),
            ("bytes=0-,0-,0-,0-,0-", Unsatisfiable),
        ] {
            assert_eq!(select(value, 100), expected, "{value}");
        }
    }

    #[test]
    fn too_many_ranges_are_refused() {
        let set = |count: usize| {
            let specs: Vec<String> = (0..count).map(|at| format!("{}-{}", 3 * at, 3 * at)).collect();
            format!("bytes={}", specs.join(","))
        };
        assert!(matches!(select(&set(MOST_RANGES), 1000), Selection::Several(parts) if parts.len() == MOST_RANGES));
        assert_eq!(select(&set(MOST_RANGES + 1), 1000), Selection::Unsatisfiable);
        let beyond: Vec<String> = (0..1000).map(|_| "2000-".to_owned()).collect();
        assert_eq!(select(&format!("bytes={}", beyond.join(",")), 1000), Selection::Unsatisfiable);
    }

    /// The positions of a range, one by one.
    fn model(first: Option<u64>, last: Option<u64>, length: u64) -> Vec<u64> {
        let has = |at: &u64| match (first, last) {
            (Some(first), Some(last)) => (first..=last).contains(at),
            (Some(first), None) => *at >= first,
            (None, Some(count)) => length - at <= count,
            (None, None) => false,
        };
        (0..length).filter(has).collect()
    }

    proptest! {
        #[test]
        fn ranges_cover_the_requested_positions(
            specs in prop::collection::vec((prop::option::of(0..40_u64), prop::option::of(0..40_u64)), 1..6),
            length in 0..30_u64,
        ) {
            let text: Vec<String> = specs
                .iter()
                .map(|(first, last)| {
                    let write = |number: &Option<u64>| number.map_or(String::new(), |number| number.to_string());
                    format!("{}-{}", write(first), write(last))
                })
                .collect();
            let invalid = specs.iter().any(|spec| matches!(spec, (None, None)) || matches!(spec, (Some(a), Some(b)) if a > b));
            let expected: Vec<Vec<u64>> =
                specs.iter().map(|(first, last)| model(*first, *last, length)).filter(|part| !part.is_empty()).collect();
            let selected = select(&format!("bytes={}", text.join(",")), length);
            if invalid {
                prop_assert_eq!(selected, Selection::Whole);
                return Ok(());
            }
            match selected {
                Selection::One(part) => prop_assert_eq!(vec![part.collect::<Vec<_>>()], expected),
                Selection::Several(parts) => {
                    let parts: Vec<Vec<u64>> = parts.into_iter().map(Iterator::collect).collect();
                    prop_assert!(parts.iter().map(Vec::len).sum::<usize>() < length as usize);
                    prop_assert_eq!(parts, expected);
                }
                Selection::Unsatisfiable => {
                    let shared = |one: &[u64], other: &[u64]| one.iter().any(|at| other.contains(at));
                    let mut pairs = 0;
                    for (at, one) in expected.iter().enumerate() {
                        pairs += expected[at + 1..].iter().filter(|other| shared(one, other)).count();
                    }
                    prop_assert!(expected.is_empty() || pairs > 2);
                }
                Selection::Whole => {
                    let suffix_of_nothing = length == 0 && specs.iter().any(|(first, _)| first.is_none());
                    let sum = expected.iter().map(Vec::len).sum::<usize>();
                    prop_assert!(suffix_of_nothing || (expected.len() > 1 && sum >= length as usize));
                }
            }
        }
    }
}
