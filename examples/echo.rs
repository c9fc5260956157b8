//! An echo server and its client, on one loop.
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
//! Neither of them reads or writes: the reactor does, and calls them. `pelton echo` is the same server as a
//! command.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, Io, Reactor, Reason};

/// The server's side of a connection.
struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // Sends the chunk back without copying it. If the client does not read, this does not exhaust the memory:
        // once about 64 KiB are queued, nothing more is read.
        io.send_chunk(chunk).expect("far below the queue limit");
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        println!("server: {reason}");
        reactor.stop();
    }
}

/// The client side, with the words it has yet to send.
struct Client {
    words: Vec<&'static str>,
    /// The part of the current word that has come back. A stream has no message boundaries, so a word may arrive in parts.
    back: Vec<u8>,
}

impl Client {
    fn send_next(&mut self, io: &mut Io<'_>) {
        match self.words.first() {
            Some(word) => {
                println!("client: sends {word:?}");
                io.send(word.as_bytes()).expect("far below the queue limit");
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
    // Port 0 picks a free port. The closure creates a handler for each accepted connection.
    let listener = reactor.listen("127.0.0.1:0", |_| Echo)?;
    let address = reactor.listening_on(listener).expect("the listener was just started").clone();
    println!("echoing on {address}");
    reactor.connect(&address, Client { words: vec!["water", "wheel"], back: Vec::new() })?;
    reactor.run()?;
    Ok(())
}
