//! What happens to a connection, from being open to being over.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::Location;

use pelton_os::{Address, Chunk, Outbox, Sending, Time, Token};

use super::detach::Then;
use super::dial::Dial;
use super::io::Input;
use super::{Connection, ConnectionId, Io, Limits, Reason, WaterMarks};
use crate::callback::{CallbackKind, Site};
use crate::reactor::Source;
use crate::{Reactor, ReconnectId, TimerKey};

/// A connection, as the reactor keeps it. There may be very many of them with nothing to do, so what only some need is
/// [elsewhere](Extra).
pub(crate) struct Stream {
    pub(super) place: &'static Location<'static>,
    /// `None` while it runs.
    handler: Option<Box<dyn Connection>>,
    /// `None` while there is nothing to send.
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) extra: Option<Box<Extra>>,
    /// When something was last sent or received; before that, when connecting was begun.
    pub(super) active_at: Time,
    pub(super) stage: Stage,
    pub(super) ending: Ending,
    /// The user does not want to read.
    pub(super) paused: bool,
    /// So much waits to be sent that `drained` will be called.
    full: bool,
    /// Nothing is read while it is full.
    pub(super) throttles: bool,
    /// Too much waits to be sent everywhere.
    pub(super) choked: bool,
    /// The engine will say when it has sent what it was given, or there is room for more.
    pub(super) busy: bool,
    /// `sent` is to be called.
    pub(super) tells_when_sent: bool,
    /// In the list of those that need attention.
    listed: bool,
    /// Something was sent or received.
    pub(super) used: bool,
    peer_finished: bool,
    /// It broke, and is over as soon as what came in before that has been delivered.
    pub(super) failed: bool,
}

/// What only some connections need.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) limits: Option<Limits>,
    pub(super) timer: Option<TimerKey>,
    /// When some of what waits was last sent.
    pub(super) wrote_at: Time,
    pub(super) marks: Option<WaterMarks>,
    /// What has come in and is not wanted yet.
    pub(super) held: VecDeque<Input>,
    pub(super) detach: Option<Then>,
    /// Where it is being connected to.
    pub(super) address: Option<Address>,
    /// How far it has come, if it is being connected by name.
    pub(super) dial: Option<Box<Dial>>,
    /// What connects it again when it is over.
    keeper: Option<ReconnectId>,
    /// Why it has failed.
    failure: Option<Reason>,
}

impl Extra {
    fn is_needed(&self) -> bool {
        let settings = self.limits.is_some() || self.marks.is_some() || self.timer.is_some();
        let kept = self.keeper.is_some();
        settings || kept || !self.held.is_empty() || self.detach.is_some() || self.failure.is_some()
    }
}

/// How far along its life a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Not established yet, or its handler has not been told.
    Connecting,
    Open,
    /// The engine is about to let go of it.
    Detaching,
    /// `closed` comes next.
    Over,
}

/// What happens when everything has been sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    None,
    /// Tell the other side that there is no more.
    Finish,
    /// It has been told.
    Finished,
    Close,
    Detach,
}

impl Stream {
    pub(super) fn connecting(place: &'static Location<'static>, handler: Box<dyn Connection>, now: Time) -> Stream {
        Stream {
            place,
            handler: Some(handler),
            outbox: None,
            extra: None,
            active_at: now,
            stage: Stage::Connecting,
            ending: Ending::None,
            paused: false,
            full: false,
            throttles: false,
            choked: false,
            busy: false,
            tells_when_sent: false,
            listed: false,
            used: false,
            peer_finished: false,
            failed: false,
        }
    }

    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Has it connected again when it is over.
    pub(crate) fn keep(&mut self, keeper: ReconnectId) {
        self.extra().keeper = Some(keeper);
    }

    pub(crate) fn keeper(&self) -> Option<ReconnectId> {
        self.extra.as_ref()?.keeper
    }

    pub(super) fn may_send(&self) -> bool {
        matches!(self.stage, Stage::Connecting | Stage::Open) && self.ending == Ending::None
    }

    pub(super) fn waiting(&self) -> u64 {
        self.outbox.as_ref().map_or(0, |outbox| outbox.len())
    }

