//! Sending answers, in the order of the requests.

use pelton::Io;

use super::busy::{Answer, Busy, Exchange, Facts, Framing, Streaming};
use super::head::{self, Body, Written};
use super::out::Out;
use super::{HttpConnection, Phase};
use crate::exchange::{Command, Gone};
use crate::wire::encode;
use crate::{Content, Response};

/// Bodies are handed to the reactor in pieces of at most this, as they are taken: those that are larger than what may wait
/// are no exception then.
const PIECE: usize = 256 * 1024;

/// What came of writing an answer.
enum Progress {
    /// It is complete.
    Done,
    /// There is more to come.
    More,
}

impl HttpConnection {
    /// Does what was told to this connection while it ran.
    pub(super) fn apply_left(&mut self, io: &mut Io<'_>, out: &mut Out) {
        while let Some((sequence, command)) = self.shared.take_left(io.id()) {
            // Who is told too late finds out by asking.
            let _ = self.apply(io, out, sequence, command);
        }
    }

    pub(super) fn apply(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        command: Command,
    ) -> Result<(), Gone> {
        if let Command::Read(reader, limit) = command {
            self.read_body(io, out, sequence, reader, limit);
            return Ok(());
        }
        let busy = self.busy.as_mut().ok_or(Gone)?;
        if let Command::Pause | Command::Resume = command {
            busy.body_of(sequence).ok_or(Gone)?.paused = matches!(command, Command::Pause);
            return Ok(());
        }
        let exchange = busy.exchange(sequence).ok_or(Gone)?;
        match (command, &mut exchange.answer) {
            (Command::Respond(response), answer @ Answer::Waiting) => *answer = Answer::Ready(Box::new(response)),
            (Command::Stream(mut response), answer @ Answer::Waiting) => {
                let mut streaming = Streaming::default();
                let first = response.take_content();
                if !first.is_empty() {
                    streaming.held.push_back(first);
                }
                streaming.head = Some(response);
                *answer = Answer::Streaming(Box::new(streaming));
            }
            (Command::Upgrade(response, handler), answer @ Answer::Waiting) => {
                if head::is_upgrade(&response, exchange.facts) {
                    *answer = Answer::Upgrade(Box::new((response, handler)));
                } else {
                    tracing::error!(status = response.status(), "this status does not begin another protocol");
                    *answer = Answer::Ready(Box::new(Response::plain_status(500)));
                }
            }
            (Command::Dropped, answer @ Answer::Waiting) => {
                tracing::error!("a request was not answered; the client gets a 500");
                *answer = Answer::Ready(Box::new(Response::plain_status(500)));
            }
            (Command::Data(data), Answer::Streaming(streaming)) if streaming.finished.is_none() => {
                if !data.is_empty() {
                    streaming.held.push_back(data);
                }
            }
            (Command::Finish(trailers), Answer::Streaming(streaming)) => streaming.finished = Some(trailers),
            (Command::WhenReady(callback), Answer::Streaming(streaming)) => streaming.when_ready = Some(callback),
            (Command::Abort, Answer::Streaming(streaming)) if streaming.finished.is_none() => {
                tracing::debug!("the body of a response is not completed");
                self.break_off(io, out);
            }
            (Command::OnGone(callback), _) => exchange.on_gone = Some(callback),
            _ => return Err(Gone),
        }
        Ok(())
    }

    /// What has been promised cannot be sent: closing tells the client so.
    fn break_off(&mut self, io: &mut Io<'_>, out: &mut Out) {
        out.send(io);
        self.end(io);
        io.close_after_writing();
    }

    /// Nothing more is answered.
    fn end(&mut self, io: &mut Io<'_>) {
        (self.phase, self.last) = (Phase::Done, true);
        self.give_up(io.reactor());
    }

