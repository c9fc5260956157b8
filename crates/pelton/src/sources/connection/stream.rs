//! A connection, as the reactor keeps it, and the ways to it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::Location;

use pelton_os::{Address, Outbox, Time, Token};

use super::detach::Then;
use super::dial::Dial;
use super::hand_over::Successor;
use super::io::Input;
use super::progress::Reading;
use super::{Connection, ConnectionId, Io, Limits, Reason, WaterMarks};
use crate::reactor::source::{Counted, Source};
use crate::{Reactor, ReconnectId, TimerKey};

/// A connection, as the reactor keeps it. There may be very many of them with nothing to do, so what only some need is
/// [elsewhere](Extra).
pub(crate) struct ConnectionState {
    pub(super) place: &'static Location<'static>,
    /// `None` while it runs.
    pub(super) handler: Option<Box<dyn Connection>>,
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
    pub(super) full: bool,
    /// Nothing is read while it is full.
    pub(super) throttles: bool,
    /// Too much waits to be sent everywhere.
    pub(super) choked: bool,
    /// The engine will say when it has sent what it was given, or there is room for more.
    pub(super) busy: bool,
    /// `sent` is to be called.
    pub(super) tells_when_sent: bool,
    /// In the list of those that need attention.
    pub(super) flush_queued: bool,
    /// Another handler is to take over.
    pub(super) hands_over: bool,
    /// Something was sent or received, or is about to be.
    pub(super) used: bool,
    pub(super) peer_finished: bool,
    /// Something came in while it was being closed, or was never read: more may come.
    pub(super) heard_closing: bool,
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
    /// How much the other side had yet to take when that was last looked at.
    pub(super) reading: Option<Reading>,
    /// While it [lingers](Ending::Linger): for how long.
    pub(super) linger_until: Option<Time>,
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
    pub(super) failure: Option<Reason>,
    /// Handlers that are to take over, one after the other.
    pub(super) successors: VecDeque<Successor>,
    /// What lives as long as the connection.
    pub(super) kept: Vec<Box<dyn Any>>,
}

impl Extra {
    pub(super) fn is_needed(&self) -> bool {
        let settings = self.limits.is_some() || self.marks.is_some() || self.timer.is_some();
        let kept = self.keeper.is_some() || !self.kept.is_empty() || !self.successors.is_empty();
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
    /// Everything has been sent, and the other side told so; but it sends itself, and must have read everything before it
    /// is closed.
    Linger,
    Detach,
}

/// What all connections of a reactor share.
pub(crate) struct Connections {
    /// Accepted just now. Their handlers are told when the listener's callback has returned.
    newcomers: Vec<Token>,
    /// An empty outbox, for the connection that sends next.
    pub(super) spare_outbox: Option<Box<Outbox>>,
    /// What connections begin with.
    pub(super) limits: Limits,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Connections {
        Connections { newcomers: Vec::new(), spare_outbox: None, limits }
    }

    pub(crate) fn add_newcomer(&mut self, connection: ConnectionId) {
        self.newcomers.push(connection.0);
    }

    pub(crate) fn take_newcomer(&mut self) -> Option<Token> {
        self.newcomers.pop()
    }
}

impl ConnectionState {
    pub(super) fn connecting(
        place: &'static Location<'static>,
        handler: Box<dyn Connection>,
        now: Time,
    ) -> ConnectionState {
        ConnectionState {
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
            flush_queued: false,
            hands_over: false,
            used: false,
            peer_finished: false,
            heard_closing: false,
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
    pub(super) fn receives(&self) -> bool {
        if self.closes() {
            return self.stage == Stage::Open;
        }
        // Whoever has said everything cannot be made to say more by what comes in.
        let throttled = self.full && self.throttles && self.ending == Ending::None;
        let held_up = self.paused || self.choked || throttled || self.ending == Ending::Detach;
        self.stage == Stage::Open && (self.failed || !held_up)
    }

    /// Whether it is being closed, so that what comes in is of no interest.
    ///
    /// It is read all the same: a socket that is closed with something unread in it resets the connection, and the other
    /// side may then miss the end of what was sent.
    pub(super) fn closes(&self) -> bool {
        matches!(self.ending, Ending::Close | Ending::Linger)
    }

    pub(super) fn holds_input(&self) -> bool {
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
        self.sources.count(Counted::Connection)
    }

    pub(crate) fn stream_mut(&mut self, token: Token) -> Option<&mut ConnectionState> {
        match self.sources.get_mut(token) {
            Some(Source::Connection(stream)) => Some(stream),
            _ => None,
        }
    }
}
