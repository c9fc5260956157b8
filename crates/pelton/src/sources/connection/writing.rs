//! Calls a connection's handler and writes the data that it has queued.

use std::io;
use std::time::Duration;

use pelton_os::{Intake, Sending, Token};

use super::layer::Layers;
use super::stream::{Ending, Stage};
use super::{Connection, ConnectionId, ConnectionState, Io, Reason};
use crate::Reactor;
use crate::reactor::source::Source;
use crate::sources::transport::{Called, Pauses};

/// How long a closing connection waits for the peer to finish.
const LINGER: Duration = Duration::from_secs(5);

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
        let id = ConnectionId(token);
        self.call_transport::<ConnectionState>(token, |handler, reactor| call(handler, &mut Io { reactor, id }))
    }

    /// Queues the connection for the next flush, unless its own callback is running: then it is flushed when the
    /// callback returns.
    pub(super) fn request_flush(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.handler.is_some()) {
            self.queue_flush(token);
        }
    }

    pub(super) fn queue_flush(&mut self, token: Token) {
        self.queue_flush_of::<ConnectionState>(token);
    }

    /// Writes as much of the send queue as the socket accepts.
    pub(super) fn write(&mut self, token: Token) {
        self.write_outbox::<false>(token);
    }

    /// Writes what the lowest layer has transmitted.
    pub(super) fn write_wire(&mut self, token: Token) {
        self.write_outbox::<true>(token);
    }

    #[inline(always)]
    fn write_outbox<const BELOW_LAYERS: bool>(&mut self, token: Token) {
        let now = self.now;
        let Some(Source::Connection(stream)) = self.sources.get_mut(token) else { return };
        if !BELOW_LAYERS && stream.layered {
            return self.write_through_layers(token);
        }
        let established = stream.stage == Stage::Open || (BELOW_LAYERS && stream.stage == Stage::Layering);
        // While the engine is busy, another attempt is useless.
        if !established || stream.busy || stream.failed() || stream.holds_output {
            return;
        }
        let place = if BELOW_LAYERS { stream.layers_mut().and_then(Layers::wire) } else { Some(&mut stream.outbox) };
        let Some(place) = place else { return };
        let Some(outbox) = place else { return };
        if outbox.is_empty() {
            // Everything was sent, or only empty slices were queued. An engine is not asked to send nothing.
            self.connections.put_spare(place);
            return;
        }
        let before = outbox.in_memory();
        let outcome = self.engine.send(token, outbox);
        self.flow.remove(before - outbox.in_memory());
        if outbox.is_empty() {
            // An idle connection holds no memory for sending: the next connection that sends gets it.
            self.connections.put_spare(place);
        }
        stream.active_at = now;
        stream.forget_sample();
        self.sent_some(token, outcome);
    }

    /// Handles the outcome of sending.
    fn sent_some(&mut self, token: Token, outcome: io::Result<Sending>) {
        let now = self.now;
        let Some(Source::Connection(stream)) = self.sources.get_mut(token) else { return };
        match outcome {
            Ok(Sending::Idle) => {}
            Ok(Sending::Busy) => {
                stream.busy = true;
                if !stream.is_manual() {
                    stream.extra().wrote_at = now;
                    self.arm_limits(token);
                }
            }
            Err(error) if stream.is_manual() => self.manual_send_failed(token, error),
            Err(error) => match Reason::from_error(error) {
                reason @ Reason::Reset => self.connection_failed(token, reason),
                reason => self.connection_is_over(token, reason),
            },
        }
    }

    /// Writes queued data, then handles the consequences: water marks, notifications, the end.
    pub(super) fn write_and_settle(&mut self, token: Token) {
        let Reactor { sources, engine, connections, flow, now, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        if !(stream.is_ordinary() && stream.settles_nothing()) {
            return self.write_and_settle_special(token);
        }
        let Some(outbox) = &mut stream.outbox else { return };
        if outbox.is_empty() {
            return connections.put_spare(&mut stream.outbox);
        }
        let before = outbox.in_memory();
        let outcome = engine.send(token, outbox);
        stream.active_at = *now;
        if outbox.is_empty() && matches!(outcome, Ok(Sending::Idle)) {
            // Fast path: with an empty queue no water mark can have been crossed.
            flow.remove(before);
            connections.put_spare(&mut stream.outbox);
            stream.forget_sample();
            return;
        }
        flow.remove(before - outbox.in_memory());
        if outbox.is_empty() {
            connections.put_spare(&mut stream.outbox);
        }
        stream.forget_sample();
        self.sent_some(token, outcome);
        self.settle_written(token);
    }

    #[inline(never)]
    fn write_and_settle_special(&mut self, token: Token) {
        self.write_outbox::<false>(token);
        self.settle_written(token);
    }

    fn settle_written(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        if stream.stage != Stage::Open || stream.failed() {
            return;
        }
        let waiting = stream.waiting();
        if stream.holds_back {
            let towards_marks = stream.towards_marks();
            self.resume_source(token, towards_marks);
        }
        self.settle(token, waiting);
    }

    #[inline]
    fn settle(&mut self, token: Token, waiting: u64) {
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        if stream.pauses.has(Pauses::BUDGET) && waiting == 0 && !stream.busy && flow.serves_over_budget() {
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
        if waiting == 0 && !stream.full && !stream.writable_promised {
            if !stream.busy && std::mem::take(&mut stream.notify_when_sent) {
                self.notify(token, |handler, io| handler.sent(io));
            }
            return;
        }
        if stream.is_manual() {
            return;
        }
        let marks = stream.marks(flow);
        let waiting = if stream.layered { stream.towards_marks() } else { waiting };
        if waiting > marks.high as u64 && !stream.full {
            stream.full = true;
            self.set_receiving(token);
        } else if waiting <= marks.low as u64 && (stream.full || stream.writable_promised) {
            stream.writable_promised = false;
            if std::mem::take(&mut stream.full) {
                self.set_receiving(token);
            }
            self.notify(token, |handler, io| handler.writable(io));
        }
    }

    /// Completes the requested ending after everything has been sent.
    fn sent_everything(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let (peer_finished, engine_ended) = (stream.peer_finished(), stream.engine_ended());
        let discarded_input = stream.discarded_input || stream.holds_input();
        let ended = if peer_finished { Reason::Finished } else { Reason::Local };
        match stream.ending {
            Ending::None | Ending::Finished | Ending::Linger => {}
            Ending::Close => {
                let loses_data = stream.lingers && stream.loses_data_if_closed_early();
                let still_sends = !engine_ended && loses_data && (discarded_input || self.engine.has_unread(token));
                if still_sends {
                    self.linger(token);
                } else {
                    self.closed_after_writing(token, ended);
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

    /// Ends a connection that was closing, with the reason of the failure that made it close if there was one.
    pub(super) fn closed_after_writing(&mut self, token: Token, otherwise: Reason) {
        let Some(stream) = self.stream_mut(token) else { return };
        let reason = stream.closing_reason(otherwise);
        self.connection_is_over(token, reason);
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
        let Some(stream) = self.stream_mut(token) else { return };
        if stream.layered {
            return self.set_receiving_below_layers(token);
        }
        if stream.stage != Stage::Open {
            return;
        }
        let stream_is_manual = stream.is_manual();
        let (mut on, held, more) = (stream.receives(), stream.holds_input(), !stream.peer_finished());
        if on && held {
            self.queue_flush(token);
            // The handler of a manual connection first receives what is here.
            on = !stream_is_manual;
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
        self.deliver(token);
    }
}
