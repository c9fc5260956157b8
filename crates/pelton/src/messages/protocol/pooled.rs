//! A connection whose messages are processed by workers.
//!
//! It has two halves. On the loop is a [`Pooled`], which moves bytes. On the pool is an actor, the [`Session`], which
//! owns the codec and the protocol. Input is sent to the session as tasks. Replies return as posts, one for each turn
//! of the actor.
//!
//! ```text
//!   received ─▶ Pooled ── tasks, bounded in number ───────▶ Session ─▶ protocol
//!                │ ▲                                           │
//!       sent ◀───┘ └── posts, bounded in unsent bytes ─────────┘
//! ```
//!
//! **Both directions are bounded.** If [`TASKS`] tasks wait for the session, reading stops until there is room. If the
//! socket has not accepted [`WINDOW`] bytes of replies, the session stops decoding until it has.

use std::collections::VecDeque;
use std::panic::Location;

use super::framed::close_with;
use super::mailbox::LoopCalls;
use super::peer::OwnPeer;
use super::session::{End, Session, Task, WINDOW};
use super::{Framed, Peer, Protocol};
use crate::{ActorRef, Chunk, Codec, Connection, Io, MailError, Pool, Reactor, Reason, SendError};

/// How many reads may wait for a worker. One is at most 64 KiB, so a connection that outruns the workers occupies at
/// most half a megabyte.
const TASKS: usize = 8;

/// A [`Connection`] made of a codec and a protocol that run on a [`Pool`]. Bytes are read and written on the loop, and
/// everything else runs on workers. A slow protocol does not delay other connections.
///
/// Replies are sent in the order of the messages that they answer. Otherwise it behaves like [`Framed`], and the same
/// protocols run on either.
///
/// A protocol that panics ends its connection with [`Reason::Panicked`], and the panic is reported to the pool's [fault
/// hook](crate::PoolBuilder::on_fault). After the pool has shut down, a connection is closed when input arrives.
pub struct Pooled<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    pool: Pool,
    /// Where it was created. Panics are reported with this.
    place: &'static Location<'static>,
    /// `Some` until it is opened.
    parts: Option<(C, P)>,
    /// `Some` from then on.
    session: Option<ActorRef<Task<C::Message>>>,
    peer: Option<OwnPeer<C::Message>>,
    /// Tasks that did not fit into the session's mailbox.
    unsent: VecDeque<Task<C::Message>>,
    /// Bytes accepted by the connection that have not been acknowledged to the session.
    taken: usize,
    /// The session has messages that have to wait.
    held: bool,
    /// Reading is paused, for either reason.
    stopped: bool,
}

