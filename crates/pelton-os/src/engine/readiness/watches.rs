//! The table of sources, kept in step with the poller.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::ready::{Pending, Ready};
use super::unpolled::is_always_ready;
use super::{ReadinessEngine, Role};
use crate::endpoint::Endpoint;
use crate::engine::{WatchEngine, no_such_source};
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::{Interest, Mode, Token, fault, fork};

/// A source, and what the poller was told about it.
pub(super) struct Watch {
    token: Token,
    fd: RawFd,
    pub(super) interest: Interest,
    pub(super) registration: Registration,
    pub(super) input: Input,
    /// What the poller will not report again.
    pub(super) pending: Pending,
    pub(super) role: Role,
}

impl Watch {
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Returns how often the poller reports the source.
    fn mode(&self) -> Mode {
        match &self.role {
            Role::Watched(mode) => *mode,
            // It has one outcome.
            Role::Connecting(_) => Mode::OneShot,
            _ => Mode::Level,
        }
    }

    pub(super) fn is_one_shot(&self) -> bool {
        self.mode() == Mode::OneShot
    }

    /// Takes the descriptor out of the poller for good.
    pub(super) fn leave<P: Poller>(&mut self, poller: &mut P) -> io::Result<()> {
        if self.registration.is_in_poller() {
            poller.remove(self.fd)?;
        }
        self.registration = Registration::Lost;
        self.interest = Interest::NONE;
        Ok(())
    }
}

/// What happens with the input of a source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// It is received as soon as it is there.
    Received,
    /// It is only reported.
    Reported,
    /// Nothing more will arrive.
    Ended,
}

/// Where a descriptor is, as far as the poller is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Registration {
    Registered,
    /// In the poller, but silent: it is one-shot and has fired.
    Spent,
    /// In the poller, which reports all changes, whatever is of interest.
    Changes,
    /// Not in the poller, because nothing is of interest.
    Aside,
    /// Not in the poller, which cannot wait for it: it is always ready.
    Always,
    /// It was closed, by its owner while it was watched or at its end. The number may already belong to another file.
    Lost,
}

impl Registration {
    fn is_in_poller(self) -> bool {
        matches!(self, Registration::Registered | Registration::Spent | Registration::Changes)
    }
}

/// What becomes of the descriptor of a source that is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is closed, if it belongs to the engine.
    Closed,
    Kept,
}

/// All sources.
#[derive(Default)]
pub(super) struct Watches {
    /// The watches, each at the index of its token.
    table: Vec<Option<Watch>>,
    watchers: Watchers,
}

impl Watches {
    pub(super) fn get(&self, token: Token) -> Option<&Watch> {
        self.table.get(token.index() as usize)?.as_ref().filter(|watch| watch.token == token)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Watch> {
        self.table.get_mut(token.index() as usize)?.as_mut().filter(|watch| watch.token == token)
    }

    fn insert(&mut self, watch: Watch) {
        let index = watch.token.index() as usize;
        if index >= self.table.len() {
            self.table.resize_with(index + 1, || None);
        }
        debug_assert!(self.table[index].is_none(), "{:?} is in use", watch.token);
        self.watchers.insert(watch.fd, watch.token);
        self.table[index] = Some(watch);
    }

    fn remove(&mut self, token: Token) -> Option<Watch> {
        let watch = self.table.get_mut(token.index() as usize)?.take_if(|watch| watch.token == token)?;
        self.watchers.remove(watch.fd, token);
        Some(watch)
    }

    /// The source that is registered for `fd`.
    fn of_descriptor(&mut self, fd: RawFd) -> Option<&mut Watch> {
        let index = self.watchers.of(fd)?;
        self.table[index as usize].as_mut()
    }
}

/// Which source has which descriptor, to refuse a second one and to notice that a number was reused. Descriptors are small
/// numbers, so this is a table of token indexes.
#[derive(Default)]
struct Watchers(Vec<u32>);

impl Watchers {
    const NOBODY: u32 = u32::MAX;

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

/// Tokens that the poller reports although no source has them.
///
/// A token that is reported once belonged to a source that was forgotten while its event was in flight. A token that two
/// consecutive waits report is a ghost: its descriptor was closed before it was unwatched, but a duplicate is still open. epoll
/// keeps reporting it and there is no number to delete it by. Only a new epoll object gets rid of it.
#[derive(Default)]
pub(super) struct Strangers {
    now: Vec<Token>,
    before: Vec<Token>,
}

impl Strangers {
    #[inline]
    pub(super) fn new_wait(&mut self) {
        if !(self.now.is_empty() && self.before.is_empty()) {
            std::mem::swap(&mut self.now, &mut self.before);
            self.now.clear();
        }
    }

