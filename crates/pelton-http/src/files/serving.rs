//! Answers a request for a file that was found.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pelton::Reactor;

use super::cold::{Segment, Sending};
use super::lookup::Resource;
use super::multipart::{Multipart, content_range};
use super::representation::{Held, Representation};
use crate::wire::{self, Coding, Selection, Verdict};
use crate::{Method, Request, Responder, Response};

/// Whether an open file must be checked before it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// It was looked up just now.
    LookedUp,
    /// It was looked up a while ago. Newer content must not be sent under its tag.
    Kept,
}

/// Answers with a file, a part of it, or an error. Returns the responder if the file has changed and must be looked up again.
pub(super) fn answer(
    reactor: &mut Reactor,
    resource: &Rc<Resource>,
    trust: Trust,
    request: &Request<'_>,
    responder: Responder,
) -> Result<(), Responder> {
    let Some(at) = choose(resource, request) else {
        responder.respond(reactor, Response::plain_status(406).header("Vary", "Accept-Encoding"));
        return Ok(());
    };
    let form = &resource.forms[at];
    let conclusion = match wire::evaluate(request.fields(), &form.validators()) {
        Verdict::Proceed => None,
        Verdict::NotModified => Some(304),
        Verdict::Failed => Some(412),
    };
    if let Some(status) = conclusion {
        responder.respond(reactor, without_content(status, form));
        return Ok(());
    }
    let selection = select(form, request);
    let sends = selection != Selection::Unsatisfiable && request.method() != Method::Head;
    if sends && trust == Trust::Kept && !form.matches_validators() {
        return Err(responder);
    }
    match selection {
        Selection::Whole => {
            let response = with_lines(200, form.lines());
            match &form.held {
                Held::Memory(bytes) => responder.respond(reactor, response.body(bytes.clone())),
                Held::Open { .. } => open(reactor, resource, at, request, responder, response, 0..form.size),
            }
        }
        Selection::One(range) => {
            let response = with_lines(206, form.lines()).header("Content-Range", content_range(&range, form.size));
            match &form.held {
                Held::Memory(bytes) => responder.respond(reactor, response.body(part(bytes, &range))),
                Held::Open { .. } => open(reactor, resource, at, request, responder, response, range),
            }
        }
        Selection::Several(ranges) => {
            let body = Multipart::new(&ranges, form.size, &form.content_type);
            let response = with_lines(206, form.lines_without_content()).header("Content-Type", &body.content_type);
            match &form.held {
                Held::Memory(bytes) => responder.respond(reactor, response.body(together(bytes, &body))),
                Held::Open { .. } => {
                    let parts =
                        body.parts.into_iter().flat_map(|(head, range)| [Segment::Bytes(head), Segment::File(range)]);
                    let segments = parts.chain([Segment::Bytes(body.end)]).collect();
                    Sending::new(resource.clone(), at, segments).begin(reactor, responder, response);
                }
            }
        }
        Selection::Unsatisfiable => {
            let all = format!("bytes */{}", form.size);
            responder.respond(reactor, Response::plain_status(416).header("Content-Range", all));
        }
    }
    Ok(())
}

/// Chooses the form that the client prefers.
fn choose(resource: &Resource, request: &Request<'_>) -> Option<usize> {
    let mut offered = [Coding::Identity; Coding::ALL.len()];
    for (coding, form) in offered.iter_mut().zip(&resource.forms) {
        *coding = form.coding;
    }
    let offered = &offered[..resource.forms.len().min(offered.len())];
    let chosen = wire::choose_coding(request.fields().all("Accept-Encoding"), offered)?;
    offered.iter().position(|coding| *coding == chosen)
}

/// Selects the part to send. Only `GET` supports ranges.
fn select(form: &Representation, request: &Request<'_>) -> Selection {
    let Some(range) = request.header("Range").filter(|_| request.method() == Method::Get) else {
        return Selection::Whole;
    };
    if !wire::range_counts(request.fields(), &form.validators()) {
        return Selection::Whole;
    }
    match wire::select_ranges(range, form.size) {
        // `Content-Encoding` would apply to the whole multipart body, not to its parts.
        Selection::Several(_) if form.coding != Coding::Identity => Selection::Whole,
        selection => selection,
    }
}

fn with_lines(status: u16, lines: &[u8]) -> Response {
    let mut response = Response::new(status);
    response.fields_mut().append_lines(lines);
    response
}

fn without_content(status: u16, form: &Representation) -> Response {
    with_lines(status, form.lines_without_content())
}

fn part(bytes: &Bytes, range: &std::ops::Range<u64>) -> Bytes {
    // The range is within the file, which is in memory.
    bytes.slice(range.start as usize..range.end as usize)
}

fn together(bytes: &Bytes, body: &Multipart) -> Bytes {
    // The ranges cover less than the file, which is small.
    let mut all = BytesMut::with_capacity(body.len() as usize);
    for (head, range) in &body.parts {
        all.extend_from_slice(head);
        all.extend_from_slice(&part(bytes, range));
    }
    all.extend_from_slice(&body.end);
    all.freeze()
}

/// Answers with a part of an open file.
fn open(
    reactor: &mut Reactor,
    resource: &Rc<Resource>,
    at: usize,
    request: &Request<'_>,
    responder: Responder,
    response: Response,
    range: std::ops::Range<u64>,
) {
    if range.is_empty() {
        return responder.respond(reactor, response);
    }
    if request.method() == Method::Head {
        let length = (range.end - range.start).to_string();
        return responder.respond(reactor, response.header("Content-Length", length));
    }
    let segments = VecDeque::from([Segment::File(range)]);
    Sending::new(resource.clone(), at, segments).begin(reactor, responder, response);
}
