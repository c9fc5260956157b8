//! Actors and the references that send to them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pelton_sync::{Address, Inbox, Next, PushError, Receive, mailbox};

use super::MAILBOX_BOUND;
use super::worker::{Scheduler, Shared};
use crate::reactor::panics::{Panic, catch};

/// Receives messages one at a time, in the order in which they arrived. Its state therefore needs no lock.
///
/// An actor that panics is closed. Its queued messages are dropped, the [fault hook](super::PoolBuilder::on_fault) is
/// called, and the pool keeps running.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an actor",
    label = "not an `Actor`",
    note = "implement `Actor` for it, or spawn a closure: `pool.spawn_fn(|message, context| ...)`"
)]
pub trait Actor: Send + 'static {
    /// The type of the messages.
    type Message: Send + 'static;

    /// Handles a message.
    fn receive(&mut self, message: Self::Message, context: &mut Context<'_, Self::Message>);

    /// Called when a turn ends: the mailbox is empty, or other actors get their turn. A good time to flush work that
    /// several messages have produced.
    fn rested(&mut self) {}

    /// Called once, last, when no more messages will arrive: the last reference was dropped, the actor has
    /// [stopped](Context::stop), or the pool has shut down. Not called after a panic, which may have left the state
    /// inconsistent.
    fn stopped(&mut self) {}
}

/// Gives an actor access to its pool while it receives a message.
pub struct Context<'a, M: Send + 'static> {
    inbox: &'a Inbox<'a, M, Scheduler>,
    pub(super) shared: &'a Arc<Shared>,
    stop: bool,
}

impl<M: Send + 'static> Context<'_, M> {
    /// Ends the actor after this message. Its queued messages are dropped, and later ones are refused.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// Returns a reference to the actor itself, or `None` if all other references are gone. An actor that keeps one of
    /// these does not end when the others are dropped.
    pub fn me(&self) -> Option<ActorRef<M>> {
        self.inbox.address().map(|address| ActorRef { address })
    }

    /// Spawns another actor on the same pool.
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

/// Configures an actor. See [`Pool::actor`](super::Pool::actor).
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

    /// Sets how many messages may be queued before [`ActorRef::try_send`] fails. At least 1; by default
    /// [`MAILBOX_BOUND`].
    #[must_use]
    pub fn bound(mut self, messages: usize) -> Spawn<'a> {
        self.bound = messages;
        self
    }

    /// Sets a name that appears in fault reports.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Spawn<'a> {
        self.label = Some(label.into());
        self
    }

    /// Calls `hook` after [`ActorRef::try_send`] has failed, once the mailbox is down to half of its bound. It runs on
    /// the worker, once for any number of failures. It can, for example, [post](crate::Handle::post) to a loop that
    /// waits to send more.
    #[must_use]
    pub fn on_room(mut self, hook: impl FnMut() + Send + 'static) -> Spawn<'a> {
        self.room = Some(Box::new(hook));
        self
    }

    /// Spawns the actor.
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

    /// Spawns a closure as an actor.
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

/// Describes an actor that panicked.
#[derive(Debug, Clone)]
pub struct ActorFault {
    /// Its [label](Spawn::label), if it has one.
    pub label: Option<Arc<str>>,
    /// Where it was spawned.
    pub place: &'static Location<'static>,
    /// The panic message.
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

/// Adapts an actor to its mailbox.
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
        self.shared.fault(&ActorFault { label: self.label.clone(), place: self.place, message: panic.message() });
    }

    /// Calls the actor, and closes it if the call panics.
    fn call(&mut self, call: impl FnOnce(&mut A, &Arc<Shared>) -> Next) -> Next {
        let Cell { actor, shared, .. } = self;
        match catch(|| call(actor, shared)) {
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
            && let Err(panic) = catch(room)
        {
            // Drop the hook, not the actor: only the hook has failed.
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

/// Sends messages to an actor. Can be cloned, sent and shared. The actor ends when the last reference has been dropped
/// and all messages have been received.
pub struct ActorRef<M: Send + 'static> {
    address: Address<M, Scheduler>,
}

/// The error returned when a message cannot be sent to an actor. It gives the message back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MailError<M> {
    /// The mailbox holds as many messages as its [bound](Spawn::bound) allows.
    #[error("send to an actor: its mailbox is full")]
    Full(M),
    /// The actor or its pool has ended.
    #[error("send to an actor: it has ended")]
    Closed(M),
}

impl<M> MailError<M> {
    /// Returns the message.
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
    /// Sends `message`, regardless of the mailbox's bound. The actor receives it unless the actor ends first.
    ///
    /// Takes no lock, does not block, and does not allocate while few messages are queued.
    pub fn send(&self, message: M) -> Result<(), MailError<M>> {
        if self.address.scheduler().0.refuses() {
            return Err(MailError::Closed(message));
        }
        Ok(self.address.push(message)?)
    }

    /// Sends `message` without checking whether the pool accepts it from this thread. The caller has already checked.
    pub(super) fn send_accepted(&self, message: M) -> Result<(), MailError<M>> {
        Ok(self.address.push(message)?)
    }

    /// Sends `message` if the mailbox is below its [bound](Spawn::bound), so that senders notice when they outrun the
    /// actor.
    pub fn try_send(&self, message: M) -> Result<(), MailError<M>> {
        if self.address.scheduler().0.refuses() {
            return Err(MailError::Closed(message));
        }
        Ok(self.address.try_push(message)?)
    }

    /// Returns approximately how many messages are queued.
    pub fn waiting(&self) -> usize {
        self.address.waiting()
    }

    /// Returns how many messages may be queued before [`try_send`](ActorRef::try_send) fails.
    pub fn bound(&self) -> usize {
        self.address.bound()
    }

    /// Returns whether the actor has ended: by [itself](Context::stop), by a panic, or with its pool.
    pub fn is_closed(&self) -> bool {
        self.address.is_closed()
    }
}

impl<M: Send + 'static> Clone for ActorRef<M> {
    fn clone(&self) -> ActorRef<M> {
        ActorRef { address: self.address.clone() }
    }
}

/// Two references are equal if they refer to the same actor.
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
