//! A connection for `async` code.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_io::{AsyncRead, AsyncWrite};

use super::pipe::{Filler, Finish, Pipe, Stage};
use super::{current, current_of, error_of, is_clean};
use crate::tasks::task::{Chore, Local};
use crate::{
    Address, Chunk, ConnectOptions, ConnectionId, Detached, Endpoint, Error, Io, Layer, Reactor, SendError, Socket,
};

/// The maximum that one write accepts, so that the queued data stays in proportion to the [high-water
/// mark](crate::WaterMarks::high).
const WRITE_AT_ONCE: usize = 64 * 1024;

/// A connection over TCP, a Unix socket, or an [adopted](Stream::adopt) pipe or terminal. It implements the I/O traits of `futures` and, with the feature `tokio`,
/// those of tokio.
///
/// **Reading.** Input is buffered, up to 64 KiB. Then the other side has to wait. After the other side has finished,
/// reads return 0 bytes, and writing still works.
///
/// **Writing.** Written data is sent in the turn's next flush, together with that of others. When more than the
/// [high-water mark](crate::WaterMarks::high) is queued, writes wait. Flushing waits until the system has accepted
/// everything. Closing also signals the end of the stream to the other side, and leaves reading open.
///
/// **Dropping.** Written data is still sent, then the connection is closed. To be sure that it was sent, close the
/// stream first.
///
/// **Draining.** A [draining](Reactor::drain) loop waits until its streams are dropped, because the tasks that own them
/// are in progress.
///
/// The kind of an error says what happened. The error contains the [`Reason`](crate::Reason) in an
/// [`Arc`](std::sync::Arc). `&Stream` implements the same traits, so one task can read and write at once. At most one
/// task may wait to read and one to write.
pub struct Stream {
    id: ConnectionId,
    pipe: Rc<RefCell<Pipe>>,
    local: Rc<Local>,
}

/// Creating streams.
impl Stream {
    /// Connects to `address`.
    ///
    /// Dropping the future cancels the attempt.
    #[track_caller]
    pub fn connect(address: &Address) -> impl Future<Output = io::Result<Stream>> + use<> {
        Stream::connect_with(address, &ConnectOptions::default())
    }

    /// Connects with [options](ConnectOptions) such as the local address.
    #[track_caller]
    pub fn connect_with(
        address: &Address,
        options: &ConnectOptions,
    ) -> impl Future<Output = io::Result<Stream>> + use<> {
        Stream::dial(Location::caller(), Endpoint::Address(address.clone()), options.clone())
    }

    /// Connects to a [name or address](Endpoint): `example.org:80`, `127.0.0.1:80`, `unix:/path`. See
    /// [`Reactor::connect_to`]. A name is looked up off the loop, and its addresses are raced.
    #[track_caller]
    pub fn connect_to<E>(target: E) -> impl Future<Output = io::Result<Stream>> + use<E>
    where
        E: TryInto<Endpoint, Error: Into<Error>>,
    {
        let place = Location::caller();
        let target = target.try_into().map_err(Into::into);
        async move { Stream::dial(place, target?, ConnectOptions::default()).await }
    }

    async fn dial(place: &'static Location<'static>, target: Endpoint, options: ConnectOptions) -> io::Result<Stream> {
        let stream = current(|reactor| {
            Stream::handled_by(reactor, |reactor, filler| reactor.dial(place, target, &options, filler))
        })?;
        poll_fn(|context| stream.poll_open(context)).await?;
        Ok(stream)
    }

    /// Takes over a connected stream socket from elsewhere, or a pipe, a terminal or another descriptor. See
    /// [`Reactor::adopt`]. Nothing comes out of one that only sends: reads return 0 bytes.
    ///
    /// ```
    /// # use futures::{AsyncReadExt, AsyncWriteExt};
    /// # use pelton::{Reactor, net::Stream};
    /// let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.block_on(async {
    ///     let (mut ours, mut theirs) = (Stream::adopt(ours)?, Stream::adopt(theirs)?);
    ///     ours.write_all(b"water").await?;
    ///     let mut word = [0; 5];
    ///     theirs.read_exact(&mut word).await?;
    ///     assert_eq!(&word, b"water");
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt(socket: impl Into<Socket>) -> io::Result<Stream> {
        let (place, detached) = (Location::caller(), Detached { socket: socket.into(), unread: Vec::new() });
        current(|reactor| {
            Stream::handled_by(reactor, |reactor, filler| reactor.take_on_detached(place, detached, filler))
        })
    }