    /// Whether what comes in may be delivered.
    fn receives(&self) -> bool {
        // Whoever has said everything cannot be made to say more by what comes in.
        let throttled = self.full && self.throttles && self.ending == Ending::None;
        let held_up = self.paused || self.choked || throttled || self.ending == Ending::Detach;
        self.stage == Stage::Open && (self.failed || !held_up)
    }

    fn holds_input(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.held.is_empty())
    }
}

impl Reactor {
    /// A connection, to send to it or close it from anywhere on the loop. `None` if it is over.
    pub fn connection(&mut self, id: ConnectionId) -> Option<Io<'_>> {
        self.stream_mut(id.0).filter(|stream| stream.stage != Stage::Over)?;
        Some(Io { reactor: self, id })
    }

    /// Calls `visit` with a connection's handler, if that is a `C`, as a callback of the connection's own: what it sends goes
    /// out when it returns. `None` if the connection is over, its handler is another one, or it is the one that is
    /// running just now.
    ///
    /// ```
    /// # use pelton::{Chunk, Connection, ConnectionId, Io, Reactor};
    /// struct Guest {
    ///     name: String,
    /// }
    ///
    /// impl Connection for Guest {
    ///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
    /// }
    ///
    /// fn greet(reactor: &mut Reactor, id: ConnectionId) {
    ///     reactor.visit(id, |guest: &mut Guest, io| io.send(format!("welcome, {}\n", guest.name).as_bytes()));
    /// }
    /// ```
    pub fn visit<C: Connection, R>(
        &mut self,
        id: ConnectionId,
        visit: impl FnOnce(&mut C, &mut Io<'_>) -> R,
    ) -> Option<R> {
        let stream = self.stream_mut(id.0).filter(|stream| stream.stage != Stage::Over)?;
        let handler: &dyn Any = &**stream.handler.as_ref()?;
        if !handler.is::<C>() {
            return None;
        }
        let mut result = None;
        self.tell(id.0, |handler, io| {
            let handler: &mut dyn Any = handler;
            result = handler.downcast_mut().map(|handler| visit(handler, io));
        });
        result
    }

    /// How many connections there are, established or on their way.
    pub fn connection_count(&self) -> usize {
        self.connections
    }

    pub(crate) fn stream_mut(&mut self, token: Token) -> Option<&mut Stream> {
        match self.sources.get_mut(token.into()) {
            Some(Source::Connection(stream)) => Some(stream),
            _ => None,
        }
    }

    /// The names of all connections.
    pub(crate) fn connection_tokens(&self) -> Vec<Token> {
        let open = |source: &Source| matches!(source, Source::Connection(_));
        self.sources.iter().filter(|(_, source)| open(source)).map(|(key, _)| key.token()).collect()
    }
}

