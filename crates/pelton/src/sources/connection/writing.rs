//! Calls a connection's handler and writes the data that it has queued.

use std::time::Duration;

use pelton_os::{Intake, Sending, Token};

use super::stream::{Ending, Stage};
use super::{Connection, ConnectionId, Io, Reason};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::Source;

/// How long a closing connection waits for the peer to finish.
const LINGER: Duration = Duration::from_secs(5);

/// The outcome of calling a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Called {
    /// The handler was not called because the connection is over or the handler is already running; or the handler
    /// panicked.
    No,
    Yes,
    /// Another handler takes over now.
    HandsOver,
}

impl Reactor {
    /// Calls the handler, then writes its data and applies its other requests.
    #[inline]
    pub(super) fn notify(&mut self, token: Token, call: impl FnOnce(&mut dyn Connection, &mut Io<'_>)) {
        match self.call_handler(token, call) {
            Called::No => {}
            Called::Yes => self.write_and_settle(token),
            Called::HandsOver => {
                self.switch_handlers(token);
                self.write_and_settle(token);
            }
        }
    }

    /// Calls the handler.
    #[inline]
    pub(super) fn call_handler(&mut self, token: Token, call: impl FnOnce(&mut dyn Connection, &mut Io<'_>)) -> Called {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else {
            return Called::No;
        };
        let Some(handler) = stream.handler.take() else { return Called::No };
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place: stream.location, source: Some(id.into()) };
        let mut called = Called::No;
        self.call_source(
            site,
            handler,
            |handler, reactor| call(&mut **handler, &mut Io { reactor, id }),
            |reactor, handler, outcome| {
                let mut hands_over = false;
                // Put it back even if the connection is over: `closed` is still to be called.
                if let Some(stream) = reactor.stream_mut(token) {
                    stream.handler = Some(handler);
                    hands_over = stream.hands_over;
                }
                match outcome {
                    Outcome::Returned if hands_over => called = Called::HandsOver,
                    Outcome::Returned => called = Called::Yes,
                    Outcome::Panicked => reactor.connection_is_over(token, Reason::Panicked),
                }
            },
        );
        called
    }

