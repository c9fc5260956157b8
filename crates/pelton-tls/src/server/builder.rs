//! Builds the configuration of a server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, StoresServerSessions, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::identities::{Source, load};
use super::reload::Stamp;
use super::resolver::Noting;
use super::tickets::Tickets;
use super::{Loaded, Server, Shared};
use crate::handshakes::{Counters, IN_FLIGHT};
use crate::{ConfigError, Identity, MinVersion, Pem, Pin, default_provider};

/// How clients can resume a session without a full handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Resumption {
    /// Clients keep the state, encrypted, as a ticket. The server keeps only keys, which rotate every six hours and are
    /// forgotten after twelve.
    #[default]
    Tickets,
    /// The server keeps the state of at most this many sessions.
    Stateful(usize),
    /// Every handshake is a full one.
    Off,
}

/// Whether clients have to present a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientCertificates {
    /// A client may connect without one. One that is presented has to be valid.
    Optional,
    /// A client without a valid one is rejected.
    Required,
}

/// Builds a [`Server`].
#[derive(Clone, Default)]
pub struct ServerBuilder {
    settings: Settings,
    handshakes_in_flight: Option<usize>,
    tolerates_truncation: bool,
}

/// Everything from which rustls' configuration is made, at first and when it is reloaded.
#[derive(Clone, Default)]
pub(super) struct Settings {
    sources: Vec<Source>,
    alpn: Vec<Vec<u8>>,
    clients: Option<(Pem, ClientCertificates)>,
    revoked: Vec<Pem>,
    min_version: MinVersion,
    resumption: Resumption,
    key_log: bool,
    provider: Option<Arc<CryptoProvider>>,
}

/// Certificates.
impl ServerBuilder {
    /// Adds a certificate with its chain, and its private key: PEM files or bytes. Clients choose by name (SNI); the
    /// first certificate is for those that name nothing or something else.
    pub fn certificate(self, chain: impl Into<Pem>, key: impl Into<Pem>) -> ServerBuilder {
        self.identity(Identity::new(chain, key))
    }

    /// Adds a certificate and its key, with an [OCSP response](Identity::ocsp) for example.
    pub fn identity(mut self, identity: Identity) -> ServerBuilder {
        self.settings.sources.push(Source::Identity(identity));
        self
    }

    /// Adds all pairs in a directory: `NAME.crt` or `NAME.pem` with `NAME.key`, and `NAME.ocsp` if it is there. Also
    /// subdirectories that contain `fullchain.pem` and `privkey.pem`, as certbot makes them.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> ServerBuilder {
        self.settings.sources.push(Source::Directory(path.into()));
        self
    }
}

/// Clients.
impl ServerBuilder {
    /// Asks clients for a certificate that was issued by one of these authorities. [`info`](crate::info) tells the
    /// handler who it was.
    pub fn client_certificates(mut self, authorities: impl Into<Pem>, which: ClientCertificates) -> ServerBuilder {
        self.settings.clients = Some((authorities.into(), which));
        self
    }

    /// Rejects certificates of clients that are in this revocation list (PEM). Certificates of authorities without a
    /// list are accepted.
    pub fn revocation_list(mut self, list: impl Into<Pem>) -> ServerBuilder {
        self.settings.revoked.push(list.into());
        self
    }
}

/// The protocol.
impl ServerBuilder {
    /// Adds a protocol to offer by ALPN, such as `http/1.1`, the preferred one first. A client that offers only others is
    /// rejected; one that offers none is not.
    pub fn alpn(mut self, protocol: impl AsRef<[u8]>) -> ServerBuilder {
        self.settings.alpn.push(protocol.as_ref().to_vec());
        self
    }

    /// Sets the lowest version of TLS. By default 1.2.
    pub fn min_version(mut self, version: MinVersion) -> ServerBuilder {
        self.settings.min_version = version;
        self
    }

    /// Sets how sessions can be resumed. By default with tickets.
    pub fn resumption(mut self, resumption: Resumption) -> ServerBuilder {
        self.settings.resumption = resumption;
        self
    }

    /// Sets how many handshakes may be in progress at once, on all loops together. Further connections are refused with
    /// [`TooManyHandshakes`](crate::TlsError::TooManyHandshakes). By default 2,048.
    pub fn handshakes_in_flight(mut self, most: usize) -> ServerBuilder {
        self.handshakes_in_flight = Some(most);
        self
    }

    /// Accepts the end of the stream without a closing message as its end, instead of
    /// [`Reason::Truncated`](pelton::Reason::Truncated). Only for protocols that detect a truncated message themselves.
    pub fn tolerate_truncation(mut self) -> ServerBuilder {
        self.tolerates_truncation = true;
        self
    }

