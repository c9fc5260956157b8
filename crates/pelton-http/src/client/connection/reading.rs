//! Reads responses.

use pelton::{Chunk, Io, Reason};

use super::busy::{Delivery, Upload};
use super::{ClientConnection, Phase};
use crate::client::call::Call;
use crate::client::decompress::Decoder;
use crate::client::error::ErrorKind;
use crate::client::response::{Head, ResponseEvent};
use crate::client::{Settings, redirect};
use crate::wire::{Piece, ResponseHead, To};

/// The body of a redirect is skipped up to this many bytes, to keep the connection.
const SKIPPED: u64 = 64 * 1024;

/// What to do after a piece.
enum Step {
    /// Read the next one.
    Next,
    /// Wait for more input.
    Wait,
    /// The response is complete.
    Complete,
    /// The exchange has failed.
    Fail(ErrorKind),
    /// The connection speaks another protocol from here on.
    Switch(Box<dyn pelton::Connection>),
    /// Stop reading, and follow the redirect.
    Leave,
}

impl ClientConnection {
    pub(super) fn read(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.read_from(io, chunk, 0);
    }

    /// Reads a chunk from this position.
    fn read_from(&mut self, io: &mut Io<'_>, chunk: Chunk, mut at: usize) {
        loop {
            let Some(busy) = &mut self.busy else { return };
            if busy.call.is_over() {
                return self.drop_call(io);
            }
            if busy.call.paused.get() {
                busy.held = Some((chunk, at));
                io.pause();
                break;
            }
            if busy.intake.has_undecoded() {
                match busy.intake.resume(io.reactor(), &self.shared, &busy.call) {
                    Ok(()) => continue,
                    Err(kind) => return self.fail(io, kind),
                }
            }
            let (used, step) = match self.step(io, &chunk[at..]) {
                Ok(found) => found,
                Err(kind) => return self.fail(io, kind),
            };
            at += used;
            match step {
                Step::Next => {}
                Step::Wait => break,
                Step::Complete => {
                    let exactly = at == chunk.len();
                    if !exactly {
                        self.shared.add(|stats| stats.unasked += 1);
                    }
                    return self.complete(io, exactly);
                }
                Step::Fail(kind) => return self.fail(io, kind),
                Step::Switch(handler) => {
                    self.phase = Phase::Closing;
                    self.keep_busy();
                    return io.hand_over(handler, chunk[at..].to_vec());
                }
                Step::Leave => return self.complete(io, false),
            }
        }
        self.set_deadline(io);
    }

    /// Reads one piece, and passes it on.
    fn step(&mut self, io: &mut Io<'_>, input: &[u8]) -> Result<(usize, Step), ErrorKind> {
        let Some(busy) = &mut self.busy else { return Ok((0, Step::Wait)) };
        let (used, piece) = busy.reader.next(busy.to, input).map_err(|malformed| ErrorKind::Malformed(malformed.0))?;
        let call = &busy.call;
        let step = match piece {
            Piece::More => Step::Wait,
            Piece::Interim(head) => {
                if head.status() != 100 {
                    call.tell(io.reactor(), ResponseEvent::Interim(Head { head, call, follows: input.len() - used }));
                } else if matches!(busy.upload, Upload::Held(_)) {
                    self.send_body_anyway(io);
                }
                Step::Next
            }
            Piece::Head(head) => {
                busy.has_head = true;
                #[cfg(feature = "cookies")]
                if let Some(cookies) = &self.shared.config().cookies {
                    store_cookies(cookies, call, &head);
                }
                let found = redirect::destination(&call.state.borrow(), self.shared.settings(), &head)?;
                if let Some(to) = found {
                    busy.delivery = Delivery::Redirect { to: Box::new(to), status: head.status() };
                    return Ok((used, Step::Next));
                }
                if busy.to == To::Upgrade && !call.takes_refusals() {
                    return Ok((used, Step::Fail(ErrorKind::NotSwitched(head.status()))));
                }
                let intake = &mut busy.intake;
                intake.decoder = decoder_of(call, self.shared.settings(), &head).filter(|_| busy.to != To::Head);
                if intake.decoder.is_some() {
                    intake.most = intake.most.min(self.shared.settings().decompressed);
                } else if busy.to != To::Head && head.content_length().is_some_and(|length| length > intake.most) {
                    return Err(ErrorKind::TooLarge { limit: intake.most });
                }
                call.tell(io.reactor(), ResponseEvent::Head(Head { head, call, follows: input.len() - used }));
                Step::Next
            }
            Piece::Data(data) => match busy.delivery {
                Delivery::Redirect { .. } if busy.intake.skip(data) > SKIPPED => Step::Leave,
                Delivery::Redirect { .. } => Step::Next,
                Delivery::Receiver => {
                    busy.intake.deliver(io.reactor(), &self.shared, call, data)?;
                    Step::Next
                }
            },
            Piece::End => {
                busy.intake.finish(io.reactor(), call)?;
                Step::Complete
            }
            Piece::Switched(head) => {
                let accept = call.state.borrow_mut().accept.take();
                let handler =
                    accept.and_then(|accept| accept(io.reactor(), Head { head, call, follows: input.len() - used }));
                match handler {
                    Some(handler) => {
                        call.place.set(crate::client::call::Place::Over);
                        Step::Switch(handler)
                    }
                    None => Step::Fail(ErrorKind::NotSwitched(head.status())),
                }
            }
        };
        Ok((used, step))
    }

