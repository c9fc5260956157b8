//! The readiness engine: a poller reports what is ready, and non-blocking system calls do the rest.
//!
//! ```text
//! mod.rs        the engine: its sources' roles, the event queue, waiting, and turning readiness into events
//! watches.rs    the table of sources, kept in step with the poller
//! listeners.rs  accepting
//! streams.rs    connecting, receiving and sending bytes
//! ready.rs      sources that are ready without a report of the poller
//! unpolled.rs   streams that the poller cannot wait for, or not any more
//! datagrams.rs  receiving and sending datagrams
//! ```

mod datagrams;
mod listeners;
mod ready;
mod streams;
mod unpolled;
mod watches;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use self::datagrams::Datagrams;
use self::listeners::Listeners;
use self::ready::Ready;
use self::streams::Streams;
use self::watches::{Fate, Input, Registration, Strangers, Watch, Watches};
use super::{Engine, Event, Forgotten, Intake, Park, Sending, no_such_source};
use crate::endpoint::Endpoint;
use crate::poller::{Poller, Trigger};
use crate::socket::SystemSocket;
use crate::stream::{self, Stream};
use crate::{Address, Interest, Loopbreaker, Mode, Readiness, Time, Token, clock, fault, fork};

/// An engine on any of the kernel's pollers.
pub struct ReadinessEngine<P> {
    name: &'static str,
    parking: Parking<P>,
    loopbreaker: Arc<Loopbreaker>,
    trigger: Trigger,
    watches: Watches,
    strangers: Strangers,
    /// Events that did not come out of the poller one by one: the second half of a readiness, a batch of datagrams, an
    /// operation that ended as soon as it began.
    events: VecDeque<Event>,
    listeners: Listeners,
    streams: Streams,
    ready: Ready,
    datagrams: Datagrams,
    /// The fork count of the process that owns the kernel objects.
    forks: u64,
    /// How many children the process had forked at first.
    children: u64,
}

/// What a source is.
enum Role {
    /// A descriptor that belongs to somebody else.
    Watched(Mode),
    Listener(Box<Endpoint>),
    Connecting(SystemSocket),
    Stream(Stream),
    Datagrams(Box<Endpoint>),
}

impl Role {
    /// The descriptor. Fails if it belongs to somebody else who watches it or has closed it.
    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Role::Watched(_) => Err(io::ErrorKind::Unsupported.into()),
            Role::Connecting(socket) => Ok(socket.as_fd()),
            Role::Listener(endpoint) | Role::Datagrams(endpoint) => endpoint.fd(),
            Role::Stream(stream) => stream.fd(),
        }
    }
}

/// `interest` with or without readability.
fn with_intake(interest: Interest, intake: Intake) -> Interest {
    match intake {
        Intake::On => interest | Interest::READABLE,
        Intake::Off => interest.without(Interest::READABLE),
    }
}

/// `interest` with or without writability: the poller is asked about room only while there is none.
fn with_sending(interest: Interest, sending: Sending) -> Interest {
    match sending {
        Sending::Busy => interest | Interest::WRITABLE,
        Sending::Idle => interest.without(Interest::WRITABLE),
    }
}

struct Parking<P> {
    poller: P,
    until: Option<Time>,
}

impl<P: Poller> Park for Parking<P> {
    fn block(&mut self) -> io::Result<()> {
        let timeout = match self.until {
            None => None,
            // Fast path: a time that has come needs no clock reading.
            Some(Time::ZERO) => Some(Duration::ZERO),
            Some(until) => Some(until - clock::now()),
        };
        self.poller.wait(timeout)
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// Creates an engine on `poller`, called `name`, woken by `loopbreaker`.
    pub fn new(name: &'static str, mut poller: P, loopbreaker: Loopbreaker) -> io::Result<Self> {
        let trigger = poller.add_loopbreaker(loopbreaker.as_fd().as_raw_fd(), loopbreaker.trigger())?;
        Ok(ReadinessEngine {
            name,
            parking: Parking { poller, until: None },
            loopbreaker: Arc::new(loopbreaker),
            trigger,
            watches: Watches::default(),
            strangers: Strangers::default(),
            events: VecDeque::new(),
            listeners: Listeners::default(),
            streams: Streams::default(),
            ready: Ready::default(),
            datagrams: Datagrams::default(),
            forks: fork::count(),
            children: fork::children(),
        })
    }

    fn fd(&self, token: Token) -> io::Result<BorrowedFd<'_>> {
        let fd = self.watches.get(token).and_then(|watch| watch.role.fd().ok());
        fd.ok_or_else(|| no_such_source(token))
    }

