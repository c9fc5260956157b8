//! Opens datagram sockets: bound, connected, or from an existing socket.

use std::io;
use std::panic::Location;

use pelton_os::{Address, DatagramOptions, Socket, SocketFile, Token};

use super::{DatagramSocket, Datagrams, DatagramsId};
use crate::reactor::source::Source;
use crate::{Error, Reactor};

impl Reactor {
    /// Receives datagrams on `address` and passes them to `handler`; never before this method returns. A socket that
    /// only sends binds `0.0.0.0:0`, `[::]:0`, or [`Address::Unnamed`] for Unix sockets.
    ///
    /// A stale Unix socket file is replaced if nobody receives on it. The file is removed when the socket is closed.
    ///
    /// ```
    /// use pelton::{Datagram, DatagramIo, Datagrams, Reactor};
    ///
    /// struct Echo;
    ///
    /// impl Datagrams for Echo {
    ///     fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
    ///         io.send_chunk_to(&datagram.from, datagram.bytes).ok();
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// let echo = reactor.bind_datagrams(&"127.0.0.1:0".parse()?, Echo)?;
    /// println!("echoing on {}", reactor.datagrams(echo).unwrap().local_address()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn bind_datagrams(&mut self, address: &Address, handler: impl Datagrams) -> Result<DatagramsId, Error> {
        self.bind_datagrams_with(address, &DatagramOptions::default(), handler)
    }

    /// Receives datagrams like [`bind_datagrams`](Reactor::bind_datagrams), with [options](DatagramOptions) such as
    /// port sharing.
    #[track_caller]
    pub fn bind_datagrams_with(
        &mut self,
        address: &Address,
        options: &DatagramOptions,
        handler: impl Datagrams,
    ) -> Result<DatagramsId, Error> {
        let owns_file = matches!(address, Address::Unix(_));
        self.add_datagrams(Location::caller(), Box::new(handler), owns_file, |reactor, token| {
            reactor.engine.bind_datagrams(token, address, options)
        })
        .map_err(|error| error.doing(|| format!("receive datagrams on {address}")))
    }

    /// Exchanges datagrams only with `address`. They can be [sent](super::DatagramIo::send) without an address,
    /// datagrams from other addresses are not received, and the handler is [notified](Datagrams::send_failed) if nobody
    /// receives there.
    #[track_caller]
    pub fn connect_datagrams(&mut self, address: &Address, handler: impl Datagrams) -> Result<DatagramsId, Error> {
        self.connect_datagrams_with(address, &DatagramOptions::default(), handler)
    }

    /// Connects like [`connect_datagrams`](Reactor::connect_datagrams), with [options](DatagramOptions) such as the
    /// local address.
    #[track_caller]
    pub fn connect_datagrams_with(
        &mut self,
        address: &Address,
        options: &DatagramOptions,
        handler: impl Datagrams,
    ) -> Result<DatagramsId, Error> {
        // This has no effect unless the socket is bound to a Unix path.
        let owns_file = true;
        self.add_datagrams(Location::caller(), Box::new(handler), owns_file, |reactor, token| {
            reactor.engine.connect_datagrams(token, address, options)
        })
        .map_err(|error| error.doing(|| format!("connect datagrams to {address}")))
    }

    /// Adopts an existing datagram socket, bound or connected. A Unix socket's file is not removed when the socket is
    /// closed.
    ///
    /// ```
    /// # use pelton::{Datagram, DatagramIo, Datagrams, Reactor};
    /// # struct Echo;
    /// # impl Datagrams for Echo {
    /// #     fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
    /// #         io.send_chunk(datagram.bytes).ok();
    /// #         io.close_after_sending();
    /// #     }
    /// # }
    /// let (ours, theirs) = std::os::unix::net::UnixDatagram::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.adopt_datagrams(ours, Echo)?;
    /// theirs.send(b"hello")?;
    /// reactor.run_until(|reactor| reactor.datagram_socket_count() == 0)?;
    /// let mut answer = [0; 5];
    /// theirs.recv(&mut answer)?;
    /// assert_eq!(&answer, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt_datagrams(
        &mut self,
        socket: impl Into<Socket>,
        handler: impl Datagrams,
    ) -> Result<DatagramsId, Error> {
        self.adopt_datagrams_from(Location::caller(), socket.into(), Box::new(handler))
    }

    pub(super) fn adopt_datagrams_from(
        &mut self,
        location: &'static Location<'static>,
        socket: Socket,
        handler: Box<dyn Datagrams>,
    ) -> Result<DatagramsId, Error> {
        self.add_datagrams(location, handler, false, |reactor, token| reactor.engine.adopt_datagrams(token, socket))
            .map_err(|error| error.doing(|| "adopt a datagram socket".to_owned()))
    }

    fn add_datagrams(
        &mut self,
        location: &'static Location<'static>,
        handler: Box<dyn Datagrams>,
        owns_file: bool,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<DatagramsId, Refused> {
        self.check_takes_on().map_err(Refused::ByReactor)?;
        let socket = Box::new(DatagramSocket::new(location, handler, self.flow.marks()));
        let token = self.sources.insert(Source::Datagrams(socket));
        if let Err(error) = start(self, token) {
            self.sources.remove(token);
            return Err(Refused::BySystem(error));
        }
        if let (true, Ok(Address::Unix(path))) = (owns_file, self.engine.local_address(token))
            && let Some(socket) = self.datagram_socket_mut(token)
        {
            // A file that no longer exists need not be removed.
            socket.file = SocketFile::at(path).ok();
        }
        Ok(DatagramsId(token))
    }
}

/// The reason why no socket was opened.
enum Refused {
    ByReactor(Error),
    BySystem(io::Error),
}

impl Refused {
    fn doing(self, what: impl FnOnce() -> String) -> Error {
        match self {
            Refused::ByReactor(error) => error,
            Refused::BySystem(error) => Error::system(what(), error),
        }
    }
}
