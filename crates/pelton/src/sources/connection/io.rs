//! The operations of a handler on its connection.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton_os::{Address, Chunk, FilePart, Outbox};

use super::stream::{Ending, Stage};
use super::{ConnectionId, ConnectionState, Reason, SendError};
use crate::Reactor;
use crate::reactor::source::Source;

/// Received input that is held back until it can be delivered.
pub(super) enum Input {
    Chunk(Chunk),
    /// The peer has finished.
    End,
}

/// What [`close_after_writing`](Io::close_after_writing) does when everything is sent and the peer is still sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lingering {
    /// The connection is half-closed, and the peer gets a few seconds to finish as well, so that it does not lose data.
    WhilePeerSends,
    /// The connection is closed at once. If input was not read, the peer is reset, and may lose data that it has not read
    /// yet. This is what programs written for plain sockets expect.
    Never,
}

/// Gives access to a connection and its reactor. Callbacks of a [`Connection`](super::Connection) receive it.
pub struct Io<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) id: ConnectionId,
}

/// Sending.
impl Io<'_> {
    /// Sends a copy of `bytes`. Data sent in a callback is written together when the callback returns.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(bytes))
    }

    /// Sends the contents of `block` and leaves it empty, often with different memory. Up to 16 KiB are not copied if
    /// the send queue is empty.
    pub fn send_block(&mut self, block: &mut Vec<u8>) -> Result<(), SendError> {
        self.queue(block.len(), |outbox| outbox.push_block(block))
    }

    /// Sends a copy of several slices, one after the other. If they exceed the limit together, none is sent.
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<(), SendError> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.queue(bytes, |outbox| slices.iter().for_each(|slice| outbox.push_copy(slice)))
    }

    /// Sends `bytes` without copying them.
    pub fn send_bytes(&mut self, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(bytes))
    }

    /// Sends a received chunk without copying it.
    pub fn send_chunk(&mut self, chunk: Chunk) -> Result<(), SendError> {
        self.queue(chunk.len(), |outbox| outbox.push_chunk(chunk))
    }

    /// Sends the bytes of `file` in `range`, in order with all other sends. Where the kernel supports it, they go from
    /// the file to the socket inside the kernel. They take up no memory here, so the size does not matter.
    ///
    /// If the file is shorter than `range` when it is sent, the connection is closed because the promised bytes cannot
    /// be sent. Reading from a slow disk blocks the loop. To send from one, read ahead. If the connection has
    /// [layers](crate::Layer), the file is read in pieces of 64 KiB when the socket accepts more.
    pub fn send_file(&mut self, file: impl Into<Arc<File>>, range: Range<u64>) -> Result<(), SendError> {
        let part = FilePart { file: file.into(), offset: range.start, len: range.end.saturating_sub(range.start) };
        self.queue(0, |outbox| outbox.push_file(part))
    }

    /// Sends a copy of `bytes` and writes as much as the socket accepts immediately, not when the current callback
    /// returns. Use it before a slow computation.
    pub fn send_now(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.send(bytes)?;
        self.flush();
        Ok(())
    }

    /// Writes as much of the send queue as the socket accepts, immediately.
    pub fn flush(&mut self) {
        self.reactor.write(self.id.0);
        if self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.holds_back) {
            // The source that is proxied to this connection may go on.
            self.reactor.request_flush(self.id.0);
        }
    }

    /// Calls the handler's [`sent`](super::Connection::sent) once, when everything has been sent. This happens after
    /// the current callback at the earliest. After [`finish`](Io::finish), it happens after the half-close.
    pub fn tell_when_sent(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.notify_when_sent = true;
            self.reactor.request_flush(self.id.0);
        }
    }

    /// Stops writing until [`resume_sending`](Io::resume_sending). What is sent meanwhile is queued, and counts towards the
    /// [water marks](crate::WaterMarks). The write-stall limit does not run. A connection that is closed after writing
    /// stays open until then, if anything is queued.
    ///
    /// ```
    /// # use pelton::{Chunk, Connection, Io, Reactor};
    /// # use std::time::Duration;
    /// struct Slow;
    ///
    /// impl Connection for Slow {
    ///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
    ///         let id = io.id();
    ///         io.send_chunk(chunk).ok();
    ///         io.pause_sending();
    ///         io.reactor().after(Duration::from_millis(100), move |reactor| {
    ///             if let Some(mut io) = reactor.connection(id) {
    ///                 io.resume_sending();
    ///             }
    ///         });
    ///     }
    /// }
    /// ```
    pub fn pause_sending(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.holds_output = true;
        }
    }

    /// Resumes writing.
    pub fn resume_sending(&mut self) {
        let now = self.reactor.now;
        if let Some(stream) = self.reactor.stream_mut(self.id.0)
            && std::mem::take(&mut stream.holds_output)
        {
            if stream.busy {
                stream.extra().wrote_at = now;
                stream.forget_sample();
                self.reactor.arm_limits(self.id.0);
            }
            self.reactor.request_flush(self.id.0);
        }
    }

    /// Returns whether sending is [paused](Io::pause_sending).
    pub fn is_sending_paused(&mut self) -> bool {
        self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.holds_output)
    }

    fn queue(&mut self, bytes: usize, push: impl FnOnce(&mut Outbox)) -> Result<(), SendError> {
        let Reactor { sources, connections, flow, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.id.0) else { return Err(SendError::Closed) };
        if !stream.may_send() || stream.is_read_only() {
            return Err(stream.send_error());
        }
        if stream.failed() {
            // The peer is gone, and `closed` will report it. A send now is no more an error than one a moment earlier.
            return Ok(());
        }
        let queued = stream.outbox.as_ref().map_or(0, |outbox| outbox.in_memory());
        let most = stream.marks(flow).most;
        if queued + bytes > most {
            return Err(SendError::Full { bytes, queued, most });
        }
        push(stream.outbox.get_or_insert_with(|| connections.spare_outbox.take().unwrap_or_default()));
        stream.used = true;
        flow.add(bytes);
        // If its own callback is running, it is flushed when the callback returns.
        if stream.handler.is_some() {
            self.reactor.queue_flush(self.id.0);
        }
        Ok(())
    }

    /// Returns the number of bytes in memory queued to be sent. With [layers](crate::Layer), this counts bytes as they were
    /// sent here, not transformed ones, until the socket has accepted what they have become. A part of a transformed record
    /// counts in proportion.
    ///
    /// If more is queued than the high [water mark](crate::WaterMarks) allows when this is called, [`writable`] will be
    /// called, even if the queue empties before the reactor has looked at it.
    ///
    /// [`writable`]: super::Connection::writable
    pub fn queued(&mut self) -> usize {
        self.promise_writable();
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return 0 };
        let below = stream.layers().map_or(0, |layers| layers.plain_in_memory());
        below + stream.outbox.as_ref().map_or(0, |outbox| outbox.in_memory())
    }

    /// Notes that somebody is about to be told of a queue above the high water mark and may wait for `writable`. The
    /// next event may empty the queue before a flush compares it with the mark.
    fn promise_writable(&mut self) {
        let Reactor { sources, flow, .. } = &mut *self.reactor;
        if let Some(Source::Connection(stream)) = sources.get_mut(self.id.0)
            && stream.towards_marks() > stream.marks(flow).high as u64
        {
            stream.writable_promised = true;
        }
    }

    /// Returns the number of bytes of files queued to be sent.
    pub fn queued_in_files(&mut self) -> u64 {
        self.promise_writable();
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return 0 };
        let below = stream.layers().map_or(0, |layers| layers.in_files());
        below + stream.outbox.as_ref().map_or(0, |outbox| outbox.len() - outbox.in_memory() as u64)
    }
}

