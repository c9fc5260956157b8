//! Requests, as handlers see them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::body::Body;
use crate::wire::{Field, Fields, Form, Framing, Head, Parsed, Version};
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
    target: &'a str,
    table: &'a [Field],
    parameters: Parameters<'a>,
    /// `None` if it was kept: its body is not part of it any more.
    exchange: Option<&'a ExchangeToken>,
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
    pub(crate) fn new(
        bytes: &'a [u8],
        parsed: &'a Parsed<'a>,
        table: &'a [Field],
        exchange: &'a ExchangeToken,
    ) -> Request<'a> {
        let Parsed { head, target, .. } = parsed;
        Request { bytes, head, target, table, parameters: Parameters::None, exchange: Some(exchange) }
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
        self.target
    }

    /// The form of the target.
    pub fn form(&self) -> Form {
        self.head.form
    }

    /// The path, as it was sent: with its escapes, and not tidied up. `*` if the request is for the server itself, empty if it is
    /// a `CONNECT`.
    pub fn path(&self) -> &'a str {
        match part_of(self.target, &self.head.path) {
            "" if self.head.form == Form::Absolute => "/",
            path => path,
        }
    }

    /// The query, without the question mark.
    pub fn query(&self) -> Option<&'a str> {
        self.head.query.as_ref().map(|range| part_of(self.target, range))
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

    /// The body, to be read now or later. One that is not asked for is not read, if that can be helped. A request that was
    /// [kept](Request::keep) has none: ask for it before.
    pub fn body(&self) -> Body {
        Body::new(self.exchange.cloned())
    }

    /// A copy that outlives the call of the handler.
    pub fn keep(&self) -> KeptRequest {
        KeptRequest {
            bytes: self.bytes.into(),
            head: self.head.clone(),
            table: self.table.into(),
            parameters: self.parameters.keep(),
        }
    }

    fn part(&self, range: &Range<u32>) -> &'a str {
        text_at(self.bytes, range)
    }
}

fn part_of<'a>(text: &'a str, range: &Range<u32>) -> &'a str {
    text.get(range.start as usize..range.end as usize).unwrap_or_default()
}

/// Of parts that are ASCII: the method, the target and the host.
fn text_at<'a>(bytes: &'a [u8], range: &Range<u32>) -> &'a str {
    let part = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
    str::from_utf8(part).unwrap_or_default()
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

/// A request that outlives the call of its handler, and can be sent to other threads. Its [body](Request::body) is apart from it.
pub struct KeptRequest {
    bytes: Box<[u8]>,
    head: Head,
    table: Box<[Field]>,
    parameters: Box<[(Box<str>, Box<str>)]>,
}

impl KeptRequest {
    /// The request itself.
    pub fn get(&self) -> Request<'_> {
        let parameters = Parameters::Kept(&self.parameters);
        let target = text_at(&self.bytes, &self.head.target);
        Request { bytes: &self.bytes, head: &self.head, target, table: &self.table, parameters, exchange: None }
    }

    /// The request with its body, which was asked for before it was kept: to be handed to another handler, on the loop.
    pub fn with_body<'a>(&'a self, body: &'a Body) -> Request<'a> {
        Request { exchange: body.token(), ..self.get() }
    }
}

impl fmt::Debug for KeptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
