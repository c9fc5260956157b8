//! A UDP time server and its client, on one loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin udp-time
//! serving the time on 127.0.0.1:40023
//! 127.0.0.1:51871 asks, and is ignored
//! 127.0.0.1:51871 asks
//! answer 1: 1770000000 seconds since 1970
//! 127.0.0.1:51871 asks
//! answer 2: 1770000000 seconds since 1970
//! nobody serves the time on 127.0.0.1:58377: Connection refused (os error 111)
//! ```
//!
//! Datagrams can get lost without notice, so a client repeats its question until it is answered. The server ignores the first
//! question to show this. If nobody receives at all, the kernel often notices, and a connected socket gets the error.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pelton::{Address, Datagram, DatagramIo, Datagrams, Reactor, Reason};

const ASK_EVERY: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Server {
    ignored_one: bool,
}

impl Datagrams for Server {
    fn received(&mut self, io: &mut DatagramIo<'_>, question: Datagram) {
        if !std::mem::replace(&mut self.ignored_one, true) {
            return println!("{} asks, and is ignored", question.from);
        }
        println!("{} asks", question.from);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // If this send fails, the client asks again.
        io.send_to(&question.from, now.as_secs().to_string().as_bytes()).ok();
    }
}

#[derive(Default)]
struct Client {
    answers: u32,
}

impl Datagrams for Client {
    fn received(&mut self, io: &mut DatagramIo<'_>, answer: Datagram) {
        self.answers += 1;
        println!("answer {}: {} seconds since 1970", self.answers, String::from_utf8_lossy(&answer.bytes));
        if self.answers == 2 {
            io.close();
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        if let Err(error) = ask_nobody(reactor) {
            eprintln!("{error}");
            reactor.stop();
        }
    }
}

struct Hopeless;

impl Datagrams for Hopeless {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}

    fn send_failed(&mut self, io: &mut DatagramIo<'_>, _: Option<&Address>, error: io::Error) {
        if let Ok(address) = io.peer_address() {
            println!("nobody serves the time on {address}: {error}");
        }
        io.reactor().stop();
    }
}

/// Sends to a port that was free a moment ago.
fn ask_nobody(reactor: &mut Reactor) -> Result<(), Box<dyn Error>> {
    let nobody = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let id = reactor.connect_datagrams(&nobody.into(), Hopeless)?;
    if let Some(mut io) = reactor.datagrams(id) {
        io.send(b"what time is it?")?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let server = reactor.bind_datagrams(&"127.0.0.1:0".parse()?, Server::default())?;
    let address = reactor.datagrams(server).ok_or("the server is gone")?.local_address()?;
    println!("serving the time on {address}");

    let client = reactor.connect_datagrams(&address, Client::default())?;
    reactor.every(ASK_EVERY, move |reactor, _| {
        // Runs until the socket is closed.
        if let Some(mut client) = reactor.datagrams(client) {
            client.send(b"what time is it?").ok();
        }
    });
    reactor.run()?;
    Ok(())
}