/// Ending.
impl Io<'_> {
    /// Makes the reactor call [`draining`](crate::Connection::draining) on this connection even if nothing was ever
    /// sent or received. Use it for protocols in which the peer's first bytes may be on their way.
    pub fn count_as_used(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.used = true;
        }
    }

    /// Closes the connection and drops its send queue.
    pub fn close(&mut self) {
        self.close_with(Reason::Local);
    }

    /// Closes the connection and passes `reason` to its handler's `closed`.
    pub fn close_with(&mut self, reason: Reason) {
        self.reactor.connection_is_over(self.id.0, reason);
    }

    /// Closes the connection when everything queued has been sent. Input received meanwhile is discarded.
    ///
    /// If the peer is still sending, the connection lingers: it is half-closed, and the peer gets a few seconds to
    /// finish as well. Closing a socket with unread input would reset the connection, and the peer could lose data that
    /// it has not read yet.
    pub fn close_after_writing(&mut self) {
        self.end(Ending::Close);
    }

    /// Sets whether [`close_after_writing`](Io::close_after_writing) waits for a peer that is still sending. By default it
    /// does.
    pub fn set_lingering(&mut self, lingering: Lingering) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.lingers = lingering == Lingering::WhilePeerSends;
        }
    }

    /// Records that the handler kept input that nobody will read. Closing then lingers, so that the peer does not lose
    /// data.
    pub(crate) fn has_heard(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.discarded_input = true;
        }
    }

    /// Half-closes the connection when everything queued has been sent. Reading continues. When the peer has finished too,
    /// the connection closes with [`Reason::Finished`], after [`peer_finished`](super::Connection::peer_finished).
    pub fn finish(&mut self) {
        self.end(Ending::Finish);
    }

    fn end(&mut self, ending: Ending) {
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        let replaces = match stream.ending {
            Ending::None => true,
            Ending::Finish | Ending::Finished => ending == Ending::Close,
            Ending::Close | Ending::Linger | Ending::Detach => false,
        };
        if replaces {
            stream.ending = ending;
            self.reactor.set_receiving(self.id.0);
            self.reactor.request_flush(self.id.0);
        }
    }
}

