//! Reads certificates, keys and revocation lists, from PEM files or bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::ConfigError;

/// A PEM file, or its contents.
///
/// Everything that takes one also takes a path or bytes. A file is read when the configuration is built, and again when
/// it is reloaded.
#[derive(Clone)]
pub enum Pem {
    /// A file.
    File(PathBuf),
    /// The contents of one.
    Bytes(Arc<[u8]>),
}

macro_rules! pem_from {
    ($($from:ty => |$value:ident| $make:expr),* $(,)?) => {
        $(impl From<$from> for Pem {
            fn from($value: $from) -> Pem {
                $make
            }
        })*
    };
}

pem_from![
    PathBuf => |path| Pem::File(path),
    &PathBuf => |path| Pem::File(path.clone()),
    &Path => |path| Pem::File(path.into()),
    &str => |path| Pem::File(path.into()),
    Vec<u8> => |bytes| Pem::Bytes(bytes.into()),
    &[u8] => |bytes| Pem::Bytes(bytes.into()),
];

impl Pem {
    /// Names it in messages.
    fn name(&self) -> String {
        match self {
            Pem::File(path) => path.display().to_string(),
            Pem::Bytes(_) => "PEM".into(),
        }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Pem::File(path) => Some(path),
            Pem::Bytes(_) => None,
        }
    }

    pub(crate) fn read(&self) -> Result<Arc<[u8]>, ConfigError> {
        match self {
            Pem::File(path) => match std::fs::read(path) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(ConfigError::unreadable(path, error)),
            },
            Pem::Bytes(bytes) => Ok(Arc::clone(bytes)),
        }
    }

    fn all<T: PemObject>(&self, what: &str) -> Result<Vec<T>, ConfigError> {
        let bytes = self.read()?;
        let items: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
        match items {
            Ok(items) if items.is_empty() => {
                Err(ConfigError::unusable(self.name(), format!("there is no {what} in it")))
            }
            Ok(items) => Ok(items),
            Err(error) => Err(ConfigError::unusable(self.name(), format!("no {what}: {error}"))),
        }
    }

    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        self.all("certificate")
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, ConfigError> {
        let bytes = self.read()?;
        PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(|error| ConfigError::unusable(self.name(), format!("no private key: {error}")))
    }

    pub(crate) fn revocation_lists(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, ConfigError> {
        self.all("certificate revocation list")
    }

    /// Adds all certificates to the roots.
    pub(crate) fn add_to(&self, roots: &mut RootCertStore) -> Result<(), ConfigError> {
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| ConfigError::unusable(self.name(), error))?;
        }
        Ok(())
    }

    pub(crate) fn unusable(&self, problem: impl ToString) -> ConfigError {
        ConfigError::unusable(self.name(), problem)
    }
}

/// A certificate with its chain, and its private key.
#[derive(Clone)]
pub struct Identity {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
    pub(crate) ocsp: Option<PathBuf>,
}

impl Identity {
    /// Takes the certificate, followed by its chain, and the private key. Both may be in the same file.
    pub fn new(chain: impl Into<Pem>, key: impl Into<Pem>) -> Identity {
        Identity { chain: chain.into(), key: key.into(), ocsp: None }
    }

    /// Sends the OCSP response in this file (DER) along with the certificate, to clients that ask for it.
    pub fn ocsp(mut self, response: impl Into<PathBuf>) -> Identity {
        self.ocsp = Some(response.into());
        self
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [self.chain.path(), self.key.path(), self.ocsp.as_deref()].into_iter().flatten()
    }
}
