//! The client's side: whom it trusts, and who it is.

mod builder;
mod verify;

use std::fmt;
use std::sync::Arc;

use pelton::{Connection, Endpoint, Layered};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

pub use builder::ClientBuilder;

use crate::handshakes::{Counters, Stats};
use crate::side::Side;
use crate::{ConfigError, Tls};

/// The configuration of TLS clients. Clones share everything, including sessions to resume. It can be used on several
/// loops.
///
/// ```no_run
/// use pelton::Reactor;
/// use pelton_tls::Client;
/// # use pelton::{Chunk, Connection, Io};
/// # struct Get;
/// # impl Connection for Get {
/// #     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
/// # }
///
/// let tls = Client::new()?;
/// let mut reactor = Reactor::new()?;
/// pelton_tls::connect(&mut reactor, "example.org:443", &tls, Get)?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    counters: Arc<Counters>,
    /// Instead of the name of the server that is connected to.
    name: Option<ServerName<'static>>,
    tolerates_truncation: bool,
}

impl Client {
    /// Makes a client that verifies servers with the certificates that the system trusts. This reads files.
    pub fn new() -> Result<Client, ConfigError> {
        Client::builder().build()
    }

    /// Begins a configuration.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Uses a configuration of rustls as it is, for everything that [`ClientBuilder`] does not offer.
    pub fn from_config(config: impl Into<Arc<ClientConfig>>) -> Client {
        Client { config: config.into(), counters: Counters::new(usize::MAX), name: None, tolerates_truncation: false }
    }

    /// Makes a layer for one connection to the server with this name, to [push](pelton::Io::push_layer) on it, or for
    /// [`start_tls`](crate::StartTls::start_tls). The server's certificate has to be valid for the name, which may be an
    /// IP address.
    pub fn layer(&self, name: &str) -> Result<Tls, ConfigError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(name)?,
        };
        let side = Side::Client { config: Arc::clone(&self.config), name, counters: Arc::clone(&self.counters) };
        Ok(Tls::new(side, self.tolerates_truncation))
    }

    /// Makes a layer for one connection to this endpoint. A Unix socket has the name `localhost`.
    pub fn layer_to(&self, target: &Endpoint) -> Result<Tls, ConfigError> {
        use pelton::Address;
        match target {
            Endpoint::Name { host, .. } => self.layer(host),
            Endpoint::Address(Address::Tcp(address)) => self.layer(&address.ip().to_string()),
            _ => self.layer("localhost"),
        }
    }

    /// Wraps the handler of a connection to the server with this name, so that it is opened when the handshake is
    /// complete.
    pub fn wrap(&self, name: &str, handler: impl Connection) -> Result<Layered, ConfigError> {
        let layer = self.layer(name)?;
        Ok(Layered::new(handler, move |io| io.push_layer(layer)))
    }

    /// Returns what was counted so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, ConfigError> {
    // A trailing dot marks a name as complete for resolvers. Certificates do not have it.
    let plain = name.strip_suffix('.').unwrap_or(name);
    ServerName::try_from(plain.to_owned()).map_err(|_| ConfigError::BadName(name.into()))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}
