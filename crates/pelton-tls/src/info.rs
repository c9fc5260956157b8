//! What a handshake has agreed on.

use pelton::Io;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, ProtocolVersion};

use crate::{Pin, Tls};

/// What the handshake of a connection has agreed on, and who the peer is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The version of TLS.
    pub version: ProtocolVersion,
    /// The cipher suite.
    pub cipher_suite: CipherSuite,
    /// The protocol that was chosen by ALPN.
    pub alpn: Option<Vec<u8>>,
    /// On a server: the name that the client asked for (SNI), in lower case.
    pub server_name: Option<String>,
    /// Whether an earlier session was resumed, without certificates.
    pub resumed: bool,
    /// The verified certificates of the peer, its own first. Empty if it has sent none. They are those of the original
    /// session if this one was resumed.
    pub peer_certificates: Vec<CertificateDer<'static>>,
}

impl Info {
    /// Returns the names and addresses for which the peer's certificate was issued, as far as they are DNS names or URIs.
    pub fn peer_names(&self) -> Vec<String> {
        let Some(certificate) = self.parsed() else { return Vec::new() };
        certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(str::to_owned).collect()
    }

    /// Returns the SHA-256 of the peer's public key, which identifies it regardless of the issuer of its certificate.
    pub fn peer_key(&self) -> Option<Pin> {
        Some(Pin::of_key(&self.parsed()?.subject_public_key_info()))
    }

    /// Returns the SHA-256 of the peer's certificate.
    pub fn peer_fingerprint(&self) -> Option<Pin> {
        Some(Pin::of(self.peer_certificates.first()?))
    }

    fn parsed(&self) -> Option<webpki::EndEntityCert<'_>> {
        // It was parsed to verify it.
        webpki::EndEntityCert::try_from(self.peer_certificates.first()?).ok()
    }
}

impl Tls {
    /// Returns what the handshake has agreed on, once it is complete.
    pub fn info(&self) -> Option<Info> {
        let state = self.session()?.state();
        if state.is_handshaking() {
            return None;
        }
        Some(Info {
            version: state.protocol_version()?,
            cipher_suite: state.negotiated_cipher_suite()?.suite(),
            alpn: state.alpn_protocol().map(<[u8]>::to_vec),
            server_name: self.server_name().map(str::to_owned),
            resumed: state.handshake_kind() == Some(HandshakeKind::Resumed),
            peer_certificates: state
                .peer_certificates()
                .unwrap_or_default()
                .iter()
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
        })
    }
}

/// Returns what the handshake of a connection has agreed on, and who the peer is. Returns `None` before the handshake is
/// complete, and without TLS.
///
/// ```
/// use pelton::{Chunk, Connection, Io};
///
/// struct Greeter;
///
/// impl Connection for Greeter {
///     fn opened(&mut self, io: &mut Io<'_>) {
///         let names = pelton_tls::info(io).map(|info| info.peer_names());
///         io.send(format!("hello, {names:?}").as_bytes()).ok();
///     }
///
///     fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
/// }
/// ```
pub fn info(io: &mut Io<'_>) -> Option<Info> {
    io.visit_layer(|tls: &mut Tls| tls.info())?
}
