//! What a handler can do with its connection.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton_os::{Address, Chunk, FilePart, Outbox};

use super::stream::{Ending, Stage};
use super::{ConnectionId, Reason, SendError};
use crate::Reactor;
use crate::reactor::source::Source;

/// What has come in, and is held back until it is wanted.
pub(super) enum Input {
    Chunk(Chunk),
    /// Nothing more comes.
    End,
}

/// A connection and the reactor it is on: what callbacks of a [`Connection`](super::Connection) are handed.
pub struct Io<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) id: ConnectionId,
}

/// Sending.
impl Io<'_> {
    /// Sends a copy of `bytes`. It goes out when the callback at hand returns, together with whatever else that sends.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(bytes))
    }

    /// Sends the contents of `block` and leaves it empty, often with other memory. Where nothing else waits they are not copied.
    pub fn send_block(&mut self, block: &mut Vec<u8>) -> Result<(), SendError> {
        self.queue(block.len(), |outbox| outbox.push_block(block))
    }

    /// Sends a copy of several slices, one after the other: all of them or, if that is too much, none.
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<(), SendError> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.queue(bytes, |outbox| slices.iter().for_each(|slice| outbox.push_copy(slice)))
    }

    /// Sends `bytes` without copying them.
    pub fn send_bytes(&mut self, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(bytes))
    }

    /// Sends on what came in, without copying it.
    pub fn send_chunk(&mut self, chunk: Chunk) -> Result<(), SendError> {
        self.queue(chunk.len(), |outbox| outbox.push_chunk(chunk))
    }

    /// Sends the bytes of `file` in `range`, in order with everything else that is sent. They go from the file to the socket
    /// inside the kernel where it can do that, and take up no memory here, so the size does not matter.
    ///
    /// If the file turns out to be shorter by the time its turn comes, the connection is closed: what was promised cannot be
    /// sent. Reading from a slow disk holds up the loop; to send from one, read ahead.
    pub fn send_file(&mut self, file: impl Into<Arc<File>>, range: Range<u64>) -> Result<(), SendError> {
        let part = FilePart { file: file.into(), offset: range.start, len: range.end.saturating_sub(range.start) };
        self.queue(0, |outbox| outbox.push_file(part))
    }

    /// Sends a copy of `bytes`, at once: after this, as much of it has gone out as there was room for, instead of when the
    /// callback at hand returns. For those who go on to do something slow.
    pub fn send_now(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.send(bytes)?;
        self.flush();
        Ok(())
    }

    /// Sends what waits at once, as far as there is room.
    pub fn flush(&mut self) {
        self.reactor.write(self.id.0);
    }

    /// Has the handler told, once, when [everything has been sent](super::Connection::sent): after the callback at hand at the
    /// earliest, and if [`finish`](Io::finish) was called, after the other side has been told.
    pub fn tell_when_sent(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.tells_when_sent = true;
            self.reactor.request_flush(self.id.0);
        }
    }

    fn queue(&mut self, bytes: usize, push: impl FnOnce(&mut Outbox)) -> Result<(), SendError> {
        let Reactor { sources, connections, flow, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.id.0) else { return Err(SendError::Closed) };
        if !stream.may_send() {
            return Err(SendError::Closed);
        }
        if stream.failed {
            // The other side is gone, which `closed` will tell: to send now is no more of a mistake than a moment ago.
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
        self.reactor.request_flush(self.id.0);
        Ok(())
    }

    /// How many bytes of memory wait to be sent.
    pub fn queued(&mut self) -> usize {
        self.outbox().map_or(0, |outbox| outbox.in_memory())
    }

    /// How many bytes of files wait to be sent.
    pub fn queued_in_files(&mut self) -> u64 {
        self.outbox().map_or(0, |outbox| outbox.len() - outbox.in_memory() as u64)
    }

    fn outbox(&mut self) -> Option<&Outbox> {
        self.reactor.stream_mut(self.id.0)?.outbox.as_deref()
    }
}

/// Ending.
impl Io<'_> {
    /// Has the handler [asked](crate::Connection::draining) when the reactor drains, also if nothing was ever sent or received: for
    /// protocols in which the first bytes may be on their way.
    pub fn count_as_used(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.used = true;
        }
    }

    /// Closes the connection. What waits to be sent is dropped.
    pub fn close(&mut self) {
        self.close_with(Reason::Local);
    }

    /// Closes the connection, and has its handler told this reason.
    pub fn close_with(&mut self, reason: Reason) {
        self.reactor.connection_is_over(self.id.0, reason);
    }

    /// Closes the connection when everything that waits has been sent. What comes in meanwhile is thrown away.
    ///
    /// If the other side goes on sending, it is told first that nothing more comes, and given a few seconds to end too: a
    /// socket that is closed with something unread in it makes the other side lose what it has not read yet.
    pub fn close_after_writing(&mut self) {
        self.end(Ending::Close);
    }

    /// Something has come in that its handler kept and nobody will read: closing takes care not to lose what was sent for it.
    pub(crate) fn has_heard(&mut self) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.heard_closing = true;
        }
    }

    /// Tells the other side, when everything that waits has been sent, that nothing more will be. Reading goes on.
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
    /// Stops reading, until [`resume`](Io::resume).
    pub fn pause(&mut self) {
        self.set_paused(true);
    }

    /// Goes on reading.
    pub fn resume(&mut self) {
        self.set_paused(false);
    }

    fn set_paused(&mut self, paused: bool) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.paused = paused;
            self.reactor.set_receiving(self.id.0);
        }
    }

    /// Whether reading was [stopped](Io::pause).
    pub fn is_paused(&mut self) -> bool {
        self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.paused)
    }
}

/// Looking around.
impl Io<'_> {
    /// The connection's name.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The reactor, to do anything else with.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Gives the connection a name of your own, to be read in reports.
    pub fn set_label(&mut self, label: impl Into<Arc<str>>) {
        self.reactor.label(self.id, label);
    }

    /// Whether it is established, and neither over nor being closed.
    pub fn is_open(&mut self) -> bool {
        let stream = self.reactor.stream_mut(self.id.0);
        stream.is_some_and(|stream| stream.stage == Stage::Open && stream.ending != Ending::Close)
    }

    /// How long ago something was last sent or received.
    pub fn idle_time(&mut self) -> Duration {
        let now = self.reactor.now;
        self.reactor.stream_mut(self.id.0).map_or(Duration::ZERO, |stream| now - stream.active_at)
    }

    /// Where the other end is.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.reactor.engine.peer_address(self.id.0)
    }

    /// Where this end is.
    pub fn local_address(&self) -> io::Result<Address> {
        self.reactor.engine.local_address(self.id.0)
    }

    /// The socket's descriptor, to set options on with [`SocketOptions`](crate::SocketOptions) or otherwise. Reading, writing
    /// and closing is the reactor's. `None` on an engine that has no descriptors, and while there is no socket.
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
