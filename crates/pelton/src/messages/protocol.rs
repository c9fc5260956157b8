//! Protocols: which replies answer which messages, independent of their encoding and transport.

mod dialogue;
mod framed;
mod mailbox;
mod peer;
mod pending;
mod pooled;
mod replies;
mod session;
mod slot;

pub use framed::Framed;
pub use peer::{Peer, PushError};
pub use pooled::{ForPool, Pooled, Service};
pub use replies::Replies;
pub use slot::ReplySlot;

use crate::{Codec, Reactor, Reason};

/// How many replies of a connection may wait for an earlier one, unless the protocol's
/// [`pending_limit`](Protocol::pending_limit) differs. Enough to keep a few threads busy with one pipelining client.
pub const PENDING_LIMIT: usize = 16;

/// One side of a conversation in messages.
///
/// A protocol does not depend on the encoding, which is the codec's task, nor on the transport. It can be tested
/// without a connection, as below, and runs wherever there are messages.
///
/// ```
/// use pelton::{Protocol, Replies};
///
/// #[derive(Default)]
/// struct Counter {
///     count: u64,
///     leaving: bool,
/// }
///
/// impl Protocol for Counter {
///     type Message = String;
///
///     fn process(&mut self, message: String, replies: &mut Replies<String>) {
///         match message.as_str() {
///             "next" => self.count += 1,
///             "bye" => self.leaving = true,
///             other => return replies.send(format!("what is {other:?}?")),
///         }
///         replies.send(self.count.to_string());
///     }
///
///     fn should_close(&self) -> bool {
///         self.leaving
///     }
/// }
///
/// let mut counter = Counter::default();
/// let mut replies = Replies::new();
/// counter.process("next".to_owned(), &mut replies);
/// counter.process("bye".to_owned(), &mut replies);
/// assert_eq!(replies.take(), ["1", "1"]);
/// assert!(counter.should_close());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a protocol",
    label = "not a `Protocol`",
    note = "implement `Protocol` for it: `process` is the only method without a default"
)]
pub trait Protocol: 'static {
    /// The type of the messages, in both directions.
    type Message: 'static;

    /// Called when the connection is established. Keep a clone of `peer` to send unsolicited messages later, from
    /// anywhere.
    fn opened(&mut self, peer: &Peer<Self::Message>, replies: &mut Replies<'_, Self::Message>) {
        let _ = (peer, replies);
    }

    /// Handles a message. Answer it now with [`Replies::send`], or reserve a slot with [`Replies::later`] and answer
    /// from a timer, a thread, a promise or an actor. In both cases replies are sent in the order of the messages. On
    /// the loop, [`Replies::reactor`] returns the reactor.
    ///
    /// ```
    /// use pelton::{Protocol, Replies};
    /// use std::time::Duration;
    ///
    /// struct Sleepy;
    ///
    /// impl Protocol for Sleepy {
    ///     type Message = String;
    ///
    ///     fn process(&mut self, line: String, replies: &mut Replies<String>) {
    ///         let slot = replies.later();
    ///         if let Some(reactor) = replies.reactor() {
    ///             reactor.after(Duration::from_secs(1), move |_| slot.send(line));
    ///         }
    ///     }
    /// }
    /// ```
    fn process(&mut self, message: Self::Message, replies: &mut Replies<'_, Self::Message>);

    /// Returns how many replies may be pending, from the first one that is [unanswered](Replies::later) on. At the
    /// limit, no further messages are processed and reading stops until there is room. This bounds the work that one
    /// peer can have in progress.
    fn pending_limit(&self) -> usize {
        PENDING_LIMIT
    }

    /// Returns whether the conversation is over. Called after [`opened`](Protocol::opened) and after each message. Once
    /// it is `true`, no more messages are processed, and the connection closes after all replies have been sent,
    /// including pending ones.
    fn should_close(&self) -> bool {
        false
    }

    /// Called once, last, when the connection has ended or could not be established.
    fn closed(&mut self, reason: &Reason) {
        let _ = reason;
    }
}

/// Serves each accepted connection with its own codec and protocol, for [`Reactor::listen`]. They run on the loop or,
/// with [`Service::on`], on a pool of workers.
///
/// ```
/// use pelton::codec::Lines;
/// use pelton::{Protocol, Reactor, Replies, serve};
///
/// struct Shout;
///
/// impl Protocol for Shout {
///     type Message = String;
///
///     fn process(&mut self, line: String, replies: &mut Replies<String>) {
///         replies.send(line.to_uppercase());
///     }
/// }
///
/// let mut reactor = Reactor::new()?;
/// reactor.listen("127.0.0.1:0", serve(|| Lines::new().crlf(), || Shout))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve<C, P>(
    mut codec: impl FnMut() -> C + 'static,
    mut protocol: impl FnMut() -> P + 'static,
) -> impl FnMut(&mut Reactor) -> Framed<C, P> + 'static
where
    C: Codec,
    P: Protocol<Message = C::Message>,
{
    move |_| Framed::new(codec(), protocol())
}