    /// The response is complete. `exactly`: nothing follows it.
    fn complete(&mut self, io: &mut Io<'_>, exactly: bool) {
        let Some(mut busy) = self.busy.take() else { return };
        let is_sent = matches!(busy.upload, Upload::Done);
        let reusable = busy.reader.is_reusable() && exactly && is_sent && !busy.closes && !busy.ended;
        let reusable = reusable && !self.is_last && self.requests < self.shared.settings().requests;
        self.phase = Phase::Closing;
        if reusable {
            // The receiver may start another request now, which takes this connection.
            self.shared.comes(self.origin());
            self.is_coming = true;
            if io.is_paused() {
                io.resume();
            }
        } else {
            io.close();
        }
        let call = self.shared.take_out(&mut busy.call);
        match std::mem::take(&mut busy.delivery) {
            Delivery::Receiver => call.end(io.reactor(), ResponseEvent::End(busy.reader.trailers())),
            Delivery::Redirect { to, status } => self.shared.follow(io.reactor(), call.clone(), *to, status),
        }
        self.shared.keep_busy(busy);
        self.shared.keep_call(call);
        if !reusable {
            return;
        }
        self.is_coming = false;
        if self.shared.must_yield(self.origin(), self.requests) {
            self.shared.comes_not(self.origin());
            return io.close();
        }
        self.take_next(io);
    }

    /// The peer has finished sending.
    pub(super) fn input_ended(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        if busy.held.is_some() || busy.call.paused.get() {
            busy.ended = true;
            return;
        }
        let begun = busy.reader.has_begun();
        if busy.reader.end() {
            return match busy.intake.finish(io.reactor(), &busy.call) {
                Ok(()) => self.complete(io, false),
                Err(kind) => self.fail(io, kind),
            };
        }
        self.fail(io, ErrorKind::Ended { reason: Reason::Finished, begun });
    }

    /// Reads what has arrived while the call was paused, and more.
    pub(super) fn continue_reading(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        if busy.call.paused.get() {
            io.pause();
            return self.set_deadline(io);
        }
        let (held, ended) = (busy.held.take(), busy.ended);
        if let Some((chunk, at)) = held {
            self.read_from(io, chunk, at);
            if self.busy.as_ref().is_none_or(|busy| busy.held.is_some()) {
                return;
            }
        }
        io.resume();
        if ended {
            if let Some(busy) = &mut self.busy {
                busy.ended = false;
            }
            return self.input_ended(io);
        }
        self.set_deadline(io);
    }
}

/// The decoder of a response whose compression was asked for.
fn decoder_of(call: &Call, settings: &Settings, head: &ResponseHead<'_>) -> Option<Decoder> {
    let state = call.state.borrow();
    let given = state.parts.as_ref()?.given;
    if !settings.decompresses || given.accept_encoding || given.range || matches!(head.status(), 204 | 304) {
        return None;
    }
    let fields = head.fields();
    let mut codings = fields.all("content-encoding");
    let (coding, None) = (codings.next()?, codings.next()) else { return None };
    // Nothing is not a compressed nothing.
    if head.content_length() == Some(0) { None } else { Decoder::of(coding) }
}

#[cfg(feature = "cookies")]
fn store_cookies(cookies: &crate::client::Cookies, call: &Call, head: &ResponseHead<'_>) {
    let state = call.state.borrow();
    let Some(url) = state.parts.as_ref().and_then(|parts| parts.url.as_ref()) else { return };
    for cookie in head.fields().all("set-cookie") {
        if let Ok(cookie) = str::from_utf8(cookie) {
            cookies.set(url, cookie);
        }
    }
}
