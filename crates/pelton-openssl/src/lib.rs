//! TLS for Pelton's connections, with the OpenSSL that is installed on the system.
//!
//! For new programs, `pelton-tls` is the better choice: it is memory-safe, faster, and has safe defaults. This crate is for
//! interfaces that speak OpenSSL: lists of ciphers in its syntax, encrypted keys, Diffie-Hellman parameters, old versions, a
//! process that has loaded libssl already. OpenSSL is linked dynamically and never built.
//!
//! TLS is a layer of a connection, so handlers do not notice it. A `Config` makes one `Tls` per connection.
//!
//! | file | contents |
//! |---|---|
//! | `config` | what both sides agree on: certificates, ciphers, versions, trust |
//! | `layer` | one connection |
//! | `verify` | asks the program about certificates, from within OpenSSL |
//! | `pipe` | the memory that OpenSSL reads from and writes to |
//! | `self_signed` | a certificate for servers that have none |
//!
//! Without the feature `libssl` the crate is empty.

#![forbid(unsafe_code)]

#[cfg(feature = "libssl")]
mod config;
#[cfg(feature = "libssl")]
mod error;
#[cfg(feature = "libssl")]
mod layer;
#[cfg(feature = "libssl")]
mod pipe;
#[cfg(feature = "libssl")]
mod self_signed;
#[cfg(feature = "libssl")]
mod verify;

#[cfg(feature = "libssl")]
pub use config::{Builder, Config, Roots, Version};
#[cfg(feature = "libssl")]
pub use error::{ConfigError, TlsError};
#[cfg(feature = "libssl")]
pub use layer::Tls;
#[cfg(feature = "libssl")]
pub use openssl;
