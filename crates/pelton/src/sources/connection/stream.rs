//! The state of a connection, and access to it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::Location;

use pelton_os::{Address, Outbox, Time, Token};

use super::detach::OnDetached;
use super::dial::Dial;
use super::hand_over::Successor;
use super::io::Input;
use super::progress::Sample;
use super::{Connection, ConnectionId, Io, Limits, Reason, WaterMarks};
use crate::reactor::source::{Counted, Source};
use crate::{Reactor, ReconnectId, TimerKey};

/// The state of a connection. There may be very many idle connections, so state that only some need is in [`Extra`].
pub(crate) struct ConnectionState {
    pub(super) location: &'static Location<'static>,
    /// `None` while it runs.
    pub(super) handler: Option<Box<dyn Connection>>,
    /// `None` while there is nothing to send.
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) extra: Option<Box<Extra>>,
    /// When something was last sent or received. Before that, when connecting began.
    pub(super) active_at: Time,
    pub(super) stage: Stage,
    pub(super) ending: Ending,
    /// The handler has paused reading.
    pub(super) paused: bool,
    /// The send queue has exceeded the high water mark, and `drained` will be called.
    pub(super) full: bool,
    /// Reading pauses while `full` is set.
    pub(super) throttles: bool,
    /// Reading is paused because the byte budget of the reactor is exceeded.
    pub(super) budget_paused: bool,
    /// The engine is sending, or the socket is full. The engine will report when it is ready for more.
    pub(super) busy: bool,
    /// `sent` will be called when everything has been sent.
    pub(super) notify_when_sent: bool,
    /// The connection is queued for the next flush.
    pub(super) flush_queued: bool,
    /// Another handler will take over.
    pub(super) hands_over: bool,
    /// Something was sent or received, or is about to be.
    pub(super) used: bool,
    pub(super) peer_finished: bool,
    /// Input was discarded while closing, or was never read. The peer may still be sending.
    pub(super) discarded_input: bool,
    /// The connection has failed. It is over when earlier input has been delivered.
    pub(super) failed: bool,
}

/// State that only some connections need.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) limits: Option<Limits>,
    pub(super) timer: Option<TimerKey>,
    /// When some of the send queue was last written.
    pub(super) wrote_at: Time,
    /// The latest measurement of undelivered data.
    pub(super) sample: Option<Sample>,
    /// When [lingering](Ending::Linger) ends.
    pub(super) linger_until: Option<Time>,
    pub(super) marks: Option<WaterMarks>,
    /// Received input that cannot be delivered yet.
    pub(super) held: VecDeque<Input>,
    pub(super) detach: Option<OnDetached>,
    /// The address of the peer, while connecting.
    pub(super) address: Option<Address>,
    /// The dialing state, while connecting by name.
    pub(super) dial: Option<Box<Dial>>,
    /// Reconnects the connection when it is over.
    keeper: Option<ReconnectId>,
    /// Why the connection has failed.
    pub(super) failure: Option<Reason>,
    /// Handlers that will take over, one after the other.
    pub(super) successors: VecDeque<Successor>,
    /// Values that live as long as the connection.
    pub(super) kept: Vec<Box<dyn Any>>,
}

impl Extra {
    pub(super) fn is_needed(&self) -> bool {
        let settings = self.limits.is_some() || self.marks.is_some() || self.timer.is_some();
        let kept = self.keeper.is_some() || !self.kept.is_empty() || !self.successors.is_empty();
        settings || kept || !self.held.is_empty() || self.detach.is_some() || self.failure.is_some()
    }
}

/// The state of a connection's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Not established yet, or `opened` was not called yet.
    Connecting,
    Open,
    /// The engine is about to release the socket.
    Detaching,
    /// `closed` will be called next.
    Over,
}

/// What happens when the send queue is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    None,
    /// The connection is half-closed.
    Finish,
    /// The half-close is done.
    Finished,
    Close,
    /// The connection is half-closed, but the peer is still sending. The connection waits for the peer to finish, so
    /// that closing does not reset it.
    Linger,
    Detach,
}

/// State shared by all connections of a reactor.
pub(crate) struct Connections {
    /// Connections that a listener's callback has accepted. `opened` is called when the callback has returned.
    accepted: Vec<Token>,
    /// An empty outbox for the next connection that sends.
    pub(super) spare_outbox: Option<Box<Outbox>>,
    /// The initial limits of connections.
    pub(super) limits: Limits,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Connections {
        Connections { accepted: Vec::new(), spare_outbox: None, limits }
    }

    pub(crate) fn add_accepted(&mut self, connection: ConnectionId) {
        self.accepted.push(connection.0);
    }

    pub(crate) fn take_accepted(&mut self) -> Option<Token> {
        self.accepted.pop()
    }
}

impl ConnectionState {
    pub(super) fn connecting(
        location: &'static Location<'static>,
        handler: Box<dyn Connection>,
        now: Time,
    ) -> ConnectionState {
        ConnectionState {
            location,
            handler: Some(handler),
            outbox: None,
            extra: None,
            active_at: now,
            stage: Stage::Connecting,
            ending: Ending::None,
            paused: false,
            full: false,
            throttles: false,
            budget_paused: false,
            busy: false,
            notify_when_sent: false,
            flush_queued: false,
            hands_over: false,
            used: false,
            peer_finished: false,
            discarded_input: false,
            failed: false,
        }
    }

    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Makes `keeper` reconnect the connection when it is over.
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

    /// Returns whether input may be delivered.
    pub(super) fn receives(&self) -> bool {
        if self.closes() {
            return self.stage == Stage::Open;
        }
        // Throttling limits the answers to input. A handler that has finished sending adds none.
        let throttled = self.full && self.throttles && self.ending == Ending::None;
        let held_up = self.paused || self.budget_paused || throttled || self.ending == Ending::Detach;
        self.stage == Stage::Open && (self.failed || !held_up)
    }

    /// Returns whether the connection is closing, so that input is discarded.
    ///
    /// The reactor still reads it: closing a socket with unread input resets the connection, and the peer could miss
    /// the end of the sent data.
    pub(super) fn closes(&self) -> bool {
        matches!(self.ending, Ending::Close | Ending::Linger)
    }

    pub(super) fn holds_input(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.held.is_empty())
    }
}

impl Reactor {
    /// Returns access to a connection, to send on it or close it from anywhere on the loop. Returns `None` if it is
    /// over.
    pub fn connection(&mut self, id: ConnectionId) -> Option<Io<'_>> {
        self.stream_mut(id.0).filter(|stream| stream.stage != Stage::Over)?;
        Some(Io { reactor: self, id })
    }

    /// Calls `visit` with a connection's handler, if it is a `C`, like a callback of the connection: data that it sends
    /// is written when it returns. Returns `None` if the connection is over, its handler is of another type, or the
    /// handler is running.
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
        self.notify(id.0, |handler, io| {
            let handler: &mut dyn Any = handler;
            result = handler.downcast_mut().map(|handler| visit(handler, io));
        });
        result
    }

    /// Returns the number of connections, including those that are still connecting.
    pub fn connection_count(&self) -> usize {
        self.sources.count(Counted::Connection)
    }

    pub(crate) fn stream_mut(&mut self, token: Token) -> Option<&mut ConnectionState> {
        match self.sources.get_mut(token) {
            Some(Source::Connection(stream)) => Some(stream),
            _ => None,
        }
    }
}
