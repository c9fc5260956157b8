//! What a protocol says in answer, now or later.

use std::fmt;
use std::sync::Arc;

use super::line::{Answer, Line};
use super::mailbox::{Letter, Mailbox};
use super::{Peer, ReplySlot};
use crate::Reactor;

/// What a protocol says in answer to a message: [now](Replies::send), or [later](Replies::later). It goes out in the order in
/// which it was said or reserved; all replies to one read go out together.
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
    /// What was said since the last place was reserved.
    messages: Vec<M>,
    seat: Seat<'a, M>,
    reactor: Option<&'a mut Reactor>,
    pauses: bool,
}

/// Where places in line are reserved.
enum Seat<'a, M> {
    /// There is no connection; made when it is needed.
    Alone(Option<(Line<M>, Arc<Mailbox<M>>)>),
    Connected {
        line: &'a mut Line<M>,
        peer: &'a Peer<M>,
    },
}

impl<'a, M> Replies<'a, M> {
    /// An empty one, without a connection: to try protocols with.
    pub const fn new() -> Replies<'a, M> {
        Replies { messages: Vec::new(), seat: Seat::Alone(None), reactor: None, pauses: false }
    }

    /// Says `message`.
    pub fn send(&mut self, message: M) {
        self.messages.push(message);
    }

    /// Reserves a place in line for a reply that comes later, from wherever the slot is taken to. What is said after this waits
    /// for it. See [`ReplySlot`] for the ways to answer.
    ///
    /// At most [`pending_limit`](super::Protocol::pending_limit) replies wait in line; then no further message is processed, and
    /// nothing more is read, until the first is answered.
    pub fn later(&mut self) -> ReplySlot<M>
    where
        M: 'static,
    {
        let (line, mailbox) = match &mut self.seat {
            Seat::Connected { line, peer } => (&mut **line, peer.mailbox()),
            Seat::Alone(own) => {
                let (line, mailbox) = own.get_or_insert_with(|| (Line::new(), Mailbox::new(None)));
                (line, &*mailbox)
            }
        };
        self.messages.drain(..).for_each(|message| line.put(message));
        ReplySlot::new(mailbox.clone(), line.open())
    }

    /// The reactor that the protocol runs on. `None` on a worker of a [pool](super::Service::on), and without a connection.
    pub fn reactor(&mut self) -> Option<&mut Reactor> {
        self.reactor.as_deref_mut()
    }

    /// The other side of the connection. `None` without one.
    pub fn peer(&self) -> Option<&Peer<M>> {
        match &self.seat {
            Seat::Connected { peer, .. } => Some(peer),
            Seat::Alone(_) => None,
        }
    }

    /// Processes no further message after this one until [`Peer::resume`]. What comes in meanwhile is kept, up to one read;
    /// then nothing more is read from the connection.
    pub fn pause(&mut self) {
        self.pauses = true;
    }

    /// Takes out what has been said, up to the first reply that is not there yet.
    pub fn take(&mut self) -> Vec<M> {
        let Seat::Alone(Some((line, mailbox))) = &mut self.seat else { return std::mem::take(&mut self.messages) };
        self.messages.drain(..).for_each(|message| line.put(message));
        for letter in mailbox.take() {
            if let Letter::Answer(place, answer) = letter {
                line.answer(place, answer);
            }
        }
        let mut ready = Vec::new();
        while let Some(answer) = line.next() {
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
    /// On a connection. `memory` is an empty vector to be used again.
    pub(super) fn connected(
        memory: Vec<M>,
        line: &'a mut Line<M>,
        peer: &'a Peer<M>,
        reactor: Option<&'a mut Reactor>,
    ) -> Replies<'a, M> {
        Replies { messages: memory, seat: Seat::Connected { line, peer }, reactor, pauses: false }
    }

    /// What was said after the last place that was reserved, and whether the protocol pauses.
    pub(super) fn into_said(self) -> (Vec<M>, bool) {
        (self.messages, self.pauses)
    }
}

impl<M> Default for Replies<'_, M> {
    fn default() -> Self {
        Replies::new()
    }
}

impl<M> Extend<M> for Replies<'_, M> {
    fn extend<T: IntoIterator<Item = M>>(&mut self, messages: T) {
        self.messages.extend(messages);
    }
}

impl<M: fmt::Debug> fmt::Debug for Replies<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("messages", &self.messages).finish_non_exhaustive()
    }
}
