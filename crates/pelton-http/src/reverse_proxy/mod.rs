//! A reverse proxy: a handler that forwards requests to other servers.
//!
//! `upstream.rs` has the servers, `heads.rs` decides which fields pass, `forwarded.rs` records where requests came from and
//! `networks.rs` who is believed about that. `passage.rs` takes a request to a server and its response back, and `tunnel.rs`
//! connects both sides after a switch to another protocol.

mod forwarded;
mod heads;
mod networks;
mod passage;
mod tunnel;
mod upstream;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton::{Address, Balance, Reactor, Targets};

pub use networks::{BadNetwork, Networks};
pub use upstream::Upstream;

use crate::client::{BadUrl, Client, Settings};
use crate::wire::Form;
use crate::{Handler, Request, Responder, Response};
use forwarded::Lines;
use passage::Passage;

/// How long a connection to a server is kept without a request. Node closes after 5 seconds; a request that meets a connection
/// about to be closed can be repeated only if it is safe to.
const IDLE: Duration = Duration::from_secs(4);

/// How long a server may take for the head of a response, and between two pieces of its body.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long both sides of a switched protocol may be silent.
const TUNNEL_IDLE: Duration = Duration::from_secs(600);

/// The number of proxies that a request may have passed, by its `Via`. More are a loop.
const MOST_PROXIES: usize = 32;

/// Forwards requests to other servers, and their responses back: a [`Handler`].
///
/// Bodies are streamed in both directions with back-pressure. Connections to servers are kept and reused. Fields that concern
/// one connection only are removed; `Forwarded`, `X-Forwarded-For`, `X-Forwarded-Host`, `X-Forwarded-Proto` and `Via` are set.
/// A switch to another protocol, such as WebSocket, is passed through. `docs/http.md` has the details.
///
/// ```
/// use pelton_http::{ReverseProxy, Router, Server, plain};
///
/// let router = Router::new()
///     .get("/", plain(|_| "the front page\n"))
///     // The path is passed on as it is: /api/users.
///     .mount("/api", ReverseProxy::to(["http://127.0.0.1:3000", "http://127.0.0.1:3001"])?)
///     // The prefix is replaced by the path of the URL: /old/users becomes /v1/users.
///     .mount("/old", ReverseProxy::to(["http://127.0.0.1:3000/v1"])?);
/// let server = Server::new(router);
/// # Ok::<(), pelton_http::client::BadUrl>(())
/// ```
#[derive(Clone)]
pub struct ReverseProxy {
    shared: Rc<Shared>,
}

/// What the requests of a proxy share.
#[derive(Clone)]
struct Shared {
    client: Client,
    targets: Arc<Targets>,
    upstream: Arc<Upstream>,
    trusted: Arc<Networks>,
    scheme: Scheme,
    host: HostField,
    retries: u32,
    body: Option<u64>,
    tunnel_idle: Option<Duration>,
    lines: RefCell<Lines>,
}

/// How clients reach the server that proxies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Scheme {
    /// Without TLS.
    #[default]
    Http,
    /// With TLS.
    Https,
}

/// The `Host` that servers get.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HostField {
    /// The one that the client has asked for.
    #[default]
    Client,
    /// Host and port of the target.
    Target,
}

impl ReverseProxy {
    /// Forwards to these servers: `http://…`, `https://…`, or `http+unix://…` with the escaped path of a socket. With several,
    /// the one with the fewest requests gets the next one, and one that cannot be reached three times in a row is not used for
    /// ten seconds.
    ///
    /// A URL without a path gets the path of the request as it is. If there is a path, even `/`, it replaces the prefix of the
    /// [mount](crate::Router::mount).
    pub fn to<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<ReverseProxy, BadUrl> {
        let mut targets = Targets::new(Balance::Least, 3, Duration::from_secs(10));
        let upstream = Upstream::new(&mut targets, urls)?;
        Ok(ReverseProxy::balanced(&Arc::new(targets), &Arc::new(upstream)))
    }

