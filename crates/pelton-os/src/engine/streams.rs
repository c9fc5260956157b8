//! Streams on the readiness engine: accepting, connecting, receiving, sending.
//!
//! One read per readiness, into a buffer that the engine lends on; no second one after it, since the poller will say if
//! there is more. Writing is tried at once, and the poller is asked about room only when there was none.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use super::readiness::{ReadinessEngine, Watch};
use super::{Engine, Event, Sending, no_such_source};
use crate::chunk::Buffers;
use crate::outbox::FilePart;
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::{Address, Interest, Mode, Outbox, Readiness, Token};

/// How many pieces one system call takes at most.
const PIECES_PER_CALL: usize = 64;

/// What one source sends per turn at most, so that a fast reader of a large file does not keep the others waiting.
const BYTES_PER_TURN: usize = 1024 * 1024;

/// Connections that a listener accepts per turn at most, so that a flood of them does not keep the others waiting.
const ACCEPTS_PER_TURN: usize = 64;

/// What a source is.
pub(super) enum Role {
    /// A descriptor that is its owner's.
    Watched,
    Listener(SystemSocket),
    Connecting(SystemSocket),
    Stream {
        socket: SystemSocket,
        /// Nothing more comes in.
        ended: bool,
    },
    Datagrams(SystemSocket),
}

impl Role {
    pub(super) fn socket(&self) -> Option<&SystemSocket> {
        match self {
            Role::Watched => None,
            Role::Listener(socket) | Role::Connecting(socket) | Role::Stream { socket, .. } => Some(socket),
            Role::Datagrams(socket) => Some(socket),
        }
    }
}

/// What streams need besides the books.
#[derive(Default)]
pub(super) struct Streams {
    buffers: Rc<Buffers>,
    /// What a source's readiness came to beyond one event.
    pub(super) events: VecDeque<Event>,
    /// The listener that is accepting, and how many more it may.
    accepting: Option<(Token, usize)>,
    /// All listeners, and some that are not any more.
    listeners: Vec<Token>,
    /// Listeners that are to be looked at though no wait has found them.
    unasked: Vec<Token>,
    /// A descriptor in reserve, to be able to turn connections away when there are no others left.
    spare: Option<File>,
}

impl Streams {
    /// Whether there is an event without asking the poller.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }
}

impl<P: Poller> ReadinessEngine<P> {
    pub(super) fn add_listener(&mut self, token: Token, socket: SystemSocket) -> io::Result<()> {
        if self.streams.spare.is_none() {
            self.streams.spare = Some(File::open("/dev/null")?);
        }
        let fd = socket.as_fd().as_raw_fd();
        self.register(token, fd, Interest::READABLE, Mode::Level, Role::Listener(socket))?;
        self.forget_old_listeners();
        let Streams { listeners, unasked, .. } = &mut self.streams;
        listeners.push(token);
        // Room for all of them now, so that the first dispatch that takes long does not allocate.
        unasked.reserve(listeners.len().saturating_sub(unasked.len()));
        Ok(())
    }

    fn forget_old_listeners(&mut self) {
        let mut listeners = std::mem::take(&mut self.streams.listeners);
        let is_listener = |token: &Token| matches!(self.watch_ref(*token), Some(Watch { role: Role::Listener(_), .. }));
        listeners.retain(is_listener);
        self.streams.listeners = listeners;
    }

    /// Has all listeners looked at that accept.
    pub(super) fn listeners_are_ready(&mut self) {
        self.forget_old_listeners();
        let Streams { listeners, unasked, .. } = &mut self.streams;
        unasked.clone_from(listeners);
    }