    fn handled_by(
        reactor: &mut Reactor,
        begin: impl FnOnce(&mut Reactor, Box<Filler>) -> Result<ConnectionId, Error>,
    ) -> io::Result<Stream> {
        let pipe = Pipe::new();
        let id = begin(reactor, Box::new(Filler { pipe: Rc::clone(&pipe), arrivals: None }))?;
        Ok(Stream::new(reactor, id, pipe))
    }

    pub(super) fn new(reactor: &Reactor, id: ConnectionId, pipe: Rc<RefCell<Pipe>>) -> Stream {
        Stream { id, pipe, local: Rc::clone(&reactor.local) }
    }

    fn poll_open(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.pipe.borrow_mut();
        match &pipe.stage {
            Stage::Connecting => {
                set(&mut pipe.reader, context);
                Poll::Pending
            }
            Stage::Open => Poll::Ready(Ok(())),
            Stage::Over(reason) => Poll::Ready(Err(error_of(reason))),
        }
    }
}

/// Layers.
impl Stream {
    /// Puts a [layer](Layer) such as TLS on the connection. The future completes when the layer is ready. Bytes written
    /// before are not transformed; input that was not read yet is.
    ///
    /// Dropping the future does not remove the layer.
    pub async fn push_layer(&self, layer: impl Layer) -> io::Result<()> {
        self.with_io(|io| {
            let unread = self.pipe.borrow_mut().begin_layer();
            io.push_layer_with_unread(layer, unread);
            io.resume();
        })?;
        poll_fn(|context| self.poll_layer(context)).await
    }

    fn poll_layer(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.pipe.borrow_mut();
        match &pipe.stage {
            Stage::Over(reason) => Poll::Ready(Err(error_of(reason))),
            _ if pipe.layer_ready => Poll::Ready(Ok(())),
            _ => {
                set(&mut pipe.reader, context);
                Poll::Pending
            }
        }
    }
}

/// Properties.
impl Stream {
    /// Returns the connection's id.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the address of the other end.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.with_io(|io| io.peer_address())?
    }

    /// Returns the address of this end.
    pub fn local_address(&self) -> io::Result<Address> {
        self.with_io(|io| io.local_address())?
    }

    /// Calls `f` with the connection, to set time limits, water marks or a label. Do not pause or close it with this.
    pub fn with_io<T>(&self, f: impl FnOnce(&mut Io<'_>) -> T) -> io::Result<T> {
        current_of(&self.local, |reactor| match reactor.connection(self.id) {
            Some(mut io) => Ok(f(&mut io)),
            None => Err(match &self.pipe.borrow().stage {
                Stage::Over(reason) => error_of(reason),
                _ => io::ErrorKind::BrokenPipe.into(),
            }),
        })
    }
}

/// Reading.
impl Stream {
    /// Reads a chunk of input without copying it. Returns `None` when the other side has finished.
    pub async fn read_chunk(&self) -> io::Result<Option<Chunk>> {
        poll_fn(|context| self.poll_input(context, Pipe::read_chunk)).await
    }

    pub(super) fn poll_read(&self, context: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let read = |pipe: &mut Pipe| Some(pipe.read(buffer)).filter(|count| *count > 0);
        self.poll_input(context, read).map_ok(|count| count.unwrap_or(0))
    }

    /// Takes buffered input. Returns `None` at the end of the stream.
    fn poll_input<T>(
        &self,
        context: &Context<'_>,
        take: impl FnOnce(&mut Pipe) -> Option<T>,
    ) -> Poll<io::Result<Option<T>>> {
        let mut pipe = self.pipe.borrow_mut();
        if let Some(input) = take(&mut pipe) {
            if pipe.takes_more() {
                self.local.leave(Chore::Read(self.id));
            }
            return Poll::Ready(Ok(Some(input)));
        }
        match &pipe.stage {
            Stage::Over(reason) if !is_clean(reason) && !pipe.ended => Poll::Ready(Err(error_of(reason))),
            Stage::Over(_) => Poll::Ready(Ok(None)),
            _ if pipe.ended => Poll::Ready(Ok(None)),
            _ => {
                set(&mut pipe.reader, context);
                Poll::Pending
            }
        }
    }
}

