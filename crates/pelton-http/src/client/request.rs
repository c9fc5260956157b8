//! Requests and the forms in which they are sent.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use pelton::{Handle, Promise, Reactor, Reply};

use super::buffer::Buffer;
use super::call::{Exchange, Receiver};
use super::collect::{Fetch, collector};
use super::error::{Error, ErrorKind};
use super::response::{Response, ResponseEvent};
use super::upgrade::Accept;
use super::{Client, Url};
use crate::wire::token::{is_field_value, is_token_text, list, trim};
use crate::{Content, Method};

/// A request, before it is sent. [`Client::get`] and its siblings make one.
///
/// An invalid part, such as a URL with another scheme or a field with a line break, is reported when the request is sent.
///
/// | to receive | call |
/// |---|---|
/// | the whole response, in a callback | [`send`](Request::send) |
/// | the whole response, as a promise | [`promise`](Request::promise) |
/// | the whole response, in a task | `.await` |
/// | the whole response, on another thread | [`reply`](Request::reply) |
/// | the response in pieces, in callbacks | [`stream`](Request::stream) |
/// | the response in pieces, in a task | [`open`](Request::open) |
///
/// A request that is sent often is built once, and cloned.
#[must_use = "a request does nothing until it is sent"]
#[derive(Clone)]
pub struct Request {
    pub(super) client: Client,
    pub(super) parts: Parts,
}

/// The parts of a request that a [`Call`] keeps, to repeat or redirect it.
pub(crate) struct Parts {
    pub(crate) verb: Verb,
    pub(crate) url: Option<Url>,
    /// Header lines.
    pub(super) fields: Buffer,
    pub(super) given: Given,
    pub(super) payload: Payload,
    /// Whether it may be sent again. By default, by its method.
    pub(super) repeatable: Option<bool>,
    pub(super) limits: Limits,
    /// What is wrong with it.
    pub(super) fault: Option<Box<ErrorKind>>,
}

impl Clone for Parts {
    fn clone(&self) -> Parts {
        let Parts { verb, url, fields, given, payload, repeatable, limits, fault } = self;
        let fault = fault.as_deref().map(|fault| match fault {
            ErrorKind::BadUrl(bad) => ErrorKind::BadUrl(bad.clone()),
            ErrorKind::BadRequest(what) => ErrorKind::BadRequest(what.clone()),
            // Requests that are not sent yet have no other faults.
            other => ErrorKind::BadRequest(other.to_string().into()),
        });
        Parts {
            verb: verb.clone(),
            url: url.clone(),
            fields: fields.clone(),
            given: *given,
            payload: payload.clone(),
            repeatable: *repeatable,
            limits: *limits,
            fault: fault.map(Box::new),
        }
    }
}

impl Parts {
    /// A request that is passed on from a client. Its fields are valid header lines. It is not redirected, and takes as long as it
    /// takes.
    pub(crate) fn forwarded(verb: Verb, url: Url, fields: Buffer, given: Given, payload: Payload) -> Parts {
        let limits = Limits { whole: Some(None), redirects: Some(0), ..Limits::default() };
        Parts { verb, url: Some(url), fields, given, payload, repeatable: None, limits, fault: None }
    }

    pub(crate) fn asks_for_upgrade(&self) -> bool {
        self.given.upgrade
    }
}

/// The method.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Known(Method),
    Other(Box<str>),
}

impl Verb {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Verb::Known(method) => method.as_str(),
            Verb::Other(name) => name,
        }
    }

    pub(super) fn is(&self, method: Method) -> bool {
        matches!(self, Verb::Known(known) if *known == method)
    }

    /// Whether repeating the request has the same effect as sending it once (RFC 9110, section 9.2.2).
    pub(crate) fn is_idempotent(&self) -> bool {
        use Method::{Delete, Get, Head, Options, Put, Trace};
        matches!(self, Verb::Known(Get | Head | Put | Delete | Options | Trace))
    }
}

/// Fields that were given, so that the client does not add its own.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Given {
    pub(crate) host: bool,
    pub(crate) user_agent: bool,
    pub(crate) accept_encoding: bool,
    pub(crate) range: bool,
    pub(crate) authorization: bool,
    pub(crate) expects_continue: bool,
    pub(crate) close: bool,
    pub(crate) upgrade: bool,
    pub(crate) cookie: bool,
    /// A caller that asks for another protocol also accepts a response that declines it.
    pub(crate) takes_refusals: bool,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Content(Content),
    /// Several contents, one after the other.
    Parts(Arc<[Content]>),
    /// Sent in pieces by an [`Exchange`], with this length if it is known.
    Stream(Option<u64>),
}