    pub(super) fn begin_to_connect(&mut self, token: Token, address: &Address, socket: SystemSocket) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        let connecting = socket.connect(address);
        let interest = if connecting.is_ok() { Interest::WRITABLE } else { Interest::NONE };
        self.register(token, fd, interest, Mode::Level, Role::Connecting(socket))?;
        // Some systems know some failures at once; they are told like those that come later.
        if let Err(error) = connecting {
            self.streams.events.push_back(Event::Ended(token, Err(error)));
        }
        Ok(())
    }

    pub(super) fn add_stream(&mut self, token: Token, socket: SystemSocket) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        self.register(token, fd, Interest::NONE, Mode::Level, Role::Stream { socket, ended: false })
    }

    pub(super) fn receive_stream(&mut self, token: Token, on: bool) -> io::Result<()> {
        let Some(watch) = self.watch_ref(token) else { return Err(io::ErrorKind::NotFound.into()) };
        let Role::Stream { ended, .. } = watch.role else { return Err(io::ErrorKind::NotConnected.into()) };
        let interest = with(watch.interest, Interest::READABLE, on && !ended);
        self.rewatch(token, interest, Mode::Level)
    }

    pub(super) fn send_stream(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        let Some(watch) = self.watch_ref(token) else { return Err(io::ErrorKind::NotFound.into()) };
        let Role::Stream { socket, .. } = &watch.role else { return Err(io::ErrorKind::NotConnected.into()) };
        let interest = watch.interest;
        let sending = send_some(socket, outbox)?;
        let wanted = with(interest, Interest::WRITABLE, sending == Sending::Busy);
        if wanted != interest {
            self.rewatch(token, wanted, Mode::Level)?;
        }
        Ok(sending)
    }

    pub(super) fn detach_stream(&mut self, token: Token) -> io::Result<()> {
        if !matches!(self.watch_ref(token), Some(Watch { role: Role::Stream { .. }, .. })) {
            return Err(no_such_source(token));
        }
        if let Some(Watch { role: Role::Stream { socket, .. }, .. }) = self.remove(token) {
            self.streams.events.push_back(Event::Detached(token, socket.into()));
        }
        Ok(())
    }

    /// What is left of earlier readiness.
    pub(super) fn next_of_streams(&mut self) -> Option<Event> {
        if !self.streams.events.is_empty() {
            return self.streams.events.pop_front();
        }
        loop {
            if self.streams.accepting.is_none() {
                let token = self.streams.unasked.pop()?;
                let accepts = self.watch_ref(token).is_some_and(|watch| watch.interest.readable());
                self.streams.accepting = accepts.then_some((token, ACCEPTS_PER_TURN));
            }
            let Some((token, left)) = self.streams.accepting else { continue };
            self.streams.accepting = (left > 1).then_some((token, left - 1));
            match self.accept_one(token) {
                None => self.streams.accepting = None,
                event => return event,
            }
        }
    }

    /// Turns the readiness of a source into events: the first of them, and others for later.
    pub(super) fn source_is_ready(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        let watch = self.watch_mut(token)?;
        match &watch.role {
            Role::Watched => Some(Event::Ready(token, readiness)),
            Role::Listener(_) => {
                self.streams.accepting = Some((token, ACCEPTS_PER_TURN));
                self.next_of_streams()
            }
            Role::Connecting(_) => self.connect_is_over(token),
            Role::Datagrams(_) => {
                self.datagrams_are_ready(token, readiness);
                self.streams.events.pop_front()
            }
            Role::Stream { .. } => {
                let sendable = readiness.contains(Readiness::WRITABLE);
                if !(watch.interest.readable() && readiness.contains(Readiness::READABLE)) {
                    return sendable.then_some(Event::Sendable(token));
                }
                if sendable {
                    self.streams.events.push_back(Event::Sendable(token));
                }
                self.receive_once(token)
            }
        }
    }

    fn connect_is_over(&mut self, token: Token) -> Option<Event> {
        let watch = self.watch_mut(token)?;
        let Role::Connecting(socket) = std::mem::replace(&mut watch.role, Role::Watched) else { return None };
        let outcome = match socket.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        watch.role = Role::Stream { socket, ended: outcome.is_err() };
        let outcome = outcome.and_then(|()| self.rewatch(token, Interest::NONE, Mode::Level));
        Some(match outcome {
            Ok(()) => Event::Connected(token),
            Err(error) => Event::Ended(token, Err(error)),
        })
    }

    fn receive_once(&mut self, token: Token) -> Option<Event> {
        let buffers = self.streams.buffers.clone();
        let watch = self.watch_mut(token)?;
        let Role::Stream { socket, ended } = &mut watch.role else { return None };
        let outcome = match buffers.fill(|buffer| socket.receive(buffer)) {
            Ok(chunk) if !chunk.is_empty() => return Some(Event::Received(token, chunk)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return None;
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        *ended = true;
        // A level-triggered poller would report the end again and again.
        let interest = with(watch.interest, Interest::READABLE, false);
        let outcome = outcome.and(self.rewatch(token, interest, Mode::Level));
        Some(Event::Ended(token, outcome))
    }

    fn accept_one(&mut self, token: Token) -> Option<Event> {
        loop {
            let Role::Listener(listener) = &self.watch_ref(token)?.role else { return None };
            match listener.accept() {
                Ok(socket) => return Some(Event::Accepted(token, socket.into())),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    // Gone before it was accepted, or a signal: on to the next.
                    Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
                    _ => return Some(Event::AcceptFailed(token, error)),
                },
            }
        }
    }

    /// When there is no descriptor left: the connection would stay in the queue, and the listener readable, until somebody
    /// takes it. So it is taken with the spare one, and closed: its other side learns at once that it is not served.
    pub(super) fn turn_away_one(&mut self, token: Token) {
        self.streams.spare = None;
        if let Some(Role::Listener(listener)) = self.watch_ref(token).map(|watch| &watch.role) {
            drop(listener.accept());
        }
        self.streams.spare = File::open("/dev/null").ok();
    }
}

