//! The state of a connection, and access to it.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::Location;
use std::rc::Rc;

use pelton_os::{Address, Buffers, Outbox, Splice, StreamKind, Time, Token};

use super::detach::OnDetached;
use super::dial::Dial;
use super::hand_over::Successor;
use super::io::Input;
use super::layer::Layers;
use super::progress::Sample;
use super::proxy::{Feed, Forwarding};
use super::{Connection, ConnectionId, Io, Limits, Reason, WaterMarks};
use crate::reactor::callback::{CallbackKind, SourceId};
use crate::reactor::source::{Counted, Source};
use crate::sources::short_queue::ShortQueue;
use crate::sources::transport::{Control, Pauses, Transport};
use crate::{LazyTimer, Reactor, ReconnectId};

/// The state of a connection. There may be very many idle connections, so state that only some need is in [`Extra`].
///
/// The order of the fields is fixed, so that the hot paths can compare groups of small ones with one load:
/// [`is_ordinary`](ConnectionState::is_ordinary) and [`settles_nothing`](ConnectionState::settles_nothing).
#[repr(C)]
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
    pub(super) control: Control,
    /// Why the connection is not read from.
    pub(super) pauses: Pauses,
    pub(super) peer: Peer,
    /// There are [layers](Layers) between the engine and the handler. Then `outbox` is above the topmost one.
    pub(super) layered: bool,
    /// Input is [forwarded](super::Io::proxy_to) instead of delivered.
    pub(super) proxies: bool,
    /// The send queue has exceeded the high water mark, and `writable` will be called.
    pub(super) full: bool,

    /// The engine is sending, or the socket is full. The engine will report when it is ready for more.
    pub(super) busy: bool,
    /// The handler has [paused](super::Io::pause_sending) sending.
    pub(super) holds_output: bool,
    /// `sent` will be called when everything has been sent.
    pub(super) notify_when_sent: bool,
    /// Somebody has [seen](super::Io::queued) the send queue above the high water mark, and `writable` will be called.
    pub(super) writable_promised: bool,

    /// The connection that is proxied to this one is paused until the send queue has room.
    pub(super) holds_back: bool,
    pub(super) kind: StreamKind,
    /// Reading pauses while `full` is set.
    pub(super) throttles: bool,
    /// Closing waits for a peer that is still sending.
    pub(super) lingers: bool,
    /// The connection is queued for the next flush.
    pub(super) flush_queued: bool,
    /// Another handler will take over.
    pub(super) hands_over: bool,
    /// Something was sent or received, or is about to be.
    pub(super) used: bool,
    /// Input was discarded while closing, or was never read. The peer may still be sending.
    pub(super) discarded_input: bool,
}

/// State that only some connections need.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) limits: Option<Limits>,
    /// Fires when the nearest limit may be reached, or earlier.
    pub(super) timer: LazyTimer,
    /// When some of the send queue was last written.
    pub(super) wrote_at: Time,
    /// The latest measurement of undelivered data.
    pub(super) sample: Option<Sample>,
    /// When [lingering](Ending::Linger) ends.
    pub(super) linger_until: Option<Time>,
    pub(super) marks: Option<WaterMarks>,
    /// Received input that cannot be delivered yet.
    pub(super) held: ShortQueue<Input>,
    pub(super) layers: Option<Box<Layers>>,
    pub(super) detach: Option<OnDetached>,
    /// Where input is forwarded to.
    pub(super) forwarding: Option<Box<Forwarding>>,
    /// The connection that is proxied to this one.
    pub(super) feed: Option<Feed>,
    /// The address of the peer, while connecting.
    pub(super) address: Option<Address>,
    /// The dialing state, while connecting by name.
    pub(super) dial: Option<Box<Dial>>,
    /// Reconnects the connection when it ends.
    keeper: Option<ReconnectId>,
    /// Why the connection has failed.
    pub(super) failure: Option<Reason>,
    /// Why the queue of a manual connection could not be sent.
    pub(super) send_error: Option<io::Error>,
    /// Handlers that will take over, one after the other.
    pub(super) successors: VecDeque<Successor>,
    /// Values that live as long as the connection.
    pub(super) kept: Vec<Box<dyn Any>>,
}

