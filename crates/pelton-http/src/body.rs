//! Bodies of requests, as handlers read them.

use pelton::{Promise, Reactor, Rejected};

use crate::Response;
use crate::exchange::{Command, ExchangeToken};
use crate::wire::{Fields, Refusal};

pub(crate) type Reader = Box<dyn FnMut(&mut Reactor, BodyEvent<'_>)>;

/// What comes in of a body.
#[derive(Debug)]
pub enum BodyEvent<'a> {
    /// The next bytes.
    Data(&'a [u8]),
    /// It is complete. Fields may have come after it.
    End(Fields<'a>),
    /// It will not be complete. Nothing comes after this.
    Failed(BodyError),
}

/// Why a body could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The client has gone.
    #[error("the client has gone before its request was complete")]
    Gone,
    /// It is longer than it may be. The client is answered with 413.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// How long it may be.
        limit: u64,
    },
    /// It is refused, and the client answered so: it is malformed, or came too slowly.
    #[error(transparent)]
    Refused(Refusal),
    /// It has been read already, or was thrown away because the request was answered without it.
    #[error("the body is not there any more")]
    Taken,
}

impl BodyError {
    /// What to answer. For most of them the client has been answered already; it does no harm to do it again.
    pub fn response(&self) -> Response {
        Response::plain_status(match self {
            BodyError::TooLarge { .. } => 413,
            BodyError::Refused(refusal) => refusal.status,
            BodyError::Gone => 400,
            BodyError::Taken => 500,
        })
    }
}

/// The body of a request, to be read now or later.
///
/// Nothing is read before it is asked for, and a client that waits to be asked is asked then; so a handler that refuses a request
/// by its head has not had it sent.
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
    /// `None` if the request it belongs to was kept without it.
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

    /// How many bytes it may have, instead of what the [settings](crate::Settings::body) say.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Body {
        Body { limit: Some(bytes), ..self }
    }

    /// Reads it bit by bit, as it comes in. While it is [paused](Body::pause), nothing is read from the client.
    pub fn read(&self, reactor: &mut Reactor, mut reader: impl FnMut(&mut Reactor, BodyEvent<'_>) + 'static) {
        match &self.token {
            Some(token) => drop(token.tell(reactor, Command::Read(Box::new(reader), self.limit))),
            None => reader(reactor, BodyEvent::Failed(BodyError::Taken)),
        }
    }

    /// Reads all of it, and then calls `then`.
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
        // Nobody else can have settled it.
        self.collect(reactor, move |_, body| drop(deferred.settle(body)));
        promise
    }

    /// [`collect`](Body::collect) for tasks.
    ///
    /// # Panics
    ///
    /// If no reactor is [current](Reactor::with_current): outside of tasks.
    pub async fn bytes(&self) -> Result<Vec<u8>, BodyError> {
        match Reactor::with_current(|reactor| self.collected(reactor)) {
            Some(promise) => promise.await.map_err(|rejected| match rejected {
                Rejected::Failed(error) => error,
                // Nobody was left to say why.
                _ => BodyError::Gone,
            }),
            None => panic!("there is no current reactor: this has to be done inside a task of one"),
        }
    }

    /// Holds up what is yet to come, for a reader that cannot keep up.
    pub fn pause(&self, reactor: &mut Reactor) {
        self.tell(reactor, Command::Pause);
    }

    /// Goes on.
    pub fn resume(&self, reactor: &mut Reactor) {
        self.tell(reactor, Command::Resume);
    }

    fn tell(&self, reactor: &mut Reactor, command: Command) {
        if let Some(token) = &self.token {
            // If the client has gone, the reader is told.
            let _ = token.tell(reactor, command);
        }
    }
}
