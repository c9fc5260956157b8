//! Connections: the reactor does the reading and writing, handlers get the bytes.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::Location;

use bytes::Bytes;
use pelton_os::{Address, Chunk, Outbox, Sending, Token};

use crate::callback::{CallbackKind, Site};
use crate::reactor::Source;
use crate::{Error, FrameError, Reactor};

/// Above this many bytes that wait to be sent, nothing more is read from the connection...
const HIGH_WATER: usize = 64 * 1024;
/// ...until there are no more than these.
const LOW_WATER: usize = 16 * 1024;
/// What would make more than this wait is refused: a peer that does not read must not use up the memory.
const MOST_QUEUED: usize = 16 * 1024 * 1024;

/// Names a connection, to reach it from elsewhere with [`Reactor::connection`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub(crate) Token);

/// What happens to a connection. It is told in this order, one at a time, and `closed` comes once, whatever happened, and
/// last.
///
/// ```
/// use pelton::{Chunk, Connection, Io};
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         io.send_chunk(chunk).ok();
///     }
/// }
/// ```
pub trait Connection: Any {
    /// It is established.
    fn opened(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Bytes have come in. The chunk is on loan from the reactor: keep what you need, or send it on, and let go of it.
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk);

    /// So much had been waiting to be sent that reading was paused, and now most of it is gone.
    fn drained(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// The other side will send nothing more; it may still read. By default the connection is closed when everything
    /// has been sent.
    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.close_after_writing();
    }

    /// It is over.
    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let _ = (reactor, reason);
    }
}

/// Why a connection is over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// This side closed it.
    Local,
    /// The other side finished, and so did this one.
    Finished,
    /// The other side reset it.
    Reset,
    /// Nobody listens there.
    Refused,
    /// A callback of it panicked.
    Panicked,
    /// What came in is not what its codec decodes, or what was to be sent is not what that encodes.
    Frame(FrameError),
    /// The system said so.
    Failed(io::Error),
}

impl Reason {
    fn from_error(error: io::Error) -> Reason {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Reason::Reset,
            io::ErrorKind::ConnectionRefused => Reason::Refused,
            _ => Reason::Failed(error),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Local => f.write_str("closed by this side"),
            Reason::Finished => f.write_str("finished by the other side"),
            Reason::Reset => f.write_str("reset by the other side"),
            Reason::Refused => f.write_str("refused"),
            Reason::Panicked => f.write_str("its handler panicked"),
            Reason::Frame(error) => write!(f, "{error}"),
            Reason::Failed(error) => write!(f, "{error}"),
        }
    }
}

/// Why something was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much is waiting already: the other side does not read.
    #[error("send {bytes} bytes: {queued} are waiting already, and at most {most} may")]
    Full {
        /// How much was to be sent.
        bytes: usize,
        /// How much is waiting.
        queued: usize,
        /// How much may.
        most: usize,
    },
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("send: the connection is closed for sending")]
    Closed,
}

/// A connection, as the reactor keeps it.
pub(crate) struct Stream {
    place: &'static Location<'static>,
    /// `None` while it runs.
    handler: Option<Box<dyn Connection>>,
    outbox: Outbox,
    /// Not established yet.
    connecting: bool,
    /// The user does not want to read.
    paused: bool,
    /// Too much waits to be sent to read any more.
    throttled: bool,
    /// The engine will say when there is room to send.
    busy: bool,
    /// In the list of those that have something to send.
    dirty: bool,
    peer_finished: bool,
    ending: Ending,
    /// Over: `closed` comes next.
    over: Option<Reason>,
}

/// What happens when everything has been sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    /// Tell the other side that there is no more.
    Finish,
    /// It has been told.
    Finished,
    Close,
}

impl Stream {
    pub(crate) fn new(place: &'static Location<'static>, handler: Box<dyn Connection>, connecting: bool) -> Stream {
        Stream {
            place,
            handler: Some(handler),
            outbox: Outbox::default(),
            connecting,
            paused: false,
            throttled: false,
            busy: false,
            dirty: false,
            peer_finished: false,
            ending: Ending::None,
            over: None,
        }
    }

    fn receives(&self) -> bool {
        !self.connecting && !self.paused && !self.throttled && !self.peer_finished && self.over.is_none()
    }
}

/// A connection and the reactor it is on: what callbacks of a [`Connection`] are handed.
pub struct Io<'a> {
    reactor: &'a mut Reactor,
    id: ConnectionId,
}

