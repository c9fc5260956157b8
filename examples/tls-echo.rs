//! An echo server with TLS and its client, on one loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin tls-echo
//! client: connected with TLSv1_3 to ["localhost"]
//! client: gets back "water"
//! server: finished by the other side
//! ```
//!
//! The certificate is made here and nobody has certified it, so the client recognises the server by its key. A server on
//! the Internet reads its certificate from files, and `Client::new` trusts what the system trusts.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, Io, Reactor, Reason};
use pelton_tls::{Client, Server};

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).ok();
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        println!("server: {reason}");
        reactor.stop();
    }
}

struct Asks;

impl Connection for Asks {
    /// Called when the handshake is complete.
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(info) = pelton_tls::info(io) {
            println!("client: connected with {:?} to {:?}", info.version, info.peer_names());
        }
        io.send(b"water").ok();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        println!("client: gets back {:?}", String::from_utf8_lossy(&chunk));
        // Sends a closing message: the server can tell that nothing was cut off.
        io.finish();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (chain, key) = (made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes());
    let server = Server::builder().certificate(chain, key).build()?;
    let client = Client::builder().pin(server.certificates()[0].key).only_pins().build()?;

    let mut reactor = Reactor::new()?;
    let listener = pelton_tls::listen(&mut reactor, "127.0.0.1:0", &server, |_| Echo)?;
    let address = reactor.listening_on(listener).ok_or("not listening")?.clone();
    reactor.connect(&address, client.wrap("localhost", Asks)?)?;
    reactor.run()?;
    Ok(())
}