/// Writing.
impl Stream {
    /// Writes all of `bytes` without copying them, once there is room.
    pub async fn write_bytes(&self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let mut bytes = Some(bytes.into());
        poll_fn(|context| self.poll_send(context, |io, _| io.send_bytes(bytes.take().unwrap_or_default()))).await
    }

    pub(super) fn poll_write(&self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(context, |io, room| {
            let count = bytes.len().min(room);
            io.send(&bytes[..count]).map(|()| count)
        })
    }

    pub(super) fn poll_write_vectored(&self, context: &Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_send(context, |io, room| {
            let total = slices.iter().map(|slice| slice.len()).sum();
            if total <= room {
                return io.send_vectored(slices).map(|()| total);
            }
            let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
            let count = first.len().min(room);
            io.send(&first[..count]).map(|()| count)
        })
    }

    /// Calls `send` with the maximum number of bytes, once there is room.
    fn poll_send<T>(
        &self,
        context: &Context<'_>,
        send: impl FnOnce(&mut Io<'_>, usize) -> Result<T, SendError>,
    ) -> Poll<io::Result<T>> {
        let outcome = self.with_io(|io| {
            let (marks, queued) = (io.water_marks(), io.queued());
            let room = marks.most.saturating_sub(queued).min(WRITE_AT_ONCE);
            if queued > marks.high || room == 0 {
                // If the next flush sends everything, `sent` is called. Otherwise `writable` is called later.
                io.tell_when_sent();
                return None;
            }
            Some(send(io, room))
        });
        match outcome {
            Err(error) => Poll::Ready(Err(error)),
            Ok(Some(Ok(value))) => Poll::Ready(Ok(value)),
            Ok(Some(Err(error))) => Poll::Ready(Err(error.into())),
            Ok(None) => {
                set(&mut self.pipe.borrow_mut().writer, context);
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_flush(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        let sent = self.with_io(|io| {
            // Once per turn. Otherwise this could loop forever if the other side reads as fast as we write.
            let turn = io.reactor().meter.counters.turns;
            if self.pipe.borrow_mut().flushed_in.replace(turn) != Some(turn) {
                io.flush();
            }
            let sent = io.queued() == 0;
            if !sent {
                io.tell_when_sent();
            }
            sent
        })?;
        if sent {
            return Poll::Ready(Ok(()));
        }
        set(&mut self.pipe.borrow_mut().writer, context);
        Poll::Pending
    }

    pub(super) fn poll_close(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        let finish = self.pipe.borrow().finish;
        match finish {
            Finish::Done => return Poll::Ready(Ok(())),
            Finish::Asked => {}
            Finish::No => self.with_io(|io| {
                io.finish();
                io.tell_when_sent();
            })?,
        }
        let mut pipe = self.pipe.borrow_mut();
        pipe.finish = Finish::Asked;
        set(&mut pipe.writer, context);
        Poll::Pending
    }

    /// Returns the outcome of all writes, if the connection has ended.
    fn outcome(&self) -> Option<io::Result<()>> {
        match &self.pipe.borrow().stage {
            Stage::Over(reason) if is_clean(reason) => Some(Ok(())),
            Stage::Over(reason) => Some(Err(error_of(reason))),
            Stage::Connecting | Stage::Open => None,
        }
    }
}

/// Stores the polling task's waker.
pub(super) fn set(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut pipe = self.pipe.borrow_mut();
        let unread = pipe.holds_input();
        pipe.abandon();
        if !matches!(pipe.stage, Stage::Over(_)) {
            self.local.leave(Chore::Close { id: self.id, unread });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Implements the traits for `Stream` and `&Stream`.
macro_rules! read_and_write {
    ($($stream:ty),*) => {
        $(impl AsyncRead for $stream {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                Stream::poll_read(&self, context, buffer)
            }
        }

        impl AsyncWrite for $stream {
            fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                Stream::poll_write(&self, context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Stream::poll_write_vectored(&self, context, slices)
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Stream::poll_flush(&self, context)
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Stream::poll_close(&self, context)
            }
        })*
    };
}

read_and_write![Stream, &Stream];
