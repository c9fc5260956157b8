//! Responses.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use pelton::ConnectionId;

use super::Url;
use super::buffer::Buffer;
use super::call::{Call, Place};
use super::error::{Error, ErrorKind};
use crate::wire::{Field, Fields, ResponseHead, Version};

/// A piece of a response.
#[derive(Debug)]
pub enum ResponseEvent<'a> {
    /// The head of an interim response: 102, 103, or an unknown one below 200. The final one follows.
    Interim(Head<'a>),
    /// The head.
    Head(Head<'a>),
    /// The next bytes of the body, decompressed.
    Data(&'a [u8]),
    /// The response is complete. These are the fields after a chunked body.
    End(Fields<'a>),
    /// The response cannot be completed. No event follows.
    Failed(Error),
}

/// The head of a response.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub(super) head: ResponseHead<'a>,
    pub(super) call: &'a Call,
    /// How many bytes have arrived together with it.
    pub(super) follows: usize,
}

impl Head<'_> {
    /// The URL of the response: that of the last redirect, if there were any.
    pub fn url(&self) -> Url {
        self.call.url()
    }

    /// How many bytes have arrived together with the head.
    pub(crate) fn follows(&self) -> usize {
        self.follows
    }

    /// The connection on which it has arrived.
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        match self.call.place.get() {
            Place::On(id) => Some(id),
            Place::Waiting | Place::Over => None,
        }
    }

    pub(super) fn keep(&self, capacity: usize) -> Response {
        Response {
            status: self.head.status(),
            version: self.head.version(),
            head: Buffer::of(self.head.bytes()),
            table: self.head.table().to_vec(),
            body: Vec::with_capacity(capacity),
            url: self.url(),
            method: self.call.method(),
        }
    }
}

impl<'a> Deref for Head<'a> {
    type Target = ResponseHead<'a>;
    fn deref(&self) -> &ResponseHead<'a> {
        &self.head
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head.fmt(f)
    }
}

/// A whole response.
#[derive(Clone)]
pub struct Response {
    status: u16,
    version: Version,
    head: Buffer,
    table: Vec<Field>,
    pub(super) body: Vec<u8>,
    url: Url,
    method: Cow<'static, str>,
}

impl Response {
    /// The status, from 200 to 599.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the status is from 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The URL of the response: that of the last redirect, if there were any.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The header fields.
    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.head, &self.table)
    }

    /// The value of the first header field with this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.fields().get(name)
    }

    /// The body, decompressed.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes the body.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The body as text. Invalid UTF-8 is replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// The body as a value, from JSON.
    #[cfg(feature = "json")]
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| self.error(ErrorKind::Body(format!("invalid JSON: {error}").into())))
    }

    /// Turns a response with another status than 200 to 299 into an error.
    pub fn error_for_status(self) -> Result<Response, Error> {
        if self.is_success() { Ok(self) } else { Err(self.error(ErrorKind::Status(self.status))) }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(&self.method, self.url.as_str(), kind)
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("url", &self.url)
            .field("fields", &self.fields())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}
