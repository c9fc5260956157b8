//! The other side of a connection, as named from elsewhere.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{ConnectionId, Handle, Reactor};

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
    handle: Handle,
    id: ConnectionId,
    ways: Ways,
    mailbox: Arc<Mutex<Mailbox<M>>>,
}

/// What the loop does for a peer. These know the connection's type, so that nobody else has to.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    /// Has the connection say what waits in the mailbox.
    pub(super) deliver: fn(&mut Reactor, ConnectionId),
    /// Closes the connection when all that was delivered has been sent.
    pub(super) close_after_writing: fn(&mut Reactor, ConnectionId),
}

/// What was pushed, until the loop comes to it. The loop is told once, however much is pushed meanwhile.
struct Mailbox<M> {
    messages: Vec<M>,
    over: bool,
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

impl<M: 'static> Peer<M> {
    pub(super) fn new(handle: Handle, id: ConnectionId, ways: Ways) -> Peer<M> {
        let mailbox = Arc::new(Mutex::new(Mailbox { messages: Vec::new(), over: false }));
        Peer { handle, id, ways, mailbox }
    }

    /// Says `message` to the other side: soon, and in the order in which it was pushed, by whatever thread. It goes past
    /// replies that are not made yet.
    ///
    /// It is refused if the connection is known to be over. If it ends while the message waits for the loop, is being
    /// closed, or breaks before all is sent, the message is dropped; nobody is told, as with anything that is sent.
    pub fn push(&self, message: M) -> Result<(), PushError<M>> {
        let mut mailbox = self.mailbox();
        if mailbox.over {
            return Err(PushError(message));
        }
        if mailbox.messages.is_empty() {
            let (deliver, id) = (self.ways.deliver, self.id);
            // The mailbox stays locked: whoever finds it in use may rely on this post being ahead of theirs.
            if self.handle.post(move |reactor| deliver(reactor, id)).is_err() {
                mailbox.over = true;
                return Err(PushError(message));
            }
        }
        mailbox.messages.push(message);
        Ok(())
    }

    /// Closes the connection when what was pushed, and anything else that waits, has been sent.
    pub fn close_after_writing(&self) {
        let (close, id) = (self.ways.close_after_writing, self.id);
        // A loop that is gone has no connections.
        let _ = self.handle.post(move |reactor| close(reactor, id));
    }

    /// Closes the connection. What waits to be sent is dropped.
    pub fn close(&self) {
        let id = self.id;
        let _ = self.handle.post(move |reactor| {
            if let Some(mut io) = reactor.connection(id) {
                io.close();
            }
        });
    }

    /// The connection's name on its reactor.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// On the loop: what has been pushed since the last time.
    pub(super) fn take_pushed(&self) -> Vec<M> {
        std::mem::take(&mut self.mailbox().messages)
    }

    /// Refuses what is pushed from now on, and drops what was.
    fn is_over(&self) {
        self.mailbox().over = true;
        // Not under the lock: dropping a message may run code that pushes.
        drop(self.take_pushed());
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox<M>> {
        // Nothing that can panic half-way is done under the lock.
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that a connection keeps for itself: with it goes what was pushed.
pub(super) struct OwnPeer<M: 'static>(pub(super) Peer<M>);

impl<M: 'static> Drop for OwnPeer<M> {
    fn drop(&mut self) {
        self.0.is_over();
    }
}

impl<M> Clone for Peer<M> {
    fn clone(&self) -> Peer<M> {
        Peer { handle: self.handle.clone(), id: self.id, ways: self.ways, mailbox: self.mailbox.clone() }
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
