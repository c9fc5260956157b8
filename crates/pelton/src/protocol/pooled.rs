//! A connection that speaks in messages, by way of workers.
//!
//! There are two halves. On the loop is a [`Pooled`], which moves bytes; on the pool an actor, the [`Session`], which has the
//! codec and the protocol. What comes in goes over as tasks; what is to be sent comes back as posts, one for all that a turn of the
//! actor has brought about.
//!
//! ```text
//!      received ─▶ Pooled ── tasks, so many may wait ──▶ Session ─▶ protocol
//!                   │ ▲                                    │
//!          sent ◀───┘ └── posts, so many bytes unsent ─────┘
//! ```
//!
//! **What waits is bounded on both ways.** If the session has [`TASKS`] waiting, nothing more is read until it has room. If
//! [`WINDOW`] bytes of replies have not been taken by the socket, the session decodes nothing more until they are.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::peer::{OwnPeer, Ways};
use super::{Framed, Peer, Protocol, Replies};
use crate::codec::{Buffer, Rest};
use crate::{
    Actor, ActorRef, Chunk, Codec, Connection, ConnectionId, Context, FrameError, Handle, Io, MailError, Pool, Reactor,
    Reason, SendError,
};

/// How many reads may wait for a worker. One is at most 64 KiB, so a connection that workers cannot keep up with takes up at
/// most half a megabyte.
const TASKS: usize = 8;

/// How many bytes of replies may wait for the loop, or for the other side to read, before nothing more is processed.
const WINDOW: usize = 256 * 1024;

/// While replies wait, what comes in is kept, but no more than this. A connection that is read from all the same (one that this
/// side has made) has more processed then, and ends with [`Reason::Overflow`] if nobody ever reads the replies.
const HELD: usize = 512 * 1024;

/// Replies are handed to the loop when they come to this many bytes, even if there is more to process.
const BLOCK: usize = 64 * 1024;

/// How many messages of a connection are processed before other connections have their turn.
const MESSAGES: usize = 64;

/// A [`Connection`] made of a codec and a protocol that run on a [`Pool`]: bytes are read and written on the loop, all else
/// happens on workers. What the protocol does may take its time: other connections do not wait for it.
///
/// Replies go out in the order of the messages they answer. It is otherwise as [`Framed`] is; the same protocols run on
/// either.
///
/// A protocol that panics ends its connection with [`Reason::Panicked`], and is reported to the pool's
/// [fault hook](crate::PoolBuilder::on_fault). Once the pool has shut down, a connection is closed when something comes in.
pub struct Pooled<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    pool: Pool,
    /// Until it is opened.
    parts: Option<(C, P)>,
    /// From then on.
    session: Option<ActorRef<Task<C::Message>>>,
    peer: Option<OwnPeer<C::Message>>,
    /// What there was no room for.
    unsent: VecDeque<Task<C::Message>>,
    /// What the other side has taken and the session does not know of.
    taken: usize,
}

/// What the loop has for the session.
enum Task<M> {
    Opened(Peer<M>),
    Received(Vec<u8>),
    /// Say this.
    Push(Vec<M>),
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
enum End {
    Close,
    Frame(FrameError),
}

impl<C, P> Pooled<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    /// A connection that `protocol` speaks on, in messages that are bytes by `codec`; both on `pool`.
    pub fn new(pool: &Pool, codec: C, protocol: P) -> Pooled<C, P> {
        Pooled {
            pool: pool.clone(),
            parts: Some((codec, protocol)),
            session: None,
            peer: None,
            unsent: VecDeque::new(),
            taken: 0,
        }
    }

    /// Hands a task to the session, after all others.
    fn give(&mut self, io: &mut Io<'_>, task: Task<C::Message>) {
        self.unsent.push_back(task);
        self.give_all(io);
    }

    /// Hands over what there is room for. If that is not all, nothing is read until there is room again.
    fn give_all(&mut self, io: &mut Io<'_>) {
        let Some(session) = &self.session else { return };
        while let Some(task) = self.unsent.pop_front() {
            match session.try_send(task) {
                Ok(()) => {}
                Err(MailError::Full(task)) => {
                    self.unsent.push_front(task);
                    return io.pause();
                }
                Err(MailError::Closed(_)) => {
                    self.unsent.clear();
                    // A session that has ended posts why. Otherwise it is the pool that has.
                    if !session.is_closed() {
                        io.close();
                    }
                    return;
                }
            }
        }
        if io.is_paused() {
            io.resume();
        }
    }

    /// Sends what the session has said.
    fn say(&mut self, io: &mut Io<'_>, bytes: Vec<u8>, end: Option<End>) {
        let count = bytes.len();
        if count > 0 {
            match io.send_bytes(bytes) {
                Ok(()) => {}
                Err(SendError::Closed) => return,
                Err(SendError::Full { .. }) => return io.close_with(Reason::Overflow),
            }
        }
        match end {
            None => {
                self.taken += count;
                if self.taken >= WINDOW / 2 {
                    self.acknowledge(io);
                }
            }
            Some(End::Close) => io.close_after_writing(),
            Some(End::Frame(error)) => {
                // What was said before that has been said.
                io.flush();
                io.close_with(Reason::Frame(error));
            }
        }
    }

