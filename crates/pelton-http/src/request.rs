//! Requests, as handlers see them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::body::Body;
use crate::wire::{Field, Fields, Form, Framing, Head, Version};
use crate::{ExchangeToken, Method};

/// A request. It lies where it was received, and lives as long as the call of the handler; what is needed longer is
/// [kept](Request::keep), or copied piece by piece.
///
/// ```
/// use pelton_http::{Request, Response};
///
/// fn hello(request: &Request<'_>) -> Response {
///     match request.header("Accept-Language") {
///         Some(b"de") => Response::text("Hallo\n"),
///         _ => Response::text("hello\n"),
///     }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Request<'a> {
    bytes: &'a [u8],
    head: &'a Head,
    table: &'a [Field],
    parameters: Parameters<'a>,
    exchange: &'a ExchangeToken,
}

/// What a route has found in the path.
#[derive(Clone, Copy)]
enum Parameters<'a> {
    None,
    Found(&'a matchit::Params<'a, 'a>),
    Kept(&'a [(Box<str>, Box<str>)]),
}

impl<'a> Parameters<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        match self {
            Parameters::None => None,
            Parameters::Found(found) => found.get(name),
            Parameters::Kept(kept) => kept.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value),
        }
    }

    fn keep(self) -> Box<[(Box<str>, Box<str>)]> {
        match self {
            Parameters::None => Box::default(),
            Parameters::Found(found) => found.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            Parameters::Kept(kept) => kept.into(),
        }
    }
}

impl<'a> Request<'a> {
    pub(crate) fn new(bytes: &'a [u8], head: &'a Head, table: &'a [Field], exchange: &'a ExchangeToken) -> Request<'a> {
        Request { bytes, head, table, parameters: Parameters::None, exchange }
    }

    /// The same, with what a router has found in its path.
    pub(crate) fn with_parameters<'b>(self, parameters: &'b matchit::Params<'b, 'b>) -> Request<'b>
    where
        'a: 'b,
    {
        Request { parameters: Parameters::Found(parameters), ..self }
    }

    /// The method, if it is a known one.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method's name, whatever it is.
    pub fn method_name(&self) -> &'a str {
        self.part(&self.head.method_name)
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The target as it was sent.
    pub fn target(&self) -> &'a str {
        self.part(&self.head.target)
    }

    /// The form of the target.
    pub fn form(&self) -> Form {
        self.head.form
    }

    /// The path, as it was sent: with its escapes, and not tidied up. `*` if the request is for the server itself, empty if it is
    /// a `CONNECT`.
    pub fn path(&self) -> &'a str {
        match self.part(&self.head.path) {
            "" if self.head.form == Form::Absolute => "/",
            path => path,
        }
    }

    /// The query, without the question mark.
    pub fn query(&self) -> Option<&'a str> {
        self.head.query.as_ref().map(|range| self.part(range))
    }

    /// The host that the request is for, and perhaps its port: from the target if that names one, else from the `Host` field.
    pub fn host(&self) -> Option<&'a str> {
        self.head.host.as_ref().map(|range| self.part(range))
    }

    /// The header fields.
    pub fn fields(&self) -> Fields<'a> {
        Fields::new(self.bytes, self.table)
    }

    /// The value of the first header field of this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.fields().get(name)
    }

    /// A part of the path that the route has a name for, without escapes. `None` if there is none of this name, or it is no text.
    pub fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        percent_encoding::percent_decode_str(self.parameters.get(name)?).decode_utf8().ok()
    }

    /// How many bytes its body has: `None` if that is not known before it has come.
    pub fn content_length(&self) -> Option<u64> {
        match self.head.framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        }
    }

    /// Whether the client would like to speak another protocol from here on, which its `Upgrade` field names.
    pub fn wants_upgrade(&self) -> bool {
        self.head.wants_upgrade
    }

    /// The body, to be read now or later. One that is not asked for is not read, if that can be helped.
    pub fn body(&self) -> Body {
        Body::new(self.exchange.clone())
    }

    /// A copy that outlives the call of the handler.
    pub fn keep(&self) -> KeptRequest {
        KeptRequest {
            bytes: self.bytes.into(),
            head: self.head.clone(),
            table: self.table.into(),
            parameters: self.parameters.keep(),
            exchange: self.exchange.clone(),
        }
    }

    fn part(&self, range: &Range<u32>) -> &'a str {
        let part = self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
        // Methods and targets are ASCII.
        str::from_utf8(part).unwrap_or_default()
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Request");
        debug
            .field("method", &self.method_name())
            .field("target", &self.target())
            .field("fields", &self.fields())
            .finish()
    }
}

/// A request that outlives the call of its handler.
pub struct KeptRequest {
    bytes: Box<[u8]>,
    head: Head,
    table: Box<[Field]>,
    parameters: Box<[(Box<str>, Box<str>)]>,
    exchange: ExchangeToken,
}

impl KeptRequest {
    /// The request itself.
    pub fn get(&self) -> Request<'_> {
        let request = Request::new(&self.bytes, &self.head, &self.table, &self.exchange);
        Request { parameters: Parameters::Kept(&self.parameters), ..request }
    }
}

impl fmt::Debug for KeptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
