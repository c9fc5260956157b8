//! Errors.

use openssl::error::ErrorStack;

/// Why a [`Config`](crate::Config) cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A certificate cannot be read, or is not one.
    #[error("certificate: {0}")]
    Certificate(String),
    /// A private key cannot be read or decrypted, or does not belong to the certificate.
    #[error("private key: {0}")]
    PrivateKey(String),
    /// The certificates of authorities cannot be read.
    #[error("certificates to trust: {0}")]
    Roots(String),
    /// OpenSSL does not accept a list of ciphers, the name of a group, or Diffie-Hellman parameters.
    #[error("{what}: {reason}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// What OpenSSL says about it.
        reason: String,
    },
    /// OpenSSL itself failed.
    #[error("OpenSSL: {0}")]
    OpenSsl(String),
}

impl From<ErrorStack> for ConfigError {
    fn from(stack: ErrorStack) -> ConfigError {
        ConfigError::OpenSsl(text(&stack))
    }
}

/// Why TLS has ended a connection. It is the source of [`Reason::Layer`](pelton::Reason::Layer).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The handshake failed. The text is OpenSSL's.
    #[error("TLS handshake: {0}")]
    Handshake(String),
    /// The certificate of the peer is not acceptable. The text is OpenSSL's.
    #[error("TLS handshake: the certificate is not acceptable: {0}")]
    Certificate(String),
    /// The peer ended the connection before the handshake was complete.
    #[error("TLS handshake: the peer has closed the connection")]
    ClosedInHandshake,
    /// A record is malformed or was changed, or the peer has sent an alert.
    #[error("TLS: {0}")]
    Record(String),
}

/// Returns what OpenSSL says, without the parts that only its developers need.
pub(crate) fn text(stack: &ErrorStack) -> String {
    let errors = stack.errors();
    // The first one is the cause; later ones come from the functions that called it.
    match errors.iter().find_map(|error| error.reason()) {
        Some(reason) => reason.to_owned(),
        None => errors.first().map_or_else(|| "unknown error".to_owned(), ToString::to_string),
    }
}
