//! Datagrams on the readiness engine.
//!
//! One call per readiness, for as many as there are up to a batch: the poller will say if there are more, and one socket does
//! not keep the others waiting. Sending is tried at once, in batches too, and the poller is asked about room only when there
//! was none.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use super::readiness::ReadinessEngine;
use super::streams::{Role, with};
use super::{Engine, Event, Sending, no_such_source};
use crate::chunk::Buffers;
use crate::datagram::{Arrived, BATCH};
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::{Address, Datagram, DatagramOutbox, Interest, Mode, Readiness, Token};

/// How many are received at once to begin with. It is doubled whenever there were as many: most sockets never get more than a
/// few, and each takes a buffer that could hold the largest.
const AT_FIRST: usize = 4;

/// System calls that one socket sends with per turn at most, so that a long queue does not keep the others waiting.
const SENDS_PER_TURN: usize = 16;

/// What datagrams need besides the books. All of it goes with the last socket.
#[derive(Default)]
pub(super) struct Datagrams {
    sockets: usize,
    receiving: Option<Receiving>,
    /// What is told after the next wait, and no earlier: a handler that answers each failure with another send would
    /// otherwise never be done.
    failures: Vec<Event>,
}

/// What it takes to receive.
struct Receiving {
    home: Rc<Buffers>,
    /// To be received into.
    buffers: Vec<Box<[u8]>>,
    arrived: Vec<io::Result<Arrived>>,
    at_once: usize,
}

impl Receiving {
    fn new() -> Receiving {
        Receiving {
            // One batch comes in while what was received before it is being sent on.
            home: Rc::new(Buffers::keeping(2 * BATCH)),
            buffers: Vec::new(),
            arrived: Vec::new(),
            at_once: AT_FIRST,
        }
    }

    /// Receives a batch, and has `found` told of each. Gives the error that came after them, if there is one.
    fn receive(&mut self, socket: &SystemSocket, mut found: impl FnMut(Datagram)) -> Option<io::Error> {
        while self.buffers.len() < self.at_once {
            self.buffers.push(self.home.take());
        }
        socket.receive_datagrams(&mut self.buffers, &mut self.arrived);
        let failed = self.arrived.pop_if(|last| last.is_err()).and_then(Result::err);
        if self.arrived.len() == self.at_once {
            self.at_once = (2 * self.at_once).min(BATCH);
        }
        let filled = self.buffers.drain(..self.arrived.len());
        for (Arrived { len, from, cut }, buffer) in self.arrived.drain(..).flatten().zip(filled) {
            let bytes = self.home.lend(buffer, len);
            if cut {
                tracing::warn!(%from, "a datagram of more than {len} bytes does not fit, and is dropped");
            } else {
                found(Datagram { bytes, from });
            }
        }
        failed
    }
}

impl Datagrams {
    /// A socket has gone.
    pub(super) fn removed(&mut self) {
        self.sockets -= 1;
        if self.sockets == 0 {
            *self = Datagrams::default();
        }
    }
}