impl Extra {
    pub(super) fn is_needed(&self) -> bool {
        let settings = self.limits.is_some() || self.marks.is_some() || self.timer.is_armed();
        let kept = self.keeper.is_some() || !self.kept.is_empty() || !self.successors.is_empty();
        settings
            || kept
            || self.layers.is_some()
            || !self.held.is_empty()
            || self.detach.is_some()
            || self.forwarding.is_some()
            || self.feed.is_some()
            || self.failure.is_some()
    }
}

/// What is known of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// It may send more, as far as the handler knows.
    Sends,
    /// It has finished sending, and the handler was told.
    Finished,
    /// Sending to it has failed. The connection has ended when the input that it sent before has been delivered.
    Lost,
    /// The connection has failed, and there is no more input.
    Gone,
}

/// The state of a connection's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Not established yet, or `opened` was not called yet.
    Connecting,
    /// Established. `opened` will be called when all [layers](Layers) are ready.
    Layering,
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

/// How many empty outboxes are kept for layers: as many as the layers of one connection usually need.
const SPARE_OUTBOXES: usize = 4;

/// State shared by all connections of a reactor.
pub(crate) struct Connections {
    /// Connections that a listener's callback has accepted. `opened` is called when the callback has returned.
    accepted: Vec<Token>,
    /// An empty outbox for the next connection that sends.
    pub(super) spare_outbox: Option<Box<Outbox>>,
    /// More of them, for layers. Boxed because that is how connections and layers hold them.
    #[expect(clippy::vec_box)]
    pub(super) spare_outboxes: Vec<Box<Outbox>>,
    /// Pipes for bulk that is proxied.
    pub(super) pipes: Vec<Rc<Splice>>,
    /// Memory for the bytes that layers deliver.
    pub(super) buffers: Rc<Buffers>,
    /// The initial limits of connections.
    pub(super) limits: Limits,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Connections {
        let (spare_outboxes, buffers) = (Vec::new(), Rc::default());
        Connections { accepted: Vec::new(), spare_outbox: None, spare_outboxes, pipes: Vec::new(), buffers, limits }
    }

    /// Keeps an empty outbox for the next connection or layer that sends.
    #[inline]
    pub(super) fn put_spare(&mut self, place: &mut Option<Box<Outbox>>) {
        if self.spare_outbox.is_none() {
            std::mem::swap(&mut self.spare_outbox, place);
        } else {
            self.put_another(place);
        }
    }

