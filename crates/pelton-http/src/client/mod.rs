//! An HTTP client.
//!
//! A [`Client`] is a configuration that threads share. Each reactor on which it is used has its own pool of connections. A
//! [`Request`] is sent in the form that suits the caller: with a callback, as a promise, awaited, or from another thread.
//!
//! ```
//! use pelton::Reactor;
//! use pelton_http::{Client, Server, plain};
//!
//! let mut reactor = Reactor::new()?;
//! let listener = Server::new(plain(|_| "hello\n")).listen(&mut reactor, "127.0.0.1:0")?;
//! let url = format!("http://{}/", reactor.listening_on(listener).expect("the listener was just started"));
//!
//! let client = Client::new();
//! client.get(&url).send(&mut reactor, |reactor, response| {
//!     assert_eq!(response.unwrap().body(), b"hello\n");
//!     reactor.stop();
//! });
//! reactor.run()?;
//!
//! # let mut reactor = Reactor::new()?;
//! # let listener = Server::new(plain(|_| "hello\n")).listen(&mut reactor, "127.0.0.1:0")?;
//! # let url = format!("http://{}/", reactor.listening_on(listener).expect("the listener was just started"));
//! // The same in a task.
//! let response = reactor.block_on(async { client.get(&url).await })??;
//! assert_eq!(response.status(), 200);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/client.md` describes pooling, limits, retries and redirects.

mod auth;
mod buffer;
mod builder;
mod call;
mod collect;
mod connection;
#[cfg(feature = "cookies")]
mod cookies;
#[cfg(feature = "decompression")]
mod decompress;
#[cfg(not(feature = "decompression"))]
#[path = "no_decompression.rs"]
mod decompress;
mod encode;
mod error;
mod events;
mod forms;
mod incoming;
mod multipart;
mod pool;
mod proxy;
mod redirect;
mod request;
mod response;
mod retry;
mod route;
mod settings;
mod stats;
mod upgrade;
mod url;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pelton::Reactor;

pub(crate) use buffer::Buffer;
pub use builder::ClientBuilder;
pub use call::Exchange;
pub use collect::Fetch;
#[cfg(feature = "cookies")]
pub use cookies::Cookies;
pub use error::{Error, ErrorKind, TimeLimit};
pub use events::{EventSource, Message, SourceEvent};
pub use incoming::Incoming;
pub use multipart::Multipart;
pub use proxy::{Proxies, Proxy};
pub use request::Request;
pub(crate) use request::{Given, Parts, Payload, Verb};
pub use response::{Head, Response, ResponseEvent};
pub use settings::Settings;
pub use stats::ClientStats;
pub use url::{BadUrl, Url};

use crate::Method;
use builder::Config;
use call::{Call, Receiver};
use pool::{Clients, Shared};
use upgrade::Accept;

/// An HTTP client: a configuration, and a pool of connections on every reactor on which it is used. Clones share both.
///
/// See the [module](self) for an example.
#[derive(Clone)]
pub struct Client {
    config: Arc<Config>,
}

impl Client {
    /// A client with the default settings.
    pub fn new() -> Client {
        Client::with_settings(Settings::default())
    }

    /// Starts a client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client with these settings.
    pub fn with_settings(settings: Settings) -> Client {
        Client::builder().settings(settings).build()
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.config.settings
    }

    /// The client's state on this reactor.
    fn on(&self, reactor: &mut Reactor) -> Rc<Shared> {
        if let Some(shared) = reactor.state::<Clients>().find(&self.config) {
            return shared;
        }
        let handle = reactor.handle();
        reactor.state::<Clients>().add(&self.config, handle)
    }

    pub(crate) fn start(
        &self,
        reactor: &mut Reactor,
        parts: Parts,
        receiver: Receiver,
        accept: Option<Accept>,
    ) -> Exchange {
        let shared = self.on(reactor);
        let call = Call::start(&shared, reactor, parts, receiver, accept);
        Exchange::new(shared, call)
    }

    /// Starts a request with this method.
    pub fn request(&self, method: Method, url: impl TryInto<Url, Error: Into<BadUrl>>) -> Request {
        let request = Request::new(self.clone(), method, url.try_into().map_err(Into::into));
        if matches!(method, Method::Connect | Method::Other) { request.method("CONNECT") } else { request }
    }

    /// The number of connections on this reactor, open or opening, and how many of them are idle.
    pub fn connections(&self, reactor: &mut Reactor) -> (usize, usize) {
        self.on(reactor).count()
    }

    /// What the client has done on this reactor.
    pub fn stats(&self, reactor: &mut Reactor) -> ClientStats {
        self.on(reactor).stats.get()
    }

    /// Closes the idle connections on this reactor.
    pub fn close_idle(&self, reactor: &mut Reactor) {
        self.on(reactor).close_idle(reactor);
    }
}

macro_rules! methods {
    ($($name:ident $method:ident $text:literal;)*) => {
        impl Client {
            $(
                #[doc = concat!("Starts a `", $text, "` request.")]
                pub fn $name(&self, url: impl TryInto<Url, Error: Into<BadUrl>>) -> Request {
                    self.request(Method::$method, url)
                }
            )*
        }
    };
}

methods! {
    get Get "GET";
    head Head "HEAD";
    post Post "POST";
    put Put "PUT";
    delete Delete "DELETE";
    patch Patch "PATCH";
    options Options "OPTIONS";
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("settings", &self.config.settings).finish_non_exhaustive()
    }
}

impl From<std::convert::Infallible> for BadUrl {
    fn from(never: std::convert::Infallible) -> BadUrl {
        match never {}
    }
}