/// `interest` with `part` or without it.
pub(super) fn with(interest: Interest, part: Interest, on: bool) -> Interest {
    if on { interest | part } else { interest.without(part) }
}

/// Sends what is in the outbox, as far as there is room.
fn send_some(socket: &SystemSocket, outbox: &mut Outbox) -> io::Result<Sending> {
    // One piece for which there is room is the common case, and not worth a list. Whatever else happens, happens again.
    if let Some(piece) = outbox.only_piece() {
        match socket.send_one(piece) {
            Ok(sent) if sent == piece.len() => {
                outbox.only_piece_is_sent();
                return Ok(Sending::Idle);
            }
            Ok(sent) => {
                outbox.advance(sent);
                outbox.settle();
                return Ok(Sending::Busy);
            }
            Err(_) => {}
        }
    }
    send_all(socket, outbox)
}

/// Sends until there is nothing left, no room, or this source has had its share of the turn.
fn send_all(socket: &SystemSocket, outbox: &mut Outbox) -> io::Result<Sending> {
    let mut share = BYTES_PER_TURN;
    while !outbox.is_empty() {
        let sent = match outbox.next_file() {
            Some(part) => send_file(socket, part, share),
            None => send_pieces(socket, outbox),
        };
        match sent {
            Ok(Sent { bytes, wanted, from_file }) => {
                if from_file {
                    outbox.advance_file(bytes as u64);
                } else {
                    outbox.advance(bytes);
                }
                share = share.saturating_sub(bytes);
                if bytes < wanted || (share == 0 && !outbox.is_empty()) {
                    outbox.settle();
                    return Ok(Sending::Busy);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                outbox.settle();
                return Ok(Sending::Busy);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Sending::Idle)
}

struct Sent {
    bytes: usize,
    /// If less than this was sent, there is no room for more.
    wanted: usize,
    from_file: bool,
}

fn send_pieces(socket: &SystemSocket, outbox: &Outbox) -> io::Result<Sent> {
    let mut slices = [io::IoSlice::new(&[]); PIECES_PER_CALL];
    let count = outbox.gather(&mut slices);
    let wanted = slices[..count].iter().map(|slice| slice.len()).sum();
    let bytes = socket.send(&slices[..count])?;
    Ok(Sent { bytes, wanted, from_file: false })
}

fn send_file(socket: &SystemSocket, part: &FilePart, most: usize) -> io::Result<Sent> {
    let wanted = usize::try_from(part.len).unwrap_or(usize::MAX).min(most);
    let bytes = socket.send_file(&part.file, part.offset, wanted)?;
    if bytes == 0 {
        let text = format!("the file ends {} bytes before what was to be sent of it", part.len);
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(Sent { bytes, wanted, from_file: true })
}
