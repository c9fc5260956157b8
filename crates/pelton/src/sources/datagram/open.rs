//! Where datagram sockets come from: bound, connected, or taken over from elsewhere.

use std::io;
use std::panic::Location;

use pelton_os::{Address, DatagramOptions, Socket, SocketFile, Token};

use super::{DatagramSocket, Datagrams, DatagramsId};
use crate::reactor::source::Source;
use crate::{Error, Reactor};

impl Reactor {
    /// Receives datagrams on `address`, and has them handled by `handler`; never before this returns. A socket that only
    /// sends binds `0.0.0.0:0`, `[::]:0`, or [`Address::Unnamed`] for Unix sockets.
    ///
    /// A Unix socket's file that is left from earlier is replaced if nobody receives on it any more, and removed when the
    /// socket is closed.
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

    /// Receives datagrams as [`bind_datagrams`](Reactor::bind_datagrams) does, with [options](DatagramOptions) such as sharing
    /// the port.
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

    /// Exchanges datagrams with `address` alone: they can be [sent](super::DatagramIo::send) without saying to whom, what
    /// others send is not received, and the handler is [told](Datagrams::send_failed) if nobody receives there.
    #[track_caller]
    pub fn connect_datagrams(&mut self, address: &Address, handler: impl Datagrams) -> Result<DatagramsId, Error> {
        self.connect_datagrams_with(address, &DatagramOptions::default(), handler)
    }

    /// Connects as [`connect_datagrams`](Reactor::connect_datagrams) does, with [options](DatagramOptions) such as where to
    /// send from.
    #[track_caller]
    pub fn connect_datagrams_with(
        &mut self,
        address: &Address,
        options: &DatagramOptions,
        handler: impl Datagrams,
    ) -> Result<DatagramsId, Error> {
        // If it is bound to one.
        let owns_file = true;
        self.add_datagrams(Location::caller(), Box::new(handler), owns_file, |reactor, token| {
            reactor.engine.connect_datagrams(token, address, options)
        })
        .map_err(|error| error.doing(|| format!("connect datagrams to {address}")))
    }

    /// Takes over a datagram socket from elsewhere, bound or connected. A Unix socket's file stays when it ends.
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
        let socket = socket.into();
        self.add_datagrams(Location::caller(), Box::new(handler), false, |reactor, token| {
            reactor.engine.adopt_datagrams(token, socket)
        })
        .map_err(|error| error.doing(|| "take on a datagram socket".to_owned()))
    }

    fn add_datagrams(
        &mut self,
        place: &'static Location<'static>,
        handler: Box<dyn Datagrams>,
        owns_file: bool,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<DatagramsId, Refused> {
        self.check_takes_on().map_err(Refused::Here)?;
        let socket = Box::new(DatagramSocket::new(place, handler, self.flow.marks()));
        let token = self.sources.insert(Source::Datagrams(socket));
        if let Err(error) = start(self, token) {
            self.sources.remove(token);
            return Err(Refused::BySystem(error));
        }
        if let (true, Ok(Address::Unix(path))) = (owns_file, self.engine.local_address(token))
            && let Some(socket) = self.datagram_socket_mut(token)
        {
            // One that is gone already is nobody's to remove.
            socket.file = SocketFile::at(path).ok();
        }
        Ok(DatagramsId(token))
    }
}

/// Why there is no socket.
enum Refused {
    Here(Error),
    BySystem(io::Error),
}

impl Refused {
    fn doing(self, what: impl FnOnce() -> String) -> Error {
        match self {
            Refused::Here(error) => error,
            Refused::BySystem(error) => Error::system(what(), error),
        }
    }
}
