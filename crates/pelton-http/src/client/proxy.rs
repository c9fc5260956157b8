//! Proxies: which one a URL is reached through, and the handshakes with them.

mod connect;
mod exceptions;
mod socks;

use std::sync::Arc;

use pelton::Endpoint;

pub(super) use self::connect::Connect;
use self::exceptions::Exceptions;
pub(super) use self::socks::Socks;
use super::url::Scheme;
use super::{BadUrl, Url};

/// A proxy: `http://host:port` or `socks5://host:port`, with or without `user:password@`.
///
/// An HTTP proxy gets requests for `http` as they are, and opens a tunnel for `https` (`CONNECT`). A SOCKS5 proxy opens a tunnel for
/// both, and looks the names up.
#[derive(Clone, Debug)]
pub struct Proxy {
    kind: Kind,
    url: Url,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Http,
    Socks5,
}

impl Proxy {
    /// Parses the URL of a proxy. Without a scheme, it is an HTTP proxy.
    pub fn new(text: &str) -> Result<Proxy, BadUrl> {
        let (kind, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("socks5") => (Kind::Socks5, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("socks5h") => (Kind::Socks5, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Kind::Http, rest),
            Some(_) => return Err(Url::parse(text).err().unwrap_or_else(|| BadUrl::unsupported_proxy(text))),
            None => (Kind::Http, text),
        };
        let place = rest.trim_end_matches('/');
        let has_port = place.rsplit(['@', ']']).next().is_some_and(|end| end.contains(':'));
        let port = match kind {
            _ if has_port => "",
            Kind::Http => ":80",
            Kind::Socks5 => ":1080",
        };
        let url = Url::parse(&format!("http://{place}{port}/"))?;
        Ok(Proxy { kind, url })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.url.endpoint()
    }

    /// Whether requests are sent to the proxy as they are.
    pub(super) fn forwards(&self, url: &Url) -> bool {
        self.kind == Kind::Http && !url.is_https()
    }

    /// The value of `Proxy-Authorization`.
    pub(super) fn authorization(&self) -> Option<Box<str>> {
        self.url.credentials().map(|credentials| super::auth::basic(credentials.as_bytes()).into())
    }

    /// The handshake that opens a tunnel to a URL's host.
    pub(super) fn tunnel(&self, url: &Url) -> Tunnel {
        match self.kind {
            Kind::Http => Tunnel::Connect { to: host_and_port(url), authorization: self.authorization() },
            Kind::Socks5 => Tunnel::Socks {
                host: url.host().trim_matches(['[', ']']).into(),
                port: url.port(),
                credentials: self.url.credentials().map(Into::into),
            },
        }
    }
}

fn host_and_port(url: &Url) -> Box<str> {
    format!("{}:{}", url.host(), url.port()).into()
}

/// How a tunnel is opened.
#[derive(Debug)]
pub(super) enum Tunnel {
    Connect { to: Box<str>, authorization: Option<Box<str>> },
    Socks { host: Box<str>, port: u16, credentials: Option<Box<str>> },
}

/// A handshake in progress.
pub(super) enum Handshake {
    Connect(Connect),
    Socks(Socks),
}

/// Whether a tunnel is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    More,
    Open,
}

impl Handshake {
    /// Begins a handshake: appends what is sent first.
    pub(super) fn begin(tunnel: &Tunnel, out: &mut Vec<u8>) -> Handshake {
        match tunnel {
            Tunnel::Connect { to, authorization } => {
                Handshake::Connect(Connect::begin(to, authorization.as_deref(), out))
            }
            Tunnel::Socks { host, port, credentials } => {
                Handshake::Socks(Socks::begin(host, *port, credentials.as_deref(), out))
            }
        }
    }

    /// Handles input, and appends the answer. Fails with a reason.
    pub(super) fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, String> {
        match self {
            Handshake::Connect(connect) => connect.receive(input),
            Handshake::Socks(socks) => socks.receive(input, out),
        }
    }
}

/// Which proxy is used for which URL.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
    except: Exceptions,
    spares_loopback: bool,
}

impl Proxies {
    /// Uses a proxy for everything.
    pub fn all(proxy: Proxy) -> Proxies {
        let proxy = Some(Arc::new(proxy));
        Proxies { http: proxy.clone(), https: proxy, ..Proxies::default() }
    }

