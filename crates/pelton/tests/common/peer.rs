//! Networks that tests run on, and the peers there: plain blocking streams, in the kernel or in memory.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pelton::{Address, Builder, EventLoop, PanicPolicy};

use super::On;

/// Where reactors and their peers are: the kernel's network, below one of its engines, or one in memory.
pub(crate) trait Network: Copy + Send + 'static {
    /// Whether a peer may read some of what was sent without that making room to send more.
    const HIDES_READING: bool;

    /// For a reactor on this network.
    fn builder(self) -> Builder;

    fn build(self, builder: Builder) -> EventLoop;

    fn reactor(self) -> EventLoop {
        self.build(self.builder())
    }

    /// One that catches panics, as reactors do by default.
    fn catching(self) -> EventLoop {
        self.build(self.builder().panic_policy(PanicPolicy::Close))
    }

    /// Connects to a reactor that listens there.
    fn connect_peer(self, address: &Address) -> Peer;

    /// Somebody for a reactor to connect to.
    fn listen_peer(self) -> PeerListener;

    /// An address that neither takes a connection nor refuses it, while this lives.
    fn silent_listener(self) -> PeerListener;

    /// Sending so many bytes to a peer that does not read leaves some of them waiting here.
    fn more_than_fits(self) -> usize;
}

impl Network for On {
    const HIDES_READING: bool = true;

    fn builder(self) -> Builder {
        On::builder(self)
    }

    fn build(self, builder: Builder) -> EventLoop {
        On::build(self, builder)
    }

    fn connect_peer(self, address: &Address) -> Peer {
        match address {
            Address::Tcp(address) => Peer::new(TcpStream::connect(address).unwrap()),
            Address::Unix(path) => Peer::new(UnixStream::connect(path).unwrap()),
            other => panic!("no peer connects to {other}"),
        }
    }

    fn listen_peer(self) -> PeerListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        PeerListener::new(address, move || Peer::new(listener.accept().unwrap().0))
    }

    fn silent_listener(self) -> PeerListener {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        // When as many wait as may, the kernel does not answer the next.
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                // In progress, or connected already.
                let _ = socket.connect(&address.into());
                socket
            })
            .collect();
        PeerListener::new(address.into(), move || panic!("{} wait on {listener:?}", waiting.len()))
    }

    fn more_than_fits(self) -> usize {
        // Buffers grow on loopback: about 6 MB on Linux, both sides together.
        12_000_000
    }
}

/// A stream that may be read and written by several threads, and blocks.
pub(crate) trait Duplex: Send + Sync + 'static {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Says that nothing more will be written.
    fn finish(&self);

    /// Has the other side told, by the time this is dropped, that something went wrong.
    fn reset(&self);
}

macro_rules! duplex {
    ($($stream:ty),*) => {
        $(impl Duplex for $stream {
            fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                Read::read(&mut &*self, buffer)
            }

            fn write(&self, bytes: &[u8]) -> io::Result<usize> {
                Write::write(&mut &*self, bytes)
            }

            fn finish(&self) {
                self.shutdown(Shutdown::Write).unwrap();
            }

            fn reset(&self) {
                // Closing it with this set resets it.
                socket2::SockRef::from(self).set_linger(Some(Duration::ZERO)).unwrap();
            }
        })*
    };
}

duplex![TcpStream, UnixStream];

/// The other end of a connection. Clones are the same end; it is closed when the last is dropped.
#[derive(Clone)]
pub(crate) struct Peer(Arc<dyn Duplex>);

impl Peer {
    pub(crate) fn new(stream: impl Duplex) -> Peer {
        Peer(Arc::new(stream))
    }

    /// Says that nothing more will be written.
    pub(crate) fn finish(&self) {
        self.0.finish();
    }

    /// Closes it in a way that the other side takes for an error.
    pub(crate) fn reset(self) {
        self.0.reset();
    }

    /// Everything that comes, up to the end.
    pub(crate) fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.read_to_end(&mut all)?;
        Ok(all)
    }

    /// So many bytes.
    pub(crate) fn read_some(&mut self, count: usize) -> Vec<u8> {
        let mut some = vec![0; count];
        self.read_exact(&mut some).unwrap();
        some
    }
}

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Somebody to connect to.
pub(crate) struct PeerListener {
    address: Address,
    accept: Box<dyn Fn() -> Peer + Send>,
}

impl PeerListener {
    pub(crate) fn new(address: Address, accept: impl Fn() -> Peer + Send + 'static) -> PeerListener {
        PeerListener { address, accept: Box::new(accept) }
    }

    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    /// Blocks until somebody has connected.
    pub(crate) fn accept(&self) -> Peer {
        (self.accept)()
    }
}
