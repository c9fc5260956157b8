//! Streams that the poller cannot wait for, and borrowed ones that it has lost.

use std::io;

use super::watches::{Input, Registration};
use super::{ReadinessEngine, Role};
use crate::engine::Event;
use crate::poller::Poller;
use crate::stream::Stream;
use crate::{Interest, Readiness, StreamKind, Token, fault};

/// Returns whether the poller's error says that the file has no readiness to wait for.
pub(super) fn is_always_ready(role: &Role, error: &io::Error) -> bool {
    let is_other = matches!(role, Role::Stream(Stream::Descriptor(_)));
    // epoll says EPERM, a kqueue ENODEV.
    is_other && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV))
}

impl Role {
    /// Returns whether it is a borrowed descriptor that its owner has closed.
    pub(super) fn is_closed_by_owner(&self) -> bool {
        match self {
            Role::Stream(Stream::Descriptor(descriptor)) => descriptor.is_closed_by_owner(),
            Role::Listener(endpoint) | Role::Datagrams(endpoint) => endpoint.is_closed_by_owner(),
            Role::Watched(_) | Role::Connecting(_) | Role::Stream(Stream::Socket(_)) => false,
        }
    }
}

impl<P: Poller> ReadinessEngine<P> {
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
        let outcome = self.set_interest(token, interest);
        if is_lost {
            return Some(Event::Ended(token, Err(rustix::io::Errno::PIPE.into())));
        }
        outcome.err().map(|error| Event::Ended(token, Err(error)))
    }
}
