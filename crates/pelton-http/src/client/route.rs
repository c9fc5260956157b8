//! How an origin is reached.

use pelton::Endpoint;

use super::Config;
use super::encode::Target;
use super::url::{Scheme, Url};

/// The way to an origin.
pub(super) struct Route {
    /// What is connected to.
    pub(super) endpoint: Endpoint,
    /// The name that the server's certificate must be valid for, if the connection is encrypted.
    pub(super) tls: Option<Box<str>>,
}

impl Route {
    pub(super) fn to(url: &Url, _: &Config) -> Route {
        let name = || url.host().trim_matches(['[', ']']).into();
        Route { endpoint: url.endpoint(), tls: (url.scheme() == Scheme::Https).then(name) }
    }

    /// The form of the target in requests.
    pub(super) fn target(&self) -> Target {
        Target::Origin
    }

    /// The credentials for the proxy that sees the requests.
    pub(super) fn proxy_authorization(&self) -> Option<&str> {
        None
    }
}
