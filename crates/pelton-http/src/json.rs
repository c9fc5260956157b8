//! JSON.

use pelton::Reactor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Body, DecodeError, Response};

impl Response {
    /// Creates a 200 with a value as JSON. A value that cannot be serialized is a fault, and the client gets a 500.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Response {
        let mut response = Response::ok().header("Content-Type", "application/json");
        match serde_json::to_vec(value) {
            Ok(json) => response.body(json),
            Err(error) => {
                response.fields_mut().set_fault(format!("write a value as JSON: {error}"));
                response
            }
        }
    }
}

impl Body {
    /// Reads the whole body as JSON, then calls `then`.
    pub fn json<T: DeserializeOwned>(
        &self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, Result<T, DecodeError>) + 'static,
    ) {
        let decode = |body: &[u8]| {
            serde_json::from_slice(body).map_err(|error| DecodeError::Malformed(format!("unexpected JSON: {error}")))
        };
        self.decode(reactor, decode, then);
    }
}
