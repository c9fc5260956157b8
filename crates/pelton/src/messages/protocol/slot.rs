//! A slot for a reply that is sent later.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::mailbox::{Letter, Mailbox};
use super::pending::Answer;
use crate::{Promise, Reactor, promises};

/// A slot for a reply that is sent later. Created by [`Replies::later`](super::Replies::later).
///
/// It can be answered from anywhere: another callback, another thread, an actor, a task. Replies after it wait until it
/// is answered. It is [`Send`] if the messages are.
///
/// Dropping a slot without an answer closes the connection with [`Reason::Unanswered`](crate::Reason::Unanswered),
/// after the replies before it, because the other side could not tell which reply is missing.
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
/// // If the lane is full, it returns the work, which is dropped together with the slot.
///             Some(reactor) => drop(reactor.defer(Lane::Cpu, smallest, |_, _| {})),
/// // On a worker of a pool it may block.
///             None => smallest(),
///         }
///     }
/// }
/// ```
#[must_use = "a slot that is dropped unanswered closes the connection"]
pub struct ReplySlot<M: 'static> {
    /// `None` once it is answered.
    mailbox: Option<Arc<Mailbox<M>>>,
    number: u64,
}

impl<M: 'static> ReplySlot<M> {
    pub(super) fn new(mailbox: Arc<Mailbox<M>>, number: u64) -> ReplySlot<M> {
        ReplySlot { mailbox: Some(mailbox), number }
    }

    /// Answers with `message`. If the connection has ended, the message is dropped.
    pub fn send(mut self, message: M) {
        self.answer(Answer::One(message));
    }

    /// Answers with any number of messages, which are sent in sequence.
    pub fn send_all(mut self, messages: impl IntoIterator<Item = M>) {
        self.answer(Answer::Many(messages.into_iter().collect()));
    }

    /// Answers with the value of `promise`.
    ///
    /// If the promise is rejected, the slot is dropped and the rejection is
    /// [reported](Reactor::on_unhandled_rejection). Use [`or_else`](Promise::or_else) to answer with an error message
    /// instead. If the connection ends first, the promise is dropped, which
    /// [`Deferred::is_wanted`](crate::Deferred::is_wanted) reports.
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
                    // Tasks are polled with their reactor as the current one.
                    Reactor::with_current(|reactor| promises::report_unhandled(reactor, place, &rejected));
                }
                None => {}
            }
        });
    }

    /// Answers with the output of `future`, which runs as a task on the loop. If the connection ends first, the future
    /// is dropped.
    #[track_caller]
    pub fn spawn(self, reactor: &mut Reactor, future: impl Future<Output = M> + 'static) {
        reactor.spawn(async move {
            if let Some(message) = self.unless_gone(future).await {
                self.send(message);
            }
        });
    }

    /// Returns whether the connection has ended, so that nobody waits for the answer.
    pub fn is_gone(&self) -> bool {
        self.mailbox.as_ref().is_none_or(|mailbox| mailbox.is_over())
    }

    /// Waits until the connection has ended, so that work that is no longer needed can be abandoned.
    pub async fn gone(&self) {
        self.unless_gone(std::future::pending::<()>()).await;
    }

    /// Returns the output of `future`, or `None` if the connection ends first.
    async fn unless_gone<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match &self.mailbox {
            Some(mailbox) if !mailbox.is_over_or_wakes(self.number, context.waker()) => {
                future.as_mut().poll(context).map(Some)
            }
            _ => Poll::Ready(None),
        })
        .await
    }

    fn answer(&mut self, answer: Answer<M>) {
        if let Some(mailbox) = self.mailbox.take() {
            // If the connection has ended, nobody waits for the answer.
            let _ = mailbox.put(Letter::Answer(self.number, answer));
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
        f.debug_struct("ReplySlot").field("number", &self.number).finish_non_exhaustive()
    }
}
