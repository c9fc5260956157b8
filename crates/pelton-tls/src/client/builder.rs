//! Builds the configuration of a client.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};

use super::verify::{NoVerification, Pinned};
use super::{Client, server_name};
use crate::handshakes::Counters;
use crate::{ConfigError, Identity, MinVersion, Pem, Pin, default_provider};

/// Builds a [`Client`].
#[derive(Clone, Default)]
pub struct ClientBuilder {
    roots: Option<Vec<Pem>>,
    pins: Vec<Pin>,
    verification: Verification,
    revoked: Vec<Pem>,
    identity: Option<Identity>,
    name: Option<String>,
    alpn: Vec<Vec<u8>>,
    min_version: MinVersion,
    sessions: Option<usize>,
    tolerates_truncation: bool,
    key_log: bool,
    provider: Option<Arc<CryptoProvider>>,
}

/// How the server is verified.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Verification {
    /// By the authorities that are trusted, and by the pins if there are any.
    #[default]
    Chain,
    PinsOnly,
    None,
}

/// Whom to trust.
impl ClientBuilder {
    /// Trusts these authorities (PEM), instead of those of the system. Call it again to add others.
    pub fn roots(mut self, authorities: impl Into<Pem>) -> ClientBuilder {
        self.roots.get_or_insert_default().push(authorities.into());
        self
    }

    /// Accepts only servers with this public key, or another pinned one. Their certificates have to be valid as well.
    pub fn pin(mut self, key: Pin) -> ClientBuilder {
        self.pins.push(key);
        self
    }

    /// Accepts servers by their [pinned](ClientBuilder::pin) public key alone, regardless of the issuer of the certificate, for
    /// whatever name and time. Use it for self-signed certificates.
    pub fn only_pins(mut self) -> ClientBuilder {
        self.verification = Verification::PinsOnly;
        self
    }

    /// Rejects certificates that are in this revocation list (PEM). Certificates of authorities without a list are
    /// accepted.
    pub fn revocation_list(mut self, list: impl Into<Pem>) -> ClientBuilder {
        self.revoked.push(list.into());
        self
    }

    /// Expects this name in the server's certificate, and asks for it, instead of the name that is connected to.
    pub fn name(mut self, name: impl Into<String>) -> ClientBuilder {
        self.name = Some(name.into());
        self
    }

    /// Accepts every server, whatever its certificate. Anyone between this client and the server can then read and change
    /// everything.
    pub fn dangerous_without_verification(mut self) -> ClientBuilder {
        self.verification = Verification::None;
        self
    }
}

/// The protocol.
impl ClientBuilder {
    /// Presents this certificate to servers that ask for one: chain and key, as PEM files or bytes.
    pub fn certificate(mut self, chain: impl Into<Pem>, key: impl Into<Pem>) -> ClientBuilder {
        self.identity = Some(Identity::new(chain, key));
        self
    }

    /// Adds a protocol to offer by ALPN, such as `http/1.1`, the preferred one first.
    pub fn alpn(mut self, protocol: impl AsRef<[u8]>) -> ClientBuilder {
        self.alpn.push(protocol.as_ref().to_vec());
        self
    }

    /// Sets the lowest version of TLS. By default 1.2.
    pub fn min_version(mut self, version: MinVersion) -> ClientBuilder {
        self.min_version = version;
        self
    }

    /// Sets of how many servers sessions are kept to resume them. By default 256; 0 for none.
    pub fn sessions(mut self, servers: usize) -> ClientBuilder {
        self.sessions = Some(servers);
        self
    }

    /// Accepts the end of the stream without a closing message as its end, instead of
    /// [`Reason::Truncated`](pelton::Reason::Truncated). Only for protocols that detect a truncated message themselves.
    pub fn tolerate_truncation(mut self) -> ClientBuilder {
        self.tolerates_truncation = true;
        self
    }

    /// Appends the secrets of all sessions to the file that the environment variable `SSLKEYLOGFILE` names, if it is
    /// set. Anyone who can read it can decrypt all connections: for debugging only.
    pub fn log_keys_for_debugging(mut self) -> ClientBuilder {
        self.key_log = true;
        self
    }

    /// Uses other cryptography than ring's. Pins still use ring.
    pub fn provider(mut self, provider: impl Into<Arc<CryptoProvider>>) -> ClientBuilder {
        self.provider = Some(provider.into());
        self
    }

    /// Reads all files and checks that everything fits together.
    pub fn build(self) -> Result<Client, ConfigError> {
        let provider = self.provider.clone().unwrap_or_else(default_provider);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.min_version.versions())
            .map_err(ConfigError::settings)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(self.verifier(&provider)?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.certificates()?, identity.key.key()?)
                .map_err(|error| identity.key.unusable(error))?,
        };
        config.alpn_protocols = self.alpn;
        match self.sessions {
            None => {}
            Some(0) => config.resumption = Resumption::disabled(),
            Some(servers) => config.resumption = Resumption::in_memory_sessions(servers),
        }
        if self.key_log {
            config.key_log = Arc::new(rustls::KeyLogFile::new());
        }
        Ok(Client {
            config: Arc::new(config),
            counters: Counters::new(usize::MAX),
            name: self.name.as_deref().map(server_name).transpose()?,
            tolerates_truncation: self.tolerates_truncation,
        })
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, ConfigError> {
        if self.verification != Verification::Chain && !self.revoked.is_empty() {
            return Err(ConfigError::settings(
                "a revocation list has no effect, because certificates are not verified",
            ));
        }
        match self.verification {
            Verification::None if !self.pins.is_empty() => {
                return Err(ConfigError::settings("a pinned key has no effect without verification: use only_pins"));
            }
            Verification::None => return Ok(Arc::new(NoVerification(Arc::clone(provider)))),
            Verification::PinsOnly if self.pins.is_empty() => {
                return Err(ConfigError::settings("no public key is pinned, so that no server could be verified"));
            }
            Verification::PinsOnly => {
                let inner = Arc::new(NoVerification(Arc::clone(provider)));
                return Ok(Arc::new(Pinned { pins: self.pins.clone(), inner }));
            }
            Verification::Chain => {}
        }
        let roots = self.root_store()?;
        if roots.is_empty() {
            return Err(ConfigError::NoRoots);
        }
        let mut verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
        for list in &self.revoked {
            verifier = verifier.with_crls(list.revocation_lists()?);
        }
        let verifier = verifier.allow_unknown_revocation_status().build().map_err(ConfigError::settings)?;
        Ok(match self.pins.is_empty() {
            true => verifier,
            false => Arc::new(Pinned { pins: self.pins.clone(), inner: verifier }),
        })
    }

    fn root_store(&self) -> Result<RootCertStore, ConfigError> {
        let mut store = RootCertStore::empty();
        match &self.roots {
            Some(roots) => roots.iter().try_for_each(|pem| pem.add_to(&mut store))?,
            None => {
                let found = rustls_native_certs::load_native_certs();
                // Some systems have certificates that rustls does not understand among the others.
                store.add_parsable_certificates(found.certs);
                if let Some(error) = found.errors.into_iter().next().filter(|_| store.is_empty()) {
                    return Err(ConfigError::unusable("the certificates that the system trusts", error));
                }
            }
        }
        Ok(store)
    }
}
