//! The table of sources, kept in step with the poller.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::{ReadinessEngine, Role};
use crate::engine::{WatchEngine, no_such_source};
use crate::poller::Poller;
use crate::{Interest, Mode, Token, fault, fork};

/// A source, and what the poller was told about it.
pub(super) struct Watch {
    token: Token,
    fd: RawFd,
    pub(super) interest: Interest,
    pub(super) mode: Mode,
    pub(super) place: Place,
    pub(super) role: Role,
}

/// Where a descriptor is, as far as the poller is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Registered,
    /// In the poller, but silent: it is one-shot and has fired.
    Spent,
    /// Not in the poller, because nothing is of interest.
    Aside,
    /// Its owner closed it while it was watched. The number may already belong to another file.
    Lost,
}

/// All sources.
#[derive(Default)]
pub(super) struct Watches {
    /// At the index of each token.
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
    pub(super) fn new_wait(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
    }

    /// Records `token` and returns whether it is a ghost.
    pub(super) fn is_ghost(&mut self, token: Token) -> bool {
        self.now.push(token);
        self.before.contains(&token)
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
        let previous = self.watches.of_descriptor(fd);
        let place = match (previous.as_ref().map(|watch| watch.place), interest.is_none()) {
            // The poller does not have the descriptor, so it cannot tell whether it is the same file.
            (Some(Place::Aside), _) | (Some(Place::Registered | Place::Spent), true) => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            (None | Some(Place::Lost), true) => Place::Aside,
            (_, false) => {
                self.parking.poller.add(fd, token, interest, mode)?;
                Place::Registered
            }
        };
        // If the poller accepted a descriptor that it should already have had, the kernel saw the old one closed.
        if let Some(watch) = previous {
            watch.place = Place::Lost;
        }
        self.watches.insert(Watch { token, fd, interest, mode, place, role });
        Ok(())
    }

    /// Adds a source with the system's socket, which `role` wraps.
    pub(super) fn register_socket(&mut self, token: Token, interest: Interest, role: Role) -> io::Result<()> {
        let Some(socket) = role.socket() else { return Err(no_such_source(token)) };
        let fd = socket.as_fd().as_raw_fd();
        self.register(token, fd, interest, Mode::Level, role)
    }

    /// Removes a source from the table and from the poller.
    pub(super) fn remove(&mut self, token: Token) -> Option<Watch> {
        let watch = self.watches.remove(token)?;
        // A forked child that removes a descriptor from a shared epoll object removes it for its parent too.
        let ours = self.forks == fork::count();
        if ours
            && matches!(watch.place, Place::Registered | Place::Spent)
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
            watch.place = match watch.place {
                Place::Registered => match poller.add(watch.fd, watch.token, watch.interest, watch.mode) {
                    Ok(()) => Place::Registered,
                    // A descriptor that can no longer be added was closed by its owner.
                    Err(_) => Place::Lost,
                },
                Place::Spent => Place::Aside,
                place => place,
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
}