    /// Forwards to an upstream whose targets have their own settings, or are shared with other threads.
    pub fn balanced(targets: &Arc<Targets>, upstream: &Arc<Upstream>) -> ReverseProxy {
        let settings =
            Settings { idle: IDLE, head: PATIENCE, between: PATIENCE, per_origin: 1024, ..Settings::default() };
        ReverseProxy {
            shared: Rc::new(Shared {
                client: Client::with_settings(settings),
                targets: targets.clone(),
                upstream: upstream.clone(),
                trusted: Arc::default(),
                scheme: Scheme::Http,
                host: HostField::Client,
                retries: 3,
                body: None,
                tunnel_idle: Some(TUNNEL_IDLE),
                lines: RefCell::default(),
            }),
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Shared)) -> ReverseProxy {
        change(Rc::make_mut(&mut self.shared));
        self
    }

    /// Sends requests with this client, with its limits, pool and TLS. Its redirects, decompression and cookies are not used,
    /// and neither is its limit for a whole exchange.
    #[must_use]
    pub fn client(self, client: Client) -> ReverseProxy {
        self.change(|shared| shared.client = client)
    }

    /// Believes clients in these networks about where their requests came from, because they are proxies themselves. Fields of
    /// others that say so are removed.
    #[must_use]
    pub fn trust(self, networks: Arc<Networks>) -> ReverseProxy {
        self.change(|shared| shared.trusted = networks)
    }

    /// Sets what the servers are told about how clients reach the proxy. By default, without TLS.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> ReverseProxy {
        self.change(|shared| shared.scheme = scheme)
    }

    /// Sets the `Host` that servers get. By default that of the client.
    #[must_use]
    pub fn host(self, host: HostField) -> ReverseProxy {
        self.change(|shared| shared.host = host)
    }

    /// Sets how many other targets are tried if one cannot be reached. By default three.
    #[must_use]
    pub fn retries(self, most: u32) -> ReverseProxy {
        self.change(|shared| shared.retries = most)
    }

    /// Sets the maximum length of a request's body, instead of the [server's](crate::Settings::body).
    #[must_use]
    pub fn body_limit(self, bytes: u64) -> ReverseProxy {
        self.change(|shared| shared.body = Some(bytes))
    }

    /// Sets how long both sides may be silent after a switch to another protocol. By default 10 minutes; `None` for ever.
    #[must_use]
    pub fn tunnel_idle(self, limit: impl Into<Option<Duration>>) -> ReverseProxy {
        self.change(|shared| shared.tunnel_idle = limit.into())
    }
}

impl Handler for ReverseProxy {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        if let Err(status) = self.check(&request) {
            return responder.respond(reactor, status);
        }
        let peer = responder.peer_address(reactor).ok();
        Passage::begin(reactor, &self.shared, request, responder, peer.as_ref());
    }
}

impl ReverseProxy {
    /// Answers what is not forwarded.
    fn check(&self, request: &Request<'_>) -> Result<(), Response> {
        if request.form() == Form::Asterisk {
            // The question is whether this server is alive (RFC 9110, section 9.3.7).
            return Err(Response::new(204));
        }
        let goes_elsewhere = self.shared.upstream.replaces_prefix() || !request.prefix().is_empty();
        if goes_elsewhere && upstream::may_leave(request.path()) {
            tracing::warn!("request refused: its path could leave the prefix");
            return Err(Response::plain_status(400));
        }
        let limit = self.shared.body.or(request.body_limit()).unwrap_or(u64::MAX);
        if request.content_length().is_some_and(|length| length > limit) {
            return Err(Response::plain_status(413));
        }
        let passed: usize = request.fields().all("via").map(|via| via.split(|byte| *byte == b',').count()).sum();
        if passed > MOST_PROXIES {
            tracing::warn!(passed, "request refused: it has passed too many proxies, perhaps in a circle");
            return Err(Response::plain_status(508));
        }
        Ok(())
    }
}

impl Shared {
    fn trusts(&self, peer: Option<&Address>) -> bool {
        peer.is_some_and(|peer| self.trusted.has(peer))
    }
}

impl fmt::Debug for ReverseProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseProxy").field("targets", &self.shared.targets).finish_non_exhaustive()
    }
}
