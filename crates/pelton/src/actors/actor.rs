//! Actors, and how they are sent to.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pelton_sync::{Address, Inbox, Next, PushError, Receive, mailbox};

use super::MAILBOX_BOUND;
use super::worker::{Scheduler, Shared};
use crate::reactor::callback::{Panic, message};

/// Something that receives messages one at a time, in the order in which they arrived. So its state needs no lock.
///
/// If it panics, it is closed: what waits for it is dropped, it is reported to the [fault hook](super::PoolBuilder::on_fault), and
/// the pool goes on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an actor",
    label = "not an `Actor`",
    note = "implement `Actor` for it, or make one of a closure: `pool.spawn_fn(|message, context| ...)`"
)]
pub trait Actor: Send + 'static {
    /// What it receives.
    type Message: Send + 'static;

    /// A message has come.
    fn receive(&mut self, message: Self::Message, context: &mut Context<'_, Self::Message>);

    /// Nothing more to receive for now: no message waits, or others have their turn. The place to hand on together what
    /// several messages have brought about.
    fn rested(&mut self) {}

    /// No message will come any more: the last reference has gone, it has [stopped](Context::stop), or the pool has shut
    /// down. Called once, and last; but not after a panic, which leaves its state in an unknown shape.
    fn stopped(&mut self) {}
}

/// An actor's view of its pool, while it receives.
pub struct Context<'a, M: Send + 'static> {
    inbox: &'a Inbox<'a, M, Scheduler>,
    pub(super) shared: &'a Arc<Shared>,
    stop: bool,
}

impl<M: Send + 'static> Context<'_, M> {
    /// Ends the actor after this message. What waits for it is dropped, and later messages are refused.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// A reference to the actor itself, to hand to others; `None` if all others have gone. An actor that keeps one of its own
    /// does not end by itself.
    pub fn me(&self) -> Option<ActorRef<M>> {
        self.inbox.address().map(|address| ActorRef { address })
    }

    /// Takes on another actor, on the same pool.
    #[track_caller]
    pub fn spawn<A: Actor>(&self, actor: A) -> ActorRef<A::Message> {
        Spawn::new(self.shared, Location::caller()).spawn(actor)
    }
}

impl<M: Send + 'static> fmt::Debug for Context<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context")
    }
}

/// Settings of an actor. See [`Pool::actor`](super::Pool::actor).
///
/// ```
/// # use pelton::{MailError, Pool};
/// # use std::sync::mpsc;
/// let pool = Pool::new()?;
/// let (room, again) = mpsc::channel();
/// let (begin, begun) = mpsc::channel::<()>();
/// let actor = pool.actor().label("slow").bound(2).on_room(move || room.send(()).unwrap()).spawn_fn(move |_: u32, _| {
///     begun.recv().ok();
/// });
/// while actor.try_send(1).is_ok() {}
/// assert!(matches!(actor.try_send(2), Err(MailError::Full(2))));
/// drop(begin);
/// again.recv()?;
/// actor.try_send(3)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Spawn<'a> {
    shared: &'a Arc<Shared>,
    place: &'static Location<'static>,
    bound: usize,
    label: Option<Arc<str>>,
    room: Option<RoomHook>,
}

type RoomHook = Box<dyn FnMut() + Send>;

impl<'a> Spawn<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, place: &'static Location<'static>) -> Spawn<'a> {
        Spawn { shared, place, bound: MAILBOX_BOUND, label: None, room: None }
    }

    /// How many messages may wait for it before [`ActorRef::try_send`] is refused. At least 1; by default
    /// [`MAILBOX_BOUND`].
    #[must_use]
    pub fn bound(mut self, messages: usize) -> Spawn<'a> {
        self.bound = messages;
        self
    }

    /// A name of your own, to be read in reports.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Spawn<'a> {
        self.label = Some(label.into());
        self
    }

    /// Calls `hook` when [`ActorRef::try_send`] has been refused and half of what may wait has been received. It is called on
    /// the worker, once for however many refusals: the place to [post](crate::Handle::post) to a loop that it may go on.
    #[must_use]
    pub fn on_room(mut self, hook: impl FnMut() + Send + 'static) -> Spawn<'a> {
        self.room = Some(Box::new(hook));
        self
    }

    /// Takes on the actor.
    pub fn spawn<A: Actor>(self, actor: A) -> ActorRef<A::Message> {
        self.shared.actors.fetch_add(1, Ordering::Relaxed);
        let cell = Cell {
            actor,
            shared: self.shared.clone(),
            place: self.place,
            label: self.label,
            room: self.room,
            panicked: false,
        };
        ActorRef { address: mailbox(Scheduler(self.shared.clone()), self.bound, Box::new(cell)) }
    }

    /// Takes on an actor that is a closure.
    pub fn spawn_fn<M: Send + 'static>(
        self,
        receive: impl FnMut(M, &mut Context<'_, M>) + Send + 'static,
    ) -> ActorRef<M> {
        self.spawn(Function { receive, messages: PhantomData })
    }
}

impl fmt::Debug for Spawn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawn").field("bound", &self.bound).field("label", &self.label).finish_non_exhaustive()
    }
}

/// An actor that is a closure.
struct Function<F, M> {
    receive: F,
    messages: PhantomData<fn(M)>,
}

impl<M: Send + 'static, F: FnMut(M, &mut Context<'_, M>) + Send + 'static> Actor for Function<F, M> {
    type Message = M;

    fn receive(&mut self, message: M, context: &mut Context<'_, M>) {
        (self.receive)(message, context);
    }
}

