//! A connection that exchanges messages.

use super::dialogue::{Dialogue, Last, Sink, Step, Stop};
use super::mailbox::LoopCalls;
use super::peer::OwnPeer;
use super::{Peer, Protocol};
use crate::messages::codec::Buffer;
use crate::{Chunk, Codec, Connection, ConnectionId, Io, Reactor, Reason, SendError};

/// A [`Connection`] made of a codec and a protocol.
///
/// The replies to all messages of one read are sent together. Invalid input closes the connection with
/// [`Reason::Frame`], after the replies to the messages before it. So does a reply that the codec rejects, because the
/// other side could not tell which reply is missing.
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
    dialogue: Dialogue<C, P>,
    buffer: Buffer,
    /// `None` until the first callback.
    peer: Option<OwnPeer<C::Message>>,
    /// Reading is paused because messages have to wait.
    holds: bool,
    /// The conversation is over or has failed. Further input is ignored.
    done: bool,
}

/// Collects the replies of one callback.
struct Outgoing<'a, 'b> {
    io: &'a mut Io<'b>,
    block: Vec<u8>,
}

impl Sink for Outgoing<'_, '_> {
    fn block(&mut self) -> &mut Vec<u8> {
        &mut self.block
    }

    fn flush_block(&mut self) -> Result<(), Stop> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.block);
        // The block may wait for a long time if the peer does not read, so release its spare capacity.
        block.shrink_to_fit();
        self.io.send_bytes(block).map_err(Stop::Unsent)
    }

    fn reactor(&mut self) -> Option<&mut Reactor> {
        Some(self.io.reactor())
    }
}

impl<C: Codec, P: Protocol<Message = C::Message>> Framed<C, P> {
    /// Creates a connection that runs `protocol`, with messages encoded by `codec`.
    pub fn new(codec: C, protocol: P) -> Framed<C, P> {
        let dialogue = Dialogue::new(codec, protocol);
        Framed { dialogue, buffer: Buffer::new(), peer: None, holds: false, done: false }
    }

    /// Returns the codec and the protocol of a connection that is not connected yet.
    pub(super) fn into_parts(self) -> (C, P) {
        self.dialogue.into_parts()
    }

    /// Returns the protocol, for code that [visits](Reactor::visit) the connection.
    pub fn protocol(&self) -> &P {
        &self.dialogue.protocol
    }

    /// Returns the protocol mutably.
    pub fn protocol_mut(&mut self) -> &mut P {
        &mut self.dialogue.protocol
    }

    /// Runs the work of a callback, processes messages, sends the replies, and closes the connection if it has ended.
    fn work(&mut self, io: &mut Io<'_>, act: impl FnOnce(&mut Self, &mut Outgoing<'_, '_>) -> Result<(), Stop>) {
        if self.done {
            return;
        }
        if self.peer.is_none() {
            self.meet(io);
        }
        let mut out = Outgoing { io, block: Vec::new() };
        let outcome = act(self, &mut out).and_then(|()| self.process_all(&mut out));
        // Replies from before an error are still sent.
        let sent = out.flush_block();
        let stop = match (outcome, sent) {
            (Ok(()), Ok(())) => return self.go_on(io),
            (Ok(()) | Err(Stop::Done), Err(stop)) | (Err(stop), _) => stop,
        };
        self.done = true;
        self.buffer = Buffer::new();
        match stop {
            Stop::Done => io.close_after_writing(),
            Stop::Frame(error) => close_with(io, Reason::Frame(error)),
            Stop::Unanswered => close_with(io, Reason::Unanswered),
            Stop::Unsent(SendError::Closed) => {}
            Stop::Unsent(SendError::Full { .. }) => io.close_with(Reason::Overflow),
            Stop::Unsent(error @ SendError::ReadOnly) => io.close_with(Reason::Failed(error.into())),
        }
    }

    fn meet(&mut self, io: &mut Io<'_>) {
        let calls = LoopCalls { deliver: deliver::<C, P>, close_after_writing: close_after_writing::<C, P> };
        let peer = Peer::new(io.reactor().handle(), io.id(), calls);
        self.dialogue.connect(peer.clone());
        // Dropping it ends the mailbox. `closed` is not enough: a reactor that is dropped closes nothing.
        self.peer = Some(OwnPeer(peer));
    }

    fn process_all(&mut self, out: &mut Outgoing<'_, '_>) -> Result<(), Stop> {
        while self.dialogue.step(&mut self.buffer, out)? == Step::Processed {}
        Ok(())
    }

    /// Keeps unprocessed bytes, and pauses reading while there are some and processing is blocked. With no bytes kept,
    /// reading continues even if processing is blocked, which detects that the other side has gone.
    fn go_on(&mut self, io: &mut Io<'_>) {
        if self.dialogue.is_ending() {
            self.buffer = Buffer::new();
        }
        self.buffer.keep_rest();
        let hold = self.dialogue.is_blocked() && !self.buffer.is_empty();
        if hold != self.holds {
            self.holds = hold;
            if hold { io.pause() } else { io.resume() }
        }
    }

    fn finish(&mut self, io: &mut Io<'_>, last: Last) {
        self.work(io, |framed, _| {
            framed.dialogue.ends_with(last);
            Ok(())
        });
    }
}

/// Closes the connection after handing the replies so far to the socket.
pub(super) fn close_with(io: &mut Io<'_>, reason: Reason) {
    io.flush();
    io.close_with(reason);
}

/// Delivers the contents of the mailbox.
fn deliver<C: Codec, P: Protocol<Message = C::Message>>(reactor: &mut Reactor, id: ConnectionId) {
    reactor.visit(id, |framed: &mut Framed<C, P>, io| {
        let letters = framed.peer.as_ref().map(|own| own.0.mailbox().take()).unwrap_or_default();
        framed.work(io, |framed, out| framed.dialogue.deliver(letters, out));
    });
}

fn close_after_writing<C: Codec, P: Protocol<Message = C::Message>>(reactor: &mut Reactor, id: ConnectionId) {
    let finished = reactor.visit(id, |framed: &mut Framed<C, P>, io| framed.finish(io, Last::Finish));
    // The connection may be wrapped in another handler, which this cannot visit.
    if finished.is_none()
        && let Some(mut io) = reactor.connection(id)
    {
        io.close_after_writing();
    }
}

impl<C: Codec, P: Protocol<Message = C::Message>> Connection for Framed<C, P> {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.work(io, |framed, out| framed.dialogue.opened(out));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.work(io, |framed, _| {
            if !framed.dialogue.is_ending() {
                framed.buffer.feed(chunk);
            }
            Ok(())
        });
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.finish(io, Last::PeerFinished);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.finish(io, Last::Finish);
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.dialogue.protocol.closed(&reason);
    }
}
