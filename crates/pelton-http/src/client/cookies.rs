//! A cookie jar (RFC 6265).
//!
//! There is no list of public suffixes: a cookie for a whole domain is accepted if the domain has at least two labels. With
//! [`Cookies::host_only`], cookies are never sent to another host than the one that set them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::Url;

/// Limits, as browsers have them.
const LONGEST: usize = 4096;
const PER_DOMAIN: usize = 50;
const MOST: usize = 3000;

/// A cookie jar. Clones share their cookies, on all threads.
///
/// ```
/// use pelton_http::client::{Client, Cookies, Url};
///
/// let cookies = Cookies::new();
/// let url: Url = "https://example.org/".parse()?;
/// cookies.set(&url, "session=7; Path=/; Secure; HttpOnly");
/// assert_eq!(cookies.header(&url).as_deref(), Some("session=7"));
/// assert_eq!(cookies.header(&"http://example.org/".parse()?), None);
/// let client = Client::builder().cookies(cookies).build();
/// # Ok::<(), pelton_http::client::BadUrl>(())
/// ```
#[derive(Clone, Default)]
pub struct Cookies {
    jar: Arc<Mutex<Jar>>,
}

#[derive(Default)]
struct Jar {
    cookies: Vec<Cookie>,
    host_only: bool,
}

struct Cookie {
    name: Box<str>,
    value: Box<str>,
    domain: Box<str>,
    path: Box<str>,
    host_only: bool,
    secure: bool,
    expires: Option<SystemTime>,
}

impl Cookies {
    /// An empty jar.
    pub fn new() -> Cookies {
        Cookies::default()
    }

    /// An empty jar whose cookies are never sent to other hosts than those that set them.
    pub fn host_only() -> Cookies {
        let cookies = Cookies::default();
        cookies.lock().host_only = true;
        cookies
    }

    fn lock(&self) -> MutexGuard<'_, Jar> {
        // A panic leaves the jar consistent.
        self.jar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a cookie: the value of a `Set-Cookie` field in a response from this URL. Invalid ones are ignored.
    pub fn set(&self, url: &Url, cookie: &str) {
        self.set_at(url, cookie, SystemTime::now());
    }

    fn set_at(&self, url: &Url, cookie: &str, now: SystemTime) {
        let mut jar = self.lock();
        if let Some(cookie) = parse(url, cookie, now, jar.host_only) {
            jar.put(cookie, now);
        }
    }

    /// The value of the `Cookie` field in a request to this URL.
    pub fn header(&self, url: &Url) -> Option<String> {
        self.header_at(url, SystemTime::now())
    }

    fn header_at(&self, url: &Url, now: SystemTime) -> Option<String> {
        let jar = self.lock();
        let mut fitting: Vec<&Cookie> = jar.cookies.iter().filter(|cookie| cookie.fits(url, now)).collect();
        // Longer paths first; otherwise the order in which they were set.
        fitting.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let pairs: Vec<String> = fitting.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }

    /// Removes all cookies.
    pub fn clear(&self) {
        self.lock().cookies.clear();
    }

    /// The number of cookies.
    pub fn len(&self) -> usize {
        self.lock().cookies.len()
    }

    /// Whether there are no cookies.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Jar {
    fn put(&mut self, cookie: Cookie, now: SystemTime) {
        let is_same = |other: &Cookie| {
            (&other.name, &other.domain, &other.path, other.host_only)
                == (&cookie.name, &cookie.domain, &cookie.path, cookie.host_only)
        };
        let lives = cookie.expires.is_none_or(|expires| expires > now);
        match self.cookies.iter().position(is_same) {
            Some(index) if lives => self.cookies[index] = cookie,
            Some(index) => drop(self.cookies.remove(index)),
            None if lives => {
                self.cookies.retain(|cookie| cookie.expires.is_none_or(|expires| expires > now));
                let of_domain = |other: &Cookie| other.domain == cookie.domain;
                let oldest = if self.cookies.iter().filter(|other| of_domain(other)).count() >= PER_DOMAIN {
                    self.cookies.iter().position(of_domain)
                } else {
                    (self.cookies.len() >= MOST).then_some(0)
                };
                if let Some(oldest) = oldest {
                    self.cookies.remove(oldest);
                }
                self.cookies.push(cookie);
            }
            None => {}
        }
    }
}

