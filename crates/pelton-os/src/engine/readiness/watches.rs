//! The table of sources, kept in step with the poller.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::unpolled::{AlwaysReady, is_always_ready};
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
    pub(super) mode: Mode,
    pub(super) registration: Registration,
    pub(super) input: Input,
    pub(super) role: Role,
}

impl Watch {
    /// Takes the descriptor out of the poller for good.
    pub(super) fn leave<P: Poller>(&mut self, poller: &mut P) -> io::Result<()> {
        if matches!(self.registration, Registration::Registered | Registration::Spent) {
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
    /// Not in the poller, because nothing is of interest.
    Aside,
    /// Not in the poller, which cannot wait for it: it is always ready.
    Always,
    /// It was closed, by its owner while it was watched or at its end. The number may already belong to another file.
    Lost,
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

/// Adds a source to the poller. A stream that the poller cannot wait for is always ready.
fn add<P: Poller>(
    poller: &mut P,
    always_ready: &mut AlwaysReady,
    (fd, token, interest, mode): (RawFd, Token, Interest, Mode),
    role: &Role,
) -> io::Result<Registration> {
    match poller.add(fd, token, interest, mode) {
        Ok(()) => Ok(Registration::Registered),
        Err(error) if is_always_ready(role, &error) => {
            always_ready.add(token);
            Ok(Registration::Always)
        }
        Err(error) => Err(error),
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// Adds a source to the table, and to the poller unless nothing is of interest.
    pub(super) fn register(
        &mut self,
        token: Token,
        fd: RawFd,
        interest: Interest,
        mode: Mode,
        role: Role,
    ) -> io::Result<()> {
        let mut previous = self.watches.of_descriptor(fd);
        if let Some(watch) = &mut previous
            && watch.role.is_closed_by_owner()
        {
            // Nobody told the poller, which may keep the number in a list of its own.
            watch.leave(&mut self.parking.poller)?;
        }
        let registration = match (previous.as_ref().map(|watch| watch.registration), interest.is_none()) {
            // The poller does not have the descriptor, so it cannot tell whether it is the same file.
            (Some(Registration::Aside | Registration::Always), _)
            | (Some(Registration::Registered | Registration::Spent), true) => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            (None | Some(Registration::Lost), true) => Registration::Aside,
            (_, false) => add(&mut self.parking.poller, &mut self.always_ready, (fd, token, interest, mode), &role)?,
        };
        // If the poller accepted a descriptor that it should already have had, the kernel saw the old one closed.
        if let Some(watch) = previous {
            watch.registration = Registration::Lost;
        }
        self.watches.insert(Watch { token, fd, interest, mode, registration, input: Input::Received, role });
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
        self.register(token, fd, interest, Mode::Level, role(socket))
    }

    /// Adds a listener or a datagram socket.
    pub(super) fn register_endpoint(
        &mut self,
        token: Token,
        endpoint: Endpoint,
        role: impl FnOnce(Box<Endpoint>) -> Role,
    ) -> io::Result<()> {
        let number = endpoint.number();
        self.register(token, number, Interest::READABLE, Mode::Level, role(Box::new(endpoint)))
    }

    /// Removes a source from the table and from the poller.
    pub(super) fn remove(&mut self, token: Token) -> Option<Watch> {
        let watch = self.watches.remove(token)?;
        // A forked child that removes a descriptor from a shared epoll object removes it for its parent too.
        let ours = self.forks == fork::count();
        if ours
            && matches!(watch.registration, Registration::Registered | Registration::Spent)
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
                Registration::Registered => match poller.add(watch.fd, watch.token, watch.interest, watch.mode) {
                    Ok(()) => Registration::Registered,
                    // A descriptor that can no longer be added was closed by its owner.
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
        self.register(token, fd.as_raw_fd(), interest, mode, Role::Watched)
    }

    fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let poller = &mut self.parking.poller;
        let Some(watch) = self.watches.get_mut(token) else { return Err(no_such_source(token)) };
        // Fast path: nothing changes.
        if watch.interest == interest
            && watch.mode == mode
            && matches!(watch.registration, Registration::Registered | Registration::Aside)
        {
            return Ok(());
        }
        watch.registration = match (watch.registration, interest.is_none()) {
            (Registration::Lost, _) => return Err(rustix::io::Errno::BADF.into()),
            (Registration::Aside, true) => Registration::Aside,
            (Registration::Aside, false) => {
                add(poller, &mut self.always_ready, (watch.fd, token, interest, mode), &watch.role)?
            }
            (Registration::Always, _) => Registration::Always,
            (Registration::Registered | Registration::Spent, true) => {
                poller.remove(watch.fd)?;
                Registration::Aside
            }
            (Registration::Registered | Registration::Spent, false) => {
                poller.modify(watch.fd, token, interest, mode)?;
                Registration::Registered
            }
        };
        watch.interest = interest;
        watch.mode = mode;
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
