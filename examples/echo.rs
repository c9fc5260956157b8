//! A server that sends back what comes in, and a client of it, on one loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin echo
//! echoing on 127.0.0.1:43175
//! client: sends "water"
//! client: gets back "water"
//! client: sends "wheel"
//! client: gets back "wheel"
//! server: finished by the other side
//! ```
//!
//! Neither reads nor writes: the reactor does, and calls them when something has happened. `pelton echo` is the same server
//! to try things on.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, Io, Reactor, Reason};

/// The server's side of a connection.
struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // The chunk is sent on as it is, without being copied. If the client did not read, this would not fill the memory:
        // when some 64 KiB wait to be sent, nothing more is read.
        io.send_chunk(chunk).expect("much less than what may wait");
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        println!("server: {reason}");
        reactor.stop();
    }
}

/// The client's side: the words it has yet to send.
struct Client {
    words: Vec<&'static str>,
    /// What has come back of the current one: a stream has no borders, so a word may come in parts.
    back: Vec<u8>,
}

impl Client {
    fn send_next(&mut self, io: &mut Io<'_>) {
        match self.words.first() {
            Some(word) => {
                println!("client: sends {word:?}");
                io.send(word.as_bytes()).expect("much less than what may wait");
            }
            None => io.close(),
        }
    }
}

impl Connection for Client {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.send_next(io);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.back.extend_from_slice(&chunk);
        if self.back.len() == self.words[0].len() {
            println!("client: gets back {:?}", String::from_utf8_lossy(&self.back));
            self.back.clear();
            self.words.remove(0);
            self.send_next(io);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    // Port 0 is any free one. Each connection that comes in is served by what the closure makes for it.
    let listener = reactor.listen("127.0.0.1:0", |_| Echo)?;
    let address = reactor.listening_on(listener).expect("it was just begun").clone();
    println!("echoing on {address}");
    reactor.connect(&address, Client { words: vec!["water", "wheel"], back: Vec::new() })?;
    reactor.run()?;
    Ok(())
}
