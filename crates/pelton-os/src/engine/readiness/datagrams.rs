//! Datagrams on the readiness engine.
//!
//! Each readiness is answered with one system call that receives a batch. There is no second call, because the poller will
//! report the rest, and one socket must not starve the others. Sends are tried at once, also in batches, and the poller is
//! asked about room only if there was none.

use std::io;
use std::rc::Rc;

use super::watches::{Input, Registration};
use super::{ReadinessEngine, Role, Watch, with_intake, with_sending};
use crate::chunk::{Buffer, Buffers};
use crate::datagram::{Arrived, BATCH};
use crate::endpoint::Endpoint;
use crate::engine::{DatagramEngine, Event, Intake, Sending, no_such_source};
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::{Address, Datagram, DatagramOptions, DatagramOutbox, DatagramSetting, Readiness, Socket, Space, Token};

/// The first batch size. It doubles whenever a batch was full: most sockets never get more than a few datagrams at a time,
/// and each takes a buffer that could hold the largest.
const FIRST_BATCH: usize = 4;

/// System calls that one socket sends with per turn at most, so that a long queue does not starve other sources.
const SENDS_PER_TURN: usize = 16;

/// State that all datagram sockets share. It is dropped with the last socket.
#[derive(Default)]
pub(super) struct Datagrams {
    sockets: usize,
    receiving: Option<Receiving>,
    /// Failures to report after the next wait. If they were reported earlier, a handler that answers each failure with another
    /// send would keep the turn from ending.
    failures: Vec<Event>,
}

/// Buffers and results for receiving.
struct Receiving {
    home: Rc<Buffers>,
    /// Free buffers to receive into.
    buffers: Vec<Box<Buffer>>,
    arrived: Vec<io::Result<Arrived>>,
    batch: usize,
}

impl Receiving {
    fn new() -> Receiving {
        Receiving {
            // One batch is received while the one before it is sent on.
            home: Rc::new(Buffers::keeping(2 * BATCH)),
            buffers: Vec::new(),
            arrived: Vec::new(),
            batch: FIRST_BATCH,
        }
    }

    /// Receives a batch and calls `found` with each datagram. Returns the error that followed them, if any.
    fn receive(&mut self, socket: &Endpoint, mut found: impl FnMut(Datagram)) -> Option<io::Error> {
        while self.buffers.len() < self.batch {
            self.buffers.push(self.home.take());
        }
        socket.receive_datagrams(&mut self.buffers, &mut self.arrived);
        let failed = self.arrived.pop_if(|last| last.is_err()).and_then(Result::err);
        if self.arrived.len() == self.batch {
            self.batch = (2 * self.batch).min(BATCH);
        }
        let filled = self.buffers.drain(..self.arrived.len());
        for (Arrived { len, from, cut }, buffer) in self.arrived.drain(..).flatten().zip(filled) {
            let bytes = self.home.lend(buffer, len);
            if cut {
                tracing::warn!(%from, "dropped a datagram of more than {len} bytes: it does not fit the buffer");
            } else {
                found(Datagram { bytes, from });
            }
        }
        failed
    }
}

impl Datagrams {
    /// Counts a socket that was forgotten.
    pub(super) fn removed(&mut self) {
        self.sockets -= 1;
        if self.sockets == 0 {
            *self = Datagrams::default();
        }
    }
}

impl<P: Poller> ReadinessEngine<P> {
    fn add_datagrams(&mut self, token: Token, endpoint: Endpoint) -> io::Result<()> {
        self.register_endpoint(token, endpoint, Role::Datagrams)?;
        self.datagrams.sockets += 1;
        Ok(())
    }

    /// Turns the readiness of a datagram socket into events.
    pub(super) fn datagrams_are_ready(&mut self, token: Token, readiness: Readiness) {
        let Some(watch) = self.watches.get(token) else { return };
        if watch.interest.readable() && readiness.contains(Readiness::READABLE) {
            match watch.input {
                Input::Reported => self.events.push_back(Event::Receivable(token)),
                _ => self.receive_batch(token),
            }
        }
        if readiness.contains(Readiness::WRITABLE) {
            self.events.push_back(Event::Sendable(token));
        }
    }

    fn receive_batch(&mut self, token: Token) {
        let Some(Role::Datagrams(socket)) = self.watches.get(token).map(|watch| &watch.role) else { return };
        let events = &mut self.events;
        let receiving = self.datagrams.receiving.get_or_insert_with(Receiving::new);
        let failed = receiving.receive(socket, |datagram| events.push_back(Event::Datagram(token, datagram)));
        match failed {
            None => {}
            Some(_) if socket.is_closed_by_owner() => {
                let ended = self.owner_has_closed_unnoticed(token);
                self.events.extend(ended);
            }
            Some(error) if is_final(&error) => {
                // A level-triggered poller would report it over and over.
                let outcome = self.receive_datagrams(token, Intake::Off).and(Err(error));
                self.events.push_back(Event::Ended(token, outcome));
            }
            Some(error) => self.events.push_back(Event::SendFailed(token, None, error)),
        }
    }

