//! Where connections come from: made to an address, or taken over from elsewhere.

use std::panic::Location;

use pelton_os::{Address, ConnectOptions, Socket};

use super::{Connection, ConnectionId, ConnectionState, Detached};
use crate::reactor::source::Source;
use crate::{Error, Reactor};

impl Reactor {
    /// Begins to connect to `address`. The handler is told when it is [opened](Connection::opened), or
    /// [closed](Connection::closed) if that fails; never before this returns. It may be sent to at once.
    ///
    /// A loop that was told to [stop](Reactor::stop) refuses with [`Error::Stopped`].
    #[track_caller]
    pub fn connect(&mut self, address: &Address, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.connect_with(address, &ConnectOptions::default(), handler)
    }

    /// Connects as [`connect`](Reactor::connect) does, with [options](ConnectOptions) such as where to connect from.
    #[track_caller]
    pub fn connect_with(
        &mut self,
        address: &Address,
        options: &ConnectOptions,
        handler: impl Connection,
    ) -> Result<ConnectionId, Error> {
        self.connect_from(Location::caller(), address, options, Box::new(handler))
    }

    pub(super) fn connect_from(
        &mut self,
        place: &'static Location<'static>,
        address: &Address,
        options: &ConnectOptions,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        self.check_takes_on()?;
        let mut stream = ConnectionState::connecting(place, handler, self.clock());
        stream.extra().address = Some(address.clone());
        let id = self.add_stream(stream);
        match self.engine.connect(id.0, address, options) {
            Ok(()) => {
                self.arm_limits(id.0);
                Ok(id)
            }
            Err(error) => {
                self.remove_stream(id);
                Err(Error::system(format!("connect to {address}"), error))
            }
        }
    }

    /// Takes over a connected stream socket from elsewhere: one that another program has passed, or that other code has
    /// connected. It is [opened](Connection::opened) soon, but not before this returns.
    ///
    /// A loop that was told to [stop](Reactor::stop) refuses with [`Error::Stopped`], and the socket is closed.
    ///
    /// ```
    /// # use pelton::{Chunk, Connection, Io, Reactor};
    /// # use std::io::{Read, Write};
    /// # struct Echo;
    /// # impl Connection for Echo {
    /// #     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
    /// #         io.send_chunk(chunk).ok();
    /// #     }
    /// # }
    /// let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.adopt(ours, Echo)?;
    /// theirs.write_all(b"hello")?;
    /// theirs.shutdown(std::net::Shutdown::Write)?;
    /// reactor.run_until(|reactor| reactor.connection_count() == 0)?;
    /// let mut answer = String::new();
    /// theirs.read_to_string(&mut answer)?;
    /// assert_eq!(answer, "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt(&mut self, socket: impl Into<Socket>, handler: impl Connection) -> Result<ConnectionId, Error> {
        let detached = Detached { socket: socket.into(), unread: Vec::new() };
        self.take_on_detached(Location::caller(), detached, Box::new(handler))
    }

    /// Takes on a connection again that was [detached](crate::Io::detach) here or from another reactor. What had come in and was
    /// not read comes first.
    #[track_caller]
    pub fn adopt_detached(&mut self, detached: Detached, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.take_on_detached(Location::caller(), detached, Box::new(handler))
    }

    pub(crate) fn take_on_detached(
        &mut self,
        place: &'static Location<'static>,
        detached: Detached,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        let id = self.take_on(place, detached.socket, handler)?;
        self.hold_unread(id.0, detached.unread);
        self.next_tick(move |reactor| {
            reactor.connection_is_open(id.0);
            if reactor.lifecycle.drains_connections() {
                reactor.tell(id.0, |handler, io| handler.draining(io));
            }
        });
        Ok(id)
    }

    /// Takes on a connected socket. Its handler is to be told that it is open.
    pub(crate) fn take_on(
        &mut self,
        place: &'static Location<'static>,
        socket: Socket,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        self.check_takes_on()?;
        let mut stream = ConnectionState::connecting(place, handler, self.now);
        // What another side has begun.
        stream.throttles = true;
        let id = self.add_stream(stream);
        match self.engine.adopt(id.0, socket) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.remove_stream(id);
                Err(Error::system("take on a connection", error))
            }
        }
    }

    pub(super) fn add_stream(&mut self, stream: ConnectionState) -> ConnectionId {
        ConnectionId(self.sources.insert(Source::Connection(stream)))
    }

    /// Removes a stream that the engine has refused.
    pub(super) fn remove_stream(&mut self, id: ConnectionId) {
        self.sources.remove(id.0);
    }
}
