//! What happens to a datagram socket, from being open to being over.

use std::collections::VecDeque;
use std::io;
use std::panic::Location;

use pelton_os::{Address, Datagram, DatagramOutbox, Event, Intake, Sending, SocketFile, Token};

use super::{DatagramIo, Datagrams, DatagramsId};
use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::{Counted, Kind, Source};
use crate::{Reactor, Reason, WaterMarks};

/// A datagram socket, as the reactor keeps it.
pub(crate) struct DatagramSocket {
    place: &'static Location<'static>,
    /// `None` while it runs.
    handler: Option<Box<dyn Datagrams>>,
    pub(super) outbox: DatagramOutbox,
    pub(super) marks: WaterMarks,
    pub(super) stage: Stage,
    pub(super) paused: bool,
    /// What the engine has received and is not wanted yet: the rest of a batch.
    held: VecDeque<Datagram>,
    /// The engine will say when it has sent what it was given, or there is room for more.
    busy: bool,
    /// More waits than the high-water mark, or did so a while ago.
    pub(super) high: bool,
    /// In the list of those that need attention.
    flush_queued: bool,
    /// The file of a Unix socket, which is ours and goes with it.
    pub(super) file: Option<SocketFile>,
}

/// How far along its life a datagram socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Open,
    /// To be closed when everything has been sent.
    Closing,
    /// `closed` comes next.
    Over,
}

impl DatagramSocket {
    pub(super) fn new(
        place: &'static Location<'static>,
        handler: Box<dyn Datagrams>,
        marks: WaterMarks,
    ) -> DatagramSocket {
        DatagramSocket {
            place,
            handler: Some(handler),
            outbox: DatagramOutbox::default(),
            marks,
            stage: Stage::Open,
            paused: false,
            held: VecDeque::new(),
            busy: false,
            high: false,
            flush_queued: false,
            file: None,
        }
    }

    /// Whether what comes in may be delivered.
    fn receives(&self) -> bool {
        self.stage == Stage::Open && !self.paused
    }
}

/// What all datagram sockets of a reactor share.
#[derive(Default)]
pub(crate) struct DatagramSockets {
    /// The one that was last received from: what it answers goes out together.
    answering: Option<Token>,
}

impl Kind for Box<DatagramSocket> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Datagram(_, datagram) => reactor.datagram_received(token, datagram),
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
        reactor.tell_datagrams(token, |handler, io| handler.draining(io));
    }

    fn shut_down(reactor: &mut Reactor, token: Token) {
        reactor.datagrams_are_over(token, Reason::Local);
    }
}

impl Reactor {
    /// A datagram socket, to send through it or close it from anywhere on the loop. `None` if it is over.
    pub fn datagrams(&mut self, id: DatagramsId) -> Option<DatagramIo<'_>> {
        self.datagram_socket_mut(id.0).filter(|socket| socket.stage != Stage::Over)?;
        Some(DatagramIo { reactor: self, id })
    }

    /// How many datagram sockets there are.
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

/// What the engine says.
impl Reactor {
    fn datagram_received(&mut self, token: Token, datagram: Datagram) {
        // The one before has got all that there was for it: its answers need not wait for the end of the turn.
        if let Some(before) = self.datagram_sockets.answering.replace(token)
            && before != token
        {
            self.flush_datagrams(before);
        }
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        if socket.receives() && socket.held.is_empty() {
            self.tell_datagrams(token, |handler, io| handler.received(io, datagram));
        } else if socket.stage == Stage::Open {
            socket.held.push_back(Datagram { bytes: datagram.bytes.compacted(), from: datagram.from });
        }
    }

    fn sending_failed(&mut self, token: Token, to: Option<Address>, error: io::Error) {
        self.tell_datagrams(token, |handler, io| handler.send_failed(io, to.as_ref(), error));
    }

    fn datagrams_are_sendable(&mut self, token: Token) {
        if let Some(socket) = self.datagram_socket_mut(token) {
            socket.busy = false;
            self.flush_datagrams(token);
        }
    }

    /// The engine can do nothing more with it.
    fn datagrams_ended(&mut self, token: Token, outcome: io::Result<()>) {
        self.datagrams_are_over(token, outcome.map_or_else(Reason::Failed, |()| Reason::Local));
    }
}

