//! Reads certificates, keys and revocation lists, from PEM files or bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
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
            Err(error) => Err(self.malformed(what, error)),
        }
    }

    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        self.all("certificate")
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, ConfigError> {
        let bytes = self.read()?;
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match is_encrypted(&bytes) {
            true => self.unusable("the private key is encrypted; `openssl pkey` decrypts it"),
            false => self.malformed("private key", error),
        })
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

    /// Says what is wrong with the text around the base64.
    fn malformed(&self, what: &str, error: pem::Error) -> ConfigError {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.unusable(match error {
            pem::Error::NoItemsFound => format!("there is no {what} in it"),
            pem::Error::MissingSectionEnd { end_marker } => {
                format!(
                    "no {what}: the line {:?} is missing, so it was not written to its end",
                    format!("-----END {}-----", lossy(&end_marker))
                )
            }
            pem::Error::IllegalSectionStart { line } => format!("no {what}: the line {:?} is malformed", lossy(&line)),
            error => format!("no {what}: {error}"),
        })
    }

    pub(crate) fn unusable(&self, problem: impl ToString) -> ConfigError {
        ConfigError::unusable(self.name(), problem)
    }
}

/// Returns whether a file contains a key with a passphrase, in one of the two forms that OpenSSL writes.
fn is_encrypted(pem: &[u8]) -> bool {
    let has = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED")
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