    /// Records `token` and returns whether it is a ghost.
    pub(super) fn is_ghost(&mut self, token: Token) -> bool {
        self.now.push(token);
        self.before.contains(&token)
    }
}

/// Adds a source to the poller: for its changes if possible. A stream that the poller cannot wait for is always ready.
fn add<P: Poller>(poller: &mut P, ready: &mut Ready, watch: &Watch) -> io::Result<Registration> {
    let Watch { fd, token, interest, .. } = *watch;
    if poller.reports_changes() && watch.has_changes() {
        return poller.add_for_changes(fd, token).map(|()| Registration::Changes);
    }
    match poller.add(fd, token, interest, watch.mode()) {
        Ok(()) => Ok(Registration::Registered),
        Err(error) if is_always_ready(&watch.role, &error) => {
            ready.add(token);
            Ok(Registration::Always)
        }
        Err(error) => Err(error),
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// Adds a source to the table, and to the poller unless nothing is of interest.
    pub(super) fn register(&mut self, token: Token, fd: RawFd, interest: Interest, role: Role) -> io::Result<()> {
        let registration = Registration::Aside;
        let (input, pending) = (Input::Received, Pending::default());
        let mut watch = Watch { token, fd, interest, registration, input, pending, role };
        let mut previous = self.watches.of_descriptor(fd);
        if let Some(previous) = &mut previous
            && previous.role.is_closed_by_owner()
        {
            // Nobody told the poller, which may keep the number in a list of its own.
            previous.leave(&mut self.parking.poller)?;
        }
        watch.registration = match (previous.as_ref().map(|watch| watch.registration), interest.is_none()) {
            // The poller does not have the descriptor, so it cannot tell whether it is the same file.
            (Some(Registration::Aside | Registration::Always), _)
            | (Some(Registration::Registered | Registration::Spent | Registration::Changes), true) => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            (None | Some(Registration::Lost), true) => Registration::Aside,
            (_, false) => add(&mut self.parking.poller, &mut self.ready, &watch)?,
        };
        // If the poller accepted a descriptor that it should already have had, the kernel saw the old one closed.
        if let Some(previous) = previous {
            previous.registration = Registration::Lost;
        }
        self.watches.insert(watch);
        Ok(())
    }

    /// Adds a source with the system's socket.
    pub(super) fn register_socket(
        &mut self,
        token: Token,
        interest: Interest,
        socket: SystemSocket,
        role: impl FnOnce(SystemSocket) -> Role,
    ) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        self.register(token, fd, interest, role(socket))
    }

    /// Adds a listener or a datagram socket.
    pub(super) fn register_endpoint(
        &mut self,
        token: Token,
        endpoint: Endpoint,
        role: impl FnOnce(Box<Endpoint>) -> Role,
    ) -> io::Result<()> {
        let number = endpoint.number();
        self.register(token, number, Interest::READABLE, role(Box::new(endpoint)))
    }

    /// Removes a source from the table and from the poller.
    pub(super) fn remove(&mut self, token: Token, fate: Fate) -> Option<Watch> {
        let watch = self.watches.remove(token)?;
        // A forked child that removes a descriptor from a shared epoll object removes it for its parent too.
        let ours = self.forks == fork::count();
        // The poller forgets a descriptor that is closed, unless there are duplicates, such as those of a forked child. The
        // duplicate of a child that is about to call `exec` does not matter, since one change is reported once.
        let forgotten = watch.registration == Registration::Changes
            && fate == Fate::Closed
            && watch.role.is_sole_descriptor()
            && self.children == fork::children();
        if ours
            && !forgotten
            && watch.registration.is_in_poller()
            && let Err(error) = self.parking.poller.remove(watch.fd)
        {
            let (name, fd) = (self.name, watch.fd);
            fault::report_here("engine", &format_args!("{name} could not remove descriptor {fd}: {error}"));
        }
        Some(watch)
    }

    /// Replaces the poller's kernel object by a new one that has the current sources and nothing else.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        poller.renew()?;
        self.trigger = poller.add_loopbreaker(self.loopbreaker.as_fd().as_raw_fd(), self.loopbreaker.trigger())?;
        for watch in self.watches.table.iter_mut().flatten() {
            watch.registration = match watch.registration {
                // A descriptor that can no longer be added was closed by its owner.
                Registration::Registered => match poller.add(watch.fd, watch.token, watch.interest, watch.mode()) {
                    Ok(()) => Registration::Registered,
                    Err(_) => Registration::Lost,
                },
                Registration::Changes => match poller.add_for_changes(watch.fd, watch.token) {
                    Ok(()) => Registration::Changes,
                    Err(_) => Registration::Lost,
                },
                Registration::Spent => Registration::Aside,
                registration => registration,
            };
        }
        Ok(())
    }
}

impl<P: Poller> WatchEngine for ReadinessEngine<P> {
    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, interest: Interest, mode: Mode) -> io::Result<()> {
        self.register(token, fd.as_raw_fd(), interest, Role::Watched(mode))
    }

    fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        match &mut watch.role {
            Role::Watched(before) if *before != mode => {
                *before = mode;
                self.update(token, interest)
            }
            _ => self.set_interest(token, interest),
        }
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// Changes what is of interest about a source, and arms a one-shot watch that has fired.
    #[inline]
    pub(super) fn set_interest(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        match watch.registration {
            // Fast path: nothing changes.
            Registration::Registered | Registration::Aside | Registration::Changes if watch.interest == interest => {
                Ok(())
            }
            Registration::Changes => {
                watch.interest = interest;
                self.ready.add_if_pending(watch);
                Ok(())
            }
            _ => self.update(token, interest),
        }
    }

    /// Tells the poller what is of interest about a source.
    fn update(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        let before = std::mem::replace(&mut watch.interest, interest);
        let outcome = match (watch.registration, interest.is_none()) {
            (Registration::Lost, _) => Err(rustix::io::Errno::BADF.into()),
            (Registration::Aside, false) => add(poller, &mut self.ready, watch),
            // It is silent.
            (unchanged @ (Registration::Aside | Registration::Spent), true) => Ok(unchanged),
            (unchanged @ (Registration::Always | Registration::Changes), _) => Ok(unchanged),
            (Registration::Registered, true) => poller.remove(watch.fd).map(|()| Registration::Aside),
            (Registration::Registered | Registration::Spent, false) => {
                poller.modify(watch.fd, token, interest, watch.mode()).map(|()| Registration::Registered)
            }
        };
        match outcome {
            Ok(registration) => watch.registration = registration,
            Err(_) => watch.interest = before,
        }
        outcome.map(drop)
    }

    /// Makes the poller report states of a source, and only those of interest, instead of changes.
    pub(super) fn report_states(&mut self, token: Token) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        if watch.registration == Registration::Changes {
            // A poller reports a state anew after this.
            watch.pending.clear();
            watch.registration = if watch.interest.is_none() {
                poller.remove(watch.fd)?;
                Registration::Aside
            } else {
                poller.modify(watch.fd, token, watch.interest, Mode::Level)?;
                Registration::Registered
            };
        }
        Ok(())
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    /// There is one for each idle connection.
    #[test]
    fn a_watch_is_small() {
        assert!(size_of::<Option<Watch>>() <= 32);
    }
}
