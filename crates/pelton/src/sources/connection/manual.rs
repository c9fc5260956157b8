//! Manual connections: the handler decides when to receive, and learns at once what was sent.
//!
//! They are for front ends whose users expect the manners of system calls: the runtimes of other languages. The reactor
//! still owns the registration, the send queue and the end.

use std::io::{self, IoSlice};
use std::panic::Location;

use bytes::Bytes;
use pelton_os::{Socket, Space, Token};

use super::io::Input;
use super::stream::{Peer, Stage};
use super::{Connection, ConnectionId, ConnectionState, Io, Reason};
use crate::reactor::source::Source;
use crate::sources::transport::{Control, Pauses, Transport};
use crate::{Error, Reactor};

impl ConnectionState {
    #[inline]
    pub(super) fn is_manual(&self) -> bool {
        self.control != Control::Reactor
    }

    pub(super) fn has_send_error(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.send_error.is_some())
    }
}

impl Reactor {
    /// Adopts a socket, or another stream of bytes, as a manual connection. It is open immediately, without a call of
    /// [`opened`](Connection::opened), and paused.
    ///
    /// A manual connection leaves decisions to its handler, as the event loops of other languages need it:
    ///
    /// - After [`resume`](Io::resume), [`readable`](Connection::readable) is called in each turn in which there is
    ///   something to [receive](Io::receive_into). The handler may do that later, outside the callback. It finds the end
    ///   of the stream and errors in this way, and then has to pause or close the connection.
    /// - [`send_or_keep`](Io::send_or_keep) sends at once and reports how much was sent. The rest is queued, and
    ///   [`writable`](Connection::writable) is called whenever the socket has accepted some of it.
    /// - The send queue has no limit and no water marks, and there is no [write-stall limit](crate::Limit::WriteStall).
    /// - A system error while the queue is sent drops the queue and is reported with `writable`:
    ///   [`take_send_error`](Io::take_send_error) returns it. Input that came before it can still be received.
    ///
    /// The write end of a pipe has no input. After `resume`, `readable` tells that nobody reads any more, and receiving
    /// returns 0 then. A manual connection cannot have [layers](crate::Layer).
    ///
    /// ```
    /// use pelton::{Chunk, Connection, Io, Reactor, Space};
    /// use std::io::Write;
    /// use std::os::unix::net::UnixStream;
    ///
    /// struct Greeted;
    ///
    /// impl Connection for Greeted {
    ///     fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
    ///
    ///     fn readable(&mut self, io: &mut Io<'_>) {
    ///         let mut greeting = [0; 5];
    ///         assert_eq!(io.receive_into(&mut [Space::from(&mut greeting[..])]).unwrap(), 5);
    ///         io.close();
    ///     }
    /// }
    ///
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let id = reactor.adopt_manual(ours, Greeted)?;
    /// reactor.connection(id).unwrap().resume();
    /// theirs.write_all(b"hello")?;
    /// reactor.run_until(|reactor| reactor.connection_count() == 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt_manual(&mut self, socket: impl Into<Socket>, handler: impl Connection) -> Result<ConnectionId, Error> {
        let id = self.take_on(Location::caller(), socket.into(), Box::new(handler))?;
        let control = Control::manual(&self.engine.receive_manually(id.0));
        if let Some(stream) = self.stream_mut(id.0) {
            stream.control = control;
            stream.throttles = false;
            stream.stage = Stage::Open;
            stream.pauses.add(Pauses::HANDLER);
            // The handler of one that only sends finds the end by receiving, too.
            stream.peer = Peer::Sends;
            self.set_receiving(id.0);
        }
        Ok(id)
    }

    /// Ends a connection immediately. When this returns, the engine has released its descriptor, which the owner of a
    /// [borrowed](Socket::borrowed) one can close, and [`closed`](Connection::closed) was called, with [`Reason::Local`]
    /// unless the connection was over already for another reason. Returns `false` if there is no such connection.
    ///
    /// Inside a callback of the connection itself, this does the same as [`Io::close`].
    pub fn release_connection(&mut self, id: ConnectionId) -> bool {
        self.release_transport::<ConnectionState>(id.0)
    }

    /// Ends a connection immediately, or when its callback returns.
    pub(super) fn end_connection(&mut self, token: Token, reason: Reason) {
        match self.stream_mut(token) {
            Some(stream) if !stream.is_over() && stream.handler.is_some() => {
                stream.set_over();
                self.reap(token, reason);
            }
            _ => self.connection_is_over(token, reason),
        }
    }

    /// Drops the queue of a manual connection that cannot be sent, and tells the handler, unless that runs.
    #[cold]
    pub(super) fn manual_send_failed(&mut self, token: Token, error: io::Error) {
        self.drop_outbox(token);
        let Some(stream) = self.stream_mut(token) else { return };
        stream.busy = false;
        stream.extra().send_error.get_or_insert(error);
        // If that fails too, `writable` is called again.
        let _ = self.engine.report_room(token, false);
        self.notify(token, |handler, io| handler.writable(io));
    }

    /// Holds input of a manual connection, which the engine has received on its own, until the handler fetches it.
    pub(super) fn hold_for_handler(&mut self, token: Token, input: Input) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.extra().held.push_back(input);
        if stream.receives() {
            // Stops receiving until the handler has fetched it.
            self.set_receiving(token);
        }
    }

    pub(super) fn manual_connection_ended(&mut self, token: Token, outcome: io::Result<()>) {
        let Some(stream) = self.stream_mut(token) else { return };
        stream.engine_has_ended();
        match (outcome, stream.control) {
            (Err(error), Control::HandlerFromHeld) => {
                stream.extra().failure.get_or_insert(Reason::Failed(error));
                self.hold_for_handler(token, Input::End);
            }
            (Ok(()), _) => self.hold_for_handler(token, Input::End),
            (Err(error), _) => self.end_connection(token, Reason::Failed(error)),
        }
    }

    /// Fetches held input.
    fn receive_held(&mut self, token: Token, spaces: &mut [Space<'_>]) -> io::Result<usize> {
        let Some(extra) = self.stream_mut(token).and_then(|stream| stream.extra.as_mut()) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let received = match extra.held.pop_front() {
            None => return Err(io::ErrorKind::WouldBlock.into()),
            Some(Input::End) => {
                let failure = extra.failure.take();
                extra.held.push_front(Input::End);
                return match failure {
                    Some(Reason::Failed(error)) => Err(error),
                    _ => Ok(0),
                };
            }
            Some(Input::Chunk(mut chunk)) => {
                let mut received = 0;
                for space in spaces {
                    let count = space.fill(&chunk);
                    chunk.advance(count);
                    received += count;
                }
                if !chunk.is_empty() {
                    extra.held.push_front(Input::Chunk(chunk));
                }
                received
            }
        };
        self.set_receiving(token);
        Ok(received)
    }
}

