//! Sources that are ready without another report of the poller.
//!
//! The poller reports the changes of TCP sockets, not their states, where it can: a connection is registered once, whatever is of
//! interest later, and the kernel does not check again what was already reported. So the engine remembers what is left to
//! receive or to send when a source has had its share of a turn. The poller does not know streams over some devices, such as
//! `/dev/null` and `/dev/zero`, which are always ready: epoll refuses to wait for them.
//!
//! While one of these receives or sends, the engine does not sleep, and each turn serves it once.

use super::watches::{Input, Registration, Watch, Watches};
use super::{ReadinessEngine, Role};
use crate::engine::Event;
use crate::poller::Poller;
use crate::stream::Stream;
use crate::{Interest, Readiness, Token};

/// What a socket is ready for, as far as the poller will not report it again, and whether it is in the list.
#[derive(Clone, Copy, Default)]
pub(super) struct Pending(u8);

impl Pending {
    const READABLE: u8 = 1;
    /// The end or urgent data is among what can be received, so only receiving nothing shows that nothing is left.
    const MARKED: u8 = 2;
    const WRITABLE: u8 = 4;
    const LISTED: u8 = 8;

    fn has(self, part: u8) -> bool {
        self.0 & part != 0
    }

    fn is_of(self, interest: Interest) -> bool {
        (interest.readable() && self.has(Pending::READABLE)) || (interest.writable() && self.has(Pending::WRITABLE))
    }

    fn reported(&mut self, readiness: Readiness) {
        self.0 |= Pending::READABLE;
        if readiness.intersects(FINAL | Readiness::MARKED) {
            self.0 |= Pending::MARKED;
        }
    }

    /// Returns whether a read that has not filled its buffer has received everything.
    pub(super) fn ends_with_short_read(self) -> bool {
        !self.has(Pending::MARKED)
    }

    /// Everything was received.
    pub(super) fn all_received(&mut self) {
        self.0 &= !(Pending::READABLE | Pending::MARKED);
    }

    /// There is room to send more than this turn may.
    pub(super) fn has_room(&mut self) {
        self.0 |= Pending::WRITABLE;
    }

    fn take_room(&mut self) -> bool {
        let had = self.has(Pending::WRITABLE);
        self.0 &= !Pending::WRITABLE;
        had
    }

    pub(super) fn clear(&mut self) {
        self.0 &= Pending::LISTED;
    }
}

/// Readiness after which both directions have something to tell.
const FINAL: Readiness = Readiness::HANGUP.union(Readiness::ERROR);

impl Watch {
    /// Returns whether the poller may report changes of this source.
    ///
    /// Only those of TCP sockets: a read of a Unix socket can stop early, at a message with descriptors. And only if the engine
    /// receives, so that it knows when everything was received.
    pub(super) fn has_changes(&self) -> bool {
        match &self.role {
            Role::Connecting(socket) => socket.is_tcp(),
            Role::Stream(Stream::Socket(socket)) => socket.is_tcp() && self.input != Input::Reported,
            _ => false,
        }
    }
}

impl Role {
    /// Returns whether this is a socket of the engine, without duplicates in this process.
    pub(super) fn is_sole_descriptor(&self) -> bool {
        match self {
            Role::Connecting(socket) | Role::Stream(Stream::Socket(socket)) => socket.is_sole(),
            _ => false,
        }
    }
}

/// Sources to serve without a report.
#[derive(Default)]
pub(super) struct Ready {
    /// Sources with something pending, streams that are always ready, and some that are neither any more.
    list: Vec<Token>,
    /// The next one to serve in this turn.
    next: usize,
    /// Those from here on were added in this turn, after they had been served.
    end: usize,
}

impl Ready {
    /// Adds a stream that is always ready.
    pub(super) fn add(&mut self, token: Token) {
        self.list.push(token);
    }

    /// Adds a source if something of interest is pending. The next turn serves it.
    pub(super) fn add_if_pending(&mut self, watch: &mut Watch) {
        if watch.pending.is_of(watch.interest) && !watch.pending.has(Pending::LISTED) {
            watch.pending.0 |= Pending::LISTED;
            self.list.push(watch.token());
        }
    }
}

