//! Parses requests from the input and calls the handler.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pelton::Io;

use super::busy::{Answer, Exchange, Facts, Receiving};
use super::deadlines::Wait;
use super::out::{Out, Room};
use super::{HttpConnection, Phase};
use crate::exchange::ExchangeToken;
use crate::wire::{Field, Head, Notes, Parsed, Refusal, Version};
use crate::{Method, Request, Responder, Response, Settings};

impl HttpConnection {
    /// Whether input cannot be processed now.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        let Some(busy) = &self.busy else { return self.phase == Phase::Hold };
        let waits = match self.phase {
            Phase::Head => busy.exchanges.len() >= self.shared.settings.pipelined.clamp(1, Settings::MOST_PIPELINED),
            Phase::Body => !busy.body.as_ref().is_none_or(|body| body.flows()),
            Phase::Hold => true,
            Phase::Done | Phase::Upgraded => false,
        };
        waits || busy.choked || busy.yielded
    }

    /// Whether there is no room for another response. If so, the connection continues when there is.
    #[inline]
    pub(super) fn has_no_room(&mut self, io: &mut Io<'_>, out: &mut Out) -> bool {
        match out.room(io) {
            Room::Yes => false,
            Room::Full => {
                self.busy().choked = true;
                true
            }
            Room::NextTurn => {
                if !std::mem::replace(&mut self.busy().yielded, true) {
                    let id = io.id();
                    io.reactor().next_tick(move |reactor| {
                        reactor.visit(id, |http: &mut HttpConnection, io| http.next_turn(io));
                    });
                }
                true
            }
        }
    }

    fn next_turn(&mut self, io: &mut Io<'_>) {
        if let Some(busy) = &mut self.busy {
            busy.yielded = false;
        }
        let out = Out::new(&self.shared);
        self.advance(io, out);
    }

    /// Processes as much of `input` as possible. Returns the number of bytes consumed.
    pub(super) fn process(&mut self, io: &mut Io<'_>, out: &mut Out, input: &[u8]) -> usize {
        let mut at = 0;
        // All requests in this input share one token and differ only in their number.
        let mut token = ExchangeToken { shared: self.shared.clone(), connection: io.id(), sequence: self.sequence };
        let mut notes = self.shared.notes.take();
        while !self.is_blocked() {
            match self.phase {
                Phase::Head => {
                    if at == input.len() || self.has_no_room(io, out) {
                        break;
                    }
                    match self.next_request(io, out, &mut token, &mut notes, &input[at..]) {
                        0 if self.phase == Phase::Head => break,
                        used => at += used,
                    }
                }
                Phase::Body => match self.receive_body(io, out, &input[at..]) {
                    0 if self.phase == Phase::Body => break,
                    used => at += used,
                },
                Phase::Done => {
                    at = input.len();
                    break;
                }
                Phase::Hold | Phase::Upgraded => break,
            }
        }
        self.shared.notes.set(notes);
        at
    }

    /// Processes buffered input. Returns whether that made progress.
    pub(super) fn process_kept(&mut self, io: &mut Io<'_>, out: &mut Out) -> bool {
        let Some(busy) = &mut self.busy else { return false };
        let (finished, before) = (busy.finished, self.phase);
        let used = if busy.has_input() {
            let (input, at) = busy.take_input();
            let used = self.process(io, out, &input[at..]);
            self.busy().put_input(input, at + used);
            used
        } else if self.phase == Phase::Body {
            // The body may be complete.
            self.process(io, out, &[]);
            0
        } else {
            0
        };
        if finished && !self.is_blocked() && !matches!(self.phase, Phase::Done | Phase::Upgraded) {
            // The unfinished request at the end will never be completed.
            let busy = self.busy();
            busy.finished = false;
            busy.drop_input();
            if self.phase == Phase::Body {
                self.body_is_cut_off(io, out);
            }
            self.phase = Phase::Done;
            return true;
        }
        used > 0 || self.phase != before
    }

    /// Parses a request at the start of `input`, if its head is complete, and calls the handler. Returns the length of the head.
    #[inline]
    fn next_request(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        token: &mut ExchangeToken,
        notes: &mut Notes,
        input: &[u8],
    ) -> usize {
        token.sequence = self.sequence;
        let limits = self.shared.settings.head;
        // Nearly all heads arrive in one piece.
        if !self.busy.as_ref().is_some_and(|busy| busy.scan.has_begun())
            && let Ok(Some(parsed)) = Head::parse_whole(input, notes, &limits)
        {
            self.dispatch(io, out, token, input, &parsed, &notes.fields);
            return parsed.length;
        }
        let found = match self.scan(input) {
            Ok(None) => return 0,
            Ok(Some(range)) => Head::parse(&input[range.clone()], notes, &limits).map(|parsed| (parsed, range)),
            Err(refusal) => Err(refusal),
        };
        match found {
            Ok((parsed, range)) => {
                self.dispatch(io, out, token, &input[range.clone()], &parsed, &notes.fields);
                range.end
            }
            Err(refusal) => {
                self.refuse(io, out, refusal);
                0
            }
        }
    }

    /// Searches for the end of a head.
    fn scan(&mut self, input: &[u8]) -> Result<Option<std::ops::Range<usize>>, Refusal> {
        let mut scan = self.busy.as_mut().map(|busy| std::mem::take(&mut busy.scan)).unwrap_or_default();
        let found = scan.advance(input, &self.shared.settings.head);
        if found == Ok(None) {
            self.busy().scan = scan;
        }
        found
    }

    #[inline]
    fn dispatch(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        token: &ExchangeToken,
        bytes: &[u8],
        parsed: &Parsed<'_>,
        table: &[Field],
    ) {
        let head = &parsed.head;
        let (shared, sequence) = (&token.shared, token.sequence);
        let is_connect = head.method == Method::Connect;
        if is_connect && !shared.handler.takes_connect() {
            return self.refuse(io, out, Refusal::new(501, "the handler does not accept CONNECT"));
        }
        self.sequence = sequence.wrapping_add(1);
        self.wait = Wait::Nothing;
        shared.counts.count(|stats| stats.requests += 1);
        let enough = shared.settings.requests.is_some_and(|most| self.sequence >= most);
        // Bytes after a declined CONNECT may have been meant for the other end of the tunnel.
        self.last |= !head.keep_alive || enough || is_connect;
        let facts = Facts {
            head_only: head.method == Method::Head,
            is_connect,
            is_http_1_0: head.version == Version::Http10,
            keep_alive: !self.last,
        };
        self.phase = match Receiving::announced_by(head, sequence) {
            Some(body) => {
                self.busy().body = Some(body);
                Phase::Body
            }
            None if head.wants_upgrade || is_connect => Phase::Hold,
            None => self.after_request(),
        };
        let responder = Responder::new(token.clone());
        let request = Request::new(&bytes[..parsed.length], parsed, table, token);
        let handled = shared.inbox.while_running(token.connection, || {
            catch_unwind(AssertUnwindSafe(|| shared.handler.handle(io.reactor(), request, responder)))
        });
        if let Err(panic) = handled {
            self.handler_panicked(io, out, facts);
            resume_unwind(panic);
        }
        if matches!(self.phase, Phase::Head | Phase::Done)
            && self.waiting() == 0
            && let Some(mut response) = shared.inbox.take_response((token.connection, sequence))
        {
            // The path of most requests: it allocates nothing and keeps nothing.
            return self.answer_at_once(io, out, sequence, facts, &mut response);
        }
        self.busy().exchanges.push_back(Exchange {
            sequence,
            facts,
            answer: Answer::Waiting,
            interim: Vec::new(),
            on_gone: None,
        });
        self.apply_commands(io, out);
        self.answer(io, out);
    }

    /// Returns the phase after a complete request.
    #[inline]
    pub(super) fn after_request(&self) -> Phase {
        if self.last { Phase::Done } else { Phase::Head }
    }

    /// The reactor closes the connection when the handler panics. Sends a 500 first, if possible.
    #[cold]
    fn handler_panicked(&mut self, io: &mut Io<'_>, out: &mut Out, facts: Facts) {
        self.phase = Phase::Done;
        if self.waiting() == 0 {
            self.write_small(io, out, facts, Response::plain_status(500).close());
        }
        out.send(io);
        io.flush();
    }

    /// Answers a malformed request and accepts no other.
    #[cold]
    pub(super) fn refuse(&mut self, io: &mut Io<'_>, out: &mut Out, refusal: Refusal) {
        tracing::debug!(status = refusal.status, why = refusal.why, "request refused");
        self.shared.counts.count(|stats| stats.refused += 1);
        self.shared.counts.tell(io, refusal);
        self.end_with(io, out, Response::plain_status(refusal.status));
    }

    /// Refuses a connection because there are too many.
    pub(super) fn turn_away(&mut self, io: &mut Io<'_>, out: &mut Out) {
        tracing::debug!("connection refused: too many connections");
        self.shared.counts.count(|stats| stats.turned_away += 1);
        self.shared.counts.tell(io, Refusal::new(503, "there are too many connections"));
        self.end_with(io, out, Response::plain_status(503));
    }

    /// Sends this response after all others, and closes.
    fn end_with(&mut self, io: &mut Io<'_>, out: &mut Out, response: Response) {
        let facts = Facts { head_only: false, is_connect: false, is_http_1_0: false, keep_alive: false };
        (self.phase, self.last, self.lingers) = (Phase::Done, true, true);
        if self.waiting() == 0 {
            return self.write_small(io, out, facts, response);
        }
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let answer = Answer::Ready(Box::new(response));
        self.busy().exchanges.push_back(Exchange { sequence, facts, answer, interim: Vec::new(), on_gone: None });
    }
}
