//! Request handlers.

use pelton::Reactor;

use crate::{Request, Responder, Response};

/// Answers requests, on the reactor's thread.
///
/// A handler gets the request and an owned [`Responder`], which it may use immediately or keep. Closures with this signature are
/// handlers; [`plain`] turns a function from request to response into one. A handler that wraps another is middleware:
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{Handler, Request, Responder, Response, plain};
///
/// fn only_with_key(key: &'static str, inner: impl Handler) -> impl Handler {
///     move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
///         if request.header("X-Key") == Some(key.as_bytes()) {
///             inner.handle(reactor, request, responder.before_sending(|response| {
///                 response.fields_mut().set("Cache-Control", "private");
///             }));
///         } else {
///             responder.respond(reactor, Response::new(403));
///         }
///     }
/// }
///
/// let handler = only_with_key("open", plain(|_| "come in\n"));
/// ```
///
/// # What does not compile
///
/// A closure with another signature is not a handler. The compiler counts its arguments but does not suggest a fix:
///
/// ```compile_fail,E0593
/// use pelton_http::{Request, Server};
///
/// let server = Server::new(|request: Request<'_>| "hello");
/// ```
///
/// Use [`plain`] to turn a function from a request to a response into a handler:
///
/// ```
/// use pelton_http::{Server, plain};
///
/// let server = Server::new(plain(|request| "hello"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a request handler",
    label = "not a `Handler`",
    note = "a handler closure takes `(&mut Reactor, Request<'_>, Responder)`; write these types out",
    note = "use `plain(|request| ...)` for a function from a request to a response",
    note = "use `spawned`, `promised`, `deferred` or `pooled` to answer later"
)]
pub trait Handler: 'static {
    /// Answers a request, or passes the responder on.
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder);

    /// Whether the handler accepts `CONNECT`. By default it does not: the client gets a 501, the handler is not called, and the
    /// connection is closed because the following bytes may not be HTTP.
    ///
    /// A handler that accepts `CONNECT` starts a tunnel with [`Responder::upgrade`]; any other answer closes the connection. To
    /// make an existing handler accept it, wrap it in [`tunnelling`]. Other wrappers should delegate this method.
    fn takes_connect(&self) -> bool {
        false
    }
}

impl<F: Fn(&mut Reactor, Request<'_>, Responder) + 'static> Handler for F {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        self(reactor, request, responder);
    }
}

impl Handler for Box<dyn Handler> {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        (**self).handle(reactor, request, responder);
    }

    fn takes_connect(&self) -> bool {
        (**self).takes_connect()
    }
}

struct Tunnelling<H>(H);

impl<H: Handler> Handler for Tunnelling<H> {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        self.0.handle(reactor, request, responder);
    }

    fn takes_connect(&self) -> bool {
        true
    }
}

/// Wraps a handler so that it [accepts `CONNECT`](Handler::takes_connect).
///
/// ```
/// use pelton::{Chunk, Connection, Io, Reactor};
/// use pelton_http::{Method, Request, Responder, Server, tunnelling};
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         io.send_chunk(chunk).ok();
///     }
/// }
///
/// let server = Server::new(tunnelling(|reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
///     match (request.method(), request.host()) {
///         (Method::Connect, Some("echo:7")) => responder.upgrade(reactor, 200, Echo),
///         (Method::Connect, _) => responder.respond(reactor, 403),
///         _ => responder.respond(reactor, "ask for echo:7 with CONNECT\n"),
///     }
/// }));
/// ```
pub fn tunnelling(handler: impl Handler) -> impl Handler {
    Tunnelling(handler)
}

/// Creates a handler that answers immediately with a function of the request.
///
/// ```
/// use pelton_http::{Server, plain};
///
/// let server = Server::new(plain(|request| format!("you asked for {}\n", request.path())));
/// ```
pub fn plain<R: Into<Response>>(answer: impl Fn(&Request<'_>) -> R + 'static) -> impl Handler {
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        responder.respond(reactor, answer(&request));
    }
}
