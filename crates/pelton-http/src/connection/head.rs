//! Decides what goes into the head of a response.

use pelton::{Fault, Io};

use super::busy::{Facts, ResponseFraming};
use crate::Response;
use crate::wire::DATE_LENGTH;
use crate::wire::encode::{self, Length, Persistence};

/// The body of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// All of it is available: this many bytes.
    Whole(u64),
    /// It is sent in pieces.
    Streamed,
}

/// The framing and persistence of a response that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    pub(super) framing: ResponseFraming,
    pub(super) keep_alive: bool,
}

/// Whether a response can be sent unchanged.
#[inline]
pub(super) fn is_sound(response: &Response, facts: Facts, body: Body) -> bool {
    let length_is_true = match (response.fields().content_length(), body) {
        (None, _) | (_, Body::Streamed) => true,
        // The length that GET would return may be announced without a body.
        (Some(_), Body::Whole(0)) if facts.head_only || has_no_body(response.status()) => true,
        (Some(said), Body::Whole(length)) => said == length,
    };
    response.is_valid() && length_is_true && !begins_tunnel(response, facts)
}

/// Whether a client would take the response for the start of a tunnel, which only an upgrade may start.
fn begins_tunnel(response: &Response, facts: Facts) -> bool {
    facts.is_connect && (200..300).contains(&response.status())
}

/// Returns a 500 to replace a response that is not [sound](is_sound), and reports the fault.
#[cold]
pub(super) fn instead_of(io: &mut Io<'_>, response: &Response, facts: Facts, body: Body) -> Response {
    let fault = match (response.fault(), response.fields().content_length(), body) {
        (Some(fault), ..) => fault,
        _ if begins_tunnel(response, facts) => {
            format!("status {} in response to CONNECT would begin a tunnel", response.status())
        }
        (None, Some(said), Body::Whole(length)) => {
            format!("the Content-Length is {said}, but the body has {length} bytes")
        }
        _ => "the response is invalid".to_owned(),
    };
    let message = format!("invalid response, the client gets a 500: {fault}");
    io.reactor().report(Fault::new("http", message));
    Response::plain_status(500).close()
}

/// Whether a response with this status never has a body.
fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Appends the head of a [sound](is_sound) response. Returns how to send its body.
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

/// Appends the head of a response that switches to another protocol.
pub(super) fn write_upgrade(out: &mut Vec<u8>, date: &[u8; DATE_LENGTH], response: &Response) {
    let persistence = if response.status() == 101 { Persistence::Upgrade } else { Persistence::Unsaid };
    let date = (!response.fields().has_date()).then_some(date);
    encode::head(out, response.status(), date, Length::Unsaid, persistence, response.fields().lines());
}

/// Whether this response can switch to another protocol.
pub(super) fn is_upgrade(response: &Response, facts: Facts) -> bool {
    let begins = if facts.is_connect { (200..300).contains(&response.status()) } else { response.status() == 101 };
    begins && response.fields().fault().is_none()
}
