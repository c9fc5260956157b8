//! Datagrams, on every engine. The peers are blocking sockets on other threads, or other programs.

mod cost;
mod exchange;
mod failures;
mod flow;
mod groups;
mod lifetime;
mod programs;
mod unix;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use pelton::{Address, Datagram, DatagramIo, Datagrams, DatagramsId, EventLoop, Reactor, Reason};
use pelton_testing::{Log, On, localhost};

type Receive = Box<dyn FnMut(&mut DatagramIo<'_>, Datagram)>;

/// Runs a closure when something is received, and logs the rest.
#[derive(Default)]
struct Scripted {
    log: Log,
    received: Option<Receive>,
}

impl Datagrams for Scripted {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        match &mut self.received {
            Some(act) => act(io, datagram),
            None => self.log.add(format!("received {}", String::from_utf8_lossy(&datagram.bytes))),
        }
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, to: Option<&Address>, error: io::Error) {
        let to = to.map_or("whom it is connected to".to_owned(), ToString::to_string);
        self.log.add(format!("failed, to {to}: {:?}", error.kind()));
    }

    fn writable(&mut self, _: &mut DatagramIo<'_>) {
        self.log.add("writable");
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn scripted(log: &Log, received: impl FnMut(&mut DatagramIo<'_>, Datagram) + 'static) -> Scripted {
    Scripted { log: log.clone(), received: Some(Box::new(received)) }
}

fn logging(log: &Log) -> Scripted {
    Scripted { log: log.clone(), received: None }
}

fn local(reactor: &mut EventLoop, id: DatagramsId) -> Address {
    reactor.datagrams(id).unwrap().local_address().unwrap()
}

fn internet(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        other => panic!("{other}"),
    }
}

/// Binds to a local port, and returns the address.
fn bind(reactor: &mut EventLoop, handler: impl Datagrams) -> (DatagramsId, SocketAddr) {
    let id = reactor.bind_datagrams(&localhost(), handler).unwrap();
    let address = local(reactor, id);
    (id, internet(&address))
}

/// A blocking socket with a timeout.
fn peer(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn unix_peer(socket: UnixDatagram) -> UnixDatagram {
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn scratch(on: On, name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pelton-{}-{}-{name}", std::process::id(), on.0))
}