/// The limits of one request, if they differ from those of the client.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Limits {
    pub(super) whole: Option<Option<Duration>>,
    pub(super) head: Option<Duration>,
    pub(super) between: Option<Duration>,
    pub(super) body: Option<u64>,
    pub(super) redirects: Option<u32>,
    /// The body is collected in memory.
    pub(super) collects: bool,
}

impl Request {
    pub(super) fn new(client: Client, method: Method, url: Result<Url, super::BadUrl>) -> Request {
        let (url, fault) = match url {
            Ok(url) => (Some(url), None),
            Err(bad) => (None, Some(Box::new(ErrorKind::BadUrl(bad)))),
        };
        let mut request = Request {
            client,
            parts: Parts {
                verb: Verb::Known(method),
                url,
                fields: Buffer::new(),
                given: Given::default(),
                payload: Payload::Content(Content::Empty),
                repeatable: None,
                limits: Limits::default(),
                fault,
            },
        };
        if let Some(credentials) = request.parts.url.as_ref().and_then(Url::credentials) {
            let value = super::auth::basic(credentials.as_bytes());
            request.append(b"Authorization", value.as_bytes());
        }
        request
    }

    /// Sets a method that has no function of its own. `CONNECT` is not possible; an HTTP proxy is a setting of the client.
    pub fn method(mut self, name: &str) -> Request {
        self.parts.verb = match Method::of(name.as_bytes()) {
            Method::Connect => {
                self.fault("CONNECT is for proxies only");
                return self;
            }
            Method::Other if !is_token_text(name.as_bytes()) => {
                self.fault(format!("invalid method {name:?}"));
                return self;
            }
            Method::Other => Verb::Other(name.into()),
            known => Verb::Known(known),
        };
        self
    }

    /// Adds a header field. The client itself sets those that delimit the body, and `Connection`, except for `Connection: close`.
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Request {
        self.append(name.as_ref(), trim(value.as_ref()));
        self
    }

