//! Requests, as handlers see them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::body::Body;
use crate::router::Mount;
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
    /// How much of the path is the prefix below which the handler is mounted.
    prefix: u32,
    /// `None` if it was kept: its body is not part of it any more.
    exchange: Option<&'a ExchangeToken>,
}

/// What routers have found in the path.
#[derive(Clone, Copy)]
enum Parameters<'a> {
    None,
    Found(&'a Found<'a>),
    Kept(&'a [(Box<str>, Box<str>)]),
}

/// What one router has found, and what those have found that it is mounted in.
pub(crate) struct Found<'a> {
    own: Own<'a>,
    outer: Parameters<'a>,
}

enum Own<'a> {
    Route(&'a matchit::Params<'a, 'a>),
    /// A mount, and the path that it has matched.
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

    /// The inner ones first: of two with the same name, those count.
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

    /// What a route has found in the path of this request.
    pub(crate) fn found_by_route<'b>(&self, parameters: &'b matchit::Params<'b, 'b>) -> Found<'b>
    where
        'a: 'b,
    {
        Found { own: Own::Route(parameters), outer: self.parameters }
    }

    /// What a mount has found in the path of this request, which may be spelled differently from how it was sent.
    pub(crate) fn found_by_mount<'b>(&self, mount: &'b Mount, path: &'b str) -> Found<'b>
    where
        'a: 'b,
    {
        Found { own: Own::Mount(mount, path), outer: self.parameters }
    }

    /// The same, with what a router has found in its path.
    pub(crate) fn with_parameters<'b>(self, found: &'b Found<'b>) -> Request<'b>
    where
        'a: 'b,
    {
        Request { parameters: Parameters::Found(found), ..self }
    }

    /// The same, for a handler that is mounted below so much of the path.
    pub(crate) fn below(self, length: usize) -> Request<'a> {
        // A target is shorter than four gigabytes.
        Request { prefix: self.prefix + length as u32, ..self }
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

    /// The path, as it was sent: with its escapes, and not tidied up. It begins with a slash. For a handler that is
    /// [mounted](crate::Router::mount) below a prefix, it is what follows that prefix, and `/` if nothing does. `*` if the request is for
    /// the server itself, empty if it is a `CONNECT`.
    pub fn path(&self) -> &'a str {
        self.path_from(self.prefix)
    }

    /// The path with the prefix below which the handler is [mounted](crate::Router::mount): what a link or a redirect begins with.
    pub fn full_path(&self) -> &'a str {
        self.path_from(0)
    }

    /// The prefix below which the handler is [mounted](crate::Router::mount), as it was sent, without a slash at its end. Empty if the
    /// handler is not mounted.
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

    /// A part of the path that the route has a name for, if it has no escapes: it is borrowed from the request. `None` if there
    /// is none of this name, or it has escapes. For what is compared with known names, or is a number.
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

    /// A part of the path that the route, or a prefix that it is mounted below, has a name for, without escapes. `None` if there is none of
    /// this name, or it is no text. It is borrowed if it had no escapes.
    ///
    /// An escape may be a slash: a parameter of one segment can decode to `../../etc/hostname`. To make a file name of it, use a
    /// [`Directory`](pelton::fs::Directory), which names cannot lead out of, instead of joining paths:
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
