//! A place in line for a reply that comes later.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::line::Answer;
use super::mailbox::{Letter, Mailbox};
use crate::{Promise, Reactor, promises};

/// The place in line of a reply that comes later: made by [`Replies::later`](super::Replies::later).
///
/// It is answered from anywhere: another callback, another thread, an actor, a task. Whatever the protocol says after it waits
/// until it is answered. If the messages are [`Send`], so is this.
///
/// A slot that is dropped unanswered closes the connection with [`Reason::Unanswered`](crate::Reason::Unanswered), after the
/// replies before it: the other side could not tell which reply is missing.
///
/// ```
/// use pelton::{Lane, Protocol, Replies};
///
/// struct Primes;
///
/// impl Protocol for Primes {
///     type Message = u64;
///
///     fn process(&mut self, number: u64, replies: &mut Replies<u64>) {
///         if number < 4 {
///             return replies.send(1);
///         }
///         let slot = replies.later();
///         let smallest = move || slot.send((2..=number).find(|factor| number % factor == 0).unwrap_or(1));
///         match replies.reactor() {
///             // A lane that is full gives the work back; the slot is dropped with it.
///             Some(reactor) => drop(reactor.defer(Lane::Cpu, smallest, |_, _| {})),
///             // On a worker of a pool there is time.
///             None => smallest(),
///         }
///     }
/// }
/// ```
#[must_use = "a slot that is dropped unanswered closes the connection"]
pub struct ReplySlot<M: 'static> {
    /// `None` once it is answered.
    mailbox: Option<Arc<Mailbox<M>>>,
    place: u64,
}

impl<M: 'static> ReplySlot<M> {
    pub(super) fn new(mailbox: Arc<Mailbox<M>>, place: u64) -> ReplySlot<M> {
        ReplySlot { mailbox: Some(mailbox), place }
    }

    /// Answers with `message`. If the connection is over, the message is dropped, like anything that is sent too late.
    pub fn send(mut self, message: M) {
        self.answer(Answer::One(message));
    }

    /// Answers with several messages, which stay together, or with none.
    pub fn send_all(mut self, messages: impl IntoIterator<Item = M>) {
        self.answer(Answer::Many(messages.into_iter().collect()));
    }

    /// Answers with the value of `promise`.
    ///
    /// If the promise is rejected, the slot is dropped, and the rejection is
    /// [reported](Reactor::on_unhandled_rejection): use [`or_else`](Promise::or_else) to answer with an error message. If the
    /// connection ends first, the promise is dropped, which [`Deferred::is_wanted`](crate::Deferred::is_wanted) tells.
    ///
    /// ```
    /// use pelton::{Protocol, Replies, fs};
    ///
    /// struct Files;
    ///
    /// impl Protocol for Files {
    ///     type Message = String;
    ///
    ///     fn process(&mut self, name: String, replies: &mut Replies<String>) {
    ///         let slot = replies.later();
    ///         let Some(reactor) = replies.reactor() else { return slot.send("not on a loop".to_owned()) };
    ///         let size = fs::metadata(name).promise(reactor).map(|metadata| format!("{} bytes", metadata.len()));
    ///         slot.resolve_with(reactor, size.or_else(|_, error| Ok(error.to_string())));
    ///     }
    /// }
    /// ```
    #[track_caller]
    pub fn resolve_with<E: fmt::Debug + 'static>(self, reactor: &mut Reactor, promise: Promise<M, E>) {
        let place = Location::caller();
        reactor.spawn(async move {
            match self.unless_gone(promise).await {
                Some(Ok(message)) => self.send(message),
                Some(Err(rejected)) => {
                    // Tasks are polled with their reactor at hand.
                    Reactor::with_current(|reactor| promises::report_unhandled(reactor, place, &rejected));
                }
                None => {}
            }
        });
    }

    /// Answers with the output of `future`, which runs as a task on the loop. If the connection ends first, the future is
    /// dropped where it waits.
    #[track_caller]
    pub fn spawn(self, reactor: &mut Reactor, future: impl Future<Output = M> + 'static) {
        reactor.spawn(async move {
            if let Some(message) = self.unless_gone(future).await {
                self.send(message);
            }
        });
    }

    /// Whether the connection is over, so that nobody waits for the answer.
    pub fn is_gone(&self) -> bool {
        self.mailbox.as_ref().is_none_or(|mailbox| mailbox.is_over())
    }

    /// Waits until the connection is over: to give up work that nobody needs any more.
    pub async fn gone(&self) {
        self.unless_gone(std::future::pending::<()>()).await;
    }

    /// The output of `future`; `None` if the connection is over first.
    async fn unless_gone<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match &self.mailbox {
            Some(mailbox) if !mailbox.is_over_or_wakes(self.place, context.waker()) => {
                future.as_mut().poll(context).map(Some)
            }
            _ => Poll::Ready(None),
        })
        .await
    }

    fn answer(&mut self, answer: Answer<M>) {
        if let Some(mailbox) = self.mailbox.take() {
            // If the connection is over, nobody waits for it.
            let _ = mailbox.put(Letter::Answer(self.place, answer));
        }
    }
}

impl<M: 'static> Drop for ReplySlot<M> {
    fn drop(&mut self) {
        self.answer(Answer::Dropped);
    }
}

impl<M: 'static> fmt::Debug for ReplySlot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySlot").field("place", &self.place).finish_non_exhaustive()
    }
}
