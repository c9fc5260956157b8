//! How an origin is reached.

use pelton::Endpoint;

use super::builder::Config;
use super::encode::Target;
use super::proxy::Tunnel;
use super::url::Url;

/// The way to an origin.
pub(super) struct Route {
    /// What is connected to.
    pub(super) endpoint: Endpoint,
    /// How a proxy is asked for a tunnel.
    pub(super) tunnel: Option<Tunnel>,
    /// The name that the server's certificate must be valid for, if the connection is encrypted.
    pub(super) tls: Option<Box<str>>,
    /// A proxy forwards the requests, and gets these credentials.
    forwarding: Option<Option<Box<str>>>,
}

impl Route {
    pub(super) fn to(url: &Url, config: &Config) -> Route {
        let tls = url.is_https().then(|| url.host().trim_matches(['[', ']']).into());
        match config.proxies.of(url) {
            None => Route { endpoint: url.endpoint(), tunnel: None, tls, forwarding: None },
            Some(proxy) if proxy.forwards(url) => {
                let forwarding = Some(proxy.authorization());
                Route { endpoint: proxy.endpoint(), tunnel: None, tls, forwarding }
            }
            Some(proxy) => Route { endpoint: proxy.endpoint(), tunnel: Some(proxy.tunnel(url)), tls, forwarding: None },
        }
    }

    /// The form of the target in requests.
    pub(super) fn target(&self) -> Target {
        if self.forwarding.is_some() { Target::Absolute } else { Target::Origin }
    }

    /// The credentials for the proxy that sees the requests.
    pub(super) fn proxy_authorization(&self) -> Option<&str> {
        self.forwarding.as_ref()?.as_deref()
    }
}
