//! The half of a connection that is on the pool: an actor with the codec and the protocol.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::dialogue::{Dialogue, Last, Sink, Step, Stop};
use super::mailbox::Letter;
use super::pooled::Pooled;
use super::{Peer, Protocol};
use crate::messages::codec::{Buffer, Rest};
use crate::{Actor, Chunk, Codec, ConnectionId, Context, FrameError, Handle, Reactor, Reason};

/// How many bytes of replies may wait for the loop, or for the other side to read, before nothing more is processed.
pub(super) const WINDOW: usize = 256 * 1024;

/// While replies wait, what comes in is kept, but no more than this. A connection that is read from all the same (one that this
/// side has made) has more processed then, and ends with [`Reason::Overflow`] if nobody ever reads the replies.
const HELD: usize = 512 * 1024;

/// How many messages of a connection are processed before other connections have their turn.
const MESSAGES: usize = 64;

/// What the loop has for the session.
pub(super) enum Task<M> {
    Opened(Peer<M>),
    Received(Vec<u8>),
    /// What was in the mailbox.
    Letters(Vec<Letter<M>>),
    /// So many bytes of replies have been sent.
    Sent(usize),
    /// Process what there is.
    GoOn,
    /// Nothing more comes in.
    PeerFinished,
    /// Close when everything has been said.
    Finish,
    Closed(Reason),
}

/// What is to happen on the loop when the replies have been sent.
pub(super) enum End {
    Close,
    Frame(FrameError),
    Unanswered,
}

pub(super) struct Session<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    dialogue: Dialogue<C, P>,
    /// What came in and is not decoded yet.
    rest: Rest,
    out: Outgoing<C, P>,
    /// The loop was told to read no more because messages have to wait.
    holds: bool,
    /// All has been said, or something went wrong.
    done: bool,
    /// The protocol has been told that it is over.
    told: bool,
    /// In the middle of something: seen only if that panicked.
    busy: bool,
}

/// The way back to the loop.
struct Outgoing<C, P> {
    /// Where replies go.
    home: Option<(Handle, ConnectionId)>,
    /// Replies that have not been handed to the loop.
    block: Vec<u8>,
    /// Bytes that have, and were not sent as far as is known.
    unsent: usize,
    /// The connection's type, to find it by.
    connection: std::marker::PhantomData<fn() -> (C, P)>,
}

impl<C, P> Outgoing<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    /// Has the loop send what has been said.
    fn post(&mut self, end: Option<End>) {
        if self.block.is_empty() && end.is_none() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.block);
        bytes.shrink_to_fit();
        self.unsent += bytes.len();
        self.tell(move |pooled, io| pooled.say(io, bytes, end));
    }

    fn tell(&self, act: impl FnOnce(&mut Pooled<C, P>, &mut crate::Io<'_>) + Send + 'static) {
        if let Some((handle, id)) = &self.home {
            let id = *id;
            // A loop that is gone has no connections.
            let _ = handle.post(move |reactor| _ = reactor.visit(id, act));
        }
    }
}

impl<C, P> Sink for Outgoing<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    fn block(&mut self) -> &mut Vec<u8> {
        &mut self.block
    }

    fn hand_on(&mut self) -> Result<(), Stop> {
        self.post(None);
        Ok(())
    }

    fn reactor(&mut self) -> Option<&mut Reactor> {
        None
    }
}

/// Why processing has paused.
enum Pause {
    /// For want of input, or because nothing may be processed.
    Waits,
    /// For what was said to be sent.
    Unsent,
    /// Others have their turn.
    Turn,
}

