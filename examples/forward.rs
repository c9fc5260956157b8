//! Back-pressure between two connections: a forwarder whose memory does not grow, however slowly one side reads.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin forward
//! 33554432 bytes came through; at most 128 KiB were queued in the forwarder
//! ```
//!
//! Input from one side is sent to the other. If the other side does not read, the data is queued here. When too much
//! is queued, reading from this side pauses, and resumes when the other side has drained.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use pelton::{Address, Chunk, Connection, ConnectionId, Io, Reactor, Reason};

/// How much the source sends: more than fits into the kernel's buffers on the way.
const BYTES: usize = 32 << 20;

/// One of the two sides.
struct Side {
    other: Option<ConnectionId>,
    /// The address that a client's data is forwarded to.
    target: Option<Address>,
    /// The most that was ever queued.
    most: Rc<Cell<usize>>,
}

impl Connection for Side {
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(target) = self.target.take() {
            // A client: do not read from it before there is another side to send to.
            io.pause();
            let target_side = Side { other: Some(io.id()), target: None, most: self.most.clone() };
            match io.reactor().connect(&target, target_side) {
                Ok(other) => self.other = Some(other),
                Err(_) => io.close(),
            }
        } else if let Some(mut client) = self.other.and_then(|other| io.reactor().connection(other)) {
            client.resume();
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let Some(mut other) = self.other.and_then(|other| io.reactor().connection(other)) else { return io.close() };
        // The chunk moves from one connection to the other without a copy.
        if other.send_chunk(chunk).is_err() {
            return io.close();
        }
        other.flush();
        let (waiting, high) = (other.queued(), other.water_marks().high);
        self.most.set(self.most.get().max(waiting));
        if waiting > high {
            io.pause();
        }
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        // This side has room again, so the other side may be read.
        if let Some(mut other) = self.other.and_then(|other| io.reactor().connection(other)) {
            other.resume();
        }
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // Passes the end of stream on, after all bytes. The opposite direction stays open.
        match self.other.and_then(|other| io.reactor().connection(other)) {
            Some(mut other) => other.finish(),
            None => io.close_after_writing(),
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        if let Some(mut other) = self.other.and_then(|other| reactor.connection(other)) {
            other.close_after_writing();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // A source that sends as fast as it can.
    let source = TcpListener::bind("127.0.0.1:0")?;
    let target = Address::from(source.local_addr()?);
    let sending = thread::spawn(move || source.accept().and_then(|(mut stream, _)| stream.write_all(&vec![7; BYTES])));

    let most = Rc::new(Cell::new(0));
    let mut reactor = Reactor::new()?;
    let sides = most.clone();
    let client = move |_: &mut Reactor| Side { other: None, target: Some(target.clone()), most: sides.clone() };
    let listener = reactor.listen("127.0.0.1:0", client)?;
    let Some(Address::Tcp(address)) = reactor.listening_on(listener).cloned() else { return Err("not on TCP".into()) };

    // A slow client.
    let handle = reactor.handle();
    let reading = thread::spawn(move || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(address)?;
        let (mut count, mut buffer) = (0, vec![0; 256 << 10]);
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                read => count += read,
            }
            thread::sleep(Duration::from_micros(200));
        }
        handle.stop();
        Ok(count)
    });
    reactor.run()?;
    sending.join().expect("the source does not panic")?;
    let count = reading.join().expect("the client does not panic")?;
    println!("{count} bytes came through; at most {} KiB were queued in the forwarder", most.get() >> 10);
    Ok(())
}
