//! Redis for Pelton: commands, and channels that reach other processes. It works with every server that speaks the
//! protocol of Redis: Redis, Valkey, KeyDB, Dragonfly.
//!
//! ```no_run
//! use pelton::Reactor;
//! use pelton_redis::{Client, Command};
//!
//! let mut reactor = Reactor::new()?;
//! let redis = Client::open(&mut reactor, "redis://localhost")?;
//! redis.ask::<i64>(&mut reactor, Command::new("INCR").arg("visits")).done(|reactor, visits| {
//!     println!("{visits:?}");
//!     reactor.stop();
//! });
//! reactor.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to … | use |
//! |---|---|
//! | send commands from callbacks | [`Client::call`], [`Client::ask`], [`Client::tell`] |
//! | send commands from tasks | [`Client::query`] |
//! | send commands from other threads | [`Client::sender`] |
//! | run commands together | [`Client::transaction`] |
//! | reach subscribers in other processes | [`fn@channel`], [`Hub`] |
//! | say where the server is, and set limits | [`Options`] |
//! | parse the protocol alone | [`Parser`] |
//!
//! There is no runtime besides the reactor: the connections are Pelton's own, over TCP, Unix sockets and TLS.

#![forbid(unsafe_code)]

mod client;
mod command;
mod error;
mod hub;
mod link;
mod options;
mod resp;

pub use client::{Client, ClientStats, Sender};
pub use command::{Argument, Command};
pub use error::{ConfigError, Error};
#[cfg(feature = "json")]
pub use hub::channel;
pub use hub::{Hub, HubStats, bytes_channel};
pub use options::{Options, Protocol};
pub use resp::{FromValue, Limits, Parser, ProtocolError, ServerError, Value};