impl Io<'_> {
    /// The connection's name.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The reactor, to do anything else with.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Sends a copy of `bytes`. It goes out when the callback at hand returns, together with whatever else that sends.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(bytes))
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

    fn queue(&mut self, bytes: usize, push: impl FnOnce(&mut Outbox)) -> Result<(), SendError> {
        let Reactor { sources, idle_outbox, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.id.0.into()) else { return Err(SendError::Closed) };
        if stream.over.is_some() || stream.ending != Ending::None {
            return Err(SendError::Closed);
        }
        let queued = stream.outbox.len();
        if queued + bytes > MOST_QUEUED {
            return Err(SendError::Full { bytes, queued, most: MOST_QUEUED });
        }
        idle_outbox.lend_memory(&mut stream.outbox);
        push(&mut stream.outbox);
        self.reactor.has_something_to_send(self.id.0);
        Ok(())
    }

    /// How many bytes wait to be sent.
    pub fn queued(&mut self) -> usize {
        self.reactor.stream_mut(self.id.0).map_or(0, |stream| stream.outbox.len())
    }

    /// Closes the connection. What waits to be sent is dropped.
    pub fn close(&mut self) {
        self.reactor.connection_is_over(self.id.0, Reason::Local);
    }

    /// Closes the connection for a reason that only the caller knows. What waits to be sent still goes as far as there is
    /// room for it now.
    pub(crate) fn close_with(&mut self, reason: Reason) {
        self.reactor.flush(self.id.0);
        self.reactor.connection_is_over(self.id.0, reason);
    }

    /// Closes the connection when everything that waits has been sent.
    pub fn close_after_writing(&mut self) {
        self.end(Ending::Close);
    }

    /// Tells the other side, when everything that waits has been sent, that nothing more will be. Reading goes on.
    pub fn finish(&mut self) {
        self.end(Ending::Finish);
    }

    fn end(&mut self, ending: Ending) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0)
            && (stream.ending == Ending::None || ending == Ending::Close)
        {
            stream.ending = ending;
            self.reactor.has_something_to_send(self.id.0);
        }
    }

    /// Stops reading, until [`resume`](Io::resume). What is on its way may still come.
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

    /// Where the other end is.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.reactor.engine.socket(self.id.0).ok_or(io::ErrorKind::NotConnected)?.peer_address()
    }

    /// Where this end is.
    pub fn local_address(&self) -> io::Result<Address> {
        self.reactor.engine.socket(self.id.0).ok_or(io::ErrorKind::NotConnected)?.local_address()
    }
}

impl Reactor {
    /// A connection, to send to it or close it from anywhere on the loop. `None` if it is over.
    pub fn connection(&mut self, id: ConnectionId) -> Option<Io<'_>> {
        self.stream_mut(id.0).filter(|stream| stream.over.is_none())?;
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
        let stream = self.stream_mut(id.0).filter(|stream| stream.over.is_none())?;
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

    /// How many connections there are.
    pub fn connection_count(&self) -> usize {
        self.sources.iter().filter(|(_, source)| matches!(source, Source::Connection(_))).count()
    }

    fn stream_mut(&mut self, token: Token) -> Option<&mut Stream> {
        match self.sources.get_mut(token.into()) {
            Some(Source::Connection(stream)) => Some(stream),
            _ => None,
        }
    }

    /// The engine has established the connection, or begins to receive from one that was accepted.
    pub(crate) fn connection_is_open(&mut self, token: Token) {
        if let Some(stream) = self.stream_mut(token) {
            stream.connecting = false;
            self.set_receiving(token);
            self.tell(token, |handler, io| handler.opened(io));
        }
    }

    pub(crate) fn connection_received(&mut self, token: Token, chunk: Chunk) {
        self.tell(token, |handler, io| handler.received(io, chunk));
    }

    pub(crate) fn connection_ended(&mut self, token: Token, outcome: io::Result<()>) {
        match outcome {
            Err(error) => self.connection_is_over(token, Reason::from_error(error)),
            Ok(()) => {
                let Some(stream) = self.stream_mut(token) else { return };
                stream.peer_finished = true;
                if stream.ending == Ending::Finished {
                    self.connection_is_over(token, Reason::Finished);
                } else {
                    self.tell(token, |handler, io| handler.peer_finished(io));
                }
            }
        }
    }

    pub(crate) fn connection_is_sendable(&mut self, token: Token) {
        if let Some(stream) = self.stream_mut(token) {
            stream.busy = false;
            self.flush(token);
        }
    }

    /// Calls the handler, then sends what it has left to be sent.
    fn tell(&mut self, token: Token, call: impl FnOnce(&mut dyn Connection, &mut Io<'_>)) {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.over.is_none()) else { return };
        let Some(mut handler) = stream.handler.take() else { return };
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place: stream.place, source: Some(id.into()) };
        let outcome = self.call(site, |reactor| call(&mut *handler, &mut Io { reactor, id }));
        // It is put back even if the connection is over: it has yet to be told.
        if let Some(stream) = self.stream_mut(token) {
            stream.handler = Some(handler);
        }
        match outcome {
            Ok(()) => self.flush(token),
            Err(panic) => {
                let label = self.callbacks.label(site.source);
                self.connection_is_over(token, Reason::Panicked);
                self.fault(site, label, panic);
            }
        }
    }

    fn has_something_to_send(&mut self, token: Token) {
        if let Some(stream) = self.stream_mut(token)
            && !std::mem::replace(&mut stream.dirty, true)
        {
            self.dirty.push(token);
        }
    }