/// What the engine says.
impl Reactor {
    /// It is established.
    pub(crate) fn connection_is_open(&mut self, token: Token) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Connecting) else { return };
        stream.stage = Stage::Open;
        stream.active_at = now;
        self.arm_limits(token);
        if let Some(stream) = self.stream_mut(token) {
            stream.extra = stream.extra.take().filter(|extra| extra.is_needed());
            if let Some(extra) = &mut stream.extra {
                extra.dial = None;
            }
        }
        self.set_receiving(token);
        self.kept_connection_is_open(token);
        self.tell(token, |handler, io| handler.opened(io));
    }

    pub(crate) fn connection_received(&mut self, token: Token, chunk: Chunk) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return };
        stream.active_at = now;
        stream.used = true;
        if stream.ending == Ending::Close {
            // Whoever closes does not want to know. It is read all the same: a socket that is closed with something unread
            // in it resets the connection, and the other side may miss the end of what was sent.
            return;
        }
        if !stream.receives() || stream.holds_input() {
            return stream.extra().held.push_back(Input::Chunk(chunk.compacted()));
        }
        self.tell(token, |handler, io| handler.received(io, chunk));
        self.choke_if_over_budget(token);
    }

    pub(crate) fn connection_ended(&mut self, token: Token, outcome: io::Result<()>) {
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
            (Err(error), _) => {
                stream.peer_finished = true;
                self.connection_failed(token, Reason::from_error(error));
            }
            (Ok(()), _) => {
                stream.extra().held.push_back(Input::End);
                self.deliver_held(token);
            }
        }
    }

    pub(crate) fn connection_is_sendable(&mut self, token: Token) {
        let Reactor { sources, flow, now, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token.into()) else { return };
        stream.busy = false;
        stream.active_at = *now;
        if let Some(outbox) = &mut stream.outbox {
            let before = outbox.in_memory();
            outbox.landed();
            flow.queued -= before - outbox.in_memory();
        }
        self.flush(token);
    }

    /// It broke: it is over when what had come in before that has been delivered, even if reading was paused.
    fn connection_failed(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        let Some(stream) = self.stream_mut(token) else { return };
        if stream.ending == Ending::Detach {
            // Its handler is given nothing more, and there is nothing left to detach.
            return self.connection_is_over(token, reason);
        }
        stream.busy = false;
        stream.failed = true;
        stream.extra().failure.get_or_insert(reason);
        if !stream.peer_finished {
            self.set_receiving(token);
        }
        self.deliver_held(token);
    }

    /// Delivers what was held back, as far as it is wanted now.
    fn deliver_held(&mut self, token: Token) {
        loop {
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.receives()) else { return };
            if stream.handler.is_none() {
                // It runs, and has just found out that the connection is broken. One thing after the other.
                return self.list(token);
            }
            let Some(extra) = &mut stream.extra else { return };
            match extra.held.pop_front() {
                Some(Input::Chunk(chunk)) => self.tell(token, |handler, io| handler.received(io, chunk)),
                Some(Input::End) => self.peer_finished(token),
                None => break,
            }
        }
        if let Some(stream) = self.stream_mut(token)
            && stream.failed
            && stream.peer_finished
        {
            let reason = stream.extra().failure.take().unwrap_or(Reason::Reset);
            self.connection_is_over(token, reason);
        }
    }

    fn peer_finished(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.peer_finished = true;
        if stream.ending == Ending::Finished {
            self.connection_is_over(token, Reason::Finished);
        } else if !stream.failed && stream.ending != Ending::Close {
            self.tell(token, |handler, io| handler.peer_finished(io));
        }
    }
}

/// Calling, writing, ending.
impl Reactor {
    /// Calls the handler, then does what it has left to be done.
    pub(super) fn tell(&mut self, token: Token, call: impl FnOnce(&mut dyn Connection, &mut Io<'_>)) {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else { return };
        let Some(mut handler) = stream.handler.take() else { return };
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place: stream.place, source: Some(id.into()) };
        let outcome = self.call(site, |reactor| call(&mut *handler, &mut Io { reactor, id }));
        // It is put back even if the connection is over: it has yet to be told.
        if let Some(stream) = self.stream_mut(token) {
            stream.handler = Some(handler);
        }
        match outcome {
            Ok(()) => self.flush(token),
            Err(panic) => {
                let label = self.callbacks.label(site.source);
                self.connection_is_over(token, Reason::Panicked);
                self.fault(site, label, panic);
            }
        }
    }