    pub(super) fn append(&mut self, name: &[u8], value: &[u8]) {
        if !is_token_text(name) {
            return self.fault(format!("invalid header name {:?}", String::from_utf8_lossy(name)));
        }
        if !value.iter().fold(true, |fine, byte| fine & is_field_value(*byte)) {
            return self.fault(format!("invalid value of the header {:?}", String::from_utf8_lossy(name)));
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let given = &mut self.parts.given;
        match name.len() {
            4 if is("host") && given.host => return self.fault("duplicate Host"),
            4 if is("host") => given.host = true,
            5 if is("range") => given.range = true,
            6 if is("cookie") => given.cookie = true,
            6 if is("expect") => {
                given.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
                return;
            }
            10 if is("user-agent") => given.user_agent = true,
            10 if is("connection") => {
                given.close |= list(value).any(|option| option.eq_ignore_ascii_case(b"close"));
                return;
            }
            13 if is("authorization") => given.authorization = true,
            15 if is("accept-encoding") => given.accept_encoding = true,
            7 if is("upgrade") && !given.upgrade => return,
            2 if is("te") => return,
            7 if is("trailer") => return,
            10 if is("keep-alive") => return,
            14 if is("content-length") => return,
            17 if is("transfer-encoding") => return,
            _ => {}
        }
        let fields = &mut self.parts.fields;
        for part in [name, b": ", value, b"\r\n"] {
            fields.extend_from_slice(part);
        }
    }

    /// Sets the body, with its `Content-Length`.
    pub fn body(mut self, content: impl Into<Content>) -> Request {
        self.parts.payload = Payload::Content(content.into());
        self
    }

    /// Announces a body that is sent in pieces with [`Exchange::send`], and ended with [`Exchange::finish`]. It is chunked, unless
    /// the length is given. Such a request is never repeated.
    pub fn streamed_body(mut self, length: Option<u64>) -> Request {
        self.parts.payload = Payload::Stream(length);
        self
    }

    /// Sends the body only when the server agrees (`Expect: 100-continue`), or after [a second](super::Settings::continues).
    pub fn expect_continue(mut self) -> Request {
        self.parts.given.expects_continue = true;
        self
    }

    /// Replaces the query of the URL by these names and values, escaped.
    pub fn query<N: AsRef<str>, V: AsRef<str>>(mut self, pairs: impl IntoIterator<Item = (N, V)>) -> Request {
        let query = super::forms::urlencoded(pairs);
        if let Some(url) = &mut self.parts.url
            && let Err(bad) = url.set_query(&query)
        {
            self.parts.fault.get_or_insert_with(|| Box::new(ErrorKind::BadUrl(bad)));
        }
        self
    }

    /// Declares that the request may, or may not, be sent again if its connection fails before the response. By default, `GET`,
    /// `HEAD`, `PUT`, `DELETE`, `OPTIONS` and `TRACE` may.
    pub fn repeatable(mut self, repeatable: bool) -> Request {
        self.parts.repeatable = Some(repeatable);
        self
    }

    /// Sets the time for everything, instead of the [setting](super::Settings::whole). `None` removes the limit.
    pub fn time_limit(mut self, whole: impl Into<Option<Duration>>) -> Request {
        self.parts.limits.whole = Some(whole.into());
        self
    }

    /// Sets the time to the head of the response, instead of the [setting](super::Settings::head).
    pub fn head_limit(mut self, limit: Duration) -> Request {
        self.parts.limits.head = Some(limit);
        self
    }

    /// Sets the time between two pieces of the response, instead of the [setting](super::Settings::between).
    pub fn between_limit(mut self, limit: Duration) -> Request {
        self.parts.limits.between = Some(limit);
        self
    }

    /// Sets the maximum length of the body of the response, after decompression.
    pub fn body_limit(mut self, bytes: u64) -> Request {
        self.parts.limits.body = Some(bytes);
        self
    }

    /// Sets how many redirects are followed, instead of the [setting](super::Settings::redirects). With 0, a redirect is a
    /// response like any other.
    pub fn redirects(mut self, most: u32) -> Request {
        self.parts.limits.redirects = Some(most);
        self
    }

    pub(super) fn fault(&mut self, what: impl Into<Box<str>>) {
        self.parts.fault.get_or_insert_with(|| Box::new(ErrorKind::BadRequest(what.into())));
    }
}

/// Sending.
impl Request {
    /// Sends the request, and calls `then` with the whole response. That never happens before this method returns.
    pub fn send(
        mut self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, Result<Response, Error>) + 'static,
    ) -> Exchange {
        self.parts.limits.collects = true;
        self.stream(reactor, collector(then))
    }

    /// Sends the request, and calls `receive` with each piece of the response, as it arrives. That never happens before this
    /// method returns. [`Exchange::pause`] keeps the server from sending more.
    pub fn stream(
        self,
        reactor: &mut Reactor,
        receive: impl FnMut(&mut Reactor, ResponseEvent<'_>) + 'static,
    ) -> Exchange {
        self.start(reactor, Box::new(receive), None)
    }

    pub(super) fn start(self, reactor: &mut Reactor, receiver: Receiver, accept: Option<Accept>) -> Exchange {
        let Request { client, parts } = self;
        client.start(reactor, parts, receiver, accept)
    }

    /// Sends the request. The promise is settled with the whole response.
    #[track_caller]
    pub fn promise(self, reactor: &mut Reactor) -> Promise<Response, Error> {
        let (deferred, promise) = reactor.promise();
        // Nothing else settles it.
        self.send(reactor, move |_, response| drop(deferred.settle(response)));
        promise
    }

    /// Sends the request from another thread, on the reactor of `handle`. The reply is the whole response: wait for it, await it,
    /// or turn it into a promise of another reactor.
    pub fn reply(self, handle: &Handle) -> Reply<Result<Response, Error>> {
        let (replier, reply) = Reply::pair();
        // If the reactor is gone, the reply is lost.
        let _ = handle.post(move |reactor| {
            self.send(reactor, move |_, response| replier.give(response));
        });
        reply
    }
}

/// Sends the request in a task. Dropping the future cancels it.
impl IntoFuture for Request {
    type Output = Result<Response, Error>;
    type IntoFuture = Fetch;

    fn into_future(self) -> Fetch {
        Fetch::new(self)
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({} {:?})", self.parts.verb.as_str(), self.parts.url)
    }
}