    /// Before a wait: queues the failures since the last one.
    pub(super) fn release_failures(&mut self) {
        if !self.datagrams.failures.is_empty() {
            self.events.extend(self.datagrams.failures.drain(..));
        }
    }
}

impl<P: Poller> DatagramEngine for ReadinessEngine<P> {
    fn bind_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        self.add_datagrams(token, Endpoint::Own(SystemSocket::bound_datagrams(address, options)?))
    }

    fn connect_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        self.add_datagrams(token, Endpoint::Own(SystemSocket::connected_datagrams(address, options)?))
    }

    fn adopt_datagrams(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.add_datagrams(token, socket.into_datagrams()?)
    }

    fn receive_datagrams(&mut self, token: Token, intake: Intake) -> io::Result<()> {
        let Some(watch) = self.watches.get(token) else { return Err(no_such_source(token)) };
        if watch.registration == Registration::Lost {
            // Its owner has closed it.
            return Ok(());
        }
        self.set_interest(token, with_intake(watch.interest, intake))
    }

    fn receive_datagrams_manually(&mut self, token: Token) -> io::Result<()> {
        self.report_input(token)
    }

    fn receive_datagram_into(&mut self, token: Token, space: &mut Space<'_>) -> io::Result<(usize, Option<Address>)> {
        match self.watches.get(token).map(|watch| &watch.role) {
            Some(Role::Datagrams(socket)) => socket.receive_datagram(space),
            _ => Err(no_such_source(token)),
        }
    }

    fn send_datagram_now(&mut self, token: Token, to: Option<&Address>, bytes: &[u8]) -> io::Result<()> {
        match self.watches.get(token).map(|watch| &watch.role) {
            Some(Role::Datagrams(socket)) => socket.send_datagram(to, bytes),
            _ => Err(no_such_source(token)),
        }
    }

    fn send_datagrams(&mut self, token: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending> {
        let Some(Watch { role: Role::Datagrams(socket), interest, input, .. }) = self.watches.get(token) else {
            return Err(no_such_source(token));
        };
        let failures = &mut self.datagrams.failures;
        let before = failures.len();
        let patience = if *input == Input::Reported { Patience::Waits } else { Patience::GivesUp };
        let failed = |to, error| failures.push(Event::SendFailed(token, to, error));
        let sending = send_all(socket, outbox, patience, failed);
        let failed = failures.len() > before;
        if failed {
            failures.push(Event::Sendable(token));
        }
        self.set_interest(token, with_sending(*interest, sending))?;
        Ok(if failed { Sending::Busy } else { sending })
    }

    fn set_datagrams(&mut self, token: Token, setting: DatagramSetting) -> io::Result<()> {
        match self.watches.get(token) {
            Some(Watch { role: Role::Datagrams(socket), .. }) => socket.set_datagrams(setting),
            _ => Err(no_such_source(token)),
        }
    }
}

/// Returns whether a receive error is permanent. All others concern a single datagram, for example one that was not delivered.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EFAULT | libc::ENOTCONN))
}

/// What becomes of a datagram whose receiver has no room, although the socket has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// It has failed: the poller cannot wait for the receiver, and the datagrams behind it should not.
    GivesUp,
    /// It stays, and the caller tries again.
    Waits,
}

/// Sends until the outbox is empty, the socket is full, or this socket has used up its share of the turn. Datagrams that cannot
/// be sent are removed and passed to `failed`.
fn send_all(
    socket: &Endpoint,
    outbox: &mut DatagramOutbox,
    patience: Patience,
    mut failed: impl FnMut(Option<Address>, io::Error),
) -> Sending {
    // The error of the first datagram, if it failed and will be tried once more.
    let mut before: Option<io::Error> = None;
    for _ in 0..SENDS_PER_TURN {
        if outbox.is_empty() {
            break;
        }
        let error = match socket.send_datagrams(outbox) {
            Ok(count) => {
                outbox.advance(count);
                // The error was about an earlier datagram: a connected socket reports non-delivery from any call.
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
            io::ErrorKind::WouldBlock if patience == Patience::Waits => break,
            // The socket has room but this receiver does not. It is tried once more in case the receiver made room in the
            // meantime.
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