    /// Turns the readiness of a source into events: returns the first and queues the others.
    fn source_is_ready(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        let watch = self.watches.get(token)?;
        match &watch.role {
            Role::Watched(_) => Some(Event::Ready(token, readiness)),
            _ if watch.registration == Registration::Lost => self.lost_source_is_ready(token, readiness),
            Role::Listener(_) if watch.input == Input::Reported => Some(Event::Receivable(token)),
            Role::Listener(_) => self.listener_is_ready(token),
            Role::Connecting(_) => self.connect_is_over(token, readiness),
            Role::Datagrams(_) => {
                self.datagrams_are_ready(token, readiness);
                self.events.pop_front()
            }
            Role::Stream(_) => {
                let sendable = readiness.contains(Readiness::WRITABLE);
                if !(watch.interest.readable() && readiness.contains(Readiness::READABLE)) {
                    return sendable.then_some(Event::Sendable(token));
                }
                let input = watch.input;
                if sendable {
                    self.events.push_back(Event::Sendable(token));
                }
                if input == Input::Reported { self.stream_is_receivable(token) } else { self.receive_once(token) }
            }
        }
    }

    /// From now on, only reports the input of a source.
    fn report_input(&mut self, token: Token) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        if watch.input == Input::Received {
            watch.input = Input::Reported;
        }
        Ok(())
    }

    /// Handles a report of the poller. Not inlined: most calls of `next` find no report, and would save registers for this.
    #[inline(never)]
    fn is_reported(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        if token == Token::LOOPBREAKER {
            if self.trigger == Trigger::Level {
                self.loopbreaker.drain();
            }
            return None;
        }
        let Some(watch) = self.watches.get_mut(token) else {
            self.meet_stranger(token);
            return None;
        };
        if watch.registration == Registration::Changes {
            return self.has_changed(token, readiness);
        }
        if readiness.contains(Readiness::CLOSED) {
            watch.registration = Registration::Lost;
        } else if watch.is_one_shot() {
            watch.registration = Registration::Spent;
        }
        let readiness = readiness.without(Readiness::MARKED).seen_with(watch.interest);
        self.source_is_ready(token, readiness)
    }

    /// Handles a report for a token that no source has.
    fn meet_stranger(&mut self, token: Token) {
        if !self.strangers.is_ghost(token) {
            return;
        }
        fault::report_here("watch", &"a descriptor was closed while watched, and a duplicate of it is still open");
        if let Err(error) = self.renew() {
            let name = self.name;
            fault::report_here("engine", &format_args!("could not replace the {name} object: {error}"));
        }
    }
}

impl<P: Poller> Engine for ReadinessEngine<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn waker(&self) -> Waker {
        Waker::from(self.loopbreaker.clone())
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        self.release_failures();
        let waits = self.events.is_empty() && !self.has_ready();
        self.parking.until = if waits { until } else { Some(Time::ZERO) };
        self.strangers.new_wait();
        self.count_wait();
        &mut self.parking
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front().or_else(|| self.next_accepted()) {
                return Some(event);
            }
            let Some((token, readiness)) = self.parking.poller.next() else { return self.next_ready() };
            if let Some(event) = self.is_reported(token, readiness) {
                return Some(event);
            }
        }
    }

    fn forget(&mut self, token: Token) -> Forgotten {
        if let Some(Watch { role: Role::Datagrams(_), .. }) = self.remove(token, Fate::Closed) {
            self.datagrams.removed();
        }
        Forgotten::Now
    }

    fn local_address(&self, token: Token) -> io::Result<Address> {
        stream::local_address(self.fd(token)?)
    }

    fn peer_address(&self, token: Token) -> io::Result<Address> {
        stream::peer_address(self.fd(token)?)
    }

    fn descriptor(&self, token: Token) -> Option<BorrowedFd<'_>> {
        if let Some(Watch { role: Role::Connecting(socket) | Role::Stream(Stream::Socket(socket)), .. }) =
            self.watches.get(token)
        {
            socket.expose();
        }
        self.fd(token).ok()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.parking.poller.as_fd()
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty() || self.is_any_ready()
    }

    fn after_fork(&mut self) -> io::Result<()> {
        self.loopbreaker.renew()?;
        self.renew()?;
        self.forks = fork::count();
        Ok(())
    }
}