/// Calling, sending, ending.
impl Reactor {
    fn tell_datagrams(&mut self, token: Token, call: impl FnOnce(&mut dyn Datagrams, &mut DatagramIo<'_>)) {
        let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.stage != Stage::Over) else { return };
        let Some(handler) = socket.handler.take() else { return };
        let id = DatagramsId(token);
        let site = Site { kind: CallbackKind::Datagrams, place: socket.place, source: Some(id.into()) };
        self.call_source(
            site,
            handler,
            |handler, reactor| call(&mut **handler, &mut DatagramIo { reactor, id }),
            |reactor, handler, outcome| {
                // It is put back even if the socket is over: it has yet to be told.
                if let Some(socket) = reactor.datagram_socket_mut(token) {
                    socket.handler = Some(handler);
                }
                if outcome == Outcome::Panicked {
                    reactor.datagrams_are_over(token, Reason::Panicked);
                }
            },
        );
    }

    /// Has the socket looked at in the next flush. Also if this is its own callback: a batch that came in is handled one by
    /// one, and what is sent in answer should go out as one too.
    pub(super) fn queue_datagram_flush(&mut self, token: Token) {
        if let Some(socket) = self.datagram_socket_mut(token)
            && !std::mem::replace(&mut socket.flush_queued, true)
        {
            self.sources.flush_later(token);
        }
    }

    /// In a flush: does what there is to do for a socket, if this is one.
    fn flush_queued_datagrams(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        socket.flush_queued = false;
        self.flush_datagrams(token);
        self.deliver_held_datagrams(token);
    }

    /// Sends what waits, as far as there is room, and does what was to be done after that.
    fn flush_datagrams(&mut self, token: Token) {
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
        if waiting > socket.marks.high {
            socket.high = true;
        } else if waiting == 0 && !socket.busy && socket.stage == Stage::Closing {
            self.datagrams_are_over(token, Reason::Local);
        } else if waiting <= socket.marks.low && std::mem::take(&mut socket.high) && socket.stage == Stage::Open {
            self.tell_datagrams(token, |handler, io| handler.drained(io));
        }
    }

    fn deliver_held_datagrams(&mut self, token: Token) {
        while let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.receives())
            && let Some(datagram) = socket.held.pop_front()
        {
            self.tell_datagrams(token, |handler, io| handler.received(io, datagram));
        }
    }

    /// Has the engine receive, or stop, according to what is wanted now.
    pub(super) fn set_receiving_datagrams(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.stage != Stage::Over) else { return };
        let (on, held) = (socket.receives(), !socket.held.is_empty());
        if on && held {
            self.queue_datagram_flush(token);
        }
        if let Err(error) = self.engine.receive_datagrams(token, Intake::on_if(on)) {
            self.datagrams_are_over(token, Reason::Failed(error));
        }
    }

    /// Marks a datagram socket as over, unless it is already. Its handler is told when the loop reaps.
    pub(super) fn datagrams_are_over(&mut self, token: Token, reason: Reason) {
        if let Some(socket) = self.datagram_socket_mut(token)
            && socket.stage != Stage::Over
        {
            socket.stage = Stage::Over;
            self.sources.reap_later(token, reason);
        }
    }

    /// Lets go of a socket that is over, if this is one, and tells its handler.
    fn reap_datagrams(&mut self, token: Token, reason: Reason) {
        let Some(Source::Datagrams(socket)) = self.sources.get_mut(token) else { return };
        let (place, handler, file) = (socket.place, socket.handler.take(), socket.file.take());
        self.flow.remove(socket.outbox.in_memory());
        // The file is the parent's, if this is a forked child.
        if let Some(file) = file.filter(|_| self.check_not_forked().is_ok()) {
            self.remove_socket_file(&file, place, "datagrams");
        }
        self.end_source(token);
        let id = DatagramsId(token);
        let site = Site { kind: CallbackKind::Datagrams, place, source: Some(id.into()) };
        if let Some(mut handler) = handler {
            self.call_last(site, |reactor| handler.closed(reactor, reason));
        }
    }
}