impl Cookie {
    fn fits(&self, url: &Url, now: SystemTime) -> bool {
        let host = url.host();
        let of_host = if self.host_only { *host == *self.domain } else { is_below(host, &self.domain) };
        of_host
            && (!self.secure || url.is_https())
            && self.expires.is_none_or(|expires| expires > now)
            && is_path_below(url.path(), &self.path)
    }
}

/// Whether a host is this domain, or below it.
fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

fn is_path_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
}

fn is_address(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}

fn parse(url: &Url, text: &str, now: SystemTime, only_hosts: bool) -> Option<Cookie> {
    if text.len() > LONGEST || text.bytes().any(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
        return None;
    }
    let mut parts = text.split(';');
    let (name, value) = parts.next()?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() {
        return None;
    }
    let host = url.host();
    let (mut domain, mut path, mut secure) = (None, None, false);
    let (mut expires, mut max_age) = (None, None);
    for part in parts {
        let (attribute, value) = part.split_once('=').unwrap_or((part, ""));
        let (attribute, value) = (attribute.trim(), value.trim());
        match () {
            () if attribute.eq_ignore_ascii_case("domain") && !value.is_empty() => {
                domain = Some(value.trim_start_matches('.').to_ascii_lowercase());
            }
            () if attribute.eq_ignore_ascii_case("path") && value.starts_with('/') => path = Some(value),
            () if attribute.eq_ignore_ascii_case("secure") => secure = true,
            () if attribute.eq_ignore_ascii_case("expires") => expires = httpdate::parse_http_date(value).ok(),
            () if attribute.eq_ignore_ascii_case("max-age") => max_age = value.parse::<i64>().ok(),
            () => {}
        }
    }
    if let Some(seconds) = max_age {
        // A cookie in the past is removed. One for ever has no date.
        let later = u64::try_from(seconds).ok().map(Duration::from_secs).filter(|age| !age.is_zero());
        expires = match later {
            Some(age) => now.checked_add(age),
            None => Some(SystemTime::UNIX_EPOCH),
        };
    }
    let host_only = match &domain {
        None => true,
        Some(domain) if !is_below(host, domain) => return None,
        // An address has no subdomains.
        Some(domain) if is_address(host) && *domain != *host => return None,
        Some(domain) => only_hosts || *domain == *host && !domain.contains('.') || is_address(host),
    };
    if let Some(domain) = &domain
        && !host_only
        && !domain.contains('.')
    {
        return None;
    }
    let is_secured = secure && url.is_https();
    let must_be_secured = secure || name.starts_with("__Secure-") || name.starts_with("__Host-");
    let is_of_host = domain.is_none() && path == Some("/");
    if must_be_secured && !is_secured || name.starts_with("__Host-") && !is_of_host {
        return None;
    }
    let of_request = url.path();
    let directory = &of_request[..of_request.rfind('/').filter(|slash| *slash > 0).unwrap_or(1)];
    Some(Cookie {
        name: name.into(),
        value: value.into(),
        domain: if host_only { host.into() } else { domain.unwrap_or_else(|| host.to_owned()).into() },
        path: path.unwrap_or(directory).into(),
        host_only,
        secure,
        expires,
    })
}

impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cookies({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// Sets a cookie from one URL and returns what is sent to another.
    fn sent(from: &str, cookie: &str, to: &str) -> Option<String> {
        let cookies = Cookies::new();
        cookies.set(&url(from), cookie);
        cookies.header(&url(to))
    }

    #[test]
    fn cookies_are_sent_where_they_belong() {
        const A: Option<&str> = Some("a=1");
        for (from, cookie, to, expected) in [
            ("http://x.org/", "a=1", "http://x.org/deep/er", A),
            ("http://x.org/", "a=1", "http://y.x.org/", None),
            ("http://x.org/", "a=1; Domain=x.org", "http://y.x.org/", A),
            ("http://y.x.org/", "a=1; Domain=.X.org", "http://x.org/", A),
            ("http://y.x.org/", "a=1; Domain=z.org", "http://y.x.org/", None),
            ("http://x.org/", "a=1; Domain=y.x.org", "http://y.x.org/", None),
            ("http://x.org/", "a=1; Domain=org", "http://y.org/", None),
            ("http://notx.org/", "a=1; Domain=x.org", "http://x.org/", None),
            ("http://10.0.0.1/", "a=1; Domain=0.0.1", "http://10.0.0.1/", None),
            ("http://x.org/a/b", "a=1", "http://x.org/a/c", A),
            ("http://x.org/a/b", "a=1", "http://x.org/ab", None),
            ("http://x.org/a/b", "a=1", "http://x.org/", None),
            ("http://x.org/a", "a=1; Path=/a", "http://x.org/a/c", A),
            ("http://x.org/a", "a=1; Path=/a", "http://x.org/ab", None),
            ("https://x.org/", "a=1; Secure", "https://x.org/", A),
            ("https://x.org/", "a=1; Secure", "http://x.org/", None),
            ("http://x.org/", "a=1; Secure", "https://x.org/", None),
            ("http://x.org/", "__Secure-a=1", "http://x.org/", None),
            ("https://x.org/", "__Host-a=1; Secure; Path=/; Domain=x.org", "https://x.org/", None),
            ("http://x.org/", "a=1; Max-Age=0", "http://x.org/", None),
            ("http://x.org/", "a=1; Max-Age=-5", "http://x.org/", None),
            ("http://x.org/", "a=1; Max-Age=99999999999999", "http://x.org/", A),
            ("http://x.org/", "a=1; Expires=Thu, 01 Jan 1970 00:00:01 GMT", "http://x.org/", None),
            ("http://x.org/", "a=1; Expires=rubbish", "http://x.org/", A),
            ("http://x.org/", "a=\u{1}", "http://x.org/", None),
            ("http://x.org/", "=1", "http://x.org/", None),
            ("http://x.org/", "a", "http://x.org/", None),
        ] {
            assert_eq!(sent(from, cookie, to).as_deref(), expected, "{cookie} from {from} to {to}");
        }
    }

    #[test]
    fn cookies_are_replaced_removed_and_limited() {
        let (cookies, place) = (Cookies::new(), url("http://x.org/"));
        cookies.set(&place, "a=1");
        cookies.set(&place, "a=2");
        cookies.set(&place, "b=3; Path=/deep");
        assert_eq!(cookies.header(&url("http://x.org/deep/")).as_deref(), Some("b=3; a=2"));
        cookies.set(&place, "a=; Max-Age=0");
        assert_eq!(cookies.len(), 1);
        for number in 0..200 {
            cookies.set(&place, &format!("c{number}=x"));
        }
        assert_eq!(cookies.len(), PER_DOMAIN);
        for number in 0..2 * MOST {
            cookies.set(&url(&format!("http://h{number}.org/")), "a=1");
        }
        assert!(cookies.len() <= MOST);
        cookies.set(&place, &format!("long={}", "x".repeat(LONGEST)));
        assert!(!cookies.header(&place).unwrap_or_default().contains("long"));
    }

    #[test]
    fn host_only_jars_ignore_domains() {
        let cookies = Cookies::host_only();
        cookies.set(&url("http://a.co.uk/"), "a=1; Domain=co.uk");
        assert_eq!(cookies.header(&url("http://b.co.uk/")), None);
        assert_eq!(cookies.header(&url("http://a.co.uk/")).as_deref(), Some("a=1"));
    }
}
