//! What answers requests.

use pelton::Reactor;

use crate::{Request, Responder, Response};

/// Answers requests, on the reactor's thread.
///
/// There is one mechanism: a handler is given the request and an owned [`Responder`], which it may use at once or keep for
/// later. Closures of this shape are handlers; [`plain`] makes one of a function from requests to responses. A handler that wraps another
/// is what elsewhere is called middleware:
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
pub trait Handler: 'static {
    /// Answers a request, or sees to it that it will be: what happens to the responder decides.
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder);
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
}

/// A handler that answers at once, by a function of the request alone.
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