    /// Uses the proxies of the environment: `http_proxy`, `https_proxy` and `all_proxy`, except for the hosts in `no_proxy` and those
    /// of this machine. Names in capitals are read too, but `HTTP_PROXY` is not if `REQUEST_METHOD` is set: in a CGI program, clients
    /// can set it.
    pub fn from_environment() -> Result<Proxies, BadUrl> {
        Proxies::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Proxies, BadUrl> {
        let is_cgi = variable("REQUEST_METHOD").is_some();
        let either = |lower: &str| {
            let upper = lower.to_uppercase();
            let in_capitals = || (!is_cgi || upper != "HTTP_PROXY").then(|| variable(&upper)).flatten();
            variable(lower).or_else(in_capitals)
        };
        let proxy = |name: &str| {
            let text = either(name).or_else(|| either("all_proxy"));
            text.map(|text| Proxy::new(&text).map(Arc::new)).transpose()
        };
        Ok(Proxies {
            http: proxy("http_proxy")?,
            https: proxy("https_proxy")?,
            except: Exceptions::parse(&either("no_proxy").unwrap_or_default()),
            spares_loopback: true,
        })
    }

    /// Connects directly to these hosts: a list in the form of `no_proxy`, such as `localhost,.example.org,10.0.0.0/8`.
    #[must_use]
    pub fn except(mut self, hosts: &str) -> Proxies {
        self.except = Exceptions::parse(hosts);
        self
    }

    /// The proxy for a URL.
    pub(super) fn of(&self, url: &Url) -> Option<&Arc<Proxy>> {
        let proxy = match url.scheme() {
            Scheme::Http => self.http.as_ref(),
            Scheme::Https => self.https.as_ref(),
            Scheme::Unix => None,
        }?;
        let spared = self.spares_loopback && exceptions::is_loopback(url.host());
        (!spared && !self.except.contain(url)).then_some(proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn proxies_have_default_ports_and_credentials() {
        for (text, endpoint) in [
            ("http://a", "a:80"),
            ("a:3128", "a:3128"),
            ("http://u:p@a:3128/", "a:3128"),
            ("socks5://a", "a:1080"),
            ("socks5h://u:p@[::1]", "[::1]:1080"),
            ("SOCKS5://127.0.0.1:9050", "127.0.0.1:9050"),
        ] {
            assert_eq!(Proxy::new(text).unwrap().endpoint().to_string(), endpoint, "{text}");
        }
        for text in ["", "ftp://a", "https://a", "http://", "http://a:b", "a b"] {
            assert!(Proxy::new(text).is_err(), "{text}");
        }
        assert_eq!(Proxy::new("http://u:p@a").unwrap().authorization().as_deref(), Some("Basic dTpw"));
    }

    #[test]
    fn the_environment_selects_proxies() {
        let with = |pairs: &[(&str, &str)]| {
            let find = |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
            Proxies::from_variables(find).unwrap()
        };
        let endpoint = |proxies: &Proxies, to: &str| proxies.of(&url(to)).map(|proxy| proxy.endpoint().to_string());
        let both =
            with(&[("http_proxy", "a:1"), ("HTTPS_PROXY", "b:2"), ("NO_PROXY", "c.org,.d.org,10.0.0.0/8,e.org:81")]);
        assert_eq!(endpoint(&both, "http://x/"), Some("a:1".into()));
        assert_eq!(endpoint(&both, "https://x/"), Some("b:2".into()));
        for direct in [
            "http://c.org/",
            "http://sub.c.org/",
            "http://sub.d.org/",
            "http://10.1.2.3/",
            "http://e.org:81/",
            "http://localhost/",
            "http://127.0.0.1:8080/",
            "http://[::1]/",
            "http+unix://%2Fx/",
        ] {
            assert_eq!(endpoint(&both, direct), None, "{direct}");
        }
        for proxied in ["http://notc.org/", "http://e.org/", "http://11.0.0.1/", "http://10.0.0.1.example/"] {
            assert_eq!(endpoint(&both, proxied), Some("a:1".into()), "{proxied}");
        }
        assert_eq!(endpoint(&with(&[("ALL_PROXY", "c:3")]), "https://x/"), Some("c:3".into()));
        assert_eq!(endpoint(&with(&[("ALL_PROXY", "c:3"), ("no_proxy", "*")]), "https://x/"), None);
        let cgi = with(&[("HTTP_PROXY", "evil:1"), ("REQUEST_METHOD", "GET")]);
        assert_eq!(endpoint(&cgi, "http://x/"), None);
        assert!(Proxies::from_variables(|name| (name == "http_proxy").then(|| "ftp://x".into())).is_err());
    }
}