    /// Queues the connection for the next flush, unless its own callback is running: then it is flushed when the
    /// callback returns.
    pub(super) fn request_flush(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.handler.is_some()) {
            self.queue_flush(token);
        }
    }

    pub(super) fn queue_flush(&mut self, token: Token) {
        if let Some(stream) = self.stream_mut(token)
            && !std::mem::replace(&mut stream.flush_queued, true)
        {
            self.sources.flush_later(token);
        }
    }

    /// Writes as much of the send queue as the socket accepts.
    pub(super) fn write(&mut self, token: Token) {
        let now = self.now;
        let Some(Source::Connection(stream)) = self.sources.get_mut(token) else { return };
        // While the engine is busy, another attempt is useless.
        if stream.stage != Stage::Open || stream.busy || stream.failed {
            return;
        }
        let Some(outbox) = &mut stream.outbox else { return };
        if outbox.is_empty() {
            // Everything was sent, or only empty slices were queued. An engine is not asked to send nothing.
            self.connections.spare_outbox = stream.outbox.take();
            return;
        }
        let before = outbox.in_memory();
        let outcome = self.engine.send(token, outbox);
        self.flow.remove(before - outbox.in_memory());
        if outbox.is_empty() {
            // An idle connection holds no memory for sending: the next connection that sends gets it.
            self.connections.spare_outbox = stream.outbox.take();
        }
        stream.active_at = now;
        stream.forget_sample();
        match outcome {
            Ok(Sending::Idle) => {}
            Ok(Sending::Busy) => {
                stream.busy = true;
                stream.extra().wrote_at = now;
                self.arm_limits(token);
            }
            Err(error) => match Reason::from_error(error) {
                reason @ Reason::Reset => self.connection_failed(token, reason),
                reason => self.connection_is_over(token, reason),
            },
        }
    }

    /// Writes queued data, then handles the consequences: water marks, notifications, the end.
    pub(super) fn write_and_settle(&mut self, token: Token) {
        self.write(token);
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        if stream.stage != Stage::Open || stream.failed {
            return;
        }
        let waiting = stream.waiting();
        if stream.budget_paused && waiting == 0 && !stream.busy && flow.serves_over_budget() {
            self.resume_over_budget(token);
            return self.write_and_settle(token);
        }
        if waiting == 0 && !stream.busy && stream.ending != Ending::None {
            let notify = std::mem::take(&mut stream.notify_when_sent);
            self.sent_everything(token);
            if notify {
                self.notify(token, |handler, io| handler.sent(io));
            }
            return;
        }
        // Fast path: with an empty queue no water mark can have been crossed.
        if waiting == 0 && !stream.full {
            if !stream.busy && std::mem::take(&mut stream.notify_when_sent) {
                self.notify(token, |handler, io| handler.sent(io));
            }
            return;
        }
        let marks = stream.marks(flow);
        if waiting > marks.high as u64 && !stream.full {
            stream.full = true;
            self.set_receiving(token);
        } else if waiting <= marks.low as u64 && stream.full {
            stream.full = false;
            self.set_receiving(token);
            self.notify(token, |handler, io| handler.drained(io));
        }
    }

    /// Completes the requested ending after everything has been sent.
    fn sent_everything(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let peer_finished = stream.peer_finished;
        let discarded_input = stream.discarded_input || stream.holds_input();
        let ended = if peer_finished { Reason::Finished } else { Reason::Local };
        match stream.ending {
            Ending::None | Ending::Finished | Ending::Linger => {}
            Ending::Close => {
                let still_sends = !peer_finished && (discarded_input || self.engine.has_unread(token));
                if still_sends {
                    self.linger(token);
                } else {
                    self.connection_is_over(token, ended);
                }
            }
            Ending::Detach => {
                stream.stage = Stage::Detaching;
                self.begin_detaching(token);
            }
            Ending::Finish => {
                stream.ending = Ending::Finished;
                match self.engine.finish(token) {
                    Ok(()) if peer_finished => self.connection_is_over(token, ended),
                    Ok(()) => {}
                    Err(error) => self.connection_failed(token, Reason::from_error(error)),
                }
            }
        }
    }

    /// Half-closes a connection whose peer is still sending, and waits for the peer to finish.
    fn linger(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.ending = Ending::Linger;
        if let Err(error) = self.engine.finish(token) {
            return self.connection_is_over(token, Reason::from_error(error));
        }
        self.set_linger(token);
        self.arm_limits(token);
        self.set_receiving(token);
    }

    fn set_linger(&mut self, token: Token) {
        let until = self.now + LINGER;
        if let Some(stream) = self.stream_mut(token) {
            stream.extra().linger_until = Some(until);
        }
    }

    /// Extends lingering if the peer is still reading data sent earlier: closing now would lose the rest. Returns
    /// whether it was extended.
    pub(super) fn extend_linger(&mut self, token: Token) -> bool {
        let reads = self.peer_reads(token, LINGER);
        if reads {
            self.set_linger(token);
        }
        reads
    }

    /// Starts or stops receiving in the engine, depending on the current state.
    pub(super) fn set_receiving(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Open) else { return };
        let (on, held, more) = (stream.receives(), stream.holds_input(), !stream.peer_finished);
        if on && held {
            self.queue_flush(token);
        }
        if more && let Err(error) = self.engine.receive(token, Intake::on_if(on)) {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// Handles work that other callbacks left for the connection. Runs in a flush.
    pub(super) fn flush_queued(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.flush_queued = false;
        if stream.hands_over && stream.handler.is_some() {
            self.switch_handlers(token);
        }
        self.write_and_settle(token);
        self.deliver_held(token);
    }
}
