//! A connection that speaks in messages.

use super::peer::{OwnPeer, Ways};
use super::{Peer, Protocol, Replies};
use crate::codec::Buffer;
use crate::{Chunk, Codec, Connection, ConnectionId, FrameError, Io, Reactor, Reason, SendError};

/// Replies are handed to the connection when they come to this many bytes, so that one that nobody reads is noticed
/// before all its replies are in memory.
const BLOCK: usize = 64 * 1024;

/// A [`Connection`] made of a codec and a protocol.
///
/// The replies to all messages that one read has brought go out together. Bytes that are no message close the connection
/// with [`Reason::Frame`], after the replies to those before; and so does a reply that the codec refuses, since nobody on
/// the other side could tell which one is missing.
///
/// ```no_run
/// use pelton::codec::Lines;
/// use pelton::{Framed, Peer, Protocol, Reactor, Replies};
///
/// struct Ask;
///
/// impl Protocol for Ask {
///     type Message = String;
///
///     fn opened(&mut self, _: &Peer<String>, replies: &mut Replies<String>) {
///         replies.send("how are you?".to_owned());
///     }
///
///     fn process(&mut self, answer: String, _: &mut Replies<String>) {
///         println!("{answer}");
///     }
/// }
///
/// let mut reactor = Reactor::new()?;
/// reactor.connect(&"127.0.0.1:2000".parse()?, Framed::new(Lines::new(), Ask))?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Framed<C: Codec, P: Protocol<Message = C::Message>> {
    codec: C,
    protocol: P,
    buffer: Buffer,
    /// `None` until it is opened.
    peer: Option<OwnPeer<C::Message>>,
    /// All has been said, or something went wrong: what comes in now is of no interest.
    done: bool,
}

/// Why nothing more is processed.
enum Stop {
    /// All has been said.
    Done,
    Frame(FrameError),
    Unsent(SendError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Stop {
        Stop::Frame(error)
    }
}

/// What goes out when a callback has done its work.
struct Outgoing<'a, 'b> {
    io: &'a mut Io<'b>,
    block: Vec<u8>,
}

impl Outgoing<'_, '_> {
    fn send(&mut self) -> Result<(), Stop> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.block);
        // What nobody reads may wait for long: it takes up no more than it is.
        block.shrink_to_fit();
        self.io.send_bytes(block).map_err(Stop::Unsent)
    }
}

impl<C: Codec, P: Protocol<Message = C::Message>> Framed<C, P> {
    /// A connection that `protocol` speaks on, in messages that are bytes by `codec`.
    pub fn new(codec: C, protocol: P) -> Framed<C, P> {
        Framed { codec, protocol, buffer: Buffer::new(), peer: None, done: false }
    }

    /// The codec and the protocol, of one that is not connected yet.
    pub(super) fn into_parts(self) -> (C, P) {
        (self.codec, self.protocol)
    }

    /// The protocol: for those who [visit](Reactor::visit) the connection.
    pub fn protocol(&self) -> &P {
        &self.protocol
    }

    /// The protocol, to change it.
    pub fn protocol_mut(&mut self) -> &mut P {
        &mut self.protocol
    }

    /// Does the work of a callback, sends what there is to say, and closes the connection if that was it.
    fn work(&mut self, io: &mut Io<'_>, act: impl FnOnce(&mut Self, &mut Outgoing<'_, '_>) -> Result<(), Stop>) {
        if self.done {
            return;
        }
        let mut out = Outgoing { io, block: Vec::new() };
        let outcome = act(self, &mut out);
        // What was said before something went wrong has been said.
        let sent = out.send();
        let stop = match (outcome, sent) {
            (Ok(()), Ok(())) => return self.buffer.keep_rest(),
            (Ok(()) | Err(Stop::Done), Err(stop)) | (Err(stop), _) => stop,
        };
        self.done = true;
        self.buffer = Buffer::new();
        match stop {
            Stop::Done => io.close_after_writing(),
            Stop::Frame(error) => {
                // What was said before that has been said.
                io.flush();
                io.close_with(Reason::Frame(error));
            }
            Stop::Unsent(SendError::Closed) => {}
            Stop::Unsent(SendError::Full { .. }) => io.close_with(Reason::Overflow),
        }
    }

    fn process_all(&mut self, out: &mut Outgoing<'_, '_>) -> Result<(), Stop> {
        let mut replies = Replies::new();
        while let Some(message) = self.codec.decode(&mut self.buffer)? {
            self.process(message, &mut replies, out)?;
        }
        Ok(())
    }

    fn process(
        &mut self,
        message: C::Message,
        replies: &mut Replies<C::Message>,
        out: &mut Outgoing<'_, '_>,
    ) -> Result<(), Stop> {
        self.protocol.process(message, replies);
        self.say(replies.messages.drain(..), out)?;
        self.go_on()
    }

    fn go_on(&self) -> Result<(), Stop> {
        if self.protocol.should_close() { Err(Stop::Done) } else { Ok(()) }
    }

    fn say(&mut self, messages: impl IntoIterator<Item = C::Message>, out: &mut Outgoing<'_, '_>) -> Result<(), Stop> {
        for message in messages {
            self.codec.encode(&message, &mut out.block)?;
            if out.block.len() >= BLOCK {
                out.send()?;
            }
        }
        Ok(())
    }
}

/// Says what has been pushed.
fn deliver<C: Codec, P: Protocol<Message = C::Message>>(reactor: &mut Reactor, id: ConnectionId) {
    reactor.visit(id, |framed: &mut Framed<C, P>, io| {
        let pushed = framed.peer.as_ref().map(|own| own.0.take_pushed()).unwrap_or_default();
        framed.work(io, |framed, out| framed.say(pushed, out));
    });
}

fn close_after_writing(reactor: &mut Reactor, id: ConnectionId) {
    if let Some(mut io) = reactor.connection(id) {
        io.close_after_writing();
    }
}

impl<C: Codec, P: Protocol<Message = C::Message>> Connection for Framed<C, P> {
    fn opened(&mut self, io: &mut Io<'_>) {
        let ways = Ways { deliver: deliver::<C, P>, close_after_writing };
        let peer = Peer::new(io.reactor().handle(), io.id(), ways);
        // It ends with this, not in `closed`: a reactor that is dropped closes nothing.
        self.peer = Some(OwnPeer(peer.clone()));
        self.work(io, |framed, out| {
            let mut replies = Replies::new();
            framed.protocol.opened(&peer, &mut replies);
            framed.say(replies.take(), out)?;
            framed.go_on()
        });
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.work(io, |framed, out| {
            framed.buffer.feed(chunk);
            framed.process_all(out)
        });
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.work(io, |framed, out| {
            if let Some(message) = framed.codec.finished(&mut framed.buffer)? {
                framed.process(message, &mut Replies::new(), out)?;
            }
            Err(Stop::Done)
        });
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.protocol.closed(&reason);
    }
}
