//! The readiness engine: a poller says what is ready, and non-blocking system calls do the rest.
//!
//! This file keeps the books and watches descriptors; `streams.rs` does what is special to sockets, and `datagrams.rs` what is
//! special to datagrams.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

use super::datagrams::Datagrams;
use super::streams::{Role, Streams};
use super::{Engine, Event, Forgotten, Park, Sending, no_such_source};
use crate::poller::{Poller, Trigger};
use crate::socket::SystemSocket;
use crate::{
    Address, ConnectOptions, DatagramOptions, DatagramOutbox, DatagramSetting, Interest, ListenOptions, Loopbreaker,
    Mode, Outbox, Readiness, Socket, Time, Token, clock, fault, fork,
};

/// An engine on any of the kernel's readiness pollers.
pub struct ReadinessEngine<P> {
    name: &'static str,
    parking: Parking<P>,
    loopbreaker: Arc<Loopbreaker>,
    trigger: Trigger,
    /// What is watched, at the token's index.
    watches: Vec<Option<Watch>>,
    pub(super) streams: Streams,
    pub(super) datagrams: Datagrams,
    /// Who watches which descriptor: to refuse a second one, and to notice that a number has changed hands.
    watchers: Watchers,
    /// Forgotten sources that the last wait reported, and those that the wait before it did. See [`Strangers`].
    strangers: Strangers,
    /// The process whose kernel objects these are, as a number of forks.
    forks: u64,
}

/// Tokens that the poller reports and nobody has.
///
/// One that shows up once was forgotten while its event was on its way. One that shows up in two waits running is a ghost:
/// its descriptor was closed before it was unwatched while a duplicate of it lives on, so epoll goes on reporting it
/// and has no number to delete it by. Only a new epoll set gets rid of it.
#[derive(Default)]
struct Strangers {
    now: Vec<Token>,
    before: Vec<Token>,
}

impl Strangers {
    fn new_wait(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
    }

    /// Notes down `token` and says whether it is a ghost.
    fn is_ghost(&mut self, token: Token) -> bool {
        self.now.push(token);
        self.before.contains(&token)
    }
}

/// Who watches which descriptor, by the index of its token. Descriptors are small numbers, so this is a table.
#[derive(Default)]
struct Watchers(Vec<u32>);

impl Watchers {
    const NOBODY: u32 = u32::MAX;

    /// The index, if there is somebody.
    fn of(&self, fd: RawFd) -> Option<u32> {
        let index = *self.0.get(usize::try_from(fd).ok()?)?;
        (index != Watchers::NOBODY).then_some(index)
    }

    fn insert(&mut self, fd: RawFd, token: Token) {
        let Ok(place) = usize::try_from(fd) else { return };
        if place >= self.0.len() {
            self.0.resize(place + 1, Watchers::NOBODY);
        }
        self.0[place] = token.index();
    }

    fn remove(&mut self, fd: RawFd, token: Token) {
        if self.of(fd) == Some(token.index()) {
            self.0[fd as usize] = Watchers::NOBODY;
        }
    }
}

pub(super) struct Watch {
    token: Token,
    fd: RawFd,
    pub(super) interest: Interest,
    mode: Mode,
    place: Place,
    pub(super) role: Role,
}

/// Where a watched descriptor is, as far as the poller is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Registered,
    /// Still in the poller, but one-shot and silent: it has fired.
    Spent,
    /// Not in the poller, because nothing is of interest.
    Aside,
    /// It was closed behind our back; its number may mean another file by now.
    Lost,
}

struct Parking<P> {
    poller: P,
    until: Option<Time>,
}

