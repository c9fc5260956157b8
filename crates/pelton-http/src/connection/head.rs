//! What the head of a response says.

use pelton::{Fault, Io};

use super::busy::{Facts, ResponseFraming};
use crate::Response;
use crate::wire::DATE_LENGTH;
use crate::wire::encode::{self, Length, Persistence};

/// What a response has for a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// So many bytes, all of which are there.
    Whole(u64),
    /// It comes bit by bit.
    Streamed,
}

/// What was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    pub(super) framing: ResponseFraming,
    pub(super) keep_alive: bool,
}

/// Whether a response can be sent as it is.
#[inline]
pub(super) fn is_sound(response: &Response, facts: Facts, body: Body) -> bool {
    let length_is_true = match (response.fields().content_length(), body) {
        (None, _) | (_, Body::Streamed) => true,
        // What a GET would have had is told, but not sent.
        (Some(_), Body::Whole(0)) if facts.head_only || has_no_body(response.status()) => true,
        (Some(said), Body::Whole(length)) => said == length,
    };
    response.is_valid() && length_is_true && !begins_tunnel(response, facts)
}

/// Whether a client would take it for the beginning of a tunnel, which only an upgrade is.
fn begins_tunnel(response: &Response, facts: Facts) -> bool {
    facts.is_connect && (200..300).contains(&response.status())
}

/// What is sent instead of a response that is not [sound](is_sound): a 500. The fault is reported.
#[cold]
pub(super) fn instead_of(io: &mut Io<'_>, response: &Response, facts: Facts, body: Body) -> Response {
    let fault = match (response.fault(), response.fields().content_length(), body) {
        (Some(fault), ..) => fault,
        _ if begins_tunnel(response, facts) => format!("{} to CONNECT would begin a tunnel", response.status()),
        (None, Some(said), Body::Whole(length)) => {
            format!("the Content-Length is {said}, but the body has {length} bytes")
        }
        _ => "it is not sound".to_owned(),
    };
    let message = format!("a response cannot be sent, and the client gets a 500: {fault}");
    io.reactor().report(Fault::new("http", message));
    Response::plain_status(500).close()
}

/// Whether a response of this status ends with its head, whatever that says.
fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Appends the head of a response that is [sound](is_sound), and says how its body is to be sent.
#[inline]
pub(super) fn write(
    out: &mut Vec<u8>,
    date: &[u8; DATE_LENGTH],
    response: &Response,
    facts: Facts,
    body: Body,
) -> Written {
    let fields = response.fields();
    let said = fields.content_length();
    let bodiless = has_no_body(response.status());
    let (length, framing) = match body {
        _ if bodiless => (Length::Unsaid, ResponseFraming::Nothing),
        Body::Whole(0) if facts.head_only => (Length::Known(said.unwrap_or(0)), ResponseFraming::Nothing),
        Body::Whole(length) => (Length::Known(length), ResponseFraming::Counted(length)),
        Body::Streamed => match said {
            Some(said) => (Length::Known(said), ResponseFraming::Counted(said)),
            None if facts.is_http_1_0 => (Length::Unsaid, ResponseFraming::UntilClose),
            None => (Length::Chunked, ResponseFraming::Chunked),
        },
    };
    let keep_alive = facts.keep_alive && !fields.closes() && framing != ResponseFraming::UntilClose;
    let persistence = match keep_alive {
        false => Persistence::Close,
        true if facts.is_http_1_0 => Persistence::KeepAlive,
        true => Persistence::Unsaid,
    };
    let date = (!fields.has_date()).then_some(date);
    encode::head(out, response.status(), date, length, persistence, fields.lines());
    Written { framing: if facts.head_only { ResponseFraming::Nothing } else { framing }, keep_alive }
}

/// Appends the head of a response after which another protocol is spoken.
pub(super) fn write_upgrade(out: &mut Vec<u8>, date: &[u8; DATE_LENGTH], response: &Response) {
    let persistence = if response.status() == 101 { Persistence::Upgrade } else { Persistence::Unsaid };
    let date = (!response.fields().has_date()).then_some(date);
    encode::head(out, response.status(), date, Length::Unsaid, persistence, response.fields().lines());
}

/// Whether this is an answer to begin another protocol with.
pub(super) fn is_upgrade(response: &Response, facts: Facts) -> bool {
    let begins = if facts.is_connect { (200..300).contains(&response.status()) } else { response.status() == 101 };
    begins && response.fields().fault().is_none()
}