    /// Appends the secrets of all sessions to the file that the environment variable `SSLKEYLOGFILE` names, if it is
    /// set. Anyone who can read it can decrypt all connections: for debugging only.
    pub fn log_keys_for_debugging(mut self) -> ServerBuilder {
        self.settings.key_log = true;
        self
    }

    /// Uses other cryptography than ring's. Tickets and pins still use ring.
    pub fn provider(mut self, provider: impl Into<Arc<CryptoProvider>>) -> ServerBuilder {
        self.settings.provider = Some(provider.into());
        self
    }

    /// Reads all files and checks that everything fits together.
    pub fn build(self) -> Result<Server, ConfigError> {
        let ServerBuilder { settings, handshakes_in_flight, tolerates_truncation } = self;
        let loaded = settings.load(settings.tickets(), settings.sessions())?;
        let shared = Shared {
            current: RwLock::new(loaded),
            reloading: Mutex::default(),
            settings: Some(settings),
            tolerates_truncation,
        };
        Ok(Server { shared: Arc::new(shared), counters: Counters::new(handshakes_in_flight.unwrap_or(IN_FLIGHT)) })
    }
}

impl Settings {
    /// Makes keys for tickets.
    pub(super) fn tickets(&self) -> Option<Arc<Tickets>> {
        (self.resumption == Resumption::Tickets).then(Arc::default)
    }

    /// Makes the place where the states of sessions are kept.
    pub(super) fn sessions(&self) -> Arc<dyn StoresServerSessions> {
        match self.resumption {
            Resumption::Stateful(most) => ServerSessionMemoryCache::new(most),
            Resumption::Tickets | Resumption::Off => Arc::new(NoServerSessionStorage {}),
        }
    }

    /// Reads everything and makes a configuration of it.
    pub(super) fn load(
        &self,
        tickets: Option<Arc<Tickets>>,
        sessions: Arc<dyn StoresServerSessions>,
    ) -> Result<Loaded, ConfigError> {
        // Before they are read: a change meanwhile is noticed the next time.
        let stamps = self.stamps();
        if self.clients.is_none() && !self.revoked.is_empty() {
            return Err(ConfigError::settings(
                "a revocation list has no effect, because no client certificates are asked for",
            ));
        }
        let provider = self.provider.clone().unwrap_or_else(default_provider);
        let (resolver, certificates) = load(&self.sources, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.min_version.versions())
            .map_err(ConfigError::settings)?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some((authorities, which)) => {
                let mut roots = RootCertStore::empty();
                authorities.add_to(&mut roots)?;
                let mut verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                for list in &self.revoked {
                    verifier = verifier.with_crls(list.revocation_lists()?);
                }
                verifier = verifier.allow_unknown_revocation_status();
                if *which == ClientCertificates::Optional {
                    verifier = verifier.allow_unauthenticated();
                }
                builder.with_client_cert_verifier(verifier.build().map_err(ConfigError::settings)?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Noting(Arc::new(resolver))));
        config.alpn_protocols.clone_from(&self.alpn);
        // Scanners expect this. All cipher suites are good, so it matters little.
        config.ignore_client_order = true;
        if self.key_log {
            config.key_log = Arc::new(rustls::KeyLogFile::new());
        }
        config.session_storage = sessions;
        match &tickets {
            Some(tickets) => config.ticketer = Arc::<Tickets>::clone(tickets),
            None if self.resumption == Resumption::Off => config.send_tls13_tickets = 0,
            None => {}
        }
        let clients = self.hash_of_clients()?;
        Ok(Loaded { config: Arc::new(config), certificates: certificates.into(), tickets, clients, stamps })
    }

    /// Returns a hash of all that decides whether a client is accepted.
    fn hash_of_clients(&self) -> Result<Option<Pin>, ConfigError> {
        let Some((authorities, which)) = &self.clients else { return Ok(None) };
        let mut all = format!("{which:?}").into_bytes();
        for pem in std::iter::once(authorities).chain(&self.revoked) {
            all.extend_from_slice(&Pin::of(&pem.read()?).0);
        }
        Ok(Some(Pin::of(&all)))
    }

    /// Whether what a client had to present then may not suffice now.
    pub(super) fn verifies_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// Returns what all files look like now.
    pub(super) fn stamps(&self) -> Vec<(PathBuf, Option<Stamp>)> {
        self.paths().into_iter().map(|path| (path.clone(), Stamp::of(&path))).collect()
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.sources.iter().flat_map(Source::paths).collect();
        let others = self.clients.iter().map(|(authorities, _)| authorities).chain(&self.revoked);
        paths.extend(others.filter_map(Pem::path).map(PathBuf::from));
        paths
    }
}