    /// Has the connection looked at in the next flush: there is something to send. The one whose callback is running is
    /// looked at when that returns.
    pub(super) fn needs_attention(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.handler.is_some()) {
            self.list(token);
        }
    }

    fn list(&mut self, token: Token) {
        if let Some(stream) = self.stream_mut(token)
            && !std::mem::replace(&mut stream.listed, true)
        {
            self.dirty.push(token);
        }
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn write(&mut self, token: Token) {
        let now = self.now;
        let Some(Source::Connection(stream)) = self.sources.get_mut(token.into()) else { return };
        // While the engine is busy, trying again is of no use.
        if stream.stage != Stage::Open || stream.busy || stream.failed {
            return;
        }
        let Some(outbox) = &mut stream.outbox else { return };
        if outbox.is_empty() {
            // Everything has landed, or somebody has sent nothing, which is no operation for an engine.
            self.spare_outbox = stream.outbox.take();
            return;
        }
        let before = outbox.in_memory();
        let outcome = self.engine.send(token, outbox);
        self.flow.queued -= before - outbox.in_memory();
        if outbox.len() == 0 {
            // An idle connection holds no memory for sending; the next one that sends has it.
            self.spare_outbox = stream.outbox.take();
        }
        stream.active_at = now;
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

    /// Sends what waits, and does what was to be done after that.
    fn flush(&mut self, token: Token) {
        self.write(token);
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token.into()) else { return };
        if stream.stage != Stage::Open || stream.failed {
            return;
        }
        let waiting = stream.waiting();
        if waiting == 0 && !stream.busy && stream.ending != Ending::None {
            let tells = std::mem::take(&mut stream.tells_when_sent);
            self.sent_everything(token);
            if tells {
                self.tell(token, |handler, io| handler.sent(io));
            }
            return;
        }
        // The marks are far apart from nothing: most of the time there is nothing to compare.
        if waiting == 0 && !stream.full {
            if !stream.busy && std::mem::take(&mut stream.tells_when_sent) {
                self.tell(token, |handler, io| handler.sent(io));
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
            self.tell(token, |handler, io| handler.drained(io));
        }
    }

    /// Does what was to be done when everything has been sent.
    fn sent_everything(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let peer_finished = stream.peer_finished;
        let ended = if peer_finished { Reason::Finished } else { Reason::Local };
        match stream.ending {
            Ending::None | Ending::Finished => {}
            Ending::Close => self.connection_is_over(token, ended),
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

    /// Has the engine receive, or stop, according to what is wanted now.
    pub(super) fn set_receiving(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Open) else { return };
        let (on, held, more) = (stream.receives(), stream.holds_input(), !stream.peer_finished);
        if on && held {
            self.list(token);
        }
        if more && let Err(error) = self.engine.receive(token, on) {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// Marks a connection as over, unless it is already. Its handler is told when the loop reaps.
    pub(crate) fn connection_is_over(&mut self, token: Token, reason: Reason) {
        if let Some(stream) = self.stream_mut(token)
            && stream.stage != Stage::Over
        {
            stream.stage = Stage::Over;
            self.over.push((token, reason));
        }
    }

    /// Looks at connections that callbacks other than their own have left something to do for.
    pub(crate) fn attend_connections(&mut self) {
        // By number: this calls back, which may add more.
        let mut next = 0;
        while let Some(&token) = self.dirty.get(next) {
            next += 1;
            if let Some(stream) = self.stream_mut(token) {
                stream.listed = false;
                self.flush(token);
                self.deliver_held(token);
            } else {
                self.attend_datagrams(token);
            }
        }
        self.dirty.clear();
    }

    fn drop_outbox(&mut self, token: Token) {
        if let Some(outbox) = self.stream_mut(token).and_then(|stream| stream.outbox.take()) {
            self.flow.queued -= outbox.in_memory();
        }
    }

    /// Lets go of connections that are over, and tells their handlers. What closes meanwhile goes too.
    pub(crate) fn reap_connections(&mut self) {
        while !self.over.is_empty() {
            for (token, reason) in std::mem::take(&mut self.over) {
                self.reap(token, reason);
            }
        }
    }

    fn reap(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        let Some(stream) = self.stream_mut(token) else { return self.reap_datagrams(token, reason) };
        let (place, handler) = (stream.place, stream.handler.take());
        let timer = stream.extra.as_ref().and_then(|extra| extra.timer);
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
        let outage = self.kept_connection_is_over(token, &reason);
        self.connections -= 1;
        if self.hang_up(token) {
            self.sources.retire(token.into());
        } else {
            self.end_source(token);
        }
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place, source: Some(id.into()) };
        if let Some(mut handler) = handler {
            let outcome = self.call(site, |reactor| handler.closed(reactor, reason));
            let label = self.callbacks.label(site.source);
            self.callbacks.ended(id);
            if let Err(panic) = outcome {
                self.fault(site, label, panic);
            }
        }
        if let Some(outage) = outage {
            self.tell_outage(&outage);
        }
    }

    /// Closes all connections, and tells their handlers.
    pub(crate) fn close_connections(&mut self) {
        for token in self.connection_tokens() {
            self.connection_is_over(token, Reason::Local);
        }
        self.reap_connections();
    }

    /// Has connections close, so that the loop can end: those that are in use in their own way.
    pub(crate) fn drain_connections(&mut self) {
        for token in self.connection_tokens() {
            match self.stream_mut(token) {
                Some(stream) if stream.used => self.tell(token, |handler, io| handler.draining(io)),
                _ => self.connection_is_over(token, Reason::Local),
            }
        }
    }
}
