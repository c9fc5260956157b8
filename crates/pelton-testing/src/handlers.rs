//! Small handlers, and addresses and data for them.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use pelton::{Address, Chunk, Connection, Datagram, DatagramIo, Datagrams, EventLoop, Io, Reactor};

use crate::DEADLINE;

/// Sends back everything that it receives, as a connection or as a datagram socket.
pub struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }
}

impl Datagrams for Echo {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        io.send_chunk_to(&datagram.from, datagram.bytes).unwrap();
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, to: Option<&Address>, error: io::Error) {
        panic!("send to {to:?}: {error}");
    }
}

/// Echoes everything until it receives `quit`: then it prints `turns: N.` and stops the loop. For a server in a [child
/// process](crate::child).
pub struct EchoUntilQuit;

impl Connection for EchoUntilQuit {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        if &*chunk == b"quit" {
            println!("turns: {}.", io.reactor().stats().turns);
            return io.reactor().stop();
        }
        io.send_chunk(chunk).unwrap();
    }
}

/// `127.0.0.1:0`: any free port of this machine.
pub fn localhost() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Listens on a free port of this machine, and returns its address.
pub fn listen<C: Connection>(reactor: &mut EventLoop, serve: impl FnMut(&mut Reactor) -> C + 'static) -> Address {
    let listener = reactor.listen("127.0.0.1:0", serve).unwrap();
    reactor.listening_on(listener).unwrap().clone()
}

/// Connects a blocking stream whose reads and writes time out after [`DEADLINE`], and that sends small writes at once.
pub fn dial(address: impl ToString) -> TcpStream {
    let stream = TcpStream::connect(address.to_string()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends one byte to an echo server, and returns whether it came back. Panics if the server neither answers nor closes.
pub fn is_served(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    match stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0])) {
        Ok(()) => true,
        Err(error) => {
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "neither served nor refused");
            false
        }
    }
}

/// Bytes without repetition, so that lost, repeated or reordered data is detected.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
