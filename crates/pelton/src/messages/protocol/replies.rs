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
    said: Said<M>,
    seat: Seat<'a, M>,
    reactor: Option<&'a mut Reactor>,
    pauses: bool,
}

/// Messages. Most replies are one, which takes no memory of its own.
#[derive(Debug)]
pub(super) struct Said<M> {
    first: Option<M>,
    rest: Vec<M>,
}

impl<M> Said<M> {
    const fn new() -> Said<M> {
        Said { first: None, rest: Vec::new() }
    }

    fn push(&mut self, message: M) {
        if self.first.is_none() {
            self.first = Some(message);
        } else {
            self.rest.push(message);
        }
    }

    fn take(&mut self) -> Said<M> {
        std::mem::replace(self, Said::new())
    }

    /// Calls `f` with each, in order, until it fails.
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

    /// Puts all in line.
    pub(super) fn line_up(self, line: &mut Line<M>) {
        self.first.into_iter().chain(self.rest).for_each(|message| line.put(message));
    }
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
        Replies { said: Said::new(), seat: Seat::Alone(None), reactor: None, pauses: false }
    }

    /// Says `message`.
    pub fn send(&mut self, message: M) {
        self.said.push(message);
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
        self.said.take().line_up(line);
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
        let said = self.said.take();
        let Seat::Alone(Some((line, mailbox))) = &mut self.seat else {
            return said.first.into_iter().chain(said.rest).collect();
        };
        said.line_up(line);
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
    /// On a connection.
    pub(super) fn connected(
        line: &'a mut Line<M>,
        peer: &'a Peer<M>,
        reactor: Option<&'a mut Reactor>,
    ) -> Replies<'a, M> {
        Replies { said: Said::new(), seat: Seat::Connected { line, peer }, reactor, pauses: false }
    }

    /// What was said after the last place that was reserved, and whether the protocol pauses.
    pub(super) fn into_said(self) -> (Said<M>, bool) {
        (self.said, self.pauses)
    }
}

impl<M> Default for Replies<'_, M> {
    fn default() -> Self {
        Replies::new()
    }
}

impl<M> Extend<M> for Replies<'_, M> {
    fn extend<T: IntoIterator<Item = M>>(&mut self, messages: T) {
        messages.into_iter().for_each(|message| self.said.push(message));
    }
}

impl<M: fmt::Debug> fmt::Debug for Replies<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("said", &self.said).finish_non_exhaustive()
    }
}
