//! Forms and form-encoded queries.

use pelton::Reactor;
use serde::de::DeserializeOwned;

use crate::{Body, DecodeError, Request};

fn decode<T: DeserializeOwned>(what: &str, form: &[u8]) -> Result<T, DecodeError> {
    serde_urlencoded::from_bytes(form).map_err(|error| DecodeError::Malformed(format!("unexpected {what}: {error}")))
}

impl Request<'_> {
    /// Decodes the query. A missing query counts as an empty one.
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        decode("query", self.query().unwrap_or_default().as_bytes())
    }
}

impl Body {
    /// Reads the whole body as a URL-encoded form, then calls `then`.
    pub fn form<T: DeserializeOwned>(
        &self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, Result<T, DecodeError>) + 'static,
    ) {
        self.decode(reactor, |body| decode("form", body), then);
    }
}
