//! Decodes bodies and queries.

use pelton::Reactor;

use crate::{Body, BodyError, Response};

/// Why a value could not be decoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body could not be read.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// It was read, but does not match the expected type.
    #[error("{0}")]
    Malformed(String),
}

impl DecodeError {
    /// The response for this error: a 400 with an explanation, or the one for the [body's](BodyError::response) error.
    pub fn response(&self) -> Response {
        match self {
            DecodeError::Body(error) => error.response(),
            DecodeError::Malformed(what) => {
                let text = Response::new(400).header("Content-Type", "text/plain; charset=utf-8");
                text.body(format!("{what}\n"))
            }
        }
    }
}

impl Body {
    /// Reads the whole body and calls `then` with what `decode` makes of it.
    pub(crate) fn decode<T>(
        &self,
        reactor: &mut Reactor,
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError> + 'static,
        then: impl FnOnce(&mut Reactor, Result<T, DecodeError>) + 'static,
    ) {
        self.collect(reactor, |reactor, body| {
            then(reactor, body.map_err(DecodeError::from).and_then(|body| decode(&body)));
        });
    }
}