    /// Lets the session say more, unless the other side has to read first; then `drained` does.
    fn acknowledge(&mut self, io: &mut Io<'_>) {
        io.flush();
        if io.queued() <= io.water_marks().high
            && let Some(session) = &self.session
        {
            // However many tasks wait: it makes room, and is not of the other side's making.
            let _ = session.send(Task::Sent(std::mem::take(&mut self.taken)));
        }
    }

    fn ways() -> Ways {
        Ways {
            deliver: |reactor, id| {
                reactor.visit(id, |pooled: &mut Pooled<C, P>, io| {
                    let pushed = pooled.peer.as_ref().map(|own| own.0.take_pushed()).unwrap_or_default();
                    if io.is_open()
                        && let Some(session) = &pooled.session
                    {
                        let _ = session.send(Task::Push(pushed));
                    }
                });
            },
            close_after_writing: |reactor, id| {
                reactor.visit(id, |pooled: &mut Pooled<C, P>, _| pooled.finish());
            },
        }
    }

    fn finish(&self) {
        if let Some(session) = &self.session {
            let _ = session.send(Task::Finish);
        }
    }
}

impl<C, P> Connection for Pooled<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    fn opened(&mut self, io: &mut Io<'_>) {
        let Some((codec, protocol)) = self.parts.take() else { return };
        let (handle, id) = (io.reactor().handle(), io.id());
        let peer = Peer::new(handle.clone(), id, Self::ways());
        self.peer = Some(OwnPeer(peer.clone()));
        let room = {
            let handle = handle.clone();
            move || {
                // A loop that is gone reads nothing.
                let _ = handle.post(move |reactor| {
                    reactor.visit(id, |pooled: &mut Pooled<C, P>, io| pooled.give_all(io));
                });
            }
        };
        let session = Session::new(codec, protocol, Some((handle, id)));
        self.session = Some(self.pool.actor().bound(TASKS).on_room(room).spawn(session));
        self.give(io, Task::Opened(peer));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.give(io, Task::Received(chunk.to_vec()));
    }

    fn drained(&mut self, io: &mut Io<'_>) {
        self.acknowledge(io);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.give(io, Task::PeerFinished);
    }

    fn draining(&mut self, _: &mut Io<'_>) {
        self.finish();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        if let Some((codec, protocol)) = self.parts.take() {
            // It could not be connected.
            self.session = Some(self.pool.spawn(Session::new(codec, protocol, None)));
        }
        if let Some(session) = self.session.take() {
            for task in self.unsent.drain(..) {
                let _ = session.send(task);
            }
            let _ = session.send(Task::Closed(reason));
        }
    }
}

/// The half of a connection that is on the pool.
struct Session<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    codec: C,
    protocol: P,
    /// What came in and is not decoded yet.
    rest: Rest,
    /// Where replies go.
    home: Option<(Handle, ConnectionId)>,
    /// Replies that have not been handed to the loop.
    out: Vec<u8>,
    /// Bytes that have, and were not sent as far as is known.
    unsent: usize,
    /// What comes when everything that is there has been processed.
    last: Option<Last>,
    /// All has been said, or something went wrong.
    done: bool,
    /// The protocol has been told that it is over.
    told: bool,
    /// In the middle of something: seen only if that panicked.
    busy: bool,
}

enum Last {
    PeerFinished,
    Finish,
}

/// Why nothing more is processed.
enum Stop {
    Done,
    Frame(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Stop {
        Stop::Frame(error)
    }
}

/// Why processing has paused.
enum Pause {
    /// For want of input.
    Empty,
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
    fn new(codec: C, protocol: P, home: Option<(Handle, ConnectionId)>) -> Session<C, P> {
        Session {
            codec,
            protocol,
            rest: Rest::default(),
            home,
            out: Vec::new(),
            unsent: 0,
            last: None,
            done: false,
            told: false,
            busy: false,
        }
    }

    fn act(&mut self, task: Task<C::Message>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        match task {
            Task::Opened(peer) => {
                let mut replies = Replies::new();
                self.protocol.opened(&peer, &mut replies);
                self.say(replies.take())?;
                self.go_on()
            }
            Task::Push(messages) => self.say(messages),
            Task::Received(bytes) => self.process(Some(bytes), context),
            Task::Sent(bytes) => {
                self.unsent -= bytes;
                self.process(None, context)
            }
            Task::GoOn => self.process(None, context),
            Task::PeerFinished => {
                self.last.get_or_insert(Last::PeerFinished);
                self.process(None, context)
            }
            Task::Finish => {
                self.last = Some(Last::Finish);
                self.process(None, context)
            }
            Task::Closed(_) => Ok(()),
        }
    }

