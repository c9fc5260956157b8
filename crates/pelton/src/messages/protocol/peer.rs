//! A handle to the other side of a connection.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::mailbox::{Home, Letter, LoopCalls, Mailbox};
use crate::{ConnectionId, Handle};

/// Refers to the other side of a connection that exchanges messages, to send it unsolicited messages. Can be cloned,
/// and sent and shared if the messages are [`Send`].
///
/// ```
/// use pelton::{Peer, Protocol, Replies};
/// use std::sync::{Arc, Mutex};
///
/// /// Broadcasts what each peer sends to all others.
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
/// // Remove those that have ended.
///         self.room.lock().unwrap().retain_mut(others);
///     }
/// }
/// ```
pub struct Peer<M> {
    id: ConnectionId,
    mailbox: Arc<Mailbox<M>>,
}

/// The connection has ended, and the message was not pushed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("push a message: the connection has ended")]
pub struct PushError<M>(pub M);

impl<M> fmt::Debug for PushError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushError(..)")
    }
}

impl<M> Peer<M> {
    pub(super) fn new(handle: Handle, id: ConnectionId, calls: LoopCalls) -> Peer<M> {
        Peer { id, mailbox: Mailbox::new(Some(Home { handle, id, calls })) }
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox<M>> {
        &self.mailbox
    }

    /// Returns the connection's id on its reactor.
    pub fn id(&self) -> ConnectionId {
        self.id
    }
}

impl<M: 'static> Peer<M> {
    /// Sends `message` to the other side, without waiting for a request. Messages are sent in the order in which they
    /// were pushed, by any thread. They overtake replies that are [not ready](super::Replies::later).
    ///
    /// It fails if the connection is known to have ended. If the connection ends or is closed before everything is
    /// sent, the message is dropped silently, like any sent data.
    pub fn push(&self, message: M) -> Result<(), PushError<M>> {
        match self.mailbox.put(Letter::Push(message)) {
            Err(Letter::Push(message)) => Err(PushError(message)),
            _ => Ok(()),
        }
    }

    /// Stops processing messages until [`resume`](Peer::resume). Up to one read of further input is buffered. Then
    /// reading stops, which slows down the other side.
    ///
    /// It takes effect when the loop handles it. [`Replies::pause`](super::Replies::pause) takes effect at once.
    pub fn pause(&self) {
        // A connection that has ended processes nothing.
        let _ = self.mailbox.put(Letter::Pause);
    }

    /// Resumes processing after [`pause`](Peer::pause) or [`Replies::pause`](super::Replies::pause).
    pub fn resume(&self) {
        let _ = self.mailbox.put(Letter::Resume);
    }

    /// Closes the connection after the received messages have been answered and all pushed and queued data has been
    /// sent. Messages held back by a [pause](Peer::pause) are dropped.
    pub fn close_after_writing(&self) {
        let Some(home) = self.mailbox.home() else { return };
        let (close, id) = (home.calls.close_after_writing, home.id);
        // A loop that has ended has no connections.
        let _ = home.handle.post(move |reactor| close(reactor, id));
    }

    /// Closes the connection. Queued data is dropped.
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

/// The connection's own `Peer`. Dropping it drops the contents of the mailbox.
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

/// Two peers are equal if they refer to the same connection.
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
