//! The half of a connection that runs on the pool: an actor that owns the codec and the protocol.

use super::dialogue::{Dialogue, Last, Sink, Step, Stop};
use super::mailbox::Letter;
use super::pooled::Pooled;
use super::{Peer, Protocol};
use crate::messages::codec::{Buffer, Rest};
use crate::reactor::panics::catch;
use crate::{Actor, Chunk, Codec, ConnectionId, Context, FrameError, Handle, Reactor, Reason};

/// How many bytes of replies may wait for the loop or the peer before processing stops.
pub(super) const WINDOW: usize = 256 * 1024;

/// How many input bytes are buffered while replies wait. On a connection that this side has made, reading continues.
/// There, messages are processed beyond this limit, and the connection ends with [`Reason::Overflow`] if the peer never
/// reads the replies.
const HELD: usize = 512 * 1024;

/// How many messages of a connection are processed before other connections get their turn.
const MESSAGES: usize = 64;

/// A task from the loop for the session.
pub(super) enum Task<M> {
    Opened(Peer<M>),
    Received(Vec<u8>),
    /// The contents of the mailbox.
    Letters(Vec<Letter<M>>),
    /// This many bytes of replies have been sent.
    Sent(usize),
    /// Process the buffered input.
    GoOn,
    /// The input has ended.
    PeerFinished,
    /// Close when all replies have been sent.
    Finish,
    Closed(Reason),
}

/// What the loop does after it has sent the replies.
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
    /// Received bytes that are not decoded yet.
    rest: Rest,
    out: Outgoing<C, P>,
    /// The loop has been asked to pause reading because messages have to wait.
    holds: bool,
    /// The conversation is over or has failed.
    done: bool,
    /// `closed` of the protocol has been called.
    closed_called: bool,
    /// A task is running. Still set in `drop` only after a panic.
    busy: bool,
}

/// The way back to the loop.
struct Outgoing<C, P> {
    /// The connection that replies go to.
    home: Option<(Handle, ConnectionId)>,
    /// Encoded replies that have not been posted to the loop.
    block: Vec<u8>,
    /// Posted bytes that are not known to have been sent.
    unsent: usize,
    /// The connection's type, which `visit` needs to find it.
    connection: std::marker::PhantomData<fn() -> (C, P)>,
}

impl<C, P> Outgoing<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    /// Posts the encoded replies to the loop, which sends them.
    fn post(&mut self, end: Option<End>) {
        if self.block.is_empty() && end.is_none() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.block);
        bytes.shrink_to_fit();
        self.unsent += bytes.len();
        self.visit(move |pooled, io| pooled.send(io, bytes, end));
    }

    fn visit(&self, act: impl FnOnce(&mut Pooled<C, P>, &mut crate::Io<'_>) + Send + 'static) {
        if let Some((handle, id)) = &self.home {
            let id = *id;
            // A loop that has ended has no connections.
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

    fn flush_block(&mut self) -> Result<(), Stop> {
        self.post(None);
        Ok(())
    }

    fn reactor(&mut self) -> Option<&mut Reactor> {
        None
    }
}

/// Why processing has paused.
enum Pause {
    /// There is no complete message, or processing is blocked.
    Waits,
    /// Replies have to be sent first.
    Unsent,
    /// Other connections get their turn.
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
            closed_called: false,
            busy: false,
        }
    }

    fn act(&mut self, task: Task<C::Message>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        let mut more = None;
        match task {
            Task::Opened(peer) => {
                self.dialogue.connect(peer);
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

    /// Processes messages up to the fair share, and schedules the rest.
    fn process(&mut self, more: Option<Vec<u8>>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        let mut buffer = Buffer::from(std::mem::take(&mut self.rest));
        if let Some(bytes) = more {
            buffer.feed(Chunk::from(bytes));
        }
        let pause = self.answer_some(&mut buffer)?;
        if self.dialogue.is_ending() {
            buffer = Buffer::new();
        }
        let hold = self.dialogue.is_blocked() && !buffer.is_empty();
        self.rest = buffer.into_rest();
        if hold != self.holds {
            self.holds = hold;
            self.out.visit(move |pooled, io| pooled.hold(io, hold));
        }
        if let Pause::Turn = pause
            // Sent regardless of the bound. If no reference is left, nobody waits for replies either.
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
                Step::Empty | Step::Blocked => return Ok(Pause::Waits),
            }
        }
        Ok(Pause::Turn)
    }

    fn call_closed(&mut self, reason: &Reason) {
        if !std::mem::replace(&mut self.closed_called, true) {
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
            self.call_closed(reason);
        } else if !self.done
            && let Err(stop) = self.act(task, context)
        {
            self.done = true;
            self.rest = Rest::default();
            self.out.post(Some(match stop {
                // The loop itself detects data that it cannot send.
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
        if self.closed_called {
            return;
        }
        // It has panicked, or the pool has shut down. The loop does not know yet.
        let panicked = self.busy;
        let reason = move || if panicked { Reason::Panicked } else { Reason::Local };
        if catch(|| self.call_closed(&reason())).is_err() {
            let fault = "a protocol panicked in `closed`";
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
