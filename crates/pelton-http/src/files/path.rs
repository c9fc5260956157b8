//! Converts the path of a request to a file name below the root.
//!
//! A path is decoded once, and the rules apply to the decoded name, so no spelling gets past them. Ambiguous names are refused:
//! empty segments, `.` and `..`, and escaped slashes or backslashes.

use crate::wire::token::escaped;

/// Why a path names no file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotAName {
    /// The path is invalid: 400.
    Malformed,
    /// No file can have this name: 404.
    Nothing,
}

/// Whether files whose names begin with a dot are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HiddenFiles {
    Served,
    NotServed,
}

/// Writes the name of `path` relative to the root: without a leading slash, and with a trailing one if the path has one. The
/// name of the root is empty.
pub(super) fn decode(path: &str, hidden: HiddenFiles, name: &mut Vec<u8>) -> Result<(), NotAName> {
    name.clear();
    let mut rest = path.strip_prefix('/').ok_or(NotAName::Nothing)?.as_bytes();
    while let Some(at) = memchr::memchr(b'%', rest) {
        name.extend_from_slice(&rest[..at]);
        let byte = escaped(&rest[at..]).ok_or(NotAName::Malformed)?;
        if byte == b'/' {
            return Err(NotAName::Nothing);
        }
        name.push(byte);
        rest = &rest[at + 3..];
    }
    name.extend_from_slice(rest);
    check(name, hidden)
}

fn check(name: &[u8], hidden: HiddenFiles) -> Result<(), NotAName> {
    if memchr::memchr(0, name).is_some() {
        return Err(NotAName::Malformed);
    }
    // A backslash is an ordinary byte on some systems and a separator on others.
    if memchr::memchr(b'\\', name).is_some() {
        return Err(NotAName::Nothing);
    }
    let mut segments = name.strip_suffix(b"/").unwrap_or(name).split(|byte| *byte == b'/');
    let bad = |segment: &[u8]| match segment {
        [] | [b'.'] | [b'.', b'.'] => true,
        [b'.', ..] => hidden == HiddenFiles::NotServed,
        _ => false,
    };
    if !name.is_empty() && segments.any(bad) { Err(NotAName::Nothing) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str, hidden: HiddenFiles) -> Result<String, NotAName> {
        let mut name = b"left over".to_vec();
        decode(path, hidden, &mut name).map(|()| String::from_utf8_lossy(&name).into_owned())
    }

    #[test]
    fn paths_are_decoded_once() {
        for (path, expected) in [
            ("/", ""),
            ("/a", "a"),
            ("/a/", "a/"),
            ("/a/b.html", "a/b.html"),
            ("/a%20b", "a b"),
            ("/%61%2E%74", "a.t"),
            ("/%2541", "%41"),
            ("/%252e%252e/a", "%2e%2e/a"),
            ("/%252f", "%2f"),
            ("/a+b", "a+b"),
            ("/a..b/c..", "a..b/c.."),
            ("/...", "..."),
            ("/%C3%A4", "ä"),
            ("/a:b*?", "a:b*?"),
        ] {
            let expected = if path == "/..." { Err(NotAName::Nothing) } else { Ok(expected.to_owned()) };
            assert_eq!(name(path, HiddenFiles::NotServed), expected, "{path}");
        }
        assert_eq!(name("/...", HiddenFiles::Served), Ok("...".to_owned()));
    }

    #[test]
    fn no_spelling_leaves_the_root() {
        for hidden in [HiddenFiles::Served, HiddenFiles::NotServed] {
            for path in [
                "/..",
                "/../a",
                "/a/..",
                "/a/../b",
                "/a/../../b",
                "/.",
                "/./a",
                "/a/.",
                "/a/./b",
                "/%2e%2e/a",
                "/%2e./a",
                "/.%2E/a",
                "/%2e",
                "//",
                "//a",
                "/a//b",
                "/a//",
                "/a%2fb",
                "/..%2fa",
                "/%2f",
                "/%2Fetc/passwd",
                "/a\\b",
                "/..\\a",
                "/a%5cb",
                "/%5c..%5ca",
                "",
                "*",
            ] {
                assert_eq!(name(path, hidden), Err(NotAName::Nothing), "{path}");
            }
            for path in ["/%", "/%2", "/%g0", "/%0g", "/%+1", "/a%00", "/%00/../a", "/a%00.html"] {
                assert_eq!(name(path, hidden), Err(NotAName::Malformed), "{path}");
            }
            for path in ["/.git/config", "/a/.b", "/.b/", "/%2eb"] {
                assert_eq!(name(path, hidden).is_ok(), hidden == HiddenFiles::Served, "{path}");
            }
        }
    }
}
