//! The state of a datagram socket, and the handling of its events.

use std::collections::VecDeque;
use std::io;
use std::panic::Location;

use pelton_os::{Address, Datagram, DatagramOutbox, Event, Intake, Sending, SocketFile, Token};

use super::{DatagramIo, Datagrams, DatagramsId};
use crate::reactor::callback::{CallbackKind, Site, SourceId};
use crate::reactor::source::{Counted, Kind, Source};
use crate::sources::short_queue::ShortQueue;
use crate::sources::transport::{Control, Pauses, Transport};
use crate::{Reactor, Reason, WaterMarks};

/// The state of a datagram socket.
pub(crate) struct DatagramSocket {
    location: &'static Location<'static>,
    /// `None` while it runs.
    handler: Option<Box<dyn Datagrams>>,
    pub(super) outbox: DatagramOutbox,
    pub(super) marks: WaterMarks,
    pub(super) stage: Stage,
    pauses: Pauses,
    pub(super) control: Control,
    /// Datagrams of a received batch that cannot be delivered yet, or that the handler of a manual socket has to fetch.
    pub(super) held: ShortQueue<Datagram>,
    /// Why queued datagrams of a manual socket could not be sent.
    pub(super) send_errors: VecDeque<io::Error>,
    /// The engine is sending, or the socket is full. The engine will report when it is ready for more.
    pub(super) busy: bool,
    /// The send queue has exceeded the high-water mark and has not fallen to the low one yet.
    pub(super) above_high: bool,
    /// The socket is queued for the next flush.
    flush_queued: bool,
    /// The file of a Unix socket, if the socket created it and so removes it.
    pub(super) file: Option<SocketFile>,
}

/// The state of a datagram socket's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Open,
    /// Closes when everything has been sent.
    Closing,
    /// `closed` will be called next.
    Over,
}

impl DatagramSocket {
    pub(super) fn new(
        location: &'static Location<'static>,
        handler: Box<dyn Datagrams>,
        marks: WaterMarks,
    ) -> DatagramSocket {
        DatagramSocket {
            location,
            handler: Some(handler),
            outbox: DatagramOutbox::default(),
            marks,
            stage: Stage::Open,
            pauses: Pauses::default(),
            control: Control::Reactor,
            held: ShortQueue::default(),
            send_errors: VecDeque::new(),
            busy: false,
            above_high: false,
            flush_queued: false,
            file: None,
        }
    }

    /// Returns whether datagrams may be delivered.
    pub(super) fn receives(&self) -> bool {
        self.stage == Stage::Open && self.pauses.is_empty()
    }
}

impl Transport for DatagramSocket {
    type Handler = dyn Datagrams;

    const KIND: CallbackKind = CallbackKind::Datagrams;

    fn find(reactor: &mut Reactor, token: Token) -> Option<&mut DatagramSocket> {
        reactor.datagram_socket_mut(token)
    }

    fn id(token: Token) -> SourceId {
        DatagramsId(token).into()
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }

    fn handler(&mut self) -> &mut Option<Box<dyn Datagrams>> {
        &mut self.handler
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }

    fn flush_queued(&mut self) -> &mut bool {
        &mut self.flush_queued
    }

    fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    fn set_over(&mut self) {
        self.stage = Stage::Over;
    }

    fn update_receiving(reactor: &mut Reactor, token: Token) {
        reactor.set_receiving_datagrams(token);
    }

    fn has_held_input(&self) -> bool {
        self.receives() && !self.held.is_empty()
    }

    fn report_readable(reactor: &mut Reactor, token: Token) {
        reactor.notify_datagrams(token, |handler, io| handler.readable(io));
    }
}

/// State shared by all datagram sockets of a reactor.
#[derive(Default)]
pub(crate) struct DatagramSockets {
    /// The socket that last received a datagram. Its answers are sent together.
    answering: Option<Token>,
}

impl Kind for Box<DatagramSocket> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Datagram(_, datagram) => reactor.datagram_received(token, datagram),
            Event::Receivable(_) => reactor.datagrams_are_receivable(token),
            Event::SendFailed(_, to, error) => reactor.sending_failed(token, to, error),
            Event::Sendable(_) => reactor.datagrams_are_sendable(token),
            Event::Ended(_, outcome) => reactor.datagrams_ended(token, outcome),
            other => reactor.unexpected_event(&other),
        }
    }

    fn flush(reactor: &mut Reactor, token: Token) {
        reactor.flush_queued_datagrams(token);
    }

    fn reap(reactor: &mut Reactor, token: Token, reason: Reason) {
        reactor.reap_datagrams(token, reason);
    }

    fn drain(reactor: &mut Reactor, token: Token) {
        reactor.notify_datagrams(token, |handler, io| handler.draining(io));
    }

    fn shut_down(reactor: &mut Reactor, token: Token) {
        reactor.datagrams_are_over(token, Reason::Local);
    }
}

impl Reactor {
    /// Returns access to a datagram socket, to send on it or close it from anywhere on the loop. Returns `None` if it
    /// is over.
    pub fn datagrams(&mut self, id: DatagramsId) -> Option<DatagramIo<'_>> {
        self.datagram_socket_mut(id.0).filter(|socket| socket.stage != Stage::Over)?;
        Some(DatagramIo { reactor: self, id })
    }

    /// Returns the number of datagram sockets.
    pub fn datagram_socket_count(&self) -> usize {
        self.sources.count(Counted::Datagrams)
    }

    pub(super) fn datagram_socket_mut(&mut self, token: Token) -> Option<&mut DatagramSocket> {
        match self.sources.get_mut(token) {
            Some(Source::Datagrams(socket)) => Some(socket),
            _ => None,
        }
    }
}

