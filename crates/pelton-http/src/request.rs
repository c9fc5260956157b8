//! Requests.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::body::Body;
use crate::router::Mount;
use crate::wire::{Field, Fields, Form, Framing, Head, Parsed, Version};
use crate::{ExchangeToken, Method};

/// A request. It borrows from the receive buffer and lives until the handler returns. [`keep`](Request::keep) makes a copy that
/// lives longer.
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
    /// The length of the prefix below which the handler is mounted.
    prefix: u32,
    /// `None` if the request was kept: then its body is separate.
    exchange: Option<&'a ExchangeToken>,
}

/// The path parameters that routers have matched.
#[derive(Clone, Copy)]
enum Parameters<'a> {
    None,
    Found(&'a Found<'a>),
    Kept(&'a [(Box<str>, Box<str>)]),
}

/// The parameters of one router, and of those in which it is mounted.
pub(crate) struct Found<'a> {
    own: Own<'a>,
    outer: Parameters<'a>,
}

enum Own<'a> {
    Route(&'a matchit::Params<'a, 'a>),
    /// A mount, and the part of the path that it matched.
    Mount(&'a Mount, &'a str),
}

impl<'a> Parameters<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        match self {
            Parameters::None => None,
            Parameters::Found(Found { own, outer }) => own.get(name).or_else(|| outer.get(name)),
            Parameters::Kept(kept) => kept.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value),
        }
    }

    /// Inner parameters come first: they win over outer ones of the same name.
    fn keep(self) -> Box<[(Box<str>, Box<str>)]> {
        let mut kept = Vec::new();
        let mut next = self;
        loop {
            match next {
                Parameters::None => return kept.into(),
                Parameters::Found(Found { own, outer }) => {
                    match own {
                        Own::Route(found) => kept.extend(found.iter().map(|(name, value)| (name.into(), value.into()))),
                        Own::Mount(mount, path) => {
                            kept.extend(mount.parameters(path).map(|(name, value)| (name.into(), value.into())));
                        }
                    }
                    next = *outer;
                }
                Parameters::Kept(own) => {
                    kept.extend_from_slice(own);
                    return kept.into();
                }
            }
        }
    }
}

