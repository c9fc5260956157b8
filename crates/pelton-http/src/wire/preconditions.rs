//! Evaluates conditional requests (RFC 9110, section 13), for handlers that answer `GET` and `HEAD`.

use std::time::UNIX_EPOCH;

use super::Fields;

/// The validators of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'a> {
    /// The entity tag with its quotes, but without `W/`, if there is one.
    pub tag: Option<&'a [u8]>,
    /// Whether the tag is weak: two states may share it.
    pub weak: bool,
    /// The time of the last modification, in seconds since 1970, if clients are told.
    pub modified: Option<u64>,
}

/// The result of evaluating the conditions of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The conditions hold, or there are none.
    Proceed,
    /// The client has the current state: 304.
    NotModified,
    /// The state differs from what the client expects: 412.
    Failed,
}

/// Evaluates the conditions of a `GET` or `HEAD` for an existing resource, in the order of RFC 9110, section 13.2.2: a date
/// counts only if there is no condition with a tag of its kind.
pub fn evaluate(fields: Fields<'_>, own: &Validators<'_>) -> Verdict {
    if fields.get("If-Match").is_some() {
        if !any_matches(fields.all("If-Match"), own, Comparison::Strong) {
            return Verdict::Failed;
        }
    } else if let (Some(since), Some(modified)) = (date(fields.get("If-Unmodified-Since")), own.modified)
        && modified > since
    {
        return Verdict::Failed;
    }
    if fields.get("If-None-Match").is_some() {
        if any_matches(fields.all("If-None-Match"), own, Comparison::Weak) {
            return Verdict::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (date(fields.get("If-Modified-Since")), own.modified)
        && modified <= since
    {
        return Verdict::NotModified;
    }
    Verdict::Proceed
}

/// Whether to honour a `Range`. An `If-Range`, if present, must be a strong tag equal to the current one. A date never matches:
/// the file might have changed twice within the same second (RFC 9110, sections 13.1.5 and 8.8.2.2), or an earlier version might
/// have had the same date.
pub fn range_counts(fields: Fields<'_>, own: &Validators<'_>) -> bool {
    let Some(condition) = fields.get("If-Range") else { return true };
    !own.weak && own.tag == Some(condition)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

fn any_matches<'a>(lists: impl Iterator<Item = &'a [u8]>, own: &Validators<'_>, comparison: Comparison) -> bool {
    let mut lists = lists;
    lists.any(|list| {
        if list == b"*" {
            return true;
        }
        let strong = comparison == Comparison::Strong;
        tags(list).any(|(weak, tag)| Some(tag) == own.tag && !(strong && (weak || own.weak)))
    })
}

/// Iterates over the entity tags of a list, and whether each is weak, up to the first invalid one. Tags may contain commas.
fn tags(mut rest: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    std::iter::from_fn(move || {
        while let [b' ' | b'\t' | b',', after @ ..] = rest {
            rest = after;
        }
        let (weak, tag) = match rest {
            [b'W', b'/', tag @ ..] => (true, tag),
            tag => (false, tag),
        };
        let [b'"', inside @ ..] = tag else { return None };
        let end = memchr::memchr(b'"', inside)? + 2;
        rest = &tag[end..];
        Some((weak, &tag[..end]))
    })
}

/// Parses a date to seconds since 1970. Invalid dates are ignored.
fn date(value: Option<&[u8]>) -> Option<u64> {
    let date = httpdate::parse_http_date(str::from_utf8(value?).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Head, HeadLimits, Notes};

    fn with_fields<R>(lines: &[&str], then: impl FnOnce(Fields<'_>) -> R) -> R {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            lines.iter().map(|line| format!("{line}\r\n")).collect::<String>()
        );
        let mut notes = Notes::default();
        Head::parse(text.as_bytes(), &mut notes, &HeadLimits::default()).unwrap();
        then(notes.fields(text.as_bytes()))
    }

    const OWN: Validators<'_> = Validators { tag: Some(b"\"a,b\""), weak: false, modified: Some(784_111_777) };
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    #[test]
    fn single_conditions() {
        use Verdict::{Failed, NotModified, Proceed};
        for (line, expected, weak) in [
            ("If-Match: \"a,b\"".to_owned(), Proceed, Failed),
            ("If-Match: *".to_owned(), Proceed, Proceed),
            ("If-Match: \"x\", \"a,b\"".to_owned(), Proceed, Failed),
            ("If-Match: W/\"a,b\"".to_owned(), Failed, Failed),
            ("If-Match: \"a\"".to_owned(), Failed, Failed),
            ("If-Match: a,b".to_owned(), Failed, Failed),
            ("If-Match:".to_owned(), Failed, Failed),
            ("If-None-Match: \"a,b\"".to_owned(), NotModified, NotModified),
            ("If-None-Match: W/\"a,b\"".to_owned(), NotModified, NotModified),
            ("If-None-Match: *".to_owned(), NotModified, NotModified),
            ("If-None-Match: \"b\",,W/\"c\" ,\"a,b\"".to_owned(), NotModified, NotModified),
            ("If-None-Match: \"x\"".to_owned(), Proceed, Proceed),
            ("If-None-Match: \"a,b".to_owned(), Proceed, Proceed),
            (format!("If-Unmodified-Since: {BEFORE}"), Failed, Failed),
            (format!("If-Unmodified-Since: {THEN}"), Proceed, Proceed),
            (format!("If-Unmodified-Since: {AFTER}"), Proceed, Proceed),
            ("If-Unmodified-Since: yesterday".to_owned(), Proceed, Proceed),
            (format!("If-Modified-Since: {BEFORE}"), Proceed, Proceed),
            (format!("If-Modified-Since: {THEN}"), NotModified, NotModified),
            (format!("If-Modified-Since: {AFTER}"), NotModified, NotModified),
            ("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT".to_owned(), NotModified, NotModified),
            ("If-Modified-Since: Sun Nov  6 08:49:37 1994".to_owned(), NotModified, NotModified),
            ("If-Modified-Since: 784111777".to_owned(), Proceed, Proceed),
        ] {
            with_fields(&[&line], |fields| {
                assert_eq!(evaluate(fields, &OWN), expected, "{line}");
                assert_eq!(evaluate(fields, &Validators { weak: true, ..OWN }), weak, "{line}, weak");
            });
        }
    }

    /// Checks every combination of conditions that are true, false or absent against the rules in the order of the RFC.
    #[test]
    fn combined_conditions_are_evaluated_in_order() {
        let matches = [None, Some(("If-Match: \"a,b\"".to_owned(), true)), Some(("If-Match: \"x\"".to_owned(), false))];
        let since = |name: &str, met: &str, not: &str| {
            [None, Some((format!("{name}: {met}"), true)), Some((format!("{name}: {not}"), false))]
        };
        let unmodified = since("If-Unmodified-Since", AFTER, BEFORE);
        let none_match =
            [None, Some(("If-None-Match: \"x\"".to_owned(), true)), Some(("If-None-Match: \"a,b\"".to_owned(), false))];
        let modified = since("If-Modified-Since", BEFORE, AFTER);
        let mut tried = 0;
        for a in &matches {
            for b in &unmodified {
                for c in &none_match {
                    for d in &modified {
                        let met = |condition: &Option<(String, bool)>| condition.as_ref().map(|(_, met)| *met);
                        let expected = if met(a).or(met(b)) == Some(false) {
                            Verdict::Failed
                        } else if met(c).or(met(d)) == Some(false) {
                            Verdict::NotModified
                        } else {
                            Verdict::Proceed
                        };
                        let lines: Vec<&str> =
                            [d, c, b, a].into_iter().flatten().map(|(line, _)| line.as_str()).collect();
                        with_fields(&lines, |fields| assert_eq!(evaluate(fields, &OWN), expected, "{lines:?}"));
                        tried += 1;
                    }
                }
            }
        }
        assert_eq!(tried, 81);
    }

    #[test]
    fn if_range_needs_an_equal_strong_tag() {
        for (value, expected) in [
            ("\"a,b\"", true),
            ("W/\"a,b\"", false),
            ("\"x\"", false),
            (THEN, false),
            (BEFORE, false),
            (AFTER, false),
            ("*", false),
            ("", false),
        ] {
            with_fields(&[&format!("If-Range: {value}")], |fields| {
                assert_eq!(range_counts(fields, &OWN), expected, "{value}");
                assert!(!range_counts(fields, &Validators { weak: true, ..OWN }), "{value}, weak");
            });
        }
        with_fields(&[], |fields| assert!(range_counts(fields, &Validators { weak: true, ..OWN })));
    }

    /// A resource without validators matches no state that a client may know.
    #[test]
    fn without_validators_only_existence_matches() {
        use Verdict::{Failed, NotModified, Proceed};
        const NOTHING: Validators<'_> = Validators { tag: None, weak: false, modified: None };
        for (line, expected) in [
            ("If-Match: *".to_owned(), Proceed),
            ("If-Match: \"a,b\"".to_owned(), Failed),
            ("If-None-Match: *".to_owned(), NotModified),
            ("If-None-Match: \"a,b\"".to_owned(), Proceed),
            ("If-None-Match: \"\"".to_owned(), Proceed),
            (format!("If-Modified-Since: {AFTER}"), Proceed),
            (format!("If-Unmodified-Since: {BEFORE}"), Proceed),
        ] {
            with_fields(&[&line], |fields| assert_eq!(evaluate(fields, &NOTHING), expected, "{line}"));
        }
        for value in ["\"a,b\"", "\"\"", "", THEN] {
            with_fields(&[&format!("If-Range: {value}")], |fields| assert!(!range_counts(fields, &NOTHING), "{value}"));
        }
        with_fields(&[], |fields| assert!(range_counts(fields, &NOTHING)));
    }
}