impl<C, P> Pooled<C, P>
where
    C: Codec<Message: Send> + Send,
    P: Protocol<Message = C::Message> + Send,
{
    /// Creates a connection that runs `protocol` on `pool`, with messages encoded by `codec`.
    #[track_caller]
    pub fn new(pool: &Pool, codec: C, protocol: P) -> Pooled<C, P> {
        Pooled::from_place(Location::caller(), pool, codec, protocol)
    }

    fn from_place(place: &'static Location<'static>, pool: &Pool, codec: C, protocol: P) -> Pooled<C, P> {
        Pooled {
            pool: pool.clone(),
            place,
            parts: Some((codec, protocol)),
            session: None,
            peer: None,
            unsent: VecDeque::new(),
            taken: 0,
            held: false,
            stopped: false,
        }
    }

    /// Queues a task for the session, after all others.
    fn give(&mut self, io: &mut Io<'_>, task: Task<C::Message>) {
        self.unsent.push_back(task);
        self.give_all(io);
    }

    /// Sends queued tasks to the session while there is room. If some are left, reading stops until there is room
    /// again.
    fn give_all(&mut self, io: &mut Io<'_>) {
        let Some(session) = &self.session else { return };
        while let Some(task) = self.unsent.pop_front() {
            match session.try_send(task) {
                Ok(()) => {}
                Err(MailError::Full(task)) => {
                    self.unsent.push_front(task);
                    break;
                }
                Err(MailError::Closed(_)) => {
                    self.unsent.clear();
                    // A session that has ended posts its reason. Otherwise the pool has ended.
                    if !session.is_closed() {
                        io.close();
                    }
                    return;
                }
            }
        }
        self.set_reading(io);
    }

    /// Called when the session has messages that have to wait, and again when it has none.
    pub(super) fn hold(&mut self, io: &mut Io<'_>, held: bool) {
        self.held = held;
        self.set_reading(io);
    }

    fn set_reading(&mut self, io: &mut Io<'_>) {
        let stop = self.held || !self.unsent.is_empty();
        if stop != self.stopped {
            self.stopped = stop;
            if stop { io.pause() } else { io.resume() }
        }
    }

    /// Sends the session's output.
    pub(super) fn send(&mut self, io: &mut Io<'_>, bytes: Vec<u8>, end: Option<End>) {
        let count = bytes.len();
        if count > 0 {
            match io.send_bytes(bytes) {
                Ok(()) => {}
                Err(SendError::Closed) => return,
                Err(SendError::Full { .. }) => return io.close_with(Reason::Overflow),
                Err(error @ SendError::ReadOnly) => return io.close_with(Reason::Failed(error.into())),
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
            Some(End::Frame(error)) => close_with(io, Reason::Frame(error)),
            Some(End::Unanswered) => close_with(io, Reason::Unanswered),
        }
    }

    /// Lets the session produce more output, unless the peer has to read first. In that case `writable` calls this
    /// again.
    fn acknowledge(&mut self, io: &mut Io<'_>) {
        io.flush();
        if io.queued() <= io.water_marks().high
            && let Some(session) = &self.session
        {
            // Sent regardless of the bound: it frees memory, and the peer cannot cause more of them.
            let _ = session.send(Task::Sent(std::mem::take(&mut self.taken)));
        }
    }

    fn calls() -> LoopCalls {
        LoopCalls {
            deliver: |reactor, id| {
                reactor.visit(id, |pooled: &mut Pooled<C, P>, io| {
                    let letters = pooled.peer.as_ref().map(|own| own.0.mailbox().take()).unwrap_or_default();
                    if io.is_open()
                        && let Some(session) = &pooled.session
                    {
                        let _ = session.send(Task::Letters(letters));
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
        let peer = Peer::new(handle.clone(), id, Self::calls());
        self.peer = Some(OwnPeer(peer.clone()));
        let room = {
            let handle = handle.clone();
            move || {
                // A loop that has ended reads nothing.
                let _ = handle.post(move |reactor| {
                    reactor.visit(id, |pooled: &mut Pooled<C, P>, io| pooled.give_all(io));
                });
            }
        };
        let session = Session::new(codec, protocol, Some((handle, id)));
        self.session = Some(self.pool.actor_at(self.place).bound(TASKS).on_room(room).spawn(session));
        self.give(io, Task::Opened(peer));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.give(io, Task::Received(chunk.to_vec()));
    }

    fn writable(&mut self, io: &mut Io<'_>) {
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
            // The connection could not be established.
            self.session = Some(self.pool.actor_at(self.place).spawn(Session::new(codec, protocol, None)));
        }
        if let Some(session) = self.session.take() {
            for task in self.unsent.drain(..) {
                let _ = session.send(task);
            }
            let _ = session.send(Task::Closed(reason));
        }
    }
}

/// Marks types that may run on a pool: all that are [`Send`]. It exists for the compiler's message about types that are
/// not.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot run on a pool",
    label = "the codec and the protocol run on worker threads here, so `{Self}` must be `Send`",
    note = "share state with `Arc` and `Mutex` or atomics instead of `Rc`, `Cell` and `RefCell`",
    note = "to find the field that is not `Send`, let the compiler check that alone: `fn send<T: Send>() {{}} send::<{Self}>();`",
    note = "on the loop, without `.on(&pool)`, nothing has to be `Send`"
)]
pub trait ForPool: Send {}

#[diagnostic::do_not_recommend]
impl<T: Send> ForPool for T {}

/// The return type of [`serve`](super::serve), and any closure that creates [`Framed`] connections.
pub trait Service<C, P>: FnMut(&mut Reactor) -> Framed<C, P> + Sized + 'static
where
    C: Codec,
    P: Protocol<Message = C::Message>,
{
    /// Runs the codec and the protocol on `pool`, while the loop only moves bytes. Use it for slow protocols.
    /// On a pool, both must be [`Send`].
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
    /// reactor.listen("127.0.0.1:0", serve(Lines::new, || Primes).on(&pool))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    fn on(mut self, pool: &Pool) -> impl FnMut(&mut Reactor) -> Pooled<C, P> + 'static
    where
        C: Codec<Message: Send> + ForPool,
        P: ForPool,
    {
        let (pool, place) = (pool.clone(), Location::caller());
        move |reactor| {
            let (codec, protocol) = self(reactor).into_parts();
            Pooled::from_place(place, &pool, codec, protocol)
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
