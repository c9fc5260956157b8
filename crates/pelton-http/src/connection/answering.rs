//! Writes responses in the order of the requests.

use pelton::Io;

use super::busy::{Answer, Busy, Exchange, Facts, Receiving, ResponseFraming, Streaming};
use super::head::{self, Body, Written};
use super::out::Out;
use super::streaming::{Progress, write_content};
use super::{HttpConnection, Phase};
use crate::wire::encode;
use crate::{Content, Response};

/// Bodies are handed to the reactor in pieces of at most this many bytes, so a large body respects the water marks, too.
pub(super) const PIECE: usize = 256 * 1024;

impl HttpConnection {
    /// Writes as many queued responses as the socket accepts.
    pub(super) fn answer(&mut self, io: &mut Io<'_>, out: &mut Out) {
        loop {
            let Some(front) = self.busy.as_mut().and_then(|busy| busy.exchanges.front_mut()) else { return };
            let (sequence, facts) = (front.sequence, front.facts);
            if !front.interim.is_empty() {
                out.buffer().append(&mut front.interim);
            }
            match std::mem::replace(&mut front.answer, Answer::Waiting) {
                Answer::Waiting => return,
                Answer::Ready(response) => match self.begin_whole(io, out, sequence, facts, *response) {
                    None => self.answered(io),
                    Some(streaming) => self.put_back(Answer::Streaming(streaming)),
                },
                Answer::Streaming(mut streaming) => match self.stream(io, out, sequence, facts, &mut streaming) {
                    Some(Progress::Done) => self.answered(io),
                    Some(Progress::More) => {
                        let ready = streaming.when_ready.take_if(|_| !self.is_stuck());
                        self.put_back(Answer::Streaming(streaming));
                        let Some(ready) = ready else { return };
                        ready(io.reactor());
                        self.apply_commands(io, out);
                    }
                    // The connection is being closed.
                    None => return,
                },
                Answer::Upgrade(_) if self.phase == Phase::Done && self.lingers => {
                    // The body was longer than the discard limit, so the start of the other protocol is unknown.
                    self.close_after(sequence);
                    self.put_back(Answer::Ready(Box::new(Response::plain_status(413))));
                }
                Answer::Upgrade(upgrade) if self.phase == Phase::Body => {
                    // The rest of the request body does not belong to the other protocol.
                    self.discard_body(sequence);
                    return self.put_back(Answer::Upgrade(upgrade));
                }
                Answer::Upgrade(upgrade) => {
                    let (response, handler) = *upgrade;
                    let now = io.reactor().now();
                    head::write_upgrade(out.buffer(), self.shared.date.borrow_mut().line(now), &response);
                    out.send(io);
                    let busy = self.busy();
                    busy.exchanges.clear();
                    busy.upgraded = Some(handler);
                    self.phase = Phase::Upgraded;
                    return;
                }
            }
        }
    }

    fn put_back(&mut self, answer: Answer) {
        if let Some(front) = self.busy.as_mut().and_then(|busy| busy.exchanges.front_mut()) {
            front.answer = answer;
        }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.busy.as_ref().is_some_and(|busy| busy.choked || busy.yielded)
    }

    /// Called when the first request is fully answered.
    fn answered(&mut self, io: &mut Io<'_>) {
        let Some(exchange) = self.busy.as_mut().and_then(|busy| busy.exchanges.pop_front()) else { return };
        if !exchange.facts.keep_alive {
            self.last = true;
            // A reader may still want its body, but no later request is answered.
            let busy = self.busy.as_mut();
            let reads_on =
                busy.and_then(|busy| busy.body_of(exchange.sequence)).is_some_and(|body| body.reader.is_some());
            if !reads_on {
                self.lingers |= self.phase == Phase::Body;
                self.end(io);
            }
        } else if self.phase == Phase::Hold && self.waiting() == 0 {
            self.phase = self.after_request();
        }
    }

    /// Sends `100 Continue` if the body is wanted, all earlier requests are answered, and none of the body has arrived.
    pub(super) fn send_continue(&mut self, out: &mut Out) {
        if let Some(Busy { body: Some(body), exchanges, .. }) = self.busy.as_deref_mut()
            && body.wanted
            && let Some(Exchange { sequence, answer: Answer::Waiting, .. }) = exchanges.front()
            && *sequence == body.sequence
        {
            (body.wanted, body.expects_continue) = (false, false);
            out.buffer().extend_from_slice(encode::CONTINUE);
        }
    }