/// An actor that panicked.
#[derive(Debug, Clone)]
pub struct ActorFault {
    /// Its [label](Spawn::label), if it has one.
    pub label: Option<Arc<str>>,
    /// Where it was taken on.
    pub place: &'static Location<'static>,
    /// What it panicked with.
    pub message: String,
}

impl fmt::Display for ActorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("actor")?;
        if let Some(label) = &self.label {
            write!(f, " {label:?}")?;
        }
        write!(f, " ({}) panicked: {}", self.place, self.message)
    }
}

/// An actor, as its mailbox sees it.
struct Cell<A: Actor> {
    actor: A,
    shared: Arc<Shared>,
    place: &'static Location<'static>,
    label: Option<Arc<str>>,
    room: Option<RoomHook>,
    panicked: bool,
}

impl<A: Actor> Cell<A> {
    fn fault(&self, panic: &Panic) {
        self.shared.fault(&ActorFault { label: self.label.clone(), place: self.place, message: message(panic) });
    }

    /// Calls the actor. If that panics, it is over.
    fn call(&mut self, call: impl FnOnce(&mut A, &Arc<Shared>) -> Next) -> Next {
        let Cell { actor, shared, .. } = self;
        match catch_unwind(AssertUnwindSafe(|| call(actor, shared))) {
            Ok(next) => next,
            Err(panic) => {
                self.panicked = true;
                self.fault(&panic);
                Next::Close
            }
        }
    }
}

impl<A: Actor> Receive<A::Message, Scheduler> for Cell<A> {
    fn receive(&mut self, message: A::Message, inbox: &Inbox<'_, A::Message, Scheduler>) -> Next {
        self.call(|actor, shared| {
            let mut context = Context { inbox, shared, stop: false };
            actor.receive(message, &mut context);
            if context.stop { Next::Close } else { Next::GoOn }
        })
    }

    fn rest(&mut self) -> Next {
        self.call(|actor, _| {
            actor.rested();
            Next::GoOn
        })
    }

    fn has_room(&mut self) {
        if let Some(room) = &mut self.room
            && let Err(panic) = catch_unwind(AssertUnwindSafe(room))
        {
            // The hook is to blame, not the actor.
            self.room = None;
            self.fault(&panic);
        }
    }
}

impl<A: Actor> Drop for Cell<A> {
    fn drop(&mut self) {
        if !self.panicked {
            self.call(|actor, _| {
                actor.stopped();
                Next::Close
            });
        }
        self.shared.actors.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refers to an actor, to send to it. May be cloned, sent and shared. When the last one has gone and everything has been
/// received, the actor ends.
pub struct ActorRef<M: Send + 'static> {
    address: Address<M, Scheduler>,
}

/// Why an actor was not sent a message. It comes back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MailError<M> {
    /// As many messages wait for it as [may](Spawn::bound).
    #[error("send to an actor: its mailbox is full")]
    Full(M),
    /// It has ended, or its pool has.
    #[error("send to an actor: it has ended")]
    Closed(M),
}

impl<M> MailError<M> {
    /// The message.
    pub fn into_inner(self) -> M {
        match self {
            MailError::Full(message) | MailError::Closed(message) => message,
        }
    }
}

impl<M> fmt::Debug for MailError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MailError::Full(_) => "Full(..)",
            MailError::Closed(_) => "Closed(..)",
        })
    }
}

impl<M> From<PushError<M>> for MailError<M> {
    fn from(error: PushError<M>) -> MailError<M> {
        match error {
            PushError::Full(message) => MailError::Full(message),
            PushError::Closed(message) => MailError::Closed(message),
        }
    }
}

impl<M: Send + 'static> ActorRef<M> {
    /// Sends `message`, however many wait. It is received, unless the actor ends before.
    ///
    /// Takes no lock and waits for nobody; and allocates nothing while few messages wait.
    pub fn send(&self, message: M) -> Result<(), MailError<M>> {
        if self.address.scheduler().0.refuses() {
            return Err(MailError::Closed(message));
        }
        Ok(self.address.push(message)?)
    }

    /// Sends `message` without asking whether the pool takes something from this thread: the caller has asked before.
    pub(super) fn send_accepted(&self, message: M) -> Result<(), MailError<M>> {
        Ok(self.address.push(message)?)
    }

    /// Sends `message` if fewer wait than [may](Spawn::bound): so senders that outrun the actor notice.
    pub fn try_send(&self, message: M) -> Result<(), MailError<M>> {
        if self.address.scheduler().0.refuses() {
            return Err(MailError::Closed(message));
        }
        Ok(self.address.try_push(message)?)
    }

    /// About how many messages wait.
    pub fn waiting(&self) -> usize {
        self.address.waiting()
    }

    /// How many may wait before [`try_send`](ActorRef::try_send) is refused.
    pub fn bound(&self) -> usize {
        self.address.bound()
    }

    /// Whether it has ended: by [itself](Context::stop), by a panic, or with its pool.
    pub fn is_closed(&self) -> bool {
        self.address.is_closed()
    }
}

impl<M: Send + 'static> Clone for ActorRef<M> {
    fn clone(&self) -> ActorRef<M> {
        ActorRef { address: self.address.clone() }
    }
}

/// Two are equal if they refer to the same actor.
impl<M: Send + 'static> PartialEq for ActorRef<M> {
    fn eq(&self, other: &ActorRef<M>) -> bool {
        self.address == other.address
    }
}

impl<M: Send + 'static> Eq for ActorRef<M> {}

impl<M: Send + 'static> Hash for ActorRef<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
    }
}

impl<M: Send + 'static> fmt::Debug for ActorRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorRef({} waiting)", self.waiting())
    }
}