    /// Sends what waits, as far as there is room, and does what was to be done after that.
    fn flush(&mut self, token: Token) {
        let Some(Source::Connection(stream)) = self.sources.get_mut(token.into()) else { return };
        if stream.connecting || stream.over.is_some() {
            return;
        }
        // While the engine waits for room, trying again is of no use; but what has come to wait meanwhile counts.
        if !stream.busy && !stream.outbox.is_empty() {
            match self.engine.send(token, &mut stream.outbox) {
                Ok(sending) => stream.busy = sending == Sending::Busy,
                Err(error) => return self.connection_is_over(token, Reason::from_error(error)),
            }
        }
        let waiting = stream.outbox.len();
        if waiting == 0 {
            // An idle connection holds no memory for sending; the next one that sends has it.
            stream.outbox.lend_memory(&mut self.idle_outbox);
            if self.sent_everything(token) {
                return;
            }
        }
        let Some(stream) = self.stream_mut(token) else { return };
        if waiting > HIGH_WATER && !stream.throttled {
            stream.throttled = true;
            self.set_receiving(token);
        } else if waiting <= LOW_WATER && stream.throttled {
            stream.throttled = false;
            self.set_receiving(token);
            self.tell(token, |handler, io| handler.drained(io));
        }
    }

    /// Does what was to be done when everything has been sent. `true` if the connection is over now.
    fn sent_everything(&mut self, token: Token) -> bool {
        let Some(stream) = self.stream_mut(token) else { return true };
        let peer_finished = stream.peer_finished;
        let reason = match stream.ending {
            Ending::None | Ending::Finished => return false,
            Ending::Close if peer_finished => Reason::Finished,
            Ending::Close => Reason::Local,
            Ending::Finish => {
                stream.ending = Ending::Finished;
                match self.engine.finish(token) {
                    Ok(()) if peer_finished => Reason::Finished,
                    Ok(()) => return false,
                    Err(error) => Reason::from_error(error),
                }
            }
        };
        self.connection_is_over(token, reason);
        true
    }

    fn set_receiving(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token).filter(|stream| !stream.connecting && stream.over.is_none()) else {
            return;
        };
        let on = stream.receives();
        if let Err(error) = self.engine.receive(token, on) {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// Marks a connection as over, unless it is already. Its handler is told when the loop reaps.
    pub(crate) fn connection_is_over(&mut self, token: Token, reason: Reason) {
        if let Some(stream) = self.stream_mut(token)
            && stream.over.is_none()
        {
            stream.over = Some(reason);
            self.over.push(token);
        }
    }

    /// Sends what callbacks have left for other connections than their own.
    pub(crate) fn flush_dirty(&mut self) {
        // By number: flushing calls back, which may add more.
        let mut next = 0;
        while let Some(&token) = self.dirty.get(next) {
            next += 1;
            if let Some(stream) = self.stream_mut(token) {
                stream.dirty = false;
                self.flush(token);
            }
        }
        self.dirty.clear();
    }

    /// Lets go of connections that are over, and tells their handlers. What closes meanwhile goes too.
    pub(crate) fn reap_connections(&mut self) {
        while let Some(token) = self.over.pop() {
            let Some(stream) = self.stream_mut(token) else { continue };
            let (place, handler, reason) = (stream.place, stream.handler.take(), stream.over.take());
            let id = ConnectionId(token);
            let site = Site { kind: CallbackKind::Connection, place, source: Some(id.into()) };
            self.end_source(token);
            if let (Some(mut handler), Some(reason)) = (handler, reason) {
                let outcome = self.call(site, |reactor| handler.closed(reactor, reason));
                let label = self.callbacks.label(site.source);
                self.callbacks.ended(id);
                if let Err(panic) = outcome {
                    self.fault(site, label, panic);
                }
            }
        }
    }

    /// Begins to connect to `address`. The handler is told when it is [opened](Connection::opened), or
    /// [closed](Connection::closed) if that fails; never before this returns.
    #[track_caller]
    pub fn connect(&mut self, address: &Address, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.check_not_forked()?;
        let place = Location::caller();
        let failed = |error| Error::system(format!("connect to {address}"), error);
        let socket = match pelton_os::Socket::connect(address) {
            Ok(socket) => socket,
            // Some systems know at once; the handler is told all the same, and later.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let stream = Stream::new(place, Box::new(handler), true);
                let token = self.sources.insert(Source::Connection(Box::new(stream))).token();
                self.next_tick(move |reactor| reactor.connection_is_over(token, Reason::Refused));
                return Ok(ConnectionId(token));
            }
            Err(error) => return Err(failed(error)),
        };
        let stream = Stream::new(place, Box::new(handler), true);
        let token = self.sources.insert(Source::Connection(Box::new(stream))).token();
        match self.engine.connect(token, socket) {
            Ok(()) => Ok(ConnectionId(token)),
            Err(error) => {
                self.sources.remove(token.into());
                Err(failed(error))
            }
        }
    }
}