/// Reading.
impl Io<'_> {
    /// Stops reading until [`resume`](Io::resume).
    pub fn pause(&mut self) {
        self.reactor.pause_transport::<ConnectionState>(self.id.0);
    }

    /// Resumes reading.
    pub fn resume(&mut self) {
        self.reactor.resume_transport::<ConnectionState>(self.id.0);
    }

    /// Returns whether reading is [paused](Io::pause).
    pub fn is_paused(&mut self) -> bool {
        self.reactor.transport_is_paused::<ConnectionState>(self.id.0)
    }
}

/// Access to the connection's properties.
impl Io<'_> {
    /// Returns the connection's id.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the reactor.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Gives the connection a label, which reports print.
    pub fn set_label(&mut self, label: impl Into<Arc<str>>) {
        self.reactor.label(self.id, label);
    }

    /// Returns whether the connection is established and neither over nor closing.
    pub fn is_open(&mut self) -> bool {
        let stream = self.reactor.stream_mut(self.id.0);
        stream.is_some_and(|stream| stream.stage == Stage::Open && stream.ending != Ending::Close)
    }

    /// Returns the time since something was last sent or received.
    pub fn idle_time(&mut self) -> Duration {
        let now = self.reactor.now;
        self.reactor.stream_mut(self.id.0).map_or(Duration::ZERO, |stream| now - stream.active_at)
    }

    /// Returns the address of the peer.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.reactor.engine.peer_address(self.id.0)
    }

    /// Returns the local address.
    pub fn local_address(&self) -> io::Result<Address> {
        self.reactor.engine.local_address(self.id.0)
    }

    /// Returns the socket's descriptor, for example to set options with [`SocketOptions`](crate::SocketOptions). Do not
    /// read, write or close it: the reactor does. Returns `None` on an engine without descriptors and while there is no
    /// socket.
    ///
    /// ```
    /// # use pelton::{Io, SocketOptions};
    /// # use std::time::Duration;
    /// fn keep_alive(io: &Io<'_>) -> std::io::Result<()> {
    ///     match io.descriptor() {
    ///         Some(socket) => SocketOptions::of(&socket).set_keepalive(Some(Duration::from_secs(60))),
    ///         None => Ok(()),
    ///     }
    /// }
    /// ```
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.engine.descriptor(self.id.0)
    }
}