/// Manual connections.
impl Io<'_> {
    /// Receives into these spaces, one after the other, on a [manual](Reactor::adopt_manual) connection. Returns the
    /// number of bytes, which is 0 at the end of the stream. Fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if
    /// nothing has arrived, and like the system call.
    ///
    /// One call makes one system call at most, which uses the first two.
    pub fn receive_into(&mut self, spaces: &mut [Space<'_>]) -> io::Result<usize> {
        let now = self.reactor.now;
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return Err(io::ErrorKind::NotConnected.into()) };
        stream.active_at = now;
        stream.used = true;
        match stream.control {
            Control::Handler => self.reactor.engine.receive_into(self.id.0, spaces),
            Control::HandlerFromHeld => self.reactor.receive_held(self.id.0, spaces),
            Control::Reactor => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Sends these slices immediately as far as the socket accepts them, unless something is queued already. Returns
    /// the number of bytes sent. If that is not everything, `keep` is called for each slice of which something is left,
    /// with its index and how much of it was sent, and returns the rest, which is queued without being copied.
    ///
    /// An error is that of the system call. It does not end the connection, which is left to the caller, and nothing is
    /// queued.
    pub fn send_or_keep(
        &mut self,
        slices: &[IoSlice<'_>],
        mut keep: impl FnMut(usize, usize) -> Bytes,
    ) -> io::Result<usize> {
        let Reactor { sources, engine, connections, flow, now, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.id.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if !stream.may_send() || stream.is_read_only() {
            return Err(stream.send_error().into());
        }
        stream.active_at = *now;
        stream.used = true;
        let mut sent = 0;
        let mut is_tried = false;
        if stream.is_manual() && stream.stage == Stage::Open && !stream.busy && stream.outbox.is_none() {
            match engine.send_now(self.id.0, slices) {
                Ok(count) if count == slices.iter().map(|slice| slice.len()).sum() => return Ok(count),
                Ok(count) => (sent, is_tried, stream.busy) = (count, true, true),
                // The engine only sends from the queue.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let outbox = stream.outbox.get_or_insert_with(|| connections.spare_outbox.take().unwrap_or_default());
        let mut passed = sent;
        for (index, slice) in slices.iter().enumerate() {
            let of_this = passed.min(slice.len());
            passed -= of_this;
            if of_this < slice.len() {
                let rest = keep(index, of_this);
                flow.add(rest.len());
                outbox.push_bytes(rest);
            }
        }
        if !is_tried {
            self.reactor.request_flush(self.id.0);
        }
        Ok(sent)
    }

    /// Queues `bytes` and sends them when the socket has room, without trying it now, on a
    /// [manual](Reactor::adopt_manual) connection. [`writable`](Connection::writable) is called then.
    pub fn send_when_writable(&mut self, bytes: Bytes) -> io::Result<()> {
        self.queue_unbounded(bytes)?;
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return Ok(()) };
        if stream.control != Control::Handler {
            self.reactor.request_flush(self.id.0);
        } else if !std::mem::replace(&mut stream.busy, true) {
            self.reactor.engine.report_room(self.id.0, true)?;
        }
        Ok(())
    }

    fn queue_unbounded(&mut self, bytes: Bytes) -> io::Result<()> {
        let Reactor { sources, connections, flow, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.id.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if !stream.may_send() || stream.is_read_only() {
            return Err(stream.send_error().into());
        }
        flow.add(bytes.len());
        let outbox = stream.outbox.get_or_insert_with(|| connections.spare_outbox.take().unwrap_or_default());
        outbox.push_bytes(bytes);
        Ok(())
    }

    /// Returns why the queue of a [manual](Reactor::adopt_manual) connection could not be sent, once.
    pub fn take_send_error(&mut self) -> Option<io::Error> {
        self.reactor.stream_mut(self.id.0)?.extra.as_mut()?.send_error.take()
    }

    /// Starts or stops calling [`writable`](Connection::writable) in each turn in which the socket has room, even if
    /// nothing is queued, on a [manual](Reactor::adopt_manual) connection.
    pub fn report_room(&mut self, report: bool) -> io::Result<()> {
        match self.reactor.stream_mut(self.id.0) {
            // It is reported while something is queued.
            Some(stream) if stream.busy && !report => Ok(()),
            Some(stream) if stream.is_manual() => self.reactor.engine.report_room(self.id.0, report),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Drops the send queue of a [manual](Reactor::adopt_manual) connection. An engine that sends in the background may
    /// still send some of it.
    pub fn drop_queued(&mut self) -> io::Result<()> {
        self.reactor.drop_outbox(self.id.0);
        match self.reactor.stream_mut(self.id.0) {
            Some(stream) if stream.control == Control::Handler && stream.busy => {
                stream.busy = false;
                self.reactor.engine.report_room(self.id.0, false)
            }
            _ => Ok(()),
        }
    }

    /// Half-closes the connection immediately. Use it when everything has been sent.
    pub fn finish_now(&mut self) -> io::Result<()> {
        self.reactor.engine.finish(self.id.0)
    }
}