impl<C, P> Session<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    pub(super) fn new(codec: C, protocol: P, home: Option<(Handle, ConnectionId)>) -> Session<C, P> {
        Session {
            dialogue: Dialogue::new(codec, protocol),
            rest: Rest::default(),
            out: Outgoing { home, block: Vec::new(), unsent: 0, connection: std::marker::PhantomData },
            holds: false,
            done: false,
            told: false,
            busy: false,
        }
    }

    fn act(&mut self, task: Task<C::Message>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        let mut more = None;
        match task {
            Task::Opened(peer) => {
                self.dialogue.meets(peer);
                self.dialogue.opened(&mut self.out)?;
            }
            Task::Letters(letters) => self.dialogue.deliver(letters, &mut self.out)?,
            Task::Received(bytes) => more = Some(bytes),
            Task::Sent(bytes) => self.out.unsent -= bytes,
            Task::PeerFinished => self.dialogue.ends_with(Last::PeerFinished),
            Task::Finish => self.dialogue.ends_with(Last::Finish),
            Task::GoOn => {}
            Task::Closed(_) => return Ok(()),
        }
        self.process(more, context)
    }

    /// Processes what there is, or as much as is fair, and what comes after that.
    fn process(&mut self, more: Option<Vec<u8>>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        let mut buffer = Buffer::from(std::mem::take(&mut self.rest));
        if let Some(bytes) = more {
            buffer.feed(Chunk::from(bytes));
        }
        let pause = self.answer_some(&mut buffer)?;
        if self.dialogue.is_ending() {
            buffer = Buffer::new();
        }
        let hold = self.dialogue.is_held_up() && !buffer.is_empty();
        self.rest = buffer.into_rest();
        if hold != self.holds {
            self.holds = hold;
            self.out.tell(move |pooled, io| pooled.hold(io, hold));
        }
        if let Pause::Turn = pause
            // However many tasks wait. If nobody has a reference any more, nobody waits for replies either.
            && let Some(me) = context.me()
        {
            let _ = me.send(Task::GoOn);
        }
        Ok(())
    }

    fn answer_some(&mut self, buffer: &mut Buffer) -> Result<Pause, Stop> {
        for _ in 0..MESSAGES {
            if self.out.unsent + self.out.block.len() > WINDOW && buffer.len() < HELD {
                return Ok(Pause::Unsent);
            }
            match self.dialogue.step(buffer, &mut self.out)? {
                Step::Processed => {}
                Step::Empty | Step::HeldUp => return Ok(Pause::Waits),
            }
        }
        Ok(Pause::Turn)
    }

    fn tell(&mut self, reason: &Reason) {
        if !std::mem::replace(&mut self.told, true) {
            self.dialogue.protocol.closed(reason);
        }
    }
}

impl<C, P> Actor for Session<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    type Message = Task<C::Message>;

    fn receive(&mut self, task: Task<C::Message>, context: &mut Context<'_, Task<C::Message>>) {
        self.busy = true;
        if let Task::Closed(reason) = &task {
            self.done = true;
            self.tell(reason);
        } else if !self.done
            && let Err(stop) = self.act(task, context)
        {
            self.done = true;
            self.rest = Rest::default();
            self.out.post(Some(match stop {
                // The loop finds out by itself what it cannot send.
                Stop::Done | Stop::Unsent(_) => End::Close,
                Stop::Frame(error) => End::Frame(error),
                Stop::Unanswered => End::Unanswered,
            }));
        }
        self.busy = false;
    }

    fn rested(&mut self) {
        self.out.post(None);
    }
}

impl<C, P> Drop for Session<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    fn drop(&mut self) {
        if self.told {
            return;
        }
        // It has panicked, or the pool has shut down: the loop does not know yet.
        let panicked = self.busy;
        let reason = move || if panicked { Reason::Panicked } else { Reason::Local };
        if catch_unwind(AssertUnwindSafe(|| self.tell(&reason()))).is_err() {
            let fault = "a protocol panicked when it was told that its connection is over";
            pelton_os::fault::report_here("protocol", &fault);
        }
        if let Some((handle, id)) = self.out.home.take() {
            let _ = handle.post(move |reactor| {
                if let Some(mut io) = reactor.connection(id) {
                    io.close_with(reason());
                }
            });
        }
    }
}
