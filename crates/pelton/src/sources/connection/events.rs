//! Handles the engine's events for a connection and notifies its handler.

use std::io;

use pelton_os::{Chunk, Event, Token};

use super::io::Input;
use super::layer::Layers;
use super::proxy::{EndGoes, Progress};
use super::stream::{Ending, Stage};
use super::{ConnectionState, Reason};
use crate::Reactor;
use crate::reactor::source::{Kind, Source};
use crate::sources::transport::Called;

impl Kind for ConnectionState {
    /// [`Event::Received`] is dispatched separately because it is the hot path.
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Receivable(_) => reactor.connection_is_receivable(token),
            Event::Sendable(_) => reactor.connection_is_sendable(token),
            Event::Spliced(_, count) => reactor.connection_spliced(token, count),
            Event::Connected(_) => reactor.connection_is_open(token),
            Event::Ended(_, outcome) => reactor.connection_ended(token, outcome),
            Event::Detached(_, socket) => reactor.connection_is_detached(token, socket),
            other => reactor.unexpected_event(&other),
        }
    }

    fn flush(reactor: &mut Reactor, token: Token) {
        reactor.flush_queued(token);
    }

    fn reap(reactor: &mut Reactor, token: Token, reason: Reason) {
        reactor.reap(token, reason);
    }

    fn drain(reactor: &mut Reactor, token: Token) {
        reactor.drain_connection(token);
    }

    fn shut_down(reactor: &mut Reactor, token: Token) {
        reactor.connection_is_over(token, Reason::Local);
    }
}

