//! Opens connections: to an address, or from an existing socket.

use std::panic::Location;

use pelton_os::{Address, ConnectOptions, Socket};

use super::{Connection, ConnectionId, ConnectionState, Detached};
use crate::reactor::source::Source;
use crate::{Error, Reactor};

impl Reactor {
    /// Connects to `address`. The handler's [`opened`](Connection::opened) is called when the connection is
    /// established, or [`closed`](Connection::closed) if it fails; never before this method returns. Data can be sent
    /// immediately.
    ///
    /// Fails with [`Error::Stopped`] if the loop was [stopped](Reactor::stop).
    #[track_caller]
    pub fn connect(&mut self, address: &Address, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.connect_with(address, &ConnectOptions::default(), handler)
    }

    /// Connects like [`connect`](Reactor::connect), with [options](ConnectOptions) such as the local address.
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
        location: &'static Location<'static>,
        address: &Address,
        options: &ConnectOptions,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        self.check_takes_on()?;
        let mut stream = ConnectionState::connecting(location, handler, self.clock());
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

    /// Adopts a connected stream socket, such as one that another program has passed or that other code has connected;
    /// or a pipe, a FIFO, a terminal or a character device. [`opened`](Connection::opened) is called soon, but not
    /// before this method returns. [`Io::stream_kind`](crate::Io::stream_kind) says what the connection can do.
    ///
    /// The connection owns the descriptor and closes it, unless it is [borrowed](Socket::borrowed). Terminals and, on
    /// Linux, pipes are opened once more in non-blocking mode, so that the mode does not change for others who share
    /// them. Other descriptors are set to non-blocking mode, which is restored at the end unless it is a socket.
    ///
    /// Fails for regular files and directories, which cannot be waited for: use [`fs`](crate::fs). Fails with [`Error::Stopped`] and closes the socket if the loop was [stopped](Reactor::stop).
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
    ///
    /// // What a child prints.
    /// # use std::process::{Command, Stdio};
    /// let mut child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn()?;
    /// if let Some(output) = child.stdout.take() {
    /// #   struct Print;
    /// #   impl Connection for Print {
    /// #       fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
    /// #           assert_eq!(&*chunk, b"hello\n");
    /// #       }
    /// #   }
    ///     reactor.adopt(output, Print)?;
    /// }
    /// reactor.run_until(|reactor| reactor.connection_count() == 0)?;
    /// # child.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt(&mut self, socket: impl Into<Socket>, handler: impl Connection) -> Result<ConnectionId, Error> {
        let detached = Detached { socket: socket.into(), unread: Vec::new() };
        self.take_on_detached(Location::caller(), detached, Box::new(handler))
    }

    /// Adopts a connection that was [detached](crate::Io::detach) from this or another reactor. The handler receives
    /// the unread input first.
    #[track_caller]
    pub fn adopt_detached(&mut self, detached: Detached, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.take_on_detached(Location::caller(), detached, Box::new(handler))
    }

    pub(crate) fn take_on_detached(
        &mut self,
        location: &'static Location<'static>,
        detached: Detached,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        let id = self.take_on(location, detached.socket, handler)?;
        self.hold_unread(id.0, detached.unread);
        self.next_tick(move |reactor| {
            reactor.connection_is_open(id.0);
            if reactor.lifecycle.drains_connections() {
                reactor.notify(id.0, |handler, io| handler.draining(io));
            }
        });
        Ok(id)
    }

    /// Adopts a connected socket. The caller must then open the connection.
    pub(crate) fn take_on(
        &mut self,
        location: &'static Location<'static>,
        socket: Socket,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        self.check_takes_on()?;
        let mut stream = ConnectionState::connecting(location, handler, self.now);
        // Treat it like an accepted connection, which the peer opened.
        stream.throttles = true;
        let id = self.add_stream(stream);
        match self.engine.adopt(id.0, socket) {
            Ok(kind) => {
                self.set_stream_kind(id, kind);
                Ok(id)
            }
            Err(error) => {
                self.remove_stream(id);
                Err(Error::system("adopt a connection", error))
            }
        }
    }

    pub(super) fn add_stream(&mut self, stream: ConnectionState) -> ConnectionId {
        ConnectionId(self.sources.insert(Source::Connection(stream)))
    }

    /// Removes a connection that the engine has refused.
    pub(super) fn remove_stream(&mut self, id: ConnectionId) {
        self.sources.remove(id.0);
    }
}
