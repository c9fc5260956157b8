//! Follows redirects (RFC 9110, section 15.4).

use std::rc::Rc;

use pelton::Reactor;

use super::buffer::Buffer;
use super::call::{Call, Place, State};
use super::error::ErrorKind;
use super::pool::Shared;
use super::request::{Payload, Verb};
use super::url::Scheme;
use super::{Settings, Url};
use crate::wire::ResponseHead;
use crate::{Content, Method};

/// Fields that are not sent to another origin.
const SECRETS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// Fields that describe a body, which are not sent without it.
const ABOUT_BODY: [&str; 5] =
    ["content-type", "content-encoding", "content-language", "content-location", "content-range"];

/// Returns where a response redirects to, if that is to be followed.
pub(super) fn destination(
    state: &State,
    settings: &Settings,
    head: &ResponseHead<'_>,
) -> Result<Option<Url>, ErrorKind> {
    let Some(parts) = &state.parts else { return Ok(None) };
    let most = parts.limits.redirects.unwrap_or(settings.redirects);
    if most == 0 || !matches!(head.status(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let (Some(url), Some(location)) = (&parts.url, head.fields().get("location")) else { return Ok(None) };
    let text = String::from_utf8_lossy(location);
    let refuse = |why: &'static str| ErrorKind::Redirect { to: shown(&text), why };
    if head.fields().all("location").count() > 1 {
        return Err(refuse("there are several destinations"));
    }
    let text = str::from_utf8(location).map_err(|_| refuse("the destination is not UTF-8"))?;
    let to = url.join(text).map_err(|bad| refuse(bad.why))?;
    if state.redirects >= most {
        return Err(refuse("too many redirects"));
    }
    if to.scheme() == Scheme::Unix && !to.is_same_origin(url) {
        return Err(refuse("a redirect must not lead to a Unix socket"));
    }
    if url.is_https() && !to.is_https() && !settings.downgrades {
        return Err(refuse("it leads from https to http"));
    }
    if !changes_to_get(&parts.verb, head.status()) && matches!(parts.payload, Payload::Stream(_)) {
        return Err(refuse("the body of the request cannot be sent again"));
    }
    Ok(Some(to))
}

/// A destination in an error, shortened.
fn shown(text: &str) -> Box<str> {
    text.chars().take(200).collect::<String>().into()
}

/// Whether a redirect turns the request into a `GET` without a body.
fn changes_to_get(verb: &Verb, status: u16) -> bool {
    match status {
        301 | 302 => verb.is(Method::Post),
        303 => !verb.is(Method::Get) && !verb.is(Method::Head),
        _ => false,
    }
}

/// Removes all fields with this name from header lines.
pub(super) fn remove_field(lines: &mut Buffer, name: &str) {
    let is = |line: &[u8]| {
        line.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
            && line.get(name.len()) == Some(&b':')
    };
    if lines.split_inclusive(|byte| *byte == b'\n').any(is) {
        let mut kept = Buffer::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n').filter(|line| !is(line)) {
            kept.extend_from_slice(line);
        }
        *lines = kept;
    }
}

impl Shared {
    /// Sends the request of a call to where it was redirected to.
    pub(super) fn follow(self: &Rc<Self>, reactor: &mut Reactor, call: Rc<Call>, to: Url, status: u16) {
        if call.is_over() {
            return;
        }
        {
            let state = &mut *call.state.borrow_mut();
            state.redirects += 1;
            (state.failures, state.stale) = (0, 0);
            let Some(parts) = &mut state.parts else { return };
            if changes_to_get(&parts.verb, status) {
                parts.verb = Verb::Known(Method::Get);
                parts.payload = Payload::Content(Content::Empty);
                parts.given.expects_continue = false;
                ABOUT_BODY.iter().for_each(|name| remove_field(&mut parts.fields, name));
            }
            if !parts.url.as_ref().is_some_and(|url| url.is_same_origin(&to)) {
                SECRETS.iter().for_each(|name| remove_field(&mut parts.fields, name));
                remove_field(&mut parts.fields, "host");
                parts.given.host = false;
                parts.given.authorization = false;
                parts.given.cookie = false;
            }
            parts.url = Some(to);
        }
        call.place.set(Place::Waiting);
        self.submit(reactor, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_removed_by_name() {
        let mut lines = Buffer::of(b"Cookie: a\r\nCookies: b\r\ncookie: c\r\nX: cookie:\r\n");
        remove_field(&mut lines, "cookie");
        assert_eq!(lines.as_slice(), b"Cookies: b\r\nX: cookie:\r\n");
    }
}
