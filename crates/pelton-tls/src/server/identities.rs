//! Where the certificates of a server come from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use super::Certificate;
use super::certificate::check_ocsp;
use super::resolver::ByName;
use crate::{ConfigError, Identity};

#[derive(Clone)]
pub(super) enum Source {
    Identity(Identity),
    Directory(PathBuf),
}

impl Source {
    fn identities(&self) -> Result<Vec<Identity>, ConfigError> {
        match self {
            Source::Identity(identity) => Ok(vec![identity.clone()]),
            Source::Directory(path) => in_directory(path),
        }
    }

    /// Returns the files that matter, and the directories in which others may appear.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = match self {
            Source::Identity(_) => Vec::new(),
            Source::Directory(path) => vec![path.clone()],
        };
        // A directory that cannot be read now is reported when it is loaded.
        let identities = self.identities().unwrap_or_default();
        paths.extend(identities.iter().flat_map(Identity::paths).map(PathBuf::from));
        paths
    }
}

/// Finds the pairs in a directory, by name.
fn in_directory(directory: &Path) -> Result<Vec<Identity>, ConfigError> {
    let unreadable = |error| ConfigError::unreadable(directory, error);
    let mut identities = Vec::new();
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?.path());
    }
    entries.sort();
    for path in entries {
        let certbot = (path.join("fullchain.pem"), path.join("privkey.pem"));
        if certbot.0.is_file() && certbot.1.is_file() {
            identities.push(Identity::new(certbot.0, certbot.1));
            continue;
        }
        let key = path.with_extension("key");
        let is_chain = path.extension().is_some_and(|extension| extension == "crt" || extension == "pem");
        if is_chain && key.is_file() {
            let ocsp = path.with_extension("ocsp");
            let identity = Identity::new(path, key);
            identities.push(if ocsp.is_file() { identity.ocsp(ocsp) } else { identity });
        }
    }
    if identities.is_empty() {
        let problem = "there is no certificate with its key in it (NAME.crt or NAME.pem with NAME.key)";
        return Err(ConfigError::unusable(directory.display().to_string(), problem));
    }
    Ok(identities)
}

/// Reads all certificates and keys, and checks that they belong together.
pub(super) fn load(sources: &[Source], provider: &CryptoProvider) -> Result<(ByName, Vec<Certificate>), ConfigError> {
    let (mut by_name, mut certificates) = (ByName::default(), Vec::new());
    for source in sources {
        for identity in source.identities()? {
            let key = certified(&identity, provider)?;
            let certificate = Certificate::parse(&key.cert[0])
                .ok_or_else(|| identity.chain.unusable("the certificate is malformed"))?;
            by_name.add(Arc::new(key), &certificate.names);
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(ConfigError::NoCertificate);
    }
    Ok((by_name, certificates))
}

fn certified(identity: &Identity, provider: &CryptoProvider) -> Result<CertifiedKey, ConfigError> {
    let chain = identity.chain.certificates()?;
    // This checks that certificate and key belong together.
    let key = CertifiedKey::from_der(chain, identity.key.key()?, provider);
    let mut key = key.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => identity.key.unusable("the key does not belong to the certificate"),
        error => identity.key.unusable(error),
    })?;
    if let Some(path) = &identity.ocsp {
        let response = std::fs::read(path).map_err(|error| ConfigError::unreadable(path, error))?;
        check_ocsp(&response).map_err(|problem| ConfigError::unusable(path.display().to_string(), problem))?;
        key.ocsp = Some(response);
    }
    Ok(key)
}