/// Returns what a stream that is always ready is ready for: everything that is of interest.
fn always(watch: &Watch) -> Readiness {
    let mut readiness = Readiness::NONE;
    if watch.interest.readable() {
        readiness |= Readiness::READABLE;
    }
    if watch.interest.writable() {
        readiness |= Readiness::WRITABLE;
    }
    readiness
}

fn is_ready(watches: &Watches, token: Token) -> bool {
    watches.get(token).is_some_and(|watch| match watch.registration {
        Registration::Always => !watch.interest.is_none(),
        _ => watch.pending.is_of(watch.interest),
    })
}

impl<P: Poller> ReadinessEngine<P> {
    /// Before a wait: returns whether the next turn will find something without it.
    #[inline]
    pub(super) fn has_ready(&mut self) -> bool {
        !self.ready.list.is_empty() && self.list_ready()
    }

    #[inline(never)]
    fn list_ready(&mut self) -> bool {
        let Ready { list, next, end } = &mut self.ready;
        list.retain(|token| {
            let Some(watch) = self.watches.get_mut(*token) else { return false };
            let stays = watch.registration == Registration::Always || watch.pending.is_of(watch.interest);
            if !stays {
                watch.pending.0 &= !Pending::LISTED;
            }
            stays
        });
        (*next, *end) = (0, list.len());
        self.is_any_ready()
    }

    pub(super) fn is_any_ready(&self) -> bool {
        self.ready.list.iter().any(|token| is_ready(&self.watches, *token))
    }

    /// Serves the next source of the list that is ready.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<Event> {
        if self.ready.next == self.ready.end { None } else { self.serve_ready() }
    }

    #[inline(never)]
    fn serve_ready(&mut self) -> Option<Event> {
        while self.ready.next < self.ready.end {
            let token = self.ready.list[self.ready.next];
            self.ready.next += 1;
            let Some(watch) = self.watches.get(token) else { continue };
            let event = match watch.registration {
                Registration::Always => self.source_is_ready(token, always(watch)),
                _ => self.serve_pending(token),
            };
            // The second half of a readiness is in the queue even if the first has no event.
            if let Some(event) = event.or_else(|| self.events.pop_front()) {
                return Some(event);
            }
        }
        None
    }

    fn serve_pending(&mut self, token: Token) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let sendable = watch.interest.writable() && watch.pending.take_room();
        let receivable = watch.interest.readable() && watch.pending.has(Pending::READABLE);
        self.transfer(token, receivable, sendable)
    }

    /// Receives, and reports room to send.
    #[inline]
    fn transfer(&mut self, token: Token, receivable: bool, sendable: bool) -> Option<Event> {
        if !receivable {
            return sendable.then_some(Event::Sendable(token));
        }
        if sendable {
            self.events.push_back(Event::Sendable(token));
        }
        self.receive_once(token)
    }

    /// The poller has reported changes of a socket.
    pub(super) fn has_changed(&mut self, token: Token, readiness: Readiness) -> Option<Event> {
        let watch = self.watches.get_mut(token)?;
        let mut receivable = false;
        if watch.input == Input::Received && readiness.intersects(READABLE) {
            watch.pending.reported(readiness);
            receivable = true;
        }
        if let Role::Connecting(_) = watch.role {
            return if readiness.intersects(WRITABLE) { self.connect_is_over(token, readiness) } else { None };
        }
        let sendable = watch.interest.writable() && readiness.intersects(WRITABLE);
        if receivable && !watch.interest.readable() {
            // Reading is paused, and whatever arrives next would wake the loop again.
            if let Err(error) = self.report_states(token) {
                return Some(Event::Ended(token, Err(error)));
            }
            receivable = false;
        } else if watch.pending.has(Pending::LISTED) {
            // It has its turn soon.
            receivable = false;
        }
        self.transfer(token, receivable, sendable)
    }
}

const READABLE: Readiness = FINAL.union(Readiness::READABLE).union(Readiness::MARKED);
const WRITABLE: Readiness = FINAL.union(Readiness::WRITABLE);