impl<P: Poller> ReadinessEngine<P> {
    pub(super) fn add_datagrams(&mut self, token: Token, socket: SystemSocket) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        self.register(token, fd, Interest::READABLE, Mode::Level, Role::Datagrams(socket))?;
        self.datagrams.sockets += 1;
        Ok(())
    }

    pub(super) fn receive_datagrams(&mut self, token: Token, on: bool) -> io::Result<()> {
        let Some(watch) = self.watch_ref(token) else { return Err(no_such_source(token)) };
        let interest = with(watch.interest, Interest::READABLE, on);
        self.rewatch(token, interest, Mode::Level)
    }

    /// Turns the readiness of a datagram socket into events.
    pub(super) fn datagrams_are_ready(&mut self, token: Token, readiness: Readiness) {
        let Some(watch) = self.watch_ref(token) else { return };
        if watch.interest.readable() && readiness.contains(Readiness::READABLE) {
            self.receive_batch(token);
        }
        if readiness.contains(Readiness::WRITABLE) {
            self.streams.events.push_back(Event::Sendable(token));
        }
    }

    fn receive_batch(&mut self, token: Token) {
        let mut receiving = self.datagrams.receiving.take().unwrap_or_else(Receiving::new);
        let mut events = std::mem::take(&mut self.streams.events);
        if let Some(Role::Datagrams(socket)) = self.watch_ref(token).map(|watch| &watch.role) {
            let failed = receiving.receive(socket, |datagram| events.push_back(Event::Datagram(token, datagram)));
            match failed {
                None => {}
                Some(error) if is_final(&error) => {
                    // A level-triggered poller would report it again and again.
                    let outcome = self.receive_datagrams(token, false).and(Err(error));
                    events.push_back(Event::Ended(token, outcome));
                }
                Some(error) => events.push_back(Event::SendFailed(token, None, error)),
            }
        }
        self.streams.events = events;
        self.datagrams.receiving = Some(receiving);
    }

    pub(super) fn send_waiting_datagrams(&mut self, token: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending> {
        let mut failures = std::mem::take(&mut self.datagrams.failures);
        let told = failures.len();
        let sent = match self.watch_ref(token).map(|watch| (&watch.role, watch.interest)) {
            Some((Role::Datagrams(socket), interest)) => {
                let sending = send_all(socket, outbox, |to, error| failures.push(Event::SendFailed(token, to, error)));
                Ok((sending, interest))
            }
            _ => Err(no_such_source(token)),
        };
        let failed = failures.len() > told;
        if failed {
            failures.push(Event::Sendable(token));
        }
        self.datagrams.failures = failures;
        let (sending, interest) = sent?;
        self.rewatch(token, with(interest, Interest::WRITABLE, sending == Sending::Busy), Mode::Level)?;
        Ok(if failed { Sending::Busy } else { sending })
    }

    /// Before a wait: lets out what has failed since the last one.
    pub(super) fn tell_failures(&mut self) {
        self.streams.events.extend(self.datagrams.failures.drain(..));
    }
}

/// Whether a socket that cannot be received from will never be again. Everything else is about one datagram: that it did not
/// arrive, for one.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EFAULT | libc::ENOTCONN))
}

/// Sends until there is nothing left, no room, or this socket has had its share of the turn. What cannot be sent is taken out
/// and told to `failed`.
fn send_all(
    socket: &SystemSocket,
    outbox: &mut DatagramOutbox,
    mut failed: impl FnMut(Option<Address>, io::Error),
) -> Sending {
    // What the first one has failed with, if it has, and is worth another try.
    let mut before: Option<io::Error> = None;
    for _ in 0..SENDS_PER_TURN {
        if outbox.is_empty() {
            break;
        }
        let error = match socket.send_datagrams(outbox) {
            Ok(count) => {
                outbox.advance(count);
                // It was not about this one: any call of a connected socket may tell that an earlier one did not arrive.
                if let Some(error) = before.take().filter(|error| error.kind() != io::ErrorKind::WouldBlock) {
                    failed(None, error);
                }
                continue;
            }
            Err(error) => error,
        };
        let to = outbox.next_to();
        let worth_another_try = match error.kind() {
            io::ErrorKind::Interrupted => continue,
            // There is room here, but none at this receiver. The poller cannot wait for that, and others should not.
            // That it is tried again is for the case that there has come to be room just now.
            io::ErrorKind::WouldBlock if to.is_some_and(is_unix) && socket.has_room() => true,
            io::ErrorKind::WouldBlock => break,
            _ => to.is_none(),
        };
        if before.is_none() && worth_another_try {
            before = Some(error);
        } else {
            before = None;
            failed(outbox.pop().flatten(), error);
        }
    }
    if let Some(error) = before.filter(|error| error.kind() != io::ErrorKind::WouldBlock) {
        failed(None, error);
    }
    if outbox.is_empty() {
        return Sending::Idle;
    }
    outbox.settle();
    Sending::Busy
}

fn is_unix(address: &Address) -> bool {
    matches!(address, Address::Unix(_) | Address::Abstract(_))
}