impl Reactor {
    /// Opens a connection that is established.
    pub(crate) fn connection_is_open(&mut self, token: Token) {
        let now = self.now;
        if self.stream_mut(token).is_none_or(|stream| stream.stage != Stage::Connecting) {
            return;
        }
        self.prepare_layers(token);
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Connecting) else { return };
        stream.stage = if stream.layered { Stage::Layering } else { Stage::Open };
        stream.active_at = now;
        if let Some(layers) = stream.layers_mut() {
            layers.unready_since = Some(now);
        }
        self.arm_limits(token);
        if let Some(stream) = self.stream_mut(token) {
            stream.extra = stream.extra.take().filter(|extra| extra.is_needed());
            if let Some(extra) = &mut stream.extra {
                extra.dial = None;
            }
        }
        if self.stream_mut(token).is_some_and(|stream| stream.layered) {
            self.set_receiving(token);
            return self.drive_layers(token);
        }
        self.connection_is_ready(token);
        // Not before: a handler that pauses at first should not cost the engine anything.
        self.set_receiving(token);
    }

    /// Opens a connection whose layers are all ready.
    pub(super) fn layers_are_ready(&mut self, token: Token) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return };
        stream.stage = Stage::Open;
        stream.active_at = now;
        self.set_receiving(token);
        self.kept_connection_is_open(token);
        // The caller sends when it has also delivered the input that is here. So the end of a handshake goes out together
        // with the first answer.
        if self.call_handler(token, |handler, io| handler.opened(io)) == Called::HandsOver {
            self.switch_handlers(token);
        }
    }

    fn connection_is_ready(&mut self, token: Token) {
        self.kept_connection_is_open(token);
        self.notify(token, |handler, io| handler.opened(io));
    }

    #[inline]
    pub(crate) fn connection_received(&mut self, token: Token, chunk: Chunk) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return };
        if !stream.is_ordinary() || stream.holds_input() {
            return self.special_connection_received(token, chunk);
        }
        stream.active_at = now;
        stream.used = true;
        self.notify(token, |handler, io| handler.received(io, chunk));
        self.pause_if_over_budget(token);
    }

    #[inline(never)]
    fn special_connection_received(&mut self, token: Token, chunk: Chunk) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return };
        if stream.layered {
            return self.layers_received(token, chunk);
        }
        stream.active_at = now;
        stream.used = true;
        if stream.closes() {
            stream.discarded_input = true;
            return;
        }
        if stream.is_manual() {
            return self.hold_for_handler(token, Input::Chunk(chunk.compacted()));
        }
        if !stream.receives() || stream.holds_input() {
            return stream.extra().held.push_back(Input::Chunk(chunk.compacted()));
        }
        if stream.proxies {
            self.forward(token, chunk);
        } else {
            self.notify(token, |handler, io| handler.received(io, chunk));
        }
        self.pause_if_over_budget(token);
    }

    /// Notifies the handler of a manual connection. It usually receives later and has sent nothing.
    #[inline]
    fn connection_is_receivable(&mut self, token: Token) {
        match self.call_handler(token, |handler, io| handler.readable(io)) {
            Called::No => return,
            Called::Yes => {}
            Called::HandsOver => self.switch_handlers(token),
        }
        let settles = |stream: &mut ConnectionState| {
            stream.outbox.is_some() || stream.ending != Ending::None || stream.notify_when_sent
        };
        if self.stream_mut(token).is_some_and(settles) {
            self.write_and_settle(token);
        }
    }

    fn connection_ended(&mut self, token: Token, outcome: io::Result<()>) {
        let Some(stream) = self.stream_mut(token) else { return };
        match (outcome, stream.stage) {
            (Err(error), Stage::Connecting) => {
                let extra = stream.extra();
                let reason = match (extra.address.take(), extra.dial.take()) {
                    (Some(address), _) => Reason::from_connecting(address, error),
                    (None, Some(dial)) => dial.into_reason(error),
                    (None, None) => Reason::from_error(error),
                };
                self.connection_is_over(token, reason);
            }
            (outcome, _) if stream.is_manual() => self.manual_connection_ended(token, outcome),
            (Err(error), _) => {
                stream.engine_has_ended();
                self.connection_failed(token, Reason::from_error(error));
            }
            (Ok(()), _) if stream.layered => self.layers_ended(token),
            // A layer that has left may have told the handler already.
            (Ok(()), _) if stream.peer_finished() => {}
            (Ok(()), _) => {
                stream.extra().held.push_back(Input::End);
                self.deliver_held(token);
            }
        }
    }

    fn connection_is_sendable(&mut self, token: Token) {
        let Reactor { sources, flow, now, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        stream.busy = false;
        stream.active_at = *now;
        let outbox = match stream.layered {
            false => &mut stream.outbox,
            true => match stream.layers_mut().and_then(Layers::wire) {
                Some(wire) => wire,
                None => &mut None,
            },
        };
        if let Some(outbox) = outbox {
            let before = outbox.in_memory();
            outbox.landed();
            flow.remove(before - outbox.in_memory());
        }
        if stream.is_manual() {
            let had_failed = stream.has_send_error();
            self.write(token);
            if self.stream_mut(token).is_some_and(|stream| stream.has_send_error()) && !had_failed {
                // The handler was told.
                return;
            }
            return self.notify(token, |handler, io| handler.writable(io));
        }
        self.write_and_settle(token);
    }

    /// Marks a connection as failed. It is over after all input received before the failure has been delivered, even if
    /// reading was paused.
    pub(super) fn connection_failed(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        let Some(stream) = self.stream_mut(token) else { return };
        if stream.ending == Ending::Detach {
            // The handler receives nothing more, and there is nothing left to detach.
            return self.connection_is_over(token, reason);
        }
        stream.busy = false;
        stream.has_failed();
        stream.extra().failure.get_or_insert(reason);
        if stream.stage == Stage::Layering {
            // There is nothing to deliver before the connection is open.
            return self.closed_after_writing(token, Reason::Reset);
        }
        if !stream.engine_ended() {
            self.set_receiving(token);
        }
        self.deliver(token);
    }

    /// Delivers input that is here already, through the layers if there are any.
    pub(super) fn deliver(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.layered) {
            self.drive_layers(token);
        } else {
            self.deliver_held(token);
        }
    }

    /// Delivers held-back input until the connection stops receiving.
    pub(super) fn deliver_held(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.is_manual()) {
            return self.report_held_input::<ConnectionState>(token);
        }
        loop {
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.receives()) else { return };
            if stream.handler.is_none() {
                // The handler is running, and its own call found the failure. Deliver after it returns.
                return self.queue_flush(token);
            }
            let Some(extra) = &mut stream.extra else { return };
            let closes = matches!(stream.ending, Ending::Close | Ending::Linger);
            match extra.held.pop_front() {
                Some(Input::Chunk(_)) if closes => stream.discarded_input = true,
                Some(Input::Chunk(chunk)) if stream.proxies => {
                    if self.forward(token, chunk) == Progress::None {
                        return;
                    }
                }
                Some(Input::Chunk(chunk)) => self.notify(token, |handler, io| handler.received(io, chunk)),
                Some(Input::End) => self.peer_finished(token),
                None => break,
            }
        }
        // With layers, there may be more to deliver.
        if self.stream_mut(token).is_some_and(|stream| stream.failed() && stream.peer_finished() && !stream.layered) {
            self.closed_after_writing(token, Reason::Reset);
        }
    }

    fn peer_finished(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.peer_has_finished();
        let mut tell_handler = true;
        if stream.proxies && !stream.failed() && !stream.closes() {
            tell_handler = self.forward_end(token) == EndGoes::ToHandler;
        }
        let Some(stream) = self.stream_mut(token) else { return };
        match stream.ending {
            Ending::Linger => return self.closed_after_writing(token, Reason::Local),
            Ending::Close => return,
            _ if stream.failed() => return,
            _ if !tell_handler => {}
            _ => self.notify(token, |handler, io| handler.peer_finished(io)),
        }
        // Both sides have finished, whatever the handler did about it.
        if self.stream_mut(token).is_some_and(|stream| stream.ending == Ending::Finished) {
            self.connection_is_over(token, Reason::Finished);
        }
    }
}