    /// Answers a request without a body when no other is unanswered.
    #[inline]
    pub(super) fn answer_at_once(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        facts: Facts,
        response: &mut Response,
    ) {
        let (rest, keep_alive) = self.write_whole(io, out, sequence, facts, response);
        if !keep_alive {
            (self.phase, self.last) = (Phase::Done, true);
        }
        if let Some(streaming) = rest {
            let facts = Facts { keep_alive, ..facts };
            let answer = Answer::Streaming(streaming);
            self.busy().exchanges.push_back(Exchange { sequence, facts, answer, interim: Vec::new(), on_gone: None });
            self.answer(io, out);
        }
    }

    /// Writes a small response that is known to be valid.
    pub(super) fn write_small(&mut self, io: &mut Io<'_>, out: &mut Out, facts: Facts, mut response: Response) {
        let content = response.take_content();
        self.write_head(io, out, &response, facts, Body::Whole(content.len()));
        if let (Content::Bytes(bytes), false) = (content, facts.head_only) {
            out.write(io, bytes);
        }
    }

    #[inline]
    pub(super) fn write_head(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        response: &Response,
        facts: Facts,
        body: Body,
    ) -> Written {
        let now = io.reactor().now();
        head::write(out.buffer(), self.shared.date.borrow_mut().line(now), response, facts, body)
    }

    fn begin_whole(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        facts: Facts,
        mut response: Response,
    ) -> Option<Box<Streaming>> {
        let (rest, keep_alive) = self.write_whole(io, out, sequence, facts, &mut response);
        if !keep_alive {
            self.close_after(sequence);
        }
        rest
    }

    /// Notes that the connection ends with the response to this request.
    pub(super) fn close_after(&mut self, sequence: u32) {
        if let Some(exchange) = self.busy.as_mut().and_then(|busy| busy.exchange(sequence)) {
            exchange.facts.keep_alive = false;
        }
    }

    /// Writes a complete response. Returns the part of the body that is too large to write now, and whether the connection stays
    /// open.
    #[inline]
    fn write_whole(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        mut facts: Facts,
        response: &mut Response,
    ) -> (Option<Box<Streaming>>, bool) {
        facts.keep_alive &= self.discard_unread_body(sequence);
        let mut body = Body::Whole(response.content().len());
        if !head::is_sound(response, facts, body) {
            *response = head::instead_of(io, response, facts, body);
            body = Body::Whole(response.content().len());
        }
        let content = response.take_content();
        let written = self.write_head(io, out, response, facts, body);
        if written.framing == ResponseFraming::Nothing {
            return (None, written.keep_alive);
        }
        let rest = match content {
            Content::Empty => None,
            Content::Bytes(bytes) if bytes.len() <= PIECE => {
                out.write(io, bytes);
                None
            }
            Content::Bytes(bytes) => Some(Box::new(Streaming {
                framing: written.framing,
                held: [Content::Bytes(bytes)].into(),
                finished: Some(Vec::new()),
                ..Streaming::default()
            })),
            file @ Content::File { .. } => {
                write_content(io, out, file);
                None
            }
        };
        (rest, written.keep_alive)
    }

    /// Discards the rest of a body that has no reader. Returns that body, if there is one.
    fn discard_body(&mut self, sequence: u32) -> Option<&mut Receiving> {
        let body = self.busy.as_mut()?.body_of(sequence).filter(|body| body.reader.is_none())?;
        body.discarded = true;
        Some(body)
    }

    /// Discards the unread body of a request that is being answered. Returns whether another request can follow.
    #[inline]
    pub(super) fn discard_unread_body(&mut self, sequence: u32) -> bool {
        if self.drains && self.waiting() <= 1 {
            return false;
        }
        let discard = self.shared.settings.discard;
        let Some(body) = self.discard_body(sequence) else { return true };
        // A client that waits for `100 Continue` may or may not send the body, so the next bytes are ambiguous.
        !body.expects_continue && body.missing().is_none_or(|missing| missing <= discard)
    }
}