impl<'a> Own<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        match self {
            Own::Route(found) => found.get(name),
            Own::Mount(mount, path) => mount.parameters(path).find(|(known, _)| *known == name).map(|(_, value)| value),
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
        Request { bytes, head, target, table, parameters: Parameters::None, prefix: 0, exchange: Some(exchange) }
    }

    /// The parameters that a route has matched.
    pub(crate) fn found_by_route<'b>(&self, parameters: &'b matchit::Params<'b, 'b>) -> Found<'b>
    where
        'a: 'b,
    {
        Found { own: Own::Route(parameters), outer: self.parameters }
    }

    /// The parameters that a mount has matched in the normalized path.
    pub(crate) fn found_by_mount<'b>(&self, mount: &'b Mount, path: &'b str) -> Found<'b>
    where
        'a: 'b,
    {
        Found { own: Own::Mount(mount, path), outer: self.parameters }
    }

    /// Returns the request with these parameters.
    pub(crate) fn with_parameters<'b>(self, found: &'b Found<'b>) -> Request<'b>
    where
        'a: 'b,
    {
        Request { parameters: Parameters::Found(found), ..self }
    }

    /// Returns the request for a handler mounted below a prefix of this length.
    pub(crate) fn below(self, length: usize) -> Request<'a> {
        // A target is shorter than four gigabytes.
        Request { prefix: self.prefix + length as u32, ..self }
    }

    /// The method, if it is a registered one.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method's name.
    pub fn method_name(&self) -> &'a str {
        self.part(&self.head.method_name)
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The target as sent.
    pub fn target(&self) -> &'a str {
        self.target
    }

    /// The form of the target.
    pub fn form(&self) -> Form {
        self.head.form
    }

    /// The path as sent, with its escapes and not normalized. It begins with a slash. For a handler that is
    /// [mounted](crate::Router::mount) below a prefix, it is the rest after that prefix, or `/` if there is none. It is `*` if
    /// the request is for the server itself, and empty for `CONNECT`.
    pub fn path(&self) -> &'a str {
        self.path_from(self.prefix)
    }

    /// The path including the prefix of the [mount](crate::Router::mount), for links and redirects.
    pub fn full_path(&self) -> &'a str {
        self.path_from(0)
    }

    /// The prefix of the [mount](crate::Router::mount) as sent, without a trailing slash. Empty if the handler is not mounted.
    pub fn prefix(&self) -> &'a str {
        let start = self.head.path.start;
        part_of(self.target, &(start..start + self.prefix))
    }

    #[inline]
    fn path_from(&self, skipped: u32) -> &'a str {
        match part_of(self.target, &(self.head.path.start + skipped..self.head.path.end)) {
            "" if self.head.form != Form::Authority => "/",
            path => path,
        }
    }

    /// The query, without the question mark.
    pub fn query(&self) -> Option<&'a str> {
        self.head.query.as_ref().map(|range| part_of(self.target, range))
    }

    /// The requested host, with its port if there is one: from the target if that names one, otherwise from the `Host` field.
    pub fn host(&self) -> Option<&'a str> {
        self.head.host.as_ref().map(|range| self.part(range))
    }

    /// The header fields.
    pub fn fields(&self) -> Fields<'a> {
        Fields::new(self.bytes, self.table)
    }

    /// The value of the first header field with this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.fields().get(name)
    }

    /// A path parameter without escapes, borrowed from the request. `None` if there is no such parameter or it has escapes. Use
    /// it for numbers and for values that are compared with known names.
    ///
    /// ```
    /// use pelton_http::{Response, Router, plain};
    ///
    /// let router = Router::new().get("/pets/{kind}", plain(|request| match request.plain_parameter("kind") {
    ///     Some("cat") => Response::text("meow\n"),
    ///     Some(_) => Response::plain_status(404),
    ///     None => Response::plain_status(400),
    /// }));
    /// ```
    pub fn plain_parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.get(name).filter(|value| !value.contains('%'))
    }

    /// A path parameter of the route or of a mount prefix, percent-decoded. `None` if there is no such parameter or it is not
    /// UTF-8. Borrowed if it has no escapes.
    ///
    /// An escape may be a slash: one segment can decode to `../../etc/hostname`. To use it as a file name, open it in a
    /// [`Directory`](pelton::fs::Directory), which names cannot escape, instead of joining paths:
    ///
    /// ```
    /// use pelton::fs;
    /// use pelton_http::{Response, Router, promised};
    ///
    /// let notes = fs::Directory::open(std::env::temp_dir()).now()?;
    /// let router = Router::new().get("/notes/{name}", promised(move |reactor, request| {
    ///     let name = request.parameter("name").unwrap_or_default();
    ///     let note = notes.read(&*name).promise(reactor).map(|bytes| Response::text(bytes));
    ///     note.or_else(|_, _| Ok(Response::new(404)))
    /// }));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        percent_encoding::percent_decode_str(self.parameters.get(name)?).decode_utf8().ok()
    }

    /// The length of the body, or `None` if it is chunked.
    pub fn content_length(&self) -> Option<u64> {
        match self.head.framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        }
    }

    /// Whether the client waits for consent before it sends its body.
    pub(crate) fn expects_continue(&self) -> bool {
        self.head.expects_continue
    }

    /// The maximum length of the body in the settings of the server.
    pub(crate) fn body_limit(&self) -> Option<u64> {
        self.exchange.map(|exchange| exchange.shared.settings.body)
    }

    /// Whether the client asks for another protocol, which its `Upgrade` field names.
    pub fn wants_upgrade(&self) -> bool {
        self.head.wants_upgrade
    }

    /// The body, which can be read now or later. A request that was [kept](Request::keep) has none: get the body before.
    pub fn body(&self) -> Body {
        Body::new(self.exchange.cloned())
    }

    /// Copies the request, so that it outlives the call of the handler.
    pub fn keep(&self) -> KeptRequest {
        KeptRequest {
            bytes: self.bytes.into(),
            head: self.head.clone(),
            table: self.table.into(),
            parameters: self.parameters.keep(),
            prefix: self.prefix,
        }
    }

    fn part(&self, range: &Range<u32>) -> &'a str {
        text_at(self.bytes, range)
    }
}

fn part_of<'a>(text: &'a str, range: &Range<u32>) -> &'a str {
    text.get(range.start as usize..range.end as usize).unwrap_or_default()
}

/// Returns a part that is known to be ASCII, as text: the method, the target or the host.
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

/// A copy of a request that outlives the handler call and can be sent to other threads. Its [body](Request::body) is separate.
pub struct KeptRequest {
    bytes: Box<[u8]>,
    head: Head,
    table: Box<[Field]>,
    parameters: Box<[(Box<str>, Box<str>)]>,
    prefix: u32,
}

impl KeptRequest {
    /// The request itself.
    pub fn get(&self) -> Request<'_> {
        let parameters = Parameters::Kept(&self.parameters);
        let target = text_at(&self.bytes, &self.head.target);
        let KeptRequest { bytes, head, table, prefix, .. } = self;
        Request { bytes, head, target, table, parameters, prefix: *prefix, exchange: None }
    }

    /// Returns the request with its body, to pass both to another handler on the loop.
    pub fn with_body<'a>(&'a self, body: &'a Body) -> Request<'a> {
        Request { exchange: body.token(), ..self.get() }
    }
}

impl fmt::Debug for KeptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
