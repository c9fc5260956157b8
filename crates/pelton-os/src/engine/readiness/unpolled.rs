//! Streams that the poller cannot wait for, and borrowed ones that it has lost.

use std::io;

use super::watches::{Input, Registration, Watches};
use super::{ReadinessEngine, Role};
use crate::engine::{Event, WatchEngine};
use crate::poller::Poller;
use crate::stream::Stream;
use crate::{Interest, Mode, Readiness, StreamKind, Token, fault};

/// Streams over devices that are always ready, such as `/dev/null` and `/dev/zero`. epoll refuses to wait for them. While one
/// receives or sends, the engine does not sleep, and each turn serves it once.
#[derive(Default)]
pub(super) struct AlwaysReady {
    /// All of them, and some that were forgotten.
    all: Vec<Token>,
    /// How many of them this turn has served.
    served: usize,
}

impl AlwaysReady {
    pub(super) fn add(&mut self, token: Token) {
        self.all.push(token);
        // Not in this turn: its handler has just been told about something.
        self.served = self.all.len();
    }
}

/// Returns whether the poller's error says that the file has no readiness to wait for.
pub(super) fn is_always_ready(role: &Role, error: &io::Error) -> bool {
    let is_other = matches!(role, Role::Stream(Stream::Descriptor(_)));
    // epoll says EPERM, a kqueue ENODEV.
    is_other && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV))
}

/// Returns what such a stream is ready for: everything that is of interest.
fn readiness(watches: &Watches, token: Token) -> Readiness {
    let interest = watches.get(token).map_or(Interest::NONE, |watch| watch.interest);
    let mut readiness = Readiness::NONE;
    if interest.readable() {
        readiness |= Readiness::READABLE;
    }
    if interest.writable() {
        readiness |= Readiness::WRITABLE;
    }
    readiness
}

impl Role {
    /// Returns whether it is a borrowed descriptor that its owner has closed.
    pub(super) fn is_closed_by_owner(&self) -> bool {
        match self {
            Role::Stream(Stream::Descriptor(descriptor)) => descriptor.is_closed_by_owner(),
            Role::Listener(endpoint) | Role::Datagrams(endpoint) => endpoint.is_closed_by_owner(),
            Role::Watched | Role::Connecting(_) | Role::Stream(Stream::Socket(_)) => false,
        }
    }
}

impl<P: Poller> ReadinessEngine<P> {
    /// Before a wait: returns whether the next turn will find something without it.
    pub(super) fn has_always_ready(&mut self) -> bool {
        let AlwaysReady { all, served } = &mut self.always_ready;
        if all.is_empty() {
            return false;
        }
        *served = 0;
        all.retain(|token| self.watches.get(*token).is_some());
        all.iter().any(|token| !readiness(&self.watches, *token).is_none())
    }

    /// Returns the next of them that is of interest and was not served this turn.
    pub(super) fn next_always_ready(&mut self) -> Option<(Token, Readiness)> {
        loop {
            let token = *self.always_ready.all.get(self.always_ready.served)?;
            self.always_ready.served += 1;
            let readiness = readiness(&self.watches, token);
            if !readiness.is_none() {
                return Some((token, readiness));
            }
        }
    }

    /// The poller has reported a source that is lost to it.
    pub(super) fn lost_source_is_ready(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        if readiness.contains(Readiness::CLOSED) {
            return self.owner_has_closed(token);
        }
        // It was closed while a duplicate of it is still open.
        self.meet_stranger(token);
        None
    }

    /// The owner of a borrowed descriptor has closed it: ends the source. The poller does not have it any more.
    pub(super) fn owner_has_closed(&mut self, token: Token) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let error = watch.role.fd().err().unwrap_or_else(|| rustix::io::Errno::BADF.into());
        watch.registration = Registration::Lost;
        watch.interest = Interest::NONE;
        if std::mem::replace(&mut watch.input, Input::Ended) == Input::Ended {
            return None;
        }
        Some(Event::Ended(token, Err(error)))
    }

    /// The poller has reported a source whose owner has closed it without a word: the report is about another file that has its
    /// number now, or about a duplicate.
    pub(super) fn owner_has_closed_unnoticed(&mut self, token: Token) -> Option<Event> {
        if let Err(error) = self.watches.get_mut(token)?.leave(&mut self.parking.poller) {
            fault::report_here("engine", &format_args!("could not remove a closed descriptor: {error}"));
        }
        self.owner_has_closed(token)
    }

    /// The poller has reported input of a stream that is received manually. On a stream that only sends, that is the end, unless
    /// the poller cannot tell.
    pub(super) fn stream_is_receivable(&mut self, token: Token) -> Option<Event> {
        match &self.watches.get(token)?.role {
            Role::Stream(Stream::Descriptor(descriptor))
                if descriptor.kind() == StreamKind::WriteOnly && !descriptor.has_lost_reader() =>
            {
                self.one_way_is_readable(token)
            }
            _ => Some(Event::Receivable(token)),
        }
    }

    /// The poller has reported a stream that only sends. That is how it tells that nobody reads any more. Other reports mean
    /// that it cannot tell.
    pub(super) fn one_way_is_readable(&mut self, token: Token) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let Role::Stream(Stream::Descriptor(descriptor)) = &watch.role else { return None };
        let is_lost = descriptor.has_lost_reader();
        if is_lost {
            watch.input = Input::Ended;
        }
        let interest = watch.interest.without(Interest::READABLE);
        let outcome = self.rewatch(token, interest, Mode::Level);
        if is_lost {
            return Some(Event::Ended(token, Err(rustix::io::Errno::PIPE.into())));
        }
        outcome.err().map(|error| Event::Ended(token, Err(error)))
    }
}