    /// Sends of the answers what can be sent.
    pub(super) fn answer(&mut self, io: &mut Io<'_>, out: &mut Out) {
        loop {
            let Some(front) = self.busy.as_mut().and_then(|busy| busy.exchanges.front_mut()) else { return };
            let (sequence, facts) = (front.sequence, front.facts);
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
                        self.call(io, ready);
                        self.apply_left(io, out);
                    }
                    // The connection is being closed.
                    None => return,
                },
                Answer::Upgrade(upgrade) => {
                    let (response, handler) = *upgrade;
                    let now = io.reactor().now();
                    head::write_upgrade(out.buffer(), self.shared.date.borrow_mut().line(now), &response);
                    out.send(io);
                    if let Some(busy) = &mut self.busy {
                        busy.exchanges.clear();
                    }
                    return self.hand_over(io, handler);
                }
            }
        }
    }

    fn put_back(&mut self, answer: Answer) {
        if let Some(front) = self.busy.as_mut().and_then(|busy| busy.exchanges.front_mut()) {
            front.answer = answer;
        }
    }

    fn is_stuck(&self) -> bool {
        self.busy.as_ref().is_some_and(|busy| busy.choked || busy.yielded)
    }

    /// The first of the requests is answered in full.
    fn answered(&mut self, io: &mut Io<'_>) {
        let Some(exchange) = self.busy.as_mut().and_then(|busy| busy.exchanges.pop_front()) else { return };
        if !exchange.facts.keep_alive {
            self.drop_unwanted_body(exchange.sequence);
            if self.phase != Phase::Body {
                self.end(io);
            }
        } else if self.phase == Phase::Hold && self.waiting() == 0 {
            self.phase = self.after_request();
        }
    }

    /// A body that nobody reads does not keep a connection open that is to be closed.
    fn drop_unwanted_body(&mut self, sequence: u32) {
        let body = self.busy.as_mut().and_then(|busy| busy.body_of(sequence));
        if body.is_some_and(|body| body.reader.is_none()) {
            self.drop_body();
        }
    }

    /// Tells a client that waits for it that its body is wanted, when everything before it has been answered
    /// and none of it has come by itself.
    pub(super) fn ask_for_body(&mut self, out: &mut Out) {
        if let Some(Busy { body: Some(body), exchanges, .. }) = self.busy.as_deref_mut()
            && body.wanted
            && let Some(Exchange { sequence, answer: Answer::Waiting, .. }) = exchanges.front()
            && *sequence == body.sequence
        {
            (body.wanted, body.expects_continue) = (false, false);
            out.buffer().extend_from_slice(encode::CONTINUE);
        }
    }

    /// Answers a request that has no body and is the only one.
    pub(super) fn answer_at_once(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        facts: Facts,
        response: Response,
    ) {
        let rest = self.begin_whole_of(io, out, sequence, facts, response);
        if !rest.1 {
            (self.phase, self.last) = (Phase::Done, true);
        }
        if let Some(streaming) = rest.0 {
            let facts = Facts { keep_alive: rest.1, ..facts };
            let answer = Answer::Streaming(streaming);
            self.busy().exchanges.push_back(Exchange { sequence, facts, answer, on_gone: None });
            self.answer(io, out);
        }
    }

    /// Writes an answer that is small, and about which there is no doubt.
    pub(super) fn write_small(&mut self, io: &mut Io<'_>, out: &mut Out, facts: Facts, mut response: Response) {
        let content = response.take_content();
        self.write_head(io, out, &response, facts, Body::Whole(content.len()));
        if let (Content::Bytes(bytes), false) = (content, facts.head_only) {
            out.write(io, bytes);
        }
    }

    fn write_head(&mut self, io: &mut Io<'_>, out: &mut Out, response: &Response, facts: Facts, body: Body) -> Written {
        let now = io.reactor().now();
        head::write(out.buffer(), self.shared.date.borrow_mut().line(now), response, facts, body)
    }

    fn begin_whole(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        facts: Facts,
        response: Response,
    ) -> Option<Box<Streaming>> {
        let (rest, keep_alive) = self.begin_whole_of(io, out, sequence, facts, response);
        self.set_keep_alive(sequence, keep_alive);
        rest
    }

    fn set_keep_alive(&mut self, sequence: u32, keep_alive: bool) {
        if let Some(exchange) = self.busy.as_mut().and_then(|busy| busy.exchange(sequence)) {
            exchange.facts.keep_alive = keep_alive;
        }
    }

    /// Writes a response that is all there. Gives what is too much for now, and says whether the connection stays open.
    fn begin_whole_of(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        mut facts: Facts,
        response: Response,
    ) -> (Option<Box<Streaming>>, bool) {
        facts.keep_alive &= self.goes_on_after(sequence);
        let body = Body::Whole(response.content().len());
        let mut response = head::sound(response, facts, body).unwrap_or_else(|instead| instead);
        let content = response.take_content();
        let written = self.write_head(io, out, &response, facts, Body::Whole(content.len()));
        if written.framing == Framing::Nothing {
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

    /// Decides what becomes of the body of a request that is being answered, if nobody reads it. Says whether there can be another
    /// request after it.
    fn goes_on_after(&mut self, sequence: u32) -> bool {
        if self.drains && self.waiting() <= 1 {
            return false;
        }
        let discard = self.shared.settings.discard;
        let Some(body) = self.busy.as_mut().and_then(|busy| busy.body_of(sequence)) else { return true };
        if body.reader.is_some() {
            return true;
        }
        body.discarded = true;
        // A client that waits to be asked may send it all the same, or not; nobody knows what would come next.
        !body.expects_continue && body.missing().is_none_or(|missing| missing <= discard)
    }

    /// Sends of a body that comes bit by bit what is there and finds room. `None` if the connection is being closed.
    fn stream(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        mut facts: Facts,
        streaming: &mut Streaming,
    ) -> Option<Progress> {
        if let Some(response) = streaming.head.take() {
            facts.keep_alive &= self.goes_on_after(sequence);
            let response = match head::sound(response, facts, Body::Streamed) {
                Ok(response) => response,
                Err(instead) => {
                    self.set_keep_alive(sequence, false);
                    self.write_small(io, out, facts, instead);
                    return Some(Progress::Done);
                }
            };
            let written = self.write_head(io, out, &response, facts, Body::Streamed);
            streaming.framing = written.framing;
            self.set_keep_alive(sequence, written.keep_alive);
        }
        while let Some(content) = streaming.held.front_mut() {
            if self.is_stuck() || self.has_no_room(io, out) {
                return Some(Progress::More);
            }
            let piece = content.split_to(PIECE);
            if content.is_empty() {
                streaming.held.pop_front();
            }
            if !write_piece(io, out, &mut streaming.framing, piece) {
                tracing::error!("the body of a response is longer than its Content-Length");
                self.break_off(io, out);
                return None;
            }
        }
        let Some(trailers) = &streaming.finished else { return Some(Progress::More) };
        match streaming.framing {
            Framing::Chunked => encode::last_chunk(out.buffer(), trailers),
            Framing::Counted(0) | Framing::Nothing | Framing::UntilClose => {}
            Framing::Counted(missing) => {
                tracing::error!(missing, "the body of a response is shorter than its Content-Length");
                self.break_off(io, out);
                return None;
            }
        }
        Some(Progress::Done)
    }
}

fn write_content(io: &mut Io<'_>, out: &mut Out, content: Content) {
    match content {
        Content::Empty => {}
        Content::Bytes(bytes) => out.write(io, bytes),
        Content::File { file, offset, length } => {
            out.send(io);
            out.count(length);
            if let Err(error) = io.send_file(file, offset..offset.saturating_add(length)) {
                tracing::debug!(%error, "a file is not sent");
                io.close();
            }
        }
    }
}

/// Writes a piece of a body. `false` if it is more than there may be.
fn write_piece(io: &mut Io<'_>, out: &mut Out, framing: &mut Framing, piece: Content) -> bool {
    match framing {
        Framing::Nothing => {}
        Framing::UntilClose => write_content(io, out, piece),
        Framing::Counted(missing) => match missing.checked_sub(piece.len()) {
            Some(left) => {
                *missing = left;
                write_content(io, out, piece);
            }
            None => return false,
        },
        Framing::Chunked if piece.is_empty() => {}
        Framing::Chunked => {
            // A piece is never longer than memory could hold.
            encode::chunk_start(out.buffer(), piece.len() as usize);
            write_content(io, out, piece);
            out.buffer().extend_from_slice(encode::CHUNK_END);
        }
    }
    true
}