    #[cold]
    fn put_another(&mut self, place: &mut Option<Box<Outbox>>) {
        if let Some(outbox) = place.take()
            && self.spare_outboxes.len() < SPARE_OUTBOXES
        {
            self.spare_outboxes.push(outbox);
        }
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
            kind: StreamKind::Socket,
            control: Control::Reactor,
            pauses: Pauses::default(),
            peer: Peer::Sends,
            full: false,
            writable_promised: false,
            throttles: false,
            busy: false,
            holds_output: false,
            lingers: true,
            notify_when_sent: false,
            flush_queued: false,
            hands_over: false,
            used: false,
            discarded_input: false,
            layered: false,
            proxies: false,
            holds_back: false,
        }
    }

    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Returns whether nothing about the connection is special: it is open, nothing ends or pauses it, and what it receives goes
    /// to its handler, unless something is [held](ConnectionState::holds_input). This is the fast path of every message.
    #[inline]
    pub(super) fn is_ordinary(&self) -> bool {
        const ORDINARY: u64 = u64::from_ne_bytes([
            Stage::Open as u8,
            Ending::None as u8,
            Control::Reactor as u8,
            0,
            Peer::Sends as u8,
            0,
            0,
            0,
        ]);
        let state = u64::from_ne_bytes([
            self.stage as u8,
            self.ending as u8,
            self.control as u8,
            self.pauses.bits(),
            self.peer as u8,
            u8::from(self.layered),
            u8::from(self.proxies),
            u8::from(self.full),
        ]);
        state == ORDINARY
    }

    /// Returns whether sending everything has no consequences, if the connection [is ordinary](ConnectionState::is_ordinary).
    #[inline]
    pub(super) fn settles_nothing(&self) -> bool {
        let state = [self.busy, self.holds_output, self.notify_when_sent, self.writable_promised].map(u8::from);
        u32::from_ne_bytes(state) == 0 && !self.holds_back
    }

    /// Makes `keeper` reconnect the connection when it ends.
    pub(crate) fn keep(&mut self, keeper: ReconnectId) {
        self.extra().keeper = Some(keeper);
    }

    pub(crate) fn keeper(&self) -> Option<ReconnectId> {
        self.extra.as_ref()?.keeper
    }

    pub(super) fn may_send(&self) -> bool {
        matches!(self.stage, Stage::Connecting | Stage::Layering | Stage::Open) && self.ending == Ending::None
    }

    /// Returns the bytes that the engine has not accepted yet, in memory and in files. Below layers, these are transformed
    /// bytes.
    pub(super) fn waiting(&self) -> u64 {
        let queued = self.outbox.as_ref().map_or(0, |outbox| outbox.len());
        if self.layered { queued + self.waiting_with_layers() } else { queued }
    }

    /// Returns the bytes that count towards the [water marks](WaterMarks): those of the handler that the engine has not
    /// accepted yet.
    pub(super) fn towards_marks(&self) -> u64 {
        let queued = self.outbox.as_ref().map_or(0, |outbox| outbox.len());
        if self.layered { queued + self.layers().map_or(0, Layers::towards_marks) } else { queued }
    }

    pub(super) fn layers(&self) -> Option<&Layers> {
        self.extra.as_ref()?.layers.as_deref()
    }

    pub(super) fn layers_mut(&mut self) -> Option<&mut Layers> {
        self.extra.as_mut()?.layers.as_deref_mut()
    }

    /// Returns whether the handler was told that the peer has finished, or nothing more comes after a failure.
    pub(super) fn peer_finished(&self) -> bool {
        matches!(self.peer, Peer::Finished | Peer::Gone)
    }

    /// Returns whether the connection has failed.
    #[inline]
    pub(super) fn failed(&self) -> bool {
        matches!(self.peer, Peer::Lost | Peer::Gone)
    }

    pub(super) fn peer_has_finished(&mut self) {
        self.peer = if self.failed() { Peer::Gone } else { Peer::Finished };
    }

    pub(super) fn has_failed(&mut self) {
        self.peer = if self.peer_finished() { Peer::Gone } else { Peer::Lost };
    }

    /// Returns whether the engine has reported the end of the stream, or a failure.
    pub(super) fn engine_ended(&self) -> bool {
        if self.layered { self.layers().is_some_and(|layers| layers.wire_ended) } else { self.peer_finished() }
    }

    /// Records that the engine has reported the end of the stream, or a failure.
    pub(super) fn engine_has_ended(&mut self) {
        match self.layers_mut() {
            Some(layers) => layers.wire_ended = true,
            None => self.peer_has_finished(),
        }
    }

    /// Returns the reason for which a closing connection ends: an earlier failure if there was one.
    pub(super) fn closing_reason(&mut self, otherwise: Reason) -> Reason {
        self.extra.as_mut().and_then(|extra| extra.failure.take()).unwrap_or(otherwise)
    }

    /// Returns whether input may be delivered.
    pub(super) fn receives(&self) -> bool {
        if self.closes() {
            return self.stage == Stage::Open;
        }
        // Throttling limits the answers to input. A handler that has finished sending adds none, and proxied input has
        // none: its target limits it.
        let throttled = self.full && self.throttles && self.ending == Ending::None && !self.proxies;
        let held_up = !self.pauses.is_empty() || throttled || self.ending == Ending::Detach;
        self.stage == Stage::Open && (!held_up || self.failed() || self.layers().is_some_and(|layers| layers.failed))
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

impl Transport for ConnectionState {
    type Handler = dyn Connection;

    const KIND: CallbackKind = CallbackKind::Connection;

    #[inline]
    fn find(reactor: &mut Reactor, token: Token) -> Option<&mut ConnectionState> {
        reactor.stream_mut(token)
    }

    fn id(token: Token) -> SourceId {
        ConnectionId(token).into()
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }

    fn handler(&mut self) -> &mut Option<Box<dyn Connection>> {
        &mut self.handler
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }

    fn flush_queued(&mut self) -> &mut bool {
        &mut self.flush_queued
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    fn set_over(&mut self) {
        self.stage = Stage::Over;
    }

    fn hands_over(&self) -> bool {
        self.hands_over
    }

    fn update_receiving(reactor: &mut Reactor, token: Token) {
        reactor.set_receiving(token);
    }

    fn has_held_input(&self) -> bool {
        self.receives() && self.holds_input()
    }

    fn report_readable(reactor: &mut Reactor, token: Token) {
        reactor.notify(token, |handler, io| handler.readable(io));
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
    /// is written when it returns. Returns `None` if the connection has ended, its handler is of another type, or the
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