    /// Processes what there is, or as much as is fair, and what comes after that.
    fn process(&mut self, more: Option<Vec<u8>>, context: &Context<'_, Task<C::Message>>) -> Result<(), Stop> {
        let mut buffer = Buffer::from(std::mem::take(&mut self.rest));
        if let Some(bytes) = more {
            buffer.feed(Chunk::from(bytes));
        }
        let pause = self.answer_some(&mut buffer)?;
        self.rest = buffer.into_rest();
        match pause {
            Pause::Empty | Pause::Unsent => Ok(()),
            Pause::Turn => {
                // However many tasks wait. If nobody has a reference any more, nobody waits for replies either.
                if let Some(me) = context.me() {
                    let _ = me.send(Task::GoOn);
                }
                Ok(())
            }
        }
    }

    fn answer_some(&mut self, buffer: &mut Buffer) -> Result<Pause, Stop> {
        let mut replies = Replies::new();
        for _ in 0..MESSAGES {
            if self.unsent + self.out.len() > WINDOW && buffer.len() < HELD {
                return Ok(Pause::Unsent);
            }
            match self.codec.decode(buffer)? {
                Some(message) => self.answer(message, &mut replies)?,
                None => return self.come_to_the_end(buffer).map(|()| Pause::Empty),
            }
        }
        Ok(Pause::Turn)
    }

    /// Everything has been processed.
    fn come_to_the_end(&mut self, buffer: &mut Buffer) -> Result<(), Stop> {
        match self.last {
            None => Ok(()),
            Some(Last::Finish) => Err(Stop::Done),
            Some(Last::PeerFinished) => {
                if let Some(message) = self.codec.finished(buffer)? {
                    self.answer(message, &mut Replies::new())?;
                }
                Err(Stop::Done)
            }
        }
    }

    fn answer(&mut self, message: C::Message, replies: &mut Replies<C::Message>) -> Result<(), Stop> {
        self.protocol.process(message, replies);
        self.say(replies.messages.drain(..))?;
        self.go_on()
    }

    fn go_on(&self) -> Result<(), Stop> {
        if self.protocol.should_close() { Err(Stop::Done) } else { Ok(()) }
    }

    fn say(&mut self, messages: impl IntoIterator<Item = C::Message>) -> Result<(), Stop> {
        for message in messages {
            self.codec.encode(&message, &mut self.out)?;
            if self.out.len() >= BLOCK {
                self.post(None);
            }
        }
        Ok(())
    }

    /// Has the loop send what has been said.
    fn post(&mut self, end: Option<End>) {
        if self.out.is_empty() && end.is_none() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.out);
        bytes.shrink_to_fit();
        self.unsent += bytes.len();
        if let Some((handle, id)) = &self.home {
            let id = *id;
            // A loop that is gone has no connections.
            let _ = handle.post(move |reactor| {
                reactor.visit(id, |pooled: &mut Pooled<C, P>, io| pooled.say(io, bytes, end));
            });
        }
    }

    fn tell(&mut self, reason: &Reason) {
        if !std::mem::replace(&mut self.told, true) {
            self.protocol.closed(reason);
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
            self.post(Some(match stop {
                Stop::Done => End::Close,
                Stop::Frame(error) => End::Frame(error),
            }));
        }
        self.busy = false;
    }

    fn rested(&mut self) {
        self.post(None);
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
            tracing::error!("a protocol panicked when it was told that its connection is over");
        }
        if let Some((handle, id)) = self.home.take() {
            let _ = handle.post(move |reactor| {
                if let Some(mut io) = reactor.connection(id) {
                    io.close_with(reason());
                }
            });
        }
    }
}

/// What [`serve`](super::serve) makes, and any closure that makes [`Framed`] connections.
pub trait Service<C, P>: FnMut(&mut Reactor) -> Framed<C, P> + Sized + 'static
where
    C: Codec,
    P: Protocol<Message = C::Message>,
{
    /// Has codec and protocol run on `pool`, and the loop only move bytes: for protocols that take their time. These have to
    /// be [`Send`]; on the loop they need not.
    ///
    /// ```
    /// use pelton::codec::Lines;
    /// use pelton::{Pool, Protocol, Reactor, Replies, Service, serve};
    ///
    /// struct Primes;
    ///
    /// impl Protocol for Primes {
    ///     type Message = String;
    ///
    ///     fn process(&mut self, line: String, replies: &mut Replies<String>) {
    ///         let Ok(number) = line.parse::<u64>() else { return replies.send("a number, please".to_owned()) };
    ///         let factor = (2..number).find(|factor| number % factor == 0);
    ///         replies.send(factor.map_or("a prime".to_owned(), |factor| format!("{factor} divides it")));
    ///     }
    /// }
    ///
    /// let pool = Pool::new()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.listen(&"127.0.0.1:0".parse()?, serve(Lines::new, || Primes).on(&pool))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn on(mut self, pool: &Pool) -> impl FnMut(&mut Reactor) -> Pooled<C, P> + 'static
    where
        C: Codec<Message: Send> + Send,
        P: Send,
    {
        let pool = pool.clone();
        move |reactor| {
            let (codec, protocol) = self(reactor).into_parts();
            Pooled::new(&pool, codec, protocol)
        }
    }
}

impl<F, C, P> Service<C, P> for F
where
    F: FnMut(&mut Reactor) -> Framed<C, P> + 'static,
    C: Codec,
    P: Protocol<Message = C::Message>,
{
}
