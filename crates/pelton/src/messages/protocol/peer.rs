//! The other side of a connection, as named from elsewhere.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::mailbox::{Home, Letter, Mailbox, Ways};
use crate::{ConnectionId, Handle};

/// Names the other side of a connection that speaks in messages, to tell it something unasked. May be cloned, and, if the
/// messages are [`Send`], sent and shared freely.
///
/// ```
/// use pelton::{Peer, Protocol, Replies};
/// use std::sync::{Arc, Mutex};
///
/// /// What one says, all others hear.
/// struct Chat {
///     room: Arc<Mutex<Vec<Peer<String>>>>,
///     me: Option<Peer<String>>,
/// }
///
/// impl Protocol for Chat {
///     type Message = String;
///
///     fn opened(&mut self, peer: &Peer<String>, _: &mut Replies<String>) {
///         self.me = Some(peer.clone());
///         self.room.lock().unwrap().push(peer.clone());
///     }
///
///     fn process(&mut self, line: String, _: &mut Replies<String>) {
///         let others = |peer: &mut Peer<String>| Some(&*peer) == self.me.as_ref() || peer.push(line.clone()).is_ok();
///         // Those that are over leave the room.
///         self.room.lock().unwrap().retain_mut(others);
///     }
/// }
/// ```
pub struct Peer<M> {
    id: ConnectionId,
    mailbox: Arc<Mailbox<M>>,
}

/// The connection is over, and this was not pushed to it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("push a message: the connection is over")]
pub struct PushError<M>(pub M);

impl<M> fmt::Debug for PushError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushError(..)")
    }
}

impl<M> Peer<M> {
    pub(super) fn new(handle: Handle, id: ConnectionId, ways: Ways) -> Peer<M> {
        Peer { id, mailbox: Mailbox::new(Some(Home { handle, id, ways })) }
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox<M>> {
        &self.mailbox
    }

    /// The connection's name on its reactor.
    pub fn id(&self) -> ConnectionId {
        self.id
    }
}

impl<M: 'static> Peer<M> {
    /// Says `message` to the other side: soon, and in the order in which it was pushed, by whatever thread. It overtakes
    /// replies that are [not there yet](super::Replies::later).
    ///
    /// It is refused if the connection is known to be over. If it ends while the message waits for the loop, is being
    /// closed, or breaks before all is sent, the message is dropped; nobody is told, as with anything that is sent.
    pub fn push(&self, message: M) -> Result<(), PushError<M>> {
        match self.mailbox.put(Letter::Push(message)) {
            Err(Letter::Push(message)) => Err(PushError(message)),
            _ => Ok(()),
        }
    }

    /// Processes no further message until [`resume`](Peer::resume). What comes in meanwhile is kept, up to one read; then
    /// nothing more is read from the connection, so the other side is slowed down.
    ///
    /// It takes effect when the loop comes to it; [`Replies::pause`](super::Replies::pause) does at once.
    pub fn pause(&self) {
        // A connection that is over processes nothing.
        let _ = self.mailbox.put(Letter::Pause);
    }

    /// Processes messages again, after [`pause`](Peer::pause) or [`Replies::pause`](super::Replies::pause).
    pub fn resume(&self) {
        let _ = self.mailbox.put(Letter::Resume);
    }

    /// Closes the connection when the messages that have come in are answered, and what was pushed, and anything else that
    /// waits, has been sent. Messages held back by a [pause](Peer::pause) are dropped.
    pub fn close_after_writing(&self) {
        let Some(home) = self.mailbox.home() else { return };
        let (close, id) = (home.ways.close_after_writing, home.id);
        // A loop that is gone has no connections.
        let _ = home.handle.post(move |reactor| close(reactor, id));
    }

    /// Closes the connection. What waits to be sent is dropped.
    pub fn close(&self) {
        let Some(home) = self.mailbox.home() else { return };
        let id = home.id;
        let _ = home.handle.post(move |reactor| {
            if let Some(mut io) = reactor.connection(id) {
                io.close();
            }
        });
    }
}

/// The one that a connection keeps for itself: with it goes what is in the mailbox.
pub(super) struct OwnPeer<M: 'static>(pub(super) Peer<M>);

impl<M: 'static> Drop for OwnPeer<M> {
    fn drop(&mut self) {
        self.0.mailbox.end();
    }
}

impl<M> Clone for Peer<M> {
    fn clone(&self) -> Peer<M> {
        Peer { id: self.id, mailbox: self.mailbox.clone() }
    }
}

/// Two are equal if they name the same connection.
impl<M> PartialEq for Peer<M> {
    fn eq(&self, other: &Peer<M>) -> bool {
        Arc::ptr_eq(&self.mailbox, &other.mailbox)
    }
}

impl<M> Eq for Peer<M> {}

impl<M> Hash for Peer<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.mailbox).hash(state);
    }
}

impl<M> fmt::Debug for Peer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).finish_non_exhaustive()
    }
}
