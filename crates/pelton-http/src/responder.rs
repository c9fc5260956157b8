//! The responder, which answers a request.

use std::io;

use pelton::{Address, Connection, ConnectionId, Fault, Reactor};

use crate::exchange::{Command, ExchangeToken};
use crate::wire::encode::{self, Length, Persistence};
use crate::{Response, ResponseStream};

/// Answers one request, now or later, on the reactor's thread. If it is dropped without an answer, the client gets a 500.
///
/// Work done elsewhere, on a thread or in a task, brings its result back to the loop and answers there:
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{Request, Responder, Response};
/// use std::time::Duration;
///
/// fn late(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
///     reactor.after(Duration::from_millis(100), |reactor| responder.respond(reactor, "here it is\n"));
/// }
/// ```
#[must_use = "a request that is not answered gets a 500"]
#[derive(Debug)]
pub struct Responder {
    /// `None` once it has been used.
    token: Option<ExchangeToken>,
    before_sending: Option<BeforeSending>,
}

struct BeforeSending(Box<dyn FnOnce(&mut Response)>);

impl std::fmt::Debug for BeforeSending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeSending")
    }
}

impl Responder {
    #[inline]
    pub(crate) fn new(token: ExchangeToken) -> Responder {
        Responder { token: Some(token), before_sending: None }
    }

    /// Sends the response. Does nothing if the client has disconnected; [`is_gone`](Responder::is_gone) says so.
    #[inline]
    pub fn respond(mut self, reactor: &mut Reactor, response: impl Into<Response>) {
        let mut response = response.into();
        self.prepare(&mut response);
        if let Some(token) = self.token.take() {
            // If the client has gone, the response is dropped.
            let _ = token.tell(reactor, Command::Respond(response));
        }
    }

    /// Starts a response whose body is sent in pieces. It is chunked unless the response has a `Content-Length`. The
    /// [body](Response::body) of `response` is the first piece.
    pub fn stream(mut self, reactor: &mut Reactor, response: impl Into<Response>) -> ResponseStream {
        let mut response = response.into();
        self.prepare(&mut response);
        match self.token.take() {
            Some(token) => {
                let _ = token.tell(reactor, Command::Stream(response));
                ResponseStream::new(Some(token))
            }
            None => ResponseStream::new(None),
        }
    }

    /// Sends an interim response, such as 103 (Early Hints) with `Link` fields. Its status is from 102 to 199; the final response
    /// follows. HTTP/1.0 clients do not get it.
    pub fn interim(&self, reactor: &mut Reactor, response: &Response) {
        if !(102..200).contains(&response.status()) || response.fields().fault().is_some() {
            return reactor.report(Fault::new("http", "invalid interim response omitted"));
        }
        if let Some(token) = &self.token {
            let mut bytes = Vec::new();
            let fields = response.fields().lines();
            encode::head(&mut bytes, response.status(), None, Length::Unsaid, Persistence::Unsaid, fields);
            let _ = token.tell(reactor, Command::Interim(bytes));
        }
    }

    /// Switches to another protocol: sends the response head, with `Connection: upgrade` if the status is 101, and hands the
    /// connection to `handler`. That gets `opened`, then all input, beginning with the bytes that followed the request.
    /// [`Reactor::visit`] reaches it from elsewhere.
    ///
    /// For `CONNECT` the status must be from 200 to 299, otherwise 101. If the request has a body, the switch waits until the
    /// body has arrived.
    pub fn upgrade(mut self, reactor: &mut Reactor, response: impl Into<Response>, handler: impl Connection) {
        let mut response = response.into();
        self.prepare(&mut response);
        if let Some(token) = self.token.take() {
            let _ = token.tell(reactor, Command::Upgrade(response, Box::new(handler)));
        }
    }

    /// Calls `change` with the response before it is sent, for handlers that wrap others. Callbacks run in the reverse order in
    /// which they were added.
    pub fn before_sending(mut self, change: impl FnOnce(&mut Response) + 'static) -> Responder {
        let inner = self.before_sending.take();
        self.before_sending = Some(BeforeSending(match inner {
            None => Box::new(change),
            Some(outer) => Box::new(move |response| {
                change(response);
                (outer.0)(response);
            }),
        }));
        self
    }

    #[inline]
    fn prepare(&mut self, response: &mut Response) {
        if let Some(change) = self.before_sending.take() {
            (change.0)(response);
        }
    }

    /// Calls `then` if the client disconnects before the response is complete, so that work for it can be cancelled. A later call
    /// replaces the callback.
    pub fn on_gone(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        if let Some(token) = &self.token {
            token.on_gone(reactor, then);
        }
    }

    /// Whether the client has disconnected.
    pub fn is_gone(&self, reactor: &mut Reactor) -> bool {
        self.token.as_ref().is_none_or(|token| token.is_gone(reactor))
    }

    /// The connection on which the request arrived.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.token.as_ref().map(|token| token.connection)
    }

    /// The address of the client.
    pub fn peer_address(&self, reactor: &mut Reactor) -> io::Result<Address> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let token = self.token.as_ref().ok_or_else(gone)?;
        let connection = reactor.connection(token.connection).ok_or_else(gone)?;
        token.shared.peer(token.connection, || connection.peer_address())
    }
}

impl Drop for Responder {
    #[inline]
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            token.post(|| Command::Dropped);
        }
    }
}