impl<P: Poller> Park for Parking<P> {
    fn block(&mut self) -> io::Result<()> {
        let timeout = match self.until {
            None => None,
            // A time that has come needs no clock to tell how far off it is.
            Some(Time::ZERO) => Some(std::time::Duration::ZERO),
            Some(until) => Some(until - clock::now()),
        };
        self.poller.wait(timeout)
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// An engine on `poller`, called `name`, woken by `loopbreaker`.
    pub fn new(name: &'static str, mut poller: P, loopbreaker: Loopbreaker) -> io::Result<Self> {
        let trigger = poller.add_loopbreaker(loopbreaker.as_fd().as_raw_fd(), loopbreaker.trigger())?;
        Ok(ReadinessEngine {
            name,
            parking: Parking { poller, until: None },
            loopbreaker: Arc::new(loopbreaker),
            trigger,
            watches: Vec::new(),
            streams: Streams::default(),
            datagrams: Datagrams::default(),
            watchers: Watchers::default(),
            strangers: Strangers::default(),
            forks: fork::count(),
        })
    }

    pub(super) fn watch_mut(&mut self, token: Token) -> Option<&mut Watch> {
        self.watches.get_mut(token.index() as usize)?.as_mut().filter(|watch| watch.token == token)
    }

    pub(super) fn watch_ref(&self, token: Token) -> Option<&Watch> {
        self.watches.get(token.index() as usize)?.as_ref().filter(|watch| watch.token == token)
    }

    /// Puts a source on the books, and into the poller unless it is interested in nothing.
    pub(super) fn register(
        &mut self,
        token: Token,
        fd: RawFd,
        interest: Interest,
        mode: Mode,
        role: Role,
    ) -> io::Result<()> {
        let previous = self.watchers.of(fd).map(|index| index as usize);
        let previous_place = previous.and_then(|previous| self.watches[previous].as_ref()).map(|watch| watch.place);
        let place = match (previous_place, interest.is_none()) {
            // Not known to the poller, which therefore cannot tell whether this is the same file.
            (Some(Place::Aside), _) | (Some(Place::Registered | Place::Spent), true) => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            (None | Some(Place::Lost), true) => Place::Aside,
            (_, false) => {
                self.parking.poller.add(fd, token, interest, mode)?;
                Place::Registered
            }
        };
        // The poller took a descriptor that we thought it had: the kernel has seen the old one closed.
        if let Some(watch) = previous.and_then(|previous| self.watches[previous].as_mut()) {
            watch.place = Place::Lost;
        }
        let index = token.index() as usize;
        if index >= self.watches.len() {
            self.watches.resize_with(index + 1, || None);
        }
        debug_assert!(self.watches[index].is_none(), "{token:?} is in use");
        self.watches[index] = Some(Watch { token, fd, interest, mode, place, role });
        self.watchers.insert(fd, token);
        Ok(())
    }

    /// Takes a source off the books and out of the poller.
    pub(super) fn remove(&mut self, token: Token) -> Option<Watch> {
        let watch = self.watches.get_mut(token.index() as usize)?.take_if(|watch| watch.token == token)?;
        // What a forked child takes out of a shared epoll set is gone for its parent too.
        let ours = self.forks == fork::count();
        if ours
            && matches!(watch.place, Place::Registered | Place::Spent)
            && let Err(error) = self.parking.poller.remove(watch.fd)
        {
            let (name, fd) = (self.name, watch.fd);
            fault::report_here("engine", &format_args!("{name} would not let go of descriptor {fd}: {error}"));
        }
        self.watchers.remove(watch.fd, token);
        Some(watch)
    }

    /// The socket of a source that has one.
    fn socket(&self, token: Token) -> io::Result<&SystemSocket> {
        let socket = self.watch_ref(token).and_then(|watch| watch.role.socket());
        socket.ok_or_else(|| no_such_source(token))
    }

    /// Starts over with a new kernel object that knows what is watched now, and nothing else.
    fn renew(&mut self) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        poller.renew()?;
        self.trigger = poller.add_loopbreaker(self.loopbreaker.as_fd().as_raw_fd(), self.loopbreaker.trigger())?;
        for watch in self.watches.iter_mut().flatten() {
            watch.place = match watch.place {
                Place::Registered => match poller.add(watch.fd, watch.token, watch.interest, watch.mode) {
                    Ok(()) => Place::Registered,
                    // A descriptor that cannot be added any more was closed by its owner.
                    Err(_) => Place::Lost,
                },
                Place::Spent => Place::Aside,
                place => place,
            };
        }
        Ok(())
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

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, interest: Interest, mode: Mode) -> io::Result<()> {
        self.register(token, fd.as_raw_fd(), interest, mode, Role::Watched)
    }

    fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        let watch = self.watches.get_mut(token.index() as usize).and_then(Option::as_mut);
        let Some(watch) = watch.filter(|watch| watch.token == token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        // A source that wants what it has already is the common case, and costs nothing.
        if watch.interest == interest && watch.mode == mode && matches!(watch.place, Place::Registered | Place::Aside) {
            return Ok(());
        }
        watch.place = match (watch.place, interest.is_none()) {
            (Place::Lost, _) => return Err(rustix::io::Errno::BADF.into()),
            (Place::Aside, true) => Place::Aside,
            (Place::Aside, false) => {
                poller.add(watch.fd, token, interest, mode)?;
                Place::Registered
            }
            (Place::Registered | Place::Spent, true) => {
                poller.remove(watch.fd)?;
                Place::Aside
            }
            (Place::Registered | Place::Spent, false) => {
                poller.modify(watch.fd, token, interest, mode)?;
                Place::Registered
            }
        };
        watch.interest = interest;
        watch.mode = mode;
        Ok(())
    }

