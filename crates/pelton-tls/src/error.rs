//! What can go wrong with TLS.

use std::path::{Path, PathBuf};

use pelton::Reason;
use rustls::{AlertDescription, CertificateError};

/// Why TLS ended a connection. The handler receives it inside [`Reason::Layer`]; [`TlsError::of`] finds it there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer sent a fatal alert: it rejects something that this side did or sent.
    #[error("the peer sent the TLS alert {}", name(*.0))]
    AlertReceived(AlertDescription),
    /// This side failed, or rejects something that the peer did or sent.
    #[error("TLS: {error}{}", sent(*.alert))]
    Failed {
        /// What is wrong.
        #[source]
        error: rustls::Error,
        /// The alert that was sent to the peer, if it is known.
        alert: Option<AlertDescription>,
    },
    /// The first bytes of the peer are not TLS, but look like another protocol.
    #[error("the peer does not speak TLS but {protocol}")]
    NotTls {
        /// What it looks like.
        protocol: &'static str,
    },
    /// The peer closed the connection before the handshake was complete.
    #[error("the peer closed the connection during the TLS handshake")]
    ClosedInHandshake,
    /// Too many handshakes were in progress when this connection was accepted.
    #[error("refused: {most} TLS handshakes are in progress")]
    TooManyHandshakes {
        /// The [limit](crate::ServerBuilder::handshakes_in_flight).
        most: usize,
    },
    /// A handshake message of the peer is too large.
    #[error("the peer sent a TLS handshake message that is too large")]
    TooLarge,
}

impl TlsError {
    /// Returns the error in the reason of a closed connection, if TLS ended it.
    ///
    /// ```
    /// use pelton::Reason;
    /// use pelton_tls::TlsError;
    ///
    /// let reason = Reason::layer(TlsError::ClosedInHandshake);
    /// assert!(matches!(TlsError::of(&reason), Some(TlsError::ClosedInHandshake)));
    /// assert!(TlsError::of(&Reason::Reset).is_none());
    /// ```
    pub fn of(reason: &Reason) -> Option<&TlsError> {
        match reason {
            Reason::Layer(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Returns what is wrong with the peer's certificate, if that is the error.
    pub fn certificate(&self) -> Option<&CertificateError> {
        match self {
            TlsError::Failed { error: rustls::Error::InvalidCertificate(error), .. } => Some(error),
            _ => None,
        }
    }

    pub(crate) fn from_rustls(error: rustls::Error, sent: &[u8]) -> TlsError {
        match error {
            rustls::Error::AlertReceived(alert) => TlsError::AlertReceived(alert),
            error => TlsError::Failed { alert: alert_in(sent).or_else(|| alert_for(&error)), error },
        }
    }
}

/// Returns the description in the last record of `sent` if that is an alert in the clear.
fn alert_in(sent: &[u8]) -> Option<AlertDescription> {
    const ALERT: u8 = 21;
    match sent.last_chunk::<7>()? {
        [ALERT, 3, _, 0, 2, _, description] => Some((*description).into()),
        _ => None,
    }
}

/// Returns the alert that rustls sends for an error, where its documentation promises one.
fn alert_for(error: &rustls::Error) -> Option<AlertDescription> {
    match error {
        rustls::Error::InvalidCertificate(error) => Some(error.clone().into()),
        rustls::Error::DecryptError => Some(AlertDescription::BadRecordMac),
        rustls::Error::PeerSentOversizedRecord => Some(AlertDescription::RecordOverflow),
        rustls::Error::NoApplicationProtocol => Some(AlertDescription::NoApplicationProtocol),
        _ => None,
    }
}

/// The name of an alert as the standard writes it.
fn name(alert: AlertDescription) -> String {
    let camel = format!("{alert:?}").replace("CA", "Ca").replace("PSK", "Psk").replace("ECH", "Ech");
    let mut name = String::with_capacity(camel.len() + 4);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

fn sent(alert: Option<AlertDescription>) -> String {
    alert.map_or_else(String::new, |alert| format!("; sent the alert {}", name(alert)))
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file or directory cannot be read.
    #[error("read {}: {error}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        error: std::io::Error,
    },
    /// The contents of a file, or of bytes given instead of one, are not what they should be.
    #[error("{what}: {problem}")]
    Unusable {
        /// Names the file and what was expected in it.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A server needs a certificate.
    #[error("a TLS server needs a certificate")]
    NoCertificate,
    /// Nothing is trusted, so that no peer could be verified.
    #[error("no root certificate was found, so that no peer could be verified")]
    NoRoots,
    /// The text is not a name or IP address that certificates can be issued for.
    #[error("{0:?} is not a name that a certificate can be issued for")]
    BadName(String),
    /// The settings do not fit together.
    #[error("{0}")]
    Settings(String),
}

impl ConfigError {
    pub(crate) fn unreadable(path: &Path, error: std::io::Error) -> ConfigError {
        ConfigError::Unreadable { path: path.into(), error }
    }

    pub(crate) fn unusable(what: impl Into<String>, problem: impl ToString) -> ConfigError {
        ConfigError::Unusable { what: what.into(), problem: problem.to_string() }
    }

    pub(crate) fn settings(problem: impl ToString) -> ConfigError {
        ConfigError::Settings(problem.to_string())
    }
}

/// Why [`connect`](crate::connect) cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server's name cannot be verified.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The loop refuses it.
    #[error(transparent)]
    Reactor(#[from] pelton::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_alert_and_its_direction() {
        let received = TlsError::from_rustls(rustls::Error::AlertReceived(AlertDescription::UnknownCA), &[]);
        assert_eq!(received.to_string(), "the peer sent the TLS alert unknown_ca");
        let received = TlsError::from_rustls(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure), &[]);
        assert_eq!(received.to_string(), "the peer sent the TLS alert handshake_failure");
        let sent = TlsError::from_rustls(rustls::Error::DecryptError, &[]);
        assert_eq!(sent.to_string(), "TLS: cannot decrypt peer's message; sent the alert bad_record_mac");
        let clear = TlsError::from_rustls(rustls::Error::EncryptError, &[21, 3, 3, 0, 2, 2, 70]);
        assert!(matches!(clear, TlsError::Failed { alert: Some(AlertDescription::ProtocolVersion), .. }), "{clear}");
    }
}
