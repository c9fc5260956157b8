//! The replies of a protocol, now or later.

use std::fmt;
use std::sync::Arc;

use super::mailbox::{Letter, Mailbox};
use super::pending::{Answer, Pending};
use super::{Peer, ReplySlot};
use crate::Reactor;

/// Collects the replies of a protocol to a message: [now](Replies::send) or [later](Replies::later). They are sent in
/// the order in which they were sent or reserved. All replies to one read are sent together.
///
/// ```
/// use pelton::Replies;
///
/// let mut replies = Replies::new();
/// replies.send("first");
/// let second = replies.later();
/// replies.send("third");
/// assert_eq!(replies.take(), ["first"]);
/// second.send("second");
/// assert_eq!(replies.take(), ["second", "third"]);
/// ```
pub struct Replies<'a, M> {
    /// Replies since the last reserved slot.
    batch: Batch<M>,
    target: Target<'a, M>,
    reactor: Option<&'a mut Reactor>,
    pauses: bool,
}

/// A list of messages. Most replies consist of one message, which needs no allocation.
#[derive(Debug)]
pub(super) struct Batch<M> {
    first: Option<M>,
    rest: Vec<M>,
}

impl<M> Batch<M> {
    const fn new() -> Batch<M> {
        Batch { first: None, rest: Vec::new() }
    }

    fn push(&mut self, message: M) {
        if self.first.is_none() {
            self.first = Some(message);
        } else {
            self.rest.push(message);
        }
    }

    fn take(&mut self) -> Batch<M> {
        std::mem::replace(self, Batch::new())
    }

    /// Calls `f` with each message in order, until it fails.
    #[inline]
    pub(super) fn try_for_each<E>(self, mut f: impl FnMut(M) -> Result<(), E>) -> Result<(), E> {
        match self.first {
            None => Ok(()),
            Some(first) => {
                f(first)?;
                self.rest.into_iter().try_for_each(f)
            }
        }
    }

    /// Appends all messages to the pending replies.
    pub(super) fn queue_in(self, pending: &mut Pending<M>) {
        self.first.into_iter().chain(self.rest).for_each(|message| pending.put(message));
    }
}

/// Where slots are reserved.
enum Target<'a, M> {
    /// There is no connection. Created on demand.
    Alone(Option<(Pending<M>, Arc<Mailbox<M>>)>),
    Connected {
        pending: &'a mut Pending<M>,
        peer: &'a Peer<M>,
    },
}

impl<'a, M> Replies<'a, M> {
    /// Creates an empty list without a connection, for testing protocols.
    pub const fn new() -> Replies<'a, M> {
        Replies { batch: Batch::new(), target: Target::Alone(None), reactor: None, pauses: false }
    }

    /// Sends `message` as a reply.
    pub fn send(&mut self, message: M) {
        self.batch.push(message);
    }

    /// Reserves a slot for a reply that is sent later, from any place. Replies sent after this wait for it. See
    /// [`ReplySlot`] for the ways to answer.
    ///
    /// At most [`pending_limit`](super::Protocol::pending_limit) replies may be pending. Then no further messages are
    /// processed and reading stops until the first one is answered.
    pub fn later(&mut self) -> ReplySlot<M>
    where
        M: 'static,
    {
        let (pending, mailbox) = match &mut self.target {
            Target::Connected { pending, peer } => (&mut **pending, peer.mailbox()),
            Target::Alone(own) => {
                let (pending, mailbox) = own.get_or_insert_with(|| (Pending::new(), Mailbox::new(None)));
                (pending, &*mailbox)
            }
        };
        self.batch.take().queue_in(pending);
        ReplySlot::new(mailbox.clone(), pending.reserve())
    }

    /// Returns the reactor that the protocol runs on, or `None` on a worker of a [pool](super::Service::on) and without
    /// a connection.
    pub fn reactor(&mut self) -> Option<&mut Reactor> {
        self.reactor.as_deref_mut()
    }

    /// Returns the other side of the connection, or `None` without one.
    pub fn peer(&self) -> Option<&Peer<M>> {
        match &self.target {
            Target::Connected { peer, .. } => Some(peer),
            Target::Alone(_) => None,
        }
    }

    /// Stops processing messages after this one until [`Peer::resume`]. Up to one read of further input is buffered.
    /// Then reading stops.
    pub fn pause(&mut self) {
        self.pauses = true;
    }

    /// Takes the replies up to the first unanswered slot.
    pub fn take(&mut self) -> Vec<M> {
        let batch = self.batch.take();
        let Target::Alone(Some((pending, mailbox))) = &mut self.target else {
            return batch.first.into_iter().chain(batch.rest).collect();
        };
        batch.queue_in(pending);
        for letter in mailbox.take() {
            if let Letter::Answer(number, answer) = letter {
                pending.answer(number, answer);
            }
        }
        let mut ready = Vec::new();
        while let Some(answer) = pending.next() {
            match answer {
                Answer::One(message) => ready.push(message),
                Answer::Many(messages) => ready.extend(messages),
                Answer::Dropped => {}
            }
        }
        ready
    }
}

impl<'a, M> Replies<'a, M> {
    /// Creates a list for a connection.
    pub(super) fn connected(
        pending: &'a mut Pending<M>,
        peer: &'a Peer<M>,
        reactor: Option<&'a mut Reactor>,
    ) -> Replies<'a, M> {
        Replies { batch: Batch::new(), target: Target::Connected { pending, peer }, reactor, pauses: false }
    }

    /// Returns the replies after the last reserved slot, and whether the protocol pauses.
    pub(super) fn into_batch(self) -> (Batch<M>, bool) {
        (self.batch, self.pauses)
    }
}

impl<M> Default for Replies<'_, M> {
    fn default() -> Self {
        Replies::new()
    }
}

impl<M> Extend<M> for Replies<'_, M> {
    fn extend<T: IntoIterator<Item = M>>(&mut self, messages: T) {
        messages.into_iter().for_each(|message| self.batch.push(message));
    }
}

impl<M: fmt::Debug> fmt::Debug for Replies<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("batch", &self.batch).finish_non_exhaustive()
    }
}