    fn forget(&mut self, token: Token) -> Forgotten {
        if let Some(Watch { role: Role::Datagrams(_), .. }) = self.remove(token) {
            self.datagrams.removed();
        }
        Forgotten::Now
    }

    fn listen(&mut self, token: Token, address: &Address, options: &ListenOptions) -> io::Result<()> {
        self.add_listener(token, SystemSocket::listen(address, options)?)
    }

    fn adopt_listener(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        let socket = socket.into_system()?;
        socket.send_without_delay();
        self.add_listener(token, socket)
    }

    fn turn_away(&mut self, token: Token) {
        self.turn_away_one(token);
    }

    fn accept(&mut self, token: Token, on: bool) -> io::Result<()> {
        self.rewatch(token, if on { Interest::READABLE } else { Interest::NONE }, Mode::Level)
    }

    fn accept_again(&mut self) {
        self.listeners_are_ready();
    }

    fn connect(&mut self, token: Token, address: &Address, options: &ConnectOptions) -> io::Result<()> {
        self.begin_to_connect(token, address, SystemSocket::unconnected(address, options)?)
    }

    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.add_stream(token, socket.into_system()?)
    }

    fn receive(&mut self, token: Token, on: bool) -> io::Result<()> {
        match self.watch_ref(token) {
            Some(Watch { role: Role::Datagrams(_), .. }) => self.receive_datagrams(token, on),
            _ => self.receive_stream(token, on),
        }
    }

    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        self.send_stream(token, outbox)
    }

    fn finish(&mut self, token: Token) -> io::Result<()> {
        self.socket(token)?.finish()
    }

    fn has_unread(&self, token: Token) -> bool {
        self.socket(token).is_ok_and(SystemSocket::has_unread)
    }

    fn undelivered(&self, token: Token) -> Option<u64> {
        self.socket(token).ok()?.undelivered()
    }

    fn detach(&mut self, token: Token) -> io::Result<()> {
        self.detach_stream(token)
    }

    fn bind_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        self.add_datagrams(token, SystemSocket::bound_datagrams(address, options)?)
    }

    fn connect_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        self.add_datagrams(token, SystemSocket::connected_datagrams(address, options)?)
    }

    fn adopt_datagrams(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.add_datagrams(token, socket.into_system()?.check_datagrams()?)
    }

    fn send_datagrams(&mut self, token: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending> {
        self.send_waiting_datagrams(token, outbox)
    }

    fn set_datagrams(&mut self, token: Token, setting: DatagramSetting) -> io::Result<()> {
        self.socket(token)?.set_datagrams(setting)
    }

    fn local_address(&self, token: Token) -> io::Result<Address> {
        self.socket(token)?.local_address()
    }

    fn peer_address(&self, token: Token) -> io::Result<Address> {
        self.socket(token)?.peer_address()
    }

    fn descriptor(&self, token: Token) -> Option<BorrowedFd<'_>> {
        Some(self.socket(token).ok()?.as_fd())
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        self.tell_failures();
        // Some things are over as soon as they are begun.
        self.parking.until = if self.streams.has_events() { Some(Time::ZERO) } else { until };
        self.strangers.new_wait();
        &mut self.parking
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.next_of_streams() {
                return Some(event);
            }
            let (token, readiness) = self.parking.poller.next()?;
            if token == Token::LOOPBREAKER {
                if self.trigger == Trigger::Level {
                    self.loopbreaker.drain();
                }
                continue;
            }
            let Some(watch) = self.watch_mut(token) else {
                if self.strangers.is_ghost(token) {
                    let fault = "a descriptor was closed while watched, and a duplicate of it is still open";
                    fault::report_here("watch", &fault);
                    if let Err(error) = self.renew() {
                        let name = self.name;
                        fault::report_here("engine", &format_args!("could not start over with a new {name}: {error}"));
                    }
                }
                continue;
            };
            if readiness.contains(Readiness::CLOSED) {
                watch.place = Place::Lost;
            } else if watch.mode == Mode::OneShot {
                watch.place = Place::Spent;
            }
            let readiness = readiness.seen_with(watch.interest);
            if let Some(event) = self.source_is_ready(token, readiness) {
                return Some(event);
            }
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.parking.poller.as_fd()
    }

    fn after_fork(&mut self) -> io::Result<()> {
        self.loopbreaker.renew()?;
        self.renew()?;
        self.forks = fork::count();
        Ok(())
    }
}
