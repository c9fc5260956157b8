//! Networks that tests run on, and their blocking peers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pelton::{Address, Builder, EventLoop, PanicPolicy};

use crate::On;

/// The network that reactors and their peers use: the kernel's, through one of the engines, or an [in-memory](crate::memory)
/// one.
pub trait Network: Copy + Send + 'static {
    /// Whether a peer may read some of the bytes sent without making room for more, as the kernel's buffers allow.
    const HIDES_READING: bool;

    /// Starts a reactor on this network. A panic in a callback fails the test.
    fn builder(self) -> Builder;

    /// Builds a reactor, and checks that it is on this network.
    fn build(self, builder: Builder) -> EventLoop;

    /// Builds a reactor with the default settings.
    fn reactor(self) -> EventLoop {
        self.build(self.builder())
    }

    /// Builds a reactor that catches panics, as reactors do by default.
    fn catching(self) -> EventLoop {
        self.build(self.builder().panic_policy(PanicPolicy::Close))
    }

    /// Connects to a reactor that listens on this address.
    fn connect_peer(self, address: &Address) -> Peer;

    /// Listens on an address that a reactor can connect to.
    fn listen_peer(self) -> PeerListener;

    /// Creates an address that neither accepts nor refuses connections while the listener lives.
    fn silent_listener(self) -> PeerListener;

    /// A number of bytes of which some stay queued in the reactor if the peer does not read.
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
            other => panic!("a peer cannot connect to {other}"),
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
        // With a full backlog, the kernel does not answer the next one.
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                // In progress, or already connected.
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

/// A blocking stream that several threads may read and write.
pub trait Duplex: Send + Sync + 'static {
    /// Reads some bytes; 0 is the end.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the writing direction.
    fn finish(&self);

    /// Makes the other side see a reset, at the latest when this is dropped.
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
                // With this option set, closing resets the connection.
                socket2::SockRef::from(self).set_linger(Some(Duration::ZERO)).unwrap();
            }
        })*
    };
}

duplex![TcpStream, UnixStream];

/// The other end of a connection. Clones refer to the same end. Dropping the last one closes it.
#[derive(Clone)]
pub struct Peer(Arc<dyn Duplex>);

impl Peer {
    /// Creates a peer from a stream.
    pub fn new(stream: impl Duplex) -> Peer {
        Peer(Arc::new(stream))
    }

    /// Ends the writing direction.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Resets the connection: the other side sees an error.
    pub fn reset(self) {
        self.0.reset();
    }

    /// Reads everything up to the end.
    pub fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.read_to_end(&mut all)?;
        Ok(all)
    }

    /// Reads exactly `count` bytes.
    pub fn read_some(&mut self, count: usize) -> Vec<u8> {
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

/// A listening peer.
pub struct PeerListener {
    address: Address,
    accept: Box<dyn Fn() -> Peer + Send>,
}

impl PeerListener {
    /// Creates a listener on this address from a function that blocks until it has accepted a connection.
    pub fn new(address: Address, accept: impl Fn() -> Peer + Send + 'static) -> PeerListener {
        PeerListener { address, accept: Box::new(accept) }
    }

    /// The address to connect to.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Blocks until a reactor has connected.
    pub fn accept(&self) -> Peer {
        (self.accept)()
    }
}
