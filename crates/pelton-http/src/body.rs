//! Request bodies.

use pelton::{Promise, Reactor, Rejected};

use crate::Response;
use crate::exchange::{Command, ExchangeToken};
use crate::wire::{Fields, Refusal};

pub(crate) type Reader = Box<dyn FnMut(&mut Reactor, BodyEvent<'_>)>;

/// An event while a body is read.
#[derive(Debug)]
pub enum BodyEvent<'a> {
    /// The next bytes.
    Data(&'a [u8]),
    /// The body is complete. These are its trailers.
    End(Fields<'a>),
    /// The body cannot be read to its end. No event follows.
    Failed(BodyError),
}

/// Why a body could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The client has disconnected.
    #[error("the client disconnected before its request was complete")]
    Gone,
    /// It exceeds the limit. The client gets a 413.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// The maximum length in bytes.
        limit: u64,
    },
    /// It was refused because it is malformed or arrived too slowly. The client has been told.
    #[error(transparent)]
    Refused(Refusal),
    /// It has been read already, or was discarded because the request was answered without it.
    #[error("the body was already read or discarded")]
    Taken,
}

impl BodyError {
    /// The response for this error. In most cases the client has been answered already, and this one is ignored.
    pub fn response(&self) -> Response {
        Response::plain_status(match self {
            BodyError::TooLarge { .. } => 413,
            BodyError::Refused(refusal) => refusal.status,
            BodyError::Gone => 400,
            BodyError::Taken => 500,
        })
    }
}

/// The body of a request, which can be read now or later.
///
/// It is read only on request, and `100 Continue` is sent at that moment. So a handler can refuse a request by its head before
/// the body is sent.
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{Request, Responder, Response};
///
/// fn length(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
///     request.body().collect(reactor, |reactor, body| match body {
///         Ok(body) => responder.respond(reactor, format!("{} bytes\n", body.len())),
///         Err(error) => responder.respond(reactor, error.response()),
///     });
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Body {
    /// `None` if the request was kept without its body.
    token: Option<ExchangeToken>,
    limit: Option<u64>,
}

impl Body {
    pub(crate) fn new(token: Option<ExchangeToken>) -> Body {
        Body { token, limit: None }
    }

    pub(crate) fn token(&self) -> Option<&ExchangeToken> {
        self.token.as_ref()
    }

    /// Sets the maximum length in bytes, instead of the one in the [settings](crate::Settings::body).
    #[must_use]
    pub fn limit(self, bytes: u64) -> Body {
        Body { limit: Some(bytes), ..self }
    }

    /// Reads the body in pieces, as it arrives. While it is [paused](Body::pause), nothing is read from the client.
    pub fn read(&self, reactor: &mut Reactor, mut reader: impl FnMut(&mut Reactor, BodyEvent<'_>) + 'static) {
        match &self.token {
            Some(token) => drop(token.tell(reactor, Command::Read(Box::new(reader), self.limit))),
            None => reader(reactor, BodyEvent::Failed(BodyError::Taken)),
        }
    }

    /// Reads the whole body, then calls `then`.
    pub fn collect(
        &self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, Result<Vec<u8>, BodyError>) + 'static,
    ) {
        let mut state = Some((Vec::new(), then));
        self.read(reactor, move |reactor, event| match event {
            BodyEvent::Data(data) => {
                if let Some((body, _)) = &mut state {
                    body.extend_from_slice(data);
                }
            }
            BodyEvent::End(_) => {
                if let Some((body, then)) = state.take() {
                    then(reactor, Ok(body));
                }
            }
            BodyEvent::Failed(error) => {
                if let Some((_, then)) = state.take() {
                    then(reactor, Err(error));
                }
            }
        });
    }

    /// [`collect`](Body::collect) with a promise in place of the callback.
    pub fn collected(&self, reactor: &mut Reactor) -> Promise<Vec<u8>, BodyError> {
        let (deferred, promise) = reactor.promise();
        // The promise is settled only here.
        self.collect(reactor, move |_, body| drop(deferred.settle(body)));
        promise
    }

    /// [`collect`](Body::collect) for tasks.
    ///
    /// # Panics
    ///
    /// If no reactor is [current](Reactor::with_current), which is the case outside tasks.
    pub async fn bytes(&self) -> Result<Vec<u8>, BodyError> {
        match Reactor::with_current(|reactor| self.collected(reactor)) {
            Some(promise) => promise.await.map_err(|rejected| match rejected {
                Rejected::Failed(error) => error,
                // The reader was dropped.
                _ => BodyError::Gone,
            }),
            None => panic!("there is no current reactor: call this inside one of its tasks"),
        }
    }

    /// Pauses reading, for a reader that cannot keep up.
    pub fn pause(&self, reactor: &mut Reactor) {
        self.tell(reactor, Command::Pause);
    }

    /// Resumes reading.
    pub fn resume(&self, reactor: &mut Reactor) {
        self.tell(reactor, Command::Resume);
    }

    /// Stops reading. The reader is dropped, and the rest of the body is discarded.
    pub fn discard(&self, reactor: &mut Reactor) {
        self.tell(reactor, Command::Discard);
    }

    fn tell(&self, reactor: &mut Reactor, command: Command) {
        if let Some(token) = &self.token {
            // A reader of a disconnected client has been told already.
            let _ = token.tell(reactor, command);
        }
    }
}
