//! Streams on the readiness engine: connecting, receiving, sending.
//!
//! Each readiness is answered with one read, into a buffer that the engine lends out. There is no second read: the next turn
//! receives the rest. Writes are tried at once, and the poller is asked about room only if there was none.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;

use super::watches::{Fate, Input, Registration};
use super::{ReadinessEngine, Role, Watch, with_intake, with_sending};
use crate::chunk::{BUFFER, Buffers};
use crate::engine::{Event, Intake, Sending, StreamEngine, no_such_source};
use crate::outbox::FilePart;
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::stream::{Sink, Stream};
use crate::{Address, ConnectOptions, Interest, Mode, Outbox, Readiness, Socket, Space, Splice, StreamKind, Token};

/// Pieces that one system call takes at most.
const PIECES_PER_CALL: usize = 64;

/// Bytes that one source sends per turn at most, so that a fast reader of a large file does not starve other sources.
const BYTES_PER_TURN: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct Streams {
    buffers: Rc<Buffers>,
    /// Where the bytes of some streams go instead of a buffer. Few streams transfer bulk, and all others should stay small.
    splices: HashMap<Token, Rc<Splice>>,
}

impl<P: Poller> ReadinessEngine<P> {
    /// The poller has reported a connecting socket: the attempt has succeeded or failed.
    pub(super) fn connect_is_over(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let Role::Connecting(socket) = std::mem::replace(&mut watch.role, Role::Watched(Mode::Level)) else {
            return None;
        };
        // The poller that reports changes also reports errors as such.
        let may_have_failed =
            watch.registration != Registration::Changes || readiness.intersects(Readiness::HANGUP | Readiness::ERROR);
        let outcome = match may_have_failed.then(|| socket.take_error()) {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(error)) | Err(error)) => Err(error),
        };
        watch.role = Role::Stream(Stream::Socket(socket));
        // The poller is silent until something is of interest again: it was asked once, or reports changes.
        watch.interest = Interest::NONE;
        if outcome.is_err() {
            watch.input = Input::Ended;
        }
        Some(match outcome {
            Ok(()) => Event::Connected(token),
            Err(error) => Event::Ended(token, Err(error)),
        })
    }

    fn stream(&self, token: Token) -> Option<&Stream> {
        match &self.watches.get(token)?.role {
            Role::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn receive_once(&mut self, token: Token) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let Role::Stream(stream) = &watch.role else { return None };
        if !self.streams.splices.is_empty()
            && let (Some(pipe), Stream::Socket(socket)) = (self.streams.splices.get(&token), stream)
            && pipe.is_empty()
        {
            match pipe.fill(socket.as_fd()) {
                Ok(count @ 1..) => {
                    self.ready.add_if_pending(watch);
                    return Some(Event::Spliced(token, count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watch.pending.all_received();
                    return None;
                }
                // The end, or an error: reading reports it.
                Ok(_) | Err(_) => {}
            }
        }
        let received = match stream {
            Stream::Socket(socket) => self.streams.buffers.fill(|buffer| socket.receive(buffer)),
            Stream::Descriptor(descriptor) if descriptor.kind() == StreamKind::WriteOnly => {
                return self.one_way_is_readable(token);
            }
            Stream::Descriptor(descriptor) => match self.streams.buffers.fill(|buffer| descriptor.receive(buffer)) {
                Err(_) if descriptor.is_closed_by_owner() => return self.owner_has_closed_unnoticed(token),
                received => received,
            },
        };
        let outcome = match received {
            Ok(chunk) if !chunk.is_empty() => {
                if chunk.len() < BUFFER && watch.pending.ends_with_short_read() {
                    watch.pending.all_received();
                } else {
                    self.ready.add_if_pending(watch);
                }
                return Some(Event::Received(token, chunk));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                watch.pending.all_received();
                return None;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.ready.add_if_pending(watch);
                return None;
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        watch.input = Input::Ended;
        watch.pending.all_received();
        // A level-triggered poller would report the end over and over.
        let interest = with_intake(watch.interest, Intake::Off);
        let outcome = outcome.and(self.set_interest(token, interest));
        Some(Event::Ended(token, outcome))
    }
}

/// The error for sending on a descriptor that is open for reading only.
fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the descriptor is open for reading only")
}

impl<P: Poller> StreamEngine for ReadinessEngine<P> {
    fn connect(&mut self, token: Token, address: &Address, options: &ConnectOptions) -> io::Result<()> {
        let socket = SystemSocket::unconnected(address, options)?;
        let started = socket.connect(address);
        let interest = if started.is_ok() { Interest::WRITABLE } else { Interest::NONE };
        self.register_socket(token, interest, socket, Role::Connecting)?;
        // Some systems know some failures at once. They are reported like later ones.
        if let Err(error) = started {
            self.events.push_back(Event::Ended(token, Err(error)));
        }
        Ok(())
    }

    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<StreamKind> {
        let stream = socket.into_stream()?;
        let (number, kind) = (stream.number(), stream.kind());
        self.register(token, number, Interest::NONE, Role::Stream(stream))?;
        if kind == StreamKind::WriteOnly {
            // It is never readable, but pollers then report that nobody reads any more. One that does not is no reason to
            // refuse the stream: the next write notices.
            let _ = self.set_interest(token, Interest::READABLE);
        }
        Ok(kind)
    }

    fn receive(&mut self, token: Token, intake: Intake) -> io::Result<()> {
        let Some(watch) = self.watches.get(token) else { return Err(no_such_source(token)) };
        let Role::Stream(stream) = &watch.role else { return Err(io::ErrorKind::NotConnected.into()) };
        if let Stream::Descriptor(descriptor) = stream {
            let only_sends = descriptor.kind() == StreamKind::WriteOnly && watch.input != Input::Reported;
            if only_sends || watch.registration == Registration::Lost {
                return Ok(());
            }
        }
        let intake = if watch.input == Input::Ended { Intake::Off } else { intake };
        self.set_interest(token, with_intake(watch.interest, intake))
    }

    fn receive_manually(&mut self, token: Token) -> io::Result<()> {
        self.report_input(token)?;
        // Only the handler will know when everything was received.
        self.report_states(token)
    }

    fn receive_into(&mut self, token: Token, spaces: &mut [Space<'_>]) -> io::Result<usize> {
        match self.stream(token) {
            Some(Stream::Socket(socket)) => socket.receive_into(spaces),
            Some(Stream::Descriptor(descriptor)) => descriptor.receive_into(spaces),
            None => Err(no_such_source(token)),
        }
    }

    fn send_now(&mut self, token: Token, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(watch) = self.watches.get(token) else { return Err(no_such_source(token)) };
        let Role::Stream(stream) = &watch.role else { return Err(io::ErrorKind::NotConnected.into()) };
        let (sent, all) = match stream {
            Stream::Socket(socket) => send_slices(socket, slices)?,
            Stream::Descriptor(descriptor) if descriptor.kind() == StreamKind::ReadOnly => return Err(read_only()),
            Stream::Descriptor(descriptor) => send_slices(&**descriptor, slices)?,
        };
        if !all {
            let interest = watch.interest | Interest::WRITABLE;
            self.set_interest(token, interest)?;
        }
        Ok(sent)
    }

    fn report_room(&mut self, token: Token, report: bool) -> io::Result<()> {
        let Some(watch) = self.watches.get(token) else { return Err(no_such_source(token)) };
        let sending = if report { Sending::Busy } else { Sending::Idle };
        self.set_interest(token, with_sending(watch.interest, sending))
    }

    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        let Role::Stream(stream) = &watch.role else { return Err(io::ErrorKind::NotConnected.into()) };
        let stopped = match stream {
            Stream::Socket(socket) => send_some(socket, outbox)?,
            Stream::Descriptor(descriptor) if descriptor.kind() == StreamKind::ReadOnly => return Err(read_only()),
            Stream::Descriptor(descriptor) => send_some(&**descriptor, outbox)?,
        };
        let sending = if stopped == Stopped::Empty { Sending::Idle } else { Sending::Busy };
        let interest = with_sending(watch.interest, sending);
        if stopped == Stopped::ShareUsed && watch.registration == Registration::Changes {
            watch.interest = interest;
            watch.pending.has_room();
            self.ready.add_if_pending(watch);
        } else if interest != watch.interest {
            self.set_interest(token, interest)?;
        }
        Ok(sending)
    }

    fn finish(&mut self, token: Token) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        if matches!(&watch.role, Role::Stream(stream) if stream.kind() == StreamKind::WriteOnly) {
            // It will be closed.
            watch.leave(&mut self.parking.poller)?;
        }
        match &mut watch.role {
            Role::Stream(Stream::Socket(socket)) => socket.finish(),
            Role::Stream(Stream::Descriptor(descriptor)) => descriptor.finish(),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn reset_when_forgotten(&mut self, token: Token) {
        if let Ok(fd) = self.fd(token) {
            // Other kinds of sockets have no reset, and closing one says as much as can be said.
            let _ = SockRef::from(&fd).set_linger(Some(Duration::ZERO));
        }
    }

    fn detach(&mut self, token: Token) -> io::Result<()> {
        if !matches!(self.watches.get(token), Some(Watch { role: Role::Stream(_), .. })) {
            return Err(no_such_source(token));
        }
        if let Some(Watch { role: Role::Stream(stream), .. }) = self.remove(token, Fate::Kept) {
            self.events.push_back(Event::Detached(token, stream.into()));
        }
        Ok(())
    }

    fn splice(&mut self, from: Token, route: Option<(Token, Rc<Splice>)>) -> bool {
        let Some((to, pipe)) = route else {
            self.streams.splices.remove(&from);
            return true;
        };
        let is_socket = |token| matches!(self.stream(token), Some(Stream::Socket(_)));
        if !is_socket(from) || !is_socket(to) {
            return false;
        }
        self.streams.splices.insert(from, pipe);
        true
    }

    fn has_unread(&self, token: Token) -> bool {
        self.stream(token).is_some_and(Stream::has_unread)
    }

    fn undelivered(&self, token: Token) -> Option<u64> {
        self.stream(token)?.undelivered()
    }
}

/// Sends as much of the slices as the socket takes. Returns how much, and whether that is everything.
#[inline]
fn send_slices(socket: &impl Sink, slices: &[IoSlice<'_>]) -> io::Result<(usize, bool)> {
    let mut sent = 0;
    for slices in slices.chunks(PIECES_PER_CALL) {
        let (outcome, len) = match slices {
            [slice] => (socket.send_one(slice), slice.len()),
            slices => (socket.send(slices), slices.iter().map(|slice| slice.len()).sum()),
        };
        match outcome {
            Ok(count) if count == len => sent += count,
            Ok(count) => return Ok((sent + count, false)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok((sent, false));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((sent, true))
}

/// Why sending has stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// Everything was sent.
    Empty,
    /// The socket has no room.
    Full,
    /// This source has used up its share of the turn.
    ShareUsed,
}

/// Sends as much of the outbox as the socket takes.
fn send_some(socket: &impl Sink, outbox: &mut Outbox) -> io::Result<Stopped> {
    // Fast path: one piece that fits. After an error the general path below gets the same error.
    if let Some(piece) = outbox.only_piece() {
        match socket.send_one(piece) {
            Ok(sent) if sent == piece.len() => {
                outbox.only_piece_is_sent();
                return Ok(Stopped::Empty);
            }
            Ok(sent) => {
                outbox.advance(sent);
                outbox.settle();
                return Ok(Stopped::Full);
            }
            Err(_) => {}
        }
    }
    send_all(socket, outbox)
}

/// Sends until the outbox is empty, the socket is full, or this source has used up its share of the turn.
fn send_all(socket: &impl Sink, outbox: &mut Outbox) -> io::Result<Stopped> {
    let mut share = BYTES_PER_TURN;
    while !outbox.is_empty() {
        let sent = match (outbox.next_file(), outbox.next_splice()) {
            (Some(part), _) => send_file(socket, part, share),
            (None, Some((pipe, len))) => send_splice(socket, pipe, len),
            (None, None) => send_pieces(socket, outbox),
        };
        match sent {
            Ok(Sent { bytes, wanted, from }) => {
                match from {
                    From::Memory => outbox.advance(bytes),
                    From::File => outbox.advance_file(bytes as u64),
                    From::Pipe => outbox.advance_splice(bytes),
                }
                share = share.saturating_sub(bytes);
                // A signal also cuts the transfer of a file or a pipe short. Then only another attempt shows whether there is
                // room.
                if bytes < wanted && (matches!(from, From::Memory) || bytes == 0) {
                    outbox.settle();
                    return Ok(Stopped::Full);
                }
                if share == 0 && !outbox.is_empty() {
                    outbox.settle();
                    return Ok(Stopped::ShareUsed);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                outbox.settle();
                return Ok(Stopped::Full);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Stopped::Empty)
}

struct Sent {
    bytes: usize,
    /// If less than this was sent, the socket is full.
    wanted: usize,
    from: From,
}

enum From {
    Memory,
    File,
    Pipe,
}

fn send_pieces(socket: &impl Sink, outbox: &Outbox) -> io::Result<Sent> {
    let mut slices = [io::IoSlice::new(&[]); PIECES_PER_CALL];
    let count = outbox.gather(&mut slices);
    let wanted = slices[..count].iter().map(|slice| slice.len()).sum();
    let bytes = socket.send(&slices[..count])?;
    Ok(Sent { bytes, wanted, from: From::Memory })
}

fn send_file(socket: &impl Sink, part: &FilePart, most: usize) -> io::Result<Sent> {
    let wanted = usize::try_from(part.len).unwrap_or(usize::MAX).min(most);
    let bytes = socket.send_file(&part.file, part.offset, wanted)?;
    if bytes == 0 {
        let text = format!("send a file: it ends {} bytes early", part.len);
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(Sent { bytes, wanted, from: From::File })
}

fn send_splice(socket: &impl Sink, pipe: &Splice, wanted: usize) -> io::Result<Sent> {
    let bytes = socket.send_splice(pipe, wanted)?;
    Ok(Sent { bytes, wanted, from: From::Pipe })
}
