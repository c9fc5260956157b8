//! TLS for Pelton's connections, on [rustls].
//!
//! TLS is a [layer](pelton::Layer) of a connection. Handlers, codecs, protocols and asynchronous streams do not notice
//! it. [`Server`] and [`Client`] are configurations; each makes a layer per connection.
//!
//! | to … | use |
//! |---|---|
//! | listen with TLS | [`listen`], or [`Server::wrap`] around any handler |
//! | connect with TLS | [`connect`], [`connect_stream`], or [`Client::wrap`] around any handler |
//! | begin TLS in the middle of a stream | [`StartTls`], [`StartTlsStream`] |
//! | ask who the peer is and what was agreed on | [`info`] |
//! | find out why TLS ended a connection | [`TlsError::of`] |
//! | reload certificates | [`Server::reload`], [`Server::watch`] |
//!
//! The cryptography is ring's, unless another provider is configured. rustls chooses versions, cipher suites and key
//! exchanges: TLS 1.3 and 1.2 with authenticated encryption and forward secrecy, and nothing else.

#![forbid(unsafe_code)]

mod client;
mod error;
mod handshakes;
mod info;
mod layer;
mod pem;
mod pin;
mod records;
mod server;
mod session;
mod side;
mod start;

use std::sync::Arc;

pub use client::{Client, ClientBuilder};
pub use error::{ConfigError, ConnectError, TlsError};
pub use handshakes::{Failure, Stats};
pub use info::{Info, info};
pub use layer::Tls;
pub use pem::{Identity, Pem};
pub use pin::{BadPin, Pin};
pub use rustls;
pub use server::{Certificate, ClientCertificates, Reload, Resumption, Server, ServerBuilder, Watching};
pub use start::{StartTls, StartTlsStream, connect, connect_stream, listen};

use rustls::crypto::CryptoProvider;

/// The lowest version of TLS that is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MinVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl MinVersion {
    fn versions(self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        static VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            MinVersion::Tls12 => &VERSIONS,
            MinVersion::Tls13 => &VERSIONS[..1],
        }
    }
}

/// Returns ring's cryptography, or what the program has installed as its default.
fn default_provider() -> Arc<CryptoProvider> {
    match CryptoProvider::get_default() {
        Some(provider) => Arc::clone(provider),
        None => Arc::new(rustls::crypto::ring::default_provider()),
    }
}
