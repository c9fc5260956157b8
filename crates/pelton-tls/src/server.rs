//! The server's side: what it presents, what it asks of clients, and how it is reloaded.

mod builder;
mod certificate;
mod identities;
mod reload;
pub(crate) mod resolver;
mod tickets;
mod watching;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pelton::{Connection, Layered};
use rustls::ServerConfig;
use zeroize::Zeroizing;

pub use builder::{ClientCertificates, Resumption, ServerBuilder};
pub use certificate::Certificate;
pub use reload::Reload;
pub use watching::Watching;

use crate::handshakes::{Counters, IN_FLIGHT, Stats};
use crate::side::Side;
use crate::{ConfigError, Pin, Tls};
use builder::Settings;
use reload::Stamp;
use resolver::Noting;
use tickets::Tickets;

/// The configuration of TLS servers. Clones share everything: certificates that one of them [reloads](Server::reload),
/// tickets, and counters. It can be used on several loops.
///
/// ```no_run
/// use pelton::Reactor;
/// use pelton_tls::Server;
/// # use pelton::{Chunk, Connection, Io};
/// # struct Echo;
/// # impl Connection for Echo {
/// #     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
/// # }
///
/// let tls = Server::builder().certificate("chain.pem", "key.pem").build()?;
/// let mut reactor = Reactor::new()?;
/// reactor.listen("0.0.0.0:4433", move |_| tls.wrap(Echo))?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
}

struct Shared {
    current: RwLock<Loaded>,
    /// Held while files are read. Otherwise an attempt that began earlier could replace what a later one has read.
    reloading: Mutex<()>,
    /// How to load everything again. `None` for a configuration that was made elsewhere.
    settings: Option<Settings>,
    tolerates_truncation: bool,
}

/// What was loaded from files.
struct Loaded {
    config: Arc<ServerConfig>,
    certificates: Arc<[Certificate]>,
    tickets: Option<Arc<Tickets>>,
    /// The hash of what decides about certificates of clients. `None` if they are not asked for one.
    clients: Option<Pin>,
    /// The files, as they were when they were read.
    stamps: Vec<(PathBuf, Option<Stamp>)>,
}

impl Server {
    /// Begins a configuration.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Uses a configuration of rustls as it is, for everything that [`ServerBuilder`] does not offer. Early data is
    /// turned off, because it can be replayed and the handler could not tell.
    pub fn from_config(config: impl Into<Arc<ServerConfig>>) -> Server {
        let mut config = Arc::unwrap_or_clone(config.into());
        config.max_early_data_size = 0;
        config.cert_resolver = Arc::new(Noting(config.cert_resolver));
        let loaded = Loaded {
            config: Arc::new(config),
            certificates: Arc::default(),
            tickets: None,
            clients: None,
            stamps: Vec::new(),
        };
        let shared = Shared {
            current: RwLock::new(loaded),
            reloading: Mutex::default(),
            settings: None,
            tolerates_truncation: false,
        };
        Server { shared: Arc::new(shared), counters: Counters::new(IN_FLIGHT) }
    }

    /// Returns a server that shares everything with this one except the counters and the limit of handshakes in progress.
    /// A flood at one address then affects no other.
    pub fn with_handshakes_in_flight(&self, most: usize) -> Server {
        Server { shared: Arc::clone(&self.shared), counters: Counters::new(most) }
    }

    fn with_current<T>(&self, read: impl FnOnce(&Loaded) -> T) -> T {
        read(&self.shared.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a layer for one connection, to [push](pelton::Io::push_layer) on it, or for
    /// [`start_tls`](crate::StartTls::start_tls).
    pub fn layer(&self) -> Tls {
        let config = self.with_current(|loaded| Arc::clone(&loaded.config));
        // A configuration that was made elsewhere may.
        let verifies_clients = self.shared.settings.as_ref().is_none_or(Settings::verifies_clients);
        let side = Side::Server { config, verifies_clients, counters: Arc::clone(&self.counters) };
        Tls::new(side, self.shared.tolerates_truncation)
    }

    /// Wraps the handler of a connection, so that it is opened when the handshake is complete.
    pub fn wrap(&self, handler: impl Connection) -> Layered {
        let server = self.clone();
        Layered::new(handler, move |io| io.push_layer(server.layer()))
    }

    /// Returns what was counted so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Returns the certificates in use, the default one first. Empty for a configuration that was made elsewhere.
    pub fn certificates(&self) -> Arc<[Certificate]> {
        self.with_current(|loaded| Arc::clone(&loaded.certificates))
    }

    /// Returns the keys of session tickets, to be [imported](Server::import_ticket_keys) by a process that takes over.
    /// Keep them secret. The memory is erased when it is dropped. Empty if there are no tickets.
    pub fn export_ticket_keys(&self) -> Zeroizing<Vec<u8>> {
        let (tickets, clients) = self.with_current(|loaded| (loaded.tickets.clone(), loaded.clients));
        tickets.map(|tickets| tickets.export(clients)).unwrap_or_default()
    }

    /// Accepts the tickets of another process, by its [exported](Server::export_ticket_keys) keys. Has no effect without
    /// tickets, or if that process had other authorities or revocation lists for certificates of clients: a client that it
    /// has accepted may have been revoked since.
    pub fn import_ticket_keys(&self, keys: &[u8]) -> Result<(), ConfigError> {
        let (tickets, clients) = self.with_current(|loaded| (loaded.tickets.clone(), loaded.clients));
        match tickets {
            Some(tickets) if !keys.is_empty() => tickets.import(keys, clients),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("certificates", &self.certificates()).finish_non_exhaustive()
    }
}
