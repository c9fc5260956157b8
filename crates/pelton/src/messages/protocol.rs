//! Protocols: what is said in answer to what, whatever the messages look like on the wire and wherever they come from.

mod dialogue;
mod framed;
mod line;
mod mailbox;
mod peer;
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

/// How many replies of a connection may wait for an earlier one, unless its protocol
/// [says otherwise](Protocol::pending_limit): enough to keep a few threads busy with one pipelining client.
pub const PENDING_LIMIT: usize = 16;

/// One side of a conversation in messages.
///
/// It knows neither how messages are made bytes, which is its codec's business, nor what moves these: so it can be tried
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
    /// What is said, on either side.
    type Message: 'static;

    /// The connection is established. Keep a clone of `peer` to say something unasked later on, from anywhere.
    fn opened(&mut self, peer: &Peer<Self::Message>, replies: &mut Replies<'_, Self::Message>) {
        let _ = (peer, replies);
    }

    /// A message has come in. Answer it now with [`Replies::send`], or reserve a place in line with [`Replies::later`] and answer
    /// from a timer, a thread, a promise, an actor; replies go out in the order of the messages either way. On the loop,
    /// [`Replies::reactor`] is the reactor.
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

    /// How many replies may wait in line behind the first that is [not there yet](Replies::later), itself included. Then no
    /// further message is processed, and nothing more is read, until there is room: it bounds what one peer can have in progress.
    fn pending_limit(&self) -> usize {
        PENDING_LIMIT
    }

    /// Whether all has been said. Asked after [`opened`](Protocol::opened) and after each message; once it is so, nothing
    /// more is processed, and the connection is closed when the replies have been sent, those that come later included.
    fn should_close(&self) -> bool {
        false
    }

    /// The connection is over, or could not be established. Called once, and last.
    fn closed(&mut self, reason: &Reason) {
        let _ = reason;
    }
}

/// Has each connection that comes in served by a codec and a protocol of its own: for [`Reactor::listen`]. They run on the
/// loop, or, with [`Service::on`], on a pool of workers.
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
