//! Protocols: what is said in answer to what, whatever the messages look like on the wire and wherever they come from.

mod framed;
mod peer;
mod pooled;

pub use framed::Framed;
pub use peer::{Peer, PushError};
pub use pooled::{Pooled, Service};

use crate::{Codec, Reactor, Reason};

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
pub trait Protocol: 'static {
    /// What is said, on either side.
    type Message: 'static;

    /// The connection is established. Keep a clone of `peer` to say something unasked later on, from anywhere.
    fn opened(&mut self, peer: &Peer<Self::Message>, replies: &mut Replies<Self::Message>) {
        let _ = (peer, replies);
    }

    /// A message has come in.
    fn process(&mut self, message: Self::Message, replies: &mut Replies<Self::Message>);

    /// Whether all has been said. Asked after [`opened`](Protocol::opened) and after each message; once it is so, nothing
    /// more is processed, and the connection is closed when the replies have been sent.
    fn should_close(&self) -> bool {
        false
    }

    /// The connection is over, or could not be established. Called once, and last.
    fn closed(&mut self, reason: &Reason) {
        let _ = reason;
    }
}

/// What a protocol says in answer: it goes out in this order, all that one read has brought about together.
#[derive(Debug)]
pub struct Replies<M> {
    messages: Vec<M>,
}

impl<M> Replies<M> {
    /// None yet.
    pub const fn new() -> Replies<M> {
        Replies { messages: Vec::new() }
    }

    /// Says `message`.
    pub fn send(&mut self, message: M) {
        self.messages.push(message);
    }

    /// Takes out what has been said.
    pub fn take(&mut self) -> Vec<M> {
        std::mem::take(&mut self.messages)
    }
}

impl<M> Default for Replies<M> {
    fn default() -> Replies<M> {
        Replies::new()
    }
}

impl<M> Extend<M> for Replies<M> {
    fn extend<T: IntoIterator<Item = M>>(&mut self, messages: T) {
        self.messages.extend(messages);
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
/// reactor.listen(&"127.0.0.1:0".parse()?, serve(|| Lines::new().crlf(), || Shout))?;
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
