//! Builds clients.

use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::OnceLock;

use super::proxy::Proxies;
use super::{Client, Settings};

/// The configuration that all clones of a client share.
pub(super) struct Config {
    pub(super) settings: Settings,
    pub(super) proxies: Proxies,
    #[cfg(feature = "tls")]
    tls: OnceLock<Result<pelton_tls::Client, String>>,
    #[cfg(feature = "cookies")]
    pub(super) cookies: Option<super::Cookies>,
}

impl Config {
    /// Makes the layer of a connection to the server with this name.
    #[cfg(feature = "tls")]
    pub(super) fn tls_layer(&self, name: &str) -> Result<pelton_tls::Tls, String> {
        let tls = self.tls.get_or_init(|| {
            let tls = pelton_tls::Client::builder().alpn("http/1.1").build();
            tls.map_err(|error| error.to_string())
        });
        tls.as_ref().map_err(Clone::clone)?.layer(name).map_err(|error| error.to_string())
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn tls_layer(&self, _: &str) -> Result<std::convert::Infallible, &'static str> {
        Err("the feature is not enabled")
    }
}

/// Builds a [`Client`].
///
/// ```
/// use pelton_http::client::{Client, Proxies, Settings};
/// use std::time::Duration;
///
/// let client = Client::builder()
///     .settings(Settings { head: Duration::from_secs(5), ..Settings::default() })
///     .proxies(Proxies::from_environment()?)
///     .build();
/// # Ok::<(), pelton_http::client::BadUrl>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct ClientBuilder {
    settings: Settings,
    proxies: Proxies,
    #[cfg(feature = "tls")]
    tls: Option<pelton_tls::Client>,
    #[cfg(feature = "cookies")]
    cookies: Option<super::Cookies>,
}

impl ClientBuilder {
    /// Sets the limits.
    pub fn settings(mut self, settings: Settings) -> ClientBuilder {
        self.settings = settings;
        self
    }

    /// Sets the proxies. By default there are none; those of the environment are
    /// [`Proxies::from_environment`](super::Proxies::from_environment).
    pub fn proxies(mut self, proxies: Proxies) -> ClientBuilder {
        self.proxies = proxies;
        self
    }

    /// Sets the configuration of TLS. By default, servers are verified with the certificates that the system trusts, which are read
    /// from files with the first request to `https`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: pelton_tls::Client) -> ClientBuilder {
        self.tls = Some(tls);
        self
    }

    /// Stores cookies in this jar, and sends them.
    #[cfg(feature = "cookies")]
    pub fn cookies(mut self, cookies: super::Cookies) -> ClientBuilder {
        self.cookies = Some(cookies);
        self
    }

    /// Makes the client.
    pub fn build(self) -> Client {
        #[cfg(feature = "tls")]
        let tls = self.tls.map_or_else(OnceLock::new, |tls| OnceLock::from(Ok(tls)));
        Client {
            config: Arc::new(Config {
                settings: self.settings,
                proxies: self.proxies,
                #[cfg(feature = "tls")]
                tls,
                #[cfg(feature = "cookies")]
                cookies: self.cookies,
            }),
        }
    }
}
