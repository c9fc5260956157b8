//! HTTP/1.1 on Pelton's reactor.
//!
//! ```
//! use pelton::Reactor;
//! use pelton_http::{Server, plain};
//!
//! let mut reactor = Reactor::new()?;
//! let server = Server::new(plain(|request| format!("hello, {}\n", request.path())));
//! server.listen(&mut reactor, "127.0.0.1:0")?;
//! # reactor.next_tick(|reactor| reactor.stop());
//! reactor.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - A [`Handler`] gets a [`Request`] and an owned [`Responder`], and answers now or later, on the loop. [`plain`] turns a
//!   function into one.
//! - Handlers may be tasks ([`spawned`]), [`promised`], or work on other threads ([`deferred`], [`pooled`]); a [`RemoteResponder`]
//!   answers from anywhere.
//! - A [`Router`] selects a handler by method and path.
//! - A [`Server`] runs a handler on connections, within the limits in [`Settings`].
//! - A [`Body`] is read on request, in pieces or whole. A response may be a [`ResponseStream`] or a stream of
//!   [events](EventStream).
//! - [`Files`] serves the files below a directory.
//! - A [`Client`] sends requests; see [`client`].
//! - A [`ReverseProxy`] forwards requests to other servers.
//! - [`wire`] handles the protocol's bytes and can be used alone. [`log`] makes client input safe to log.
//!
//! Features: `json` for JSON [responses](Response) and bodies, `forms` for queries and form bodies, `cookies` for the client's cookie
//! jar; on by default, `tls` and `decompression` for the client.
//!
//! `docs/http.md` lists what is refused, and why.

#![forbid(unsafe_code)]

mod body;
mod census;
pub mod client;
mod connection;
#[cfg(any(feature = "json", feature = "forms"))]
mod decode;
mod events;
mod exchange;
mod files;
#[cfg(feature = "forms")]
mod forms;
mod handler;
mod inbox;
#[cfg(feature = "json")]
mod json;
mod later;
pub mod log;
mod method;
mod remote;
mod request;
mod responder;
mod response;
mod reverse_proxy;
mod router;
mod server;
mod settings;
mod stats;
mod stream;
pub mod wire;

pub use body::{Body, BodyError, BodyEvent};
pub use census::Census;
pub use client::Client;
pub use connection::HttpConnection;
#[cfg(any(feature = "json", feature = "forms"))]
pub use decode::DecodeError;
pub use events::{Event, EventStream};
pub(crate) use exchange::ExchangeToken;
pub use exchange::{Gone, SendState};
pub use files::{FileSettings, Files};
pub use handler::{Handler, plain, tunnelling};
pub use later::{deferred, pooled, promised, spawned};
pub use method::Method;
pub use remote::RemoteResponder;
pub use request::{KeptRequest, Request};
pub use responder::Responder;
pub use response::{Content, Response, ResponseFields};
pub use reverse_proxy::{BadNetwork, HostField, Networks, ReverseProxy, Scheme, Upstream};
pub use router::{BadRoute, Router};
pub use server::Server;
pub use settings::Settings;
pub use stats::ServerStats;
pub use stream::ResponseStream;
