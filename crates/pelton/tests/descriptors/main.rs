//! Connections over pipes, FIFOs, terminals and devices, and over descriptors that somebody else owns, on every engine.

mod borrowed;
mod devices;
mod fifos;
mod forms;
mod pipes;
mod terminals;

use std::os::fd::AsFd;

use pelton::{Chunk, Connection, ConnectionId, EventLoop, Io, Reactor, Reason, Socket};
use pelton_testing::{Log, run_until};
use rustix::fs::{OFlags, fcntl_getfl};

type Act = Box<dyn FnMut(&mut Io<'_>)>;

/// Logs what happens, and does one thing when it is opened.
#[derive(Default)]
struct Logging {
    log: Log,
    opened: Option<Act>,
}

impl Logging {
    fn to(log: &Log) -> Logging {
        Logging { log: log.clone(), opened: None }
    }

    fn and(log: &Log, opened: impl FnMut(&mut Io<'_>) + 'static) -> Logging {
        Logging { log: log.clone(), opened: Some(Box::new(opened)) }
    }
}

impl Connection for Logging {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.log.add("opened");
        if let Some(act) = &mut self.opened {
            act(io);
        }
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
    }

    fn writable(&mut self, _: &mut Io<'_>) {
        self.log.add("drained");
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

/// What a stream that was read to its end has logged after these bytes.
fn read_to_the_end(bytes: &str) -> Vec<String> {
    let ends = ["peer finished", "closed: finished by the other side"].map(String::from);
    ["opened".to_owned(), format!("received {bytes}")].into_iter().chain(ends).collect()
}

/// Adopts a descriptor, and logs what happens.
fn adopt(reactor: &mut EventLoop, socket: impl Into<Socket>, log: &Log) -> ConnectionId {
    reactor.adopt(socket, Logging::to(log)).unwrap()
}

/// Turns the loop until no connection is left.
fn run_to_the_end(reactor: &mut EventLoop) {
    run_until(reactor, |reactor| reactor.connection_count() == 0);
}

/// Turns the loop until something more than `opened` was logged.
fn run_until_more(reactor: &mut EventLoop, log: &Log) {
    run_until(reactor, |_| log.len() > 1);
}

fn is_blocking(fd: impl AsFd) -> bool {
    !fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}
