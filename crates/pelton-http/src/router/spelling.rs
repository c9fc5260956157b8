//! Equivalent spellings of a path (RFC 3986, section 6.2.2).

use std::borrow::Cow;

use crate::wire::token::escaped;

/// Returns the normal spelling: no unnecessary escapes, and upper-case hex digits. Slashes stay escaped or unescaped, so the
/// segments do not change. Invalid escapes are left alone.
///
/// Without this, a request for `/%70rivate` could bypass a handler for `/private` and reach another one that decodes paths.
pub(super) fn normal(path: &str) -> Cow<'_, str> {
    let mut places = memchr::memchr_iter(b'%', path.as_bytes());
    match places.find(|at| is_abnormal(&path.as_bytes()[*at..])) {
        None => Cow::Borrowed(path),
        Some(at) => Cow::Owned(normalized(path, at)),
    }
}

#[cold]
fn normalized(path: &str, from: usize) -> String {
    let mut normal = path[..from].to_owned();
    let mut rest = &path[from..];
    while let Some(at) = memchr::memchr(b'%', rest.as_bytes()) {
        let (before, escape) = rest.split_at(at);
        normal.push_str(before);
        let taken = match escaped(escape.as_bytes()) {
            Some(byte) if is_unreserved(byte) => {
                normal.push(char::from(byte));
                3
            }
            Some(_) => {
                normal.push_str(&escape[..3].to_ascii_uppercase());
                3
            }
            None => {
                normal.push('%');
                1
            }
        };
        rest = &escape[taken..];
    }
    normal.push_str(rest);
    normal
}

/// Whether `text` begins with an escape that is not in its normal form.
fn is_abnormal(text: &[u8]) -> bool {
    escaped(text).is_some_and(|byte| is_unreserved(byte) || text[1..3].iter().any(u8::is_ascii_lowercase))
}

/// The unreserved characters of RFC 3986, which mean the same escaped or not.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equivalent_paths_have_one_spelling() {
        for (path, expected) in [
            ("/a", "/a"),
            ("/%61", "/a"),
            ("/%7Euser/%7euser", "/~user/~user"),
            ("/a%2fb%2Fc", "/a%2Fb%2Fc"),
            ("/%2e%2E/", "/../"),
            ("/%25%36%31", "/%2561"),
            ("/%2561", "/%2561"),
            ("/%c3%a4", "/%C3%A4"),
            ("/%", "/%"),
            ("/%6", "/%6"),
            ("/%6g%61", "/%6ga"),
            ("/%%361", "/%61"),
            ("/a%20b", "/a%20b"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
            assert_eq!(matches!(normal(path), Cow::Borrowed(_)), path == expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn normal_paths_decode_to_the_same_bytes_in_the_same_segments(path in "(/|%[0-9a-fA-F]{2}|[a-c.~-]){0,20}") {
            let normal = normal(&path);
            let segments = |path: &str| path.split('/').map(|segment| {
                percent_encoding::percent_decode_str(segment).collect::<Vec<u8>>()
            }).collect::<Vec<_>>();
            prop_assert_eq!(segments(&path), segments(&normal));
            prop_assert_eq!(&super::normal(&normal), &normal);
        }
    }
}
