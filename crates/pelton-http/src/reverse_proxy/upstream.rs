//! The servers behind a proxy.

use pelton::{Group, Targets};

use crate::client::{BadUrl, Url};

/// The servers that can answer the same requests, for [`ReverseProxy::balanced`](super::ReverseProxy::balanced).
///
/// ```
/// use pelton::{Balance, Targets};
/// use pelton_http::{ReverseProxy, Upstream};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let mut targets = Targets::new(Balance::Hash, 3, Duration::from_secs(10));
/// let upstream = Arc::new(Upstream::new(&mut targets, ["http://10.0.0.1:80", "http://10.0.0.2:80"])?);
/// let targets = Arc::new(targets);
/// // On every thread that serves:
/// let proxy = ReverseProxy::balanced(&targets, &upstream);
/// # Ok::<(), pelton_http::client::BadUrl>(())
/// ```
#[derive(Debug)]
pub struct Upstream {
    pub(super) group: Group,
    /// The URLs, with the numbers of their targets.
    urls: Vec<(usize, Url)>,
    /// Whether the URLs have a path, which replaces the prefix.
    replaces_prefix: bool,
}

impl Upstream {
    /// Adds these servers to the targets. Either all of the URLs have a path, or none.
    pub fn new<U: AsRef<str>>(targets: &mut Targets, urls: impl IntoIterator<Item = U>) -> Result<Upstream, BadUrl> {
        let mut upstream = Upstream { group: Group::new([]), urls: Vec::new(), replaces_prefix: false };
        for (number, text) in urls.into_iter().enumerate() {
            let text = text.as_ref();
            let url = Url::parse(text)?;
            let refuse = |why| Err(BadUrl { url: url.as_str().into(), why });
            if url.query().is_some() || url.has_credentials() {
                return refuse("a target has no query and no credentials");
            }
            let has_path = text.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
            if number > 0 && has_path != upstream.replaces_prefix {
                return refuse("either all targets of a prefix have a path, or none");
            }
            upstream.replaces_prefix = has_path;
            let target = targets.add(url.endpoint());
            if !upstream.group.members().contains(&target) {
                upstream.group.add(target);
                upstream.urls.push((target, url));
            }
        }
        if upstream.urls.is_empty() {
            return Err(BadUrl { url: "".into(), why: "there is no target" });
        }
        Ok(upstream)
    }

    pub(super) fn replaces_prefix(&self) -> bool {
        self.replaces_prefix
    }

    /// The URL of a target.
    pub(super) fn url(&self, target: usize) -> &Url {
        let found = self.urls.iter().find(|(number, _)| *number == target);
        found.map_or(&self.urls[0].1, |(_, url)| url)
    }

    /// The path that replaces the prefix, without a slash at its end.
    pub(super) fn base(&self, target: usize) -> &str {
        if self.replaces_prefix { self.url(target).path().trim_end_matches('/') } else { "" }
    }
}

/// Whether a server could take the path for one above it: because of `.` and `..`, escaped or not, also behind escaped slashes.
pub(super) fn may_leave(path: &str) -> bool {
    if memchr::memmem::find(path.as_bytes(), b"/.").is_none() && memchr::memchr2(b'%', b'\\', path.as_bytes()).is_none()
    {
        return false;
    }
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| matches!(segment, b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton::Balance;
    use std::time::Duration;

    #[test]
    fn paths_that_may_leave_their_prefix_are_noticed() {
        for path in ["/..", "/a/../b", "/./a", "/%2e%2e/a", "/.%2E", "/a/..%2fb", "/a%5c..%5cb", "/a\\..\\b", "/a/."] {
            assert!(may_leave(path), "{path}");
        }
        for path in ["/", "/a", "/.well-known/a", "/a..b", "/...", "/%41", "/a%2Fb", "/a/.b", "/%252e%252e/"] {
            assert!(!may_leave(path), "{path}");
        }
    }

    #[test]
    fn targets_are_urls_with_or_without_a_path() {
        let new = |urls: &[&str]| {
            let mut targets = Targets::new(Balance::Least, 3, Duration::from_secs(1));
            Upstream::new(&mut targets, urls).map(|upstream| (upstream.replaces_prefix, upstream.base(0).to_owned()))
        };
        assert_eq!(new(&["http://a:1"]).unwrap(), (false, String::new()));
        assert_eq!(new(&["http://a:1/"]).unwrap(), (true, String::new()));
        assert_eq!(new(&["http://a:1/b/", "http://c/b/"]).unwrap(), (true, "/b".to_owned()));
        assert_eq!(new(&["http+unix://%2Frun%2Fa"]).unwrap(), (false, String::new()));
        for bad in [&[][..], &["a"], &["ftp://a"], &["http://a?b"], &["http://u:p@a"], &["http://a", "http://b/"]] {
            assert!(new(bad).is_err(), "{bad:?}");
        }
    }
}
