//! Writes the heads of requests.

use super::Url;
use super::builder::Config;
use super::request::{Parts, Payload, Verb};
use super::route::Route;
use crate::{Content, Method};

/// The form of a request's target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// Path and query.
    Origin,
    /// The whole URL, for a proxy.
    Absolute,
}

/// Appends the head of a request.
pub(super) fn head(out: &mut Vec<u8>, parts: &Parts, url: &Url, route: &Route, config: &Config) {
    let settings = &config.settings;
    let target = match route.target() {
        Target::Origin => url.target(),
        Target::Absolute => url.as_str(),
    };
    for part in [parts.verb.as_str(), " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    if !parts.given.host {
        line(out, "Host", url.authority());
    }
    out.extend_from_slice(&parts.fields);
    if let Some(agent) = settings.user_agent.as_deref().filter(|_| !parts.given.user_agent) {
        line(out, "User-Agent", agent);
    }
    if settings.decompresses && !parts.given.accept_encoding && !parts.given.range && cfg!(feature = "decompression") {
        out.extend_from_slice(b"Accept-Encoding: gzip, br, zstd\r\n");
    }
    #[cfg(feature = "cookies")]
    if !parts.given.cookie
        && let Some(cookies) = config.cookies.as_ref().and_then(|cookies| cookies.header(url))
    {
        line(out, "Cookie", &cookies);
    }
    if let Some(credentials) = route.proxy_authorization() {
        line(out, "Proxy-Authorization", credentials);
    }
    match (parts.given.upgrade, parts.given.close) {
        (true, _) => out.extend_from_slice(b"Connection: upgrade\r\n"),
        (false, true) => out.extend_from_slice(b"Connection: close\r\n"),
        (false, false) => {}
    }
    let length = match &parts.payload {
        Payload::Content(content) if content.is_empty() && !announces_nothing(&parts.verb) => None,
        Payload::Content(content) => Some(content.len()),
        Payload::Parts(contents) => Some(contents.iter().map(Content::len).sum()),
        Payload::Stream(Some(length)) => Some(*length),
        Payload::Stream(None) => {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            None
        }
    };
    if let Some(length) = length {
        line(out, "Content-Length", itoa::Buffer::new().format(length));
    }
    if parts.given.expects_continue && parts.payload.is_something() {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a request with this method announces that it has no body: servers expect one (RFC 9110, section 8.6).
fn announces_nothing(verb: &Verb) -> bool {
    matches!(verb, Verb::Known(Method::Post | Method::Put | Method::Patch))
}

fn line(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

impl Payload {
    /// Whether there is, or may be, a body.
    pub(super) fn is_something(&self) -> bool {
        match self {
            Payload::Content(content) => !content.is_empty(),
            Payload::Parts(_) => true,
            Payload::Stream(length) => *length != Some(0),
        }
    }
}
