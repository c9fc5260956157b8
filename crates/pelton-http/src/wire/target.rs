//! Parses request targets (RFC 9112, section 3.2).

use std::ops::Range;

use super::Refusal;
use super::host::{is_authority, is_host_and_port};
use crate::Method;

/// The form of a request target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A path and an optional query, as in nearly all requests.
    Origin,
    /// An absolute URI, as sent to a proxy. Its host overrides the `Host` field.
    Absolute,
    /// A host and a port, for `CONNECT` only.
    Authority,
    /// `*`, for `OPTIONS` only: the server itself.
    Asterisk,
}

/// The ranges of the parts of a target.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) form: Form,
    /// The host, if the target includes it.
    pub(super) authority: Option<Range<usize>>,
    /// Empty means `/`.
    pub(super) path: Range<usize>,
    pub(super) query: Option<Range<usize>>,
}

/// Splits a target into its parts.
#[inline(always)]
pub(super) fn split(target: &[u8], method: Method) -> Result<Parts, Refusal> {
    let mark = question_mark(target)?;
    match (method, target) {
        (Method::Connect, _) => authority(target),
        (_, [b'/', ..]) => Ok(path_and_query(target, 0, mark, Form::Origin, None)),
        (Method::Options, b"*") => Ok(Parts { form: Form::Asterisk, authority: None, path: 0..1, query: None }),
        _ => absolute(target, mark),
    }
}

/// The classes of bytes in a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Part,
    QuestionMark,
    Bad,
}

static CLASSES: [Class; 256] = {
    let mut table = [Class::Bad; 256];
    // Paths and queries may contain more than RFC 3986 allows, because browsers send it and it does not affect where a message
    // ends. No legitimate client sends fragments or non-ASCII bytes.
    let mut byte = b'!';
    while byte < 0x7f {
        table[byte as usize] = match byte {
            b'#' => Class::Bad,
            b'?' => Class::QuestionMark,
            _ => Class::Part,
        };
        byte += 1;
    }
    table
};

/// Finds the start of the query, and validates every byte.
#[inline]
fn question_mark(target: &[u8]) -> Result<Option<usize>, Refusal> {
    let class = |byte: &u8| CLASSES[usize::from(*byte)];
    let Some(at) = target.iter().position(|byte| class(byte) != Class::Part) else { return Ok(None) };
    if target[at..].iter().any(|byte| class(byte) == Class::Bad) {
        return Err(Refusal::bad("invalid byte in the target"));
    }
    Ok(Some(at))
}

#[inline]
fn path_and_query(
    target: &[u8],
    start: usize,
    mark: Option<usize>,
    form: Form,
    authority: Option<Range<usize>>,
) -> Parts {
    let end = target.len();
    Parts { form, authority, path: start..mark.unwrap_or(end), query: mark.map(|mark| mark + 1..end) }
}

#[cold]
fn authority(target: &[u8]) -> Result<Parts, Refusal> {
    if !is_host_and_port(target) {
        return Err(Refusal::bad("the target of CONNECT is not a host and a port"));
    }
    Ok(Parts { form: Form::Authority, authority: Some(0..target.len()), path: 0..0, query: None })
}

#[cold]
fn absolute(target: &[u8], mark: Option<usize>) -> Result<Parts, Refusal> {
    let bad = Refusal::bad("the target is neither a path nor a URI");
    let scheme = |scheme: &[u8]| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let start = if scheme(b"http://") {
        7
    } else if scheme(b"https://") {
        8
    } else {
        return Err(bad);
    };
    let length = target[start..].iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(target.len() - start);
    let authority = start..start + length;
    if authority.is_empty() || !is_authority(&target[authority.clone()]) {
        return Err(Refusal::bad("invalid host in the target"));
    }
    Ok(path_and_query(target, authority.end, mark, Form::Absolute, Some(authority)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: Method, target: &str) -> Option<(Form, Option<&str>, &str, Option<&str>)> {
        let parts = split(target.as_bytes(), method).ok()?;
        Some((
            parts.form,
            parts.authority.map(|range| &target[range]),
            &target[parts.path],
            parts.query.map(|range| &target[range]),
        ))
    }

    #[test]
    fn targets_have_four_forms() {
        let get = |target| parts(Method::Get, target);
        assert_eq!(get("/"), Some((Form::Origin, None, "/", None)));
        assert_eq!(get("/a/b?c=d?e"), Some((Form::Origin, None, "/a/b", Some("c=d?e"))));
        assert_eq!(get("/?"), Some((Form::Origin, None, "/", Some(""))));
        assert_eq!(get("//a"), Some((Form::Origin, None, "//a", None)));
        assert_eq!(get("http://a:80/b?c"), Some((Form::Absolute, Some("a:80"), "/b", Some("c"))));
        assert_eq!(get("HTTPS://a"), Some((Form::Absolute, Some("a"), "", None)));
        assert_eq!(get("http://a?b"), Some((Form::Absolute, Some("a"), "", Some("b"))));
        assert_eq!(parts(Method::Options, "*"), Some((Form::Asterisk, None, "*", None)));
        assert_eq!(parts(Method::Connect, "a:1"), Some((Form::Authority, Some("a:1"), "", None)));
    }

    #[test]
    fn other_targets_are_refused() {
        for target in [
            "*",
            "a",
            "a:1",
            "/#",
            "/ä",
            "ftp://a/",
            "http://",
            "http:///a",
            "http://u@h/",
            "http://a b/",
            "http:/a",
            "?",
        ] {
            assert_eq!(parts(Method::Get, target), None, "{target}");
        }
        for target in ["/", "a", "*", "http://a/"] {
            assert_eq!(parts(Method::Connect, target), None, "{target}");
        }
    }
}