/// Events of the engine.
impl Reactor {
    fn datagram_received(&mut self, token: Token, datagram: Datagram) {
        // The batch of the previous socket is complete: flush its answers now, not at the end of the turn.
        if let Some(before) = self.datagram_sockets.answering.replace(token)
            && before != token
        {
            self.flush_datagrams(before);
        }
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        if socket.is_manual() {
            let datagram = Datagram { bytes: datagram.bytes.compacted(), from: datagram.from };
            self.hold_datagram(token, datagram);
        } else if socket.receives() && socket.held.is_empty() {
            self.notify_datagrams(token, |handler, io| handler.received(io, datagram));
        } else if socket.stage == Stage::Open {
            socket.held.push_back(Datagram { bytes: datagram.bytes.compacted(), from: datagram.from });
        }
    }

    fn sending_failed(&mut self, token: Token, to: Option<Address>, error: io::Error) {
        if self.datagram_socket_mut(token).is_some_and(|socket| socket.is_manual()) {
            return self.manual_datagram_failed(token, error);
        }
        self.notify_datagrams(token, |handler, io| handler.send_failed(io, to.as_ref(), error));
    }

    fn datagrams_are_sendable(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        if socket.is_manual() {
            return self.manual_datagrams_are_sendable(token);
        }
        socket.busy = false;
        self.flush_datagrams(token);
    }

    /// Closes a socket that the engine can no longer use.
    fn datagrams_ended(&mut self, token: Token, outcome: io::Result<()>) {
        self.datagrams_are_over(token, outcome.map_or_else(Reason::Failed, |()| Reason::Local));
    }
}

/// Calling, sending, ending.
impl Reactor {
    pub(super) fn notify_datagrams(
        &mut self,
        token: Token,
        call: impl FnOnce(&mut dyn Datagrams, &mut DatagramIo<'_>),
    ) {
        let id = DatagramsId(token);
        self.call_transport::<DatagramSocket>(token, |handler, reactor| call(handler, &mut DatagramIo { reactor, id }));
    }

    /// Queues the socket for the next flush, even in its own callback: the datagrams of a received batch are handled
    /// one by one, but the answers should be sent together.
    pub(super) fn queue_datagram_flush(&mut self, token: Token) {
        self.queue_flush_of::<DatagramSocket>(token);
    }

    /// Flushes a queued socket and delivers held datagrams. Runs in a flush.
    fn flush_queued_datagrams(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        socket.flush_queued = false;
        self.flush_datagrams(token);
        self.deliver_held_datagrams(token);
    }

    /// Sends as many queued datagrams as the socket accepts, then handles the consequences: water marks, the end.
    pub(super) fn flush_datagrams(&mut self, token: Token) {
        let Some(Source::Datagrams(socket)) = self.sources.get_mut(token) else { return };
        if socket.stage == Stage::Over {
            return;
        }
        if !socket.busy && !socket.outbox.is_empty() {
            let before = socket.outbox.in_memory();
            let outcome = self.engine.send_datagrams(token, &mut socket.outbox);
            self.flow.remove(before - socket.outbox.in_memory());
            match outcome {
                Ok(sending) => socket.busy = sending == Sending::Busy,
                Err(error) => return self.datagrams_are_over(token, Reason::Failed(error)),
            }
        }
        let waiting = socket.outbox.in_memory();
        if waiting > socket.marks.high && !socket.is_manual() {
            socket.above_high = true;
        } else if waiting == 0 && !socket.busy && socket.stage == Stage::Closing {
            self.datagrams_are_over(token, Reason::Local);
        } else if waiting <= socket.marks.low && std::mem::take(&mut socket.above_high) && socket.stage == Stage::Open {
            self.notify_datagrams(token, |handler, io| handler.writable(io));
        }
    }

    fn deliver_held_datagrams(&mut self, token: Token) {
        if self.datagram_socket_mut(token).is_some_and(|socket| socket.is_manual()) {
            return self.report_held_input::<DatagramSocket>(token);
        }
        while let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.receives())
            && let Some(datagram) = socket.held.pop_front()
        {
            self.notify_datagrams(token, |handler, io| handler.received(io, datagram));
        }
    }

    /// Starts or stops receiving in the engine, depending on the current state.
    pub(super) fn set_receiving_datagrams(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.stage != Stage::Over) else { return };
        let (mut on, held, is_manual) = (socket.receives(), !socket.held.is_empty(), socket.is_manual());
        if on && held {
            self.queue_datagram_flush(token);
            // The handler of a manual socket first receives what is here.
            on = !is_manual;
        }
        if let Err(error) = self.engine.receive_datagrams(token, Intake::on_if(on)) {
            self.datagrams_are_over(token, Reason::Failed(error));
        }
    }

    /// Marks a datagram socket as over, unless it already is. The reap phase notifies its handler.
    pub(super) fn datagrams_are_over(&mut self, token: Token, reason: Reason) {
        self.transport_is_over::<DatagramSocket>(token, reason);
    }

    /// Releases a socket that has ended and calls its handler's `closed`.
    fn reap_datagrams(&mut self, token: Token, reason: Reason) {
        let Some(Source::Datagrams(socket)) = self.sources.get_mut(token) else { return };
        let (location, handler, file) = (socket.location, socket.handler.take(), socket.file.take());
        self.flow.remove(socket.outbox.in_memory());
        // In a forked child, the file belongs to the parent.
        if let Some(file) = file.filter(|_| self.check_not_forked().is_ok()) {
            self.remove_socket_file(&file, location, "datagrams");
        }
        self.end_source(token);
        let id = DatagramsId(token);
        let site = Site { kind: CallbackKind::Datagrams, place: location, source: Some(id.into()) };
        self.call_closed(site, handler, |handler, reactor| handler.closed(reactor, reason));
    }
}
