//! Publish and subscribe, within one process or through a broker.
//!
//! Each subscriber has an inbox, which publishers fill and its loop empties. Each value in an inbox comes with one post
//! to the loop, which takes one value out. Deliveries are therefore ordinary ticks: they run in order with other ticks
//! and count against the same budget. A subscriber that panics does not affect the others.
//!
//! With a broker (`broker.rs`), publishing hands values to it, and it fills the inboxes with what comes from other
//! processes. `hub.rs` has what the two ways share.

mod broker;
mod hub;
mod inbox;
mod subscription;

use std::fmt;
use std::ops::ControlFlow;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::broker::{Broker, Inlet, Missed};
use self::hub::{Hub, Origin};
use self::inbox::Inbox;
pub use self::subscription::Subscription;
use self::subscription::{Leaving, Membership};
use crate::Reactor;
use crate::reactor::panics::catch;
use crate::reactor::slots::{Key, Slots};

/// How many values may wait for a subscriber by default. Enough for a burst.
const CAPACITY: usize = 1024;

/// Delivers values published on any thread to all subscribers, each on its own loop.
///
/// A channel can be cloned, and it can be sent and shared if its values are `Send`. Every subscriber receives a clone
/// of each value, and all of them in the order in which the values were published. Wrap values that are costly to clone
/// in an [`Arc`], or use [`Bytes`](crate::Bytes). Subscribers are called from the tick queue, never from within
/// [`publish`](Channel::publish).
///
/// If a subscriber is slower than the publishers, its [inbox](SubscribeOptions) fills up. The subscriber's [`Overflow`]
/// policy decides what happens then.
///
/// If a subscriber panics, the panic is reported like that of any callback, and its subscription ends. Other
/// subscribers are not affected.
///
/// With a [`Broker`], a channel reaches subscribers in other processes and on other machines. Crates for brokers make
/// such channels, for example `pelton-redis`.
///
/// ```
/// # use pelton::{Channel, Reactor};
/// let mut reactor = Reactor::new()?;
/// let news = Channel::new();
/// let subscription = news.subscribe(&mut reactor, |reactor, headline: Box<str>| {
///     assert_eq!(&*headline, "water found");
///     reactor.stop();
/// });
/// let publisher = std::thread::spawn(move || news.publish("water found".into()));
/// reactor.run()?;
/// # assert_eq!(publisher.join().unwrap(), Ok(1));
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct Channel<T> {
    hub: Arc<Hub<T>>,
}

/// What to do with a value when a subscriber's inbox is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Overflow {
    /// [Refuse](PublishError::Full) the value, for all subscribers. Publishers are limited to the speed of this
    /// subscriber. A value that comes from a [`Broker`] cannot be refused: it is dropped for this subscriber, which is
    /// told ([`Missed::Overflowed`]).
    #[default]
    Refuse,
    /// Drop the oldest value in the inbox. Use it when only the current state matters.
    DropOldest,
    /// Drop the new value for this subscriber. Use it when the beginning of a burst matters.
    DropNewest,
    /// End the subscription, after the values in the inbox have been delivered. Use it when values are useless with
    /// gaps.
    Disconnect,
}

/// The capacity of a subscriber's inbox and its overflow policy.
///
/// ```
/// # use pelton::{Channel, Delivery, Overflow, Reactor, SubscribeOptions, SubscriptionEnd};
/// let mut reactor = Reactor::new()?;
/// let prices = Channel::new();
/// let options = SubscribeOptions { capacity: 2, overflow: Overflow::Disconnect };
/// let slow = prices.subscribe_with(&mut reactor, options, |reactor, delivery| match delivery {
///     Delivery::Value(price) => assert!(price < 3),
///     Delivery::Missed(_) => unreachable!("this channel has no broker"),
///     Delivery::Ended(end) => {
///         assert_eq!(end, SubscriptionEnd::Overflowed);
///         reactor.stop();
///     }
/// });
/// // All before the loop has had a chance to turn.
/// let reached = [1, 2, 3, 4].map(|price| prices.publish(price));
/// assert_eq!(reached, [Ok(1), Ok(1), Ok(0), Ok(0)]);
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubscribeOptions {
    /// How many values may wait in the inbox. 0 means 1. By default 1,024.
    pub capacity: usize,
    /// What happens to further values. By default they are [refused](Overflow::Refuse).
    pub overflow: Overflow,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions { capacity: CAPACITY, overflow: Overflow::default() }
    }
}

/// The id of a subscriber that was never admitted.
const NOBODY: u64 = u64::MAX;

/// An event for a subscriber.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery<T> {
    /// A value was published.
    Value(T),
    /// Values may have been published here that the subscriber does not get. Only on channels with a [`Broker`].
    Missed(Missed),
    /// There will be no more values. This is the last event.
    Ended(SubscriptionEnd),
}

/// Why a subscription ended without an unsubscribe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SubscriptionEnd {
    /// The channel was [closed](Channel::close), or all of its clones were dropped.
    Closed,
    /// The inbox was full, and its policy is [`Overflow::Disconnect`].
    Overflowed,
}

/// The error returned when a value cannot be published. It gives the value back; no subscriber has received it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError<T> {
    /// The inbox of a subscriber with [`Overflow::Refuse`] is full, or too much waits for the [`Broker`].
    #[error("publish to a channel: the inbox of a subscriber, or the queue to the broker, is full")]
    Full(T),
    /// The channel is [closed](Channel::close).
    #[error("publish to a channel: it is closed")]
    Closed(T),
    /// The [`Broker`] cannot send this value.
    #[error("publish to a channel: {reason}")]
    Unsuitable {
        /// The value.
        value: T,
        /// Why not.
        reason: Arc<str>,
    },
}

impl<T> PublishError<T> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        match self {
            PublishError::Full(value) | PublishError::Closed(value) | PublishError::Unsuitable { value, .. } => value,
        }
    }
}

impl<T> fmt::Debug for PublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PublishError::Full(_) => "Full(..)",
            PublishError::Closed(_) => "Closed(..)",
            PublishError::Unsuitable { .. } => "Unsuitable { .. }",
        })
    }
}

/// The statistics of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Published values: with a [`Broker`], those that it has accepted.
    pub published: u64,
    /// Values that have come from a [`Broker`].
    pub received: u64,
    /// Gaps in what has come from a [`Broker`], of any length.
    pub gaps: u64,
    /// Values that a [`Broker`] has accepted and could not send, or may not have sent.
    pub lost: u64,
    /// [Refused](PublishError) values.
    pub refused: u64,
    /// Values dropped because an inbox was full, counted once per subscriber.
    pub dropped: u64,
    /// Subscriptions ended because an inbox was full.
    pub disconnected: u64,
    /// Current subscribers.
    pub subscribers: usize,
}

/// Locks the mutex. No user code runs under the lock, so a panic leaves its data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Channel<T> {
    /// Creates a channel without subscribers.
    pub fn new() -> Channel<T> {
        Channel { hub: Arc::new(Hub::new(None)) }
    }

    /// Creates a channel whose values go through a broker. `make` receives the [`Inlet`] that the broker puts arriving
    /// values in. Programs call a function of the broker's crate instead.
    pub fn through<B: Broker<T> + 'static>(make: impl FnOnce(Inlet<T>) -> B) -> Channel<T> {
        Channel { hub: Arc::new_cyclic(|hub| Hub::new(Some(Box::new(make(Inlet::new(hub.clone())))))) }
    }

    /// Gives every subscriber a clone of `value`. Returns how many had room for it, which may be 0. No subscriber is
    /// called before this returns, on any thread.
    ///
    /// If the inbox of one subscriber with [`Overflow::Refuse`] is full, no subscriber receives the value.
    ///
    /// With a [`Broker`], the value goes to the broker first, and from there to the subscribers of all processes,
    /// including this one. The number returned is that of the subscribers in this process. What the broker guarantees is
    /// up to it.
    pub fn publish(&self, value: T) -> Result<usize, PublishError<T>>
    where
        T: Clone,
    {
        match self.hub.broker() {
            None => self.hub.spread(value, Origin::Publisher),
            Some(broker) => self.hub.hand_over(value, broker),
        }
    }

    /// Closes the channel: nothing more can be published, and all subscriptions end with [`SubscriptionEnd::Closed`]
    /// after the values in their inboxes have been delivered. Dropping the last clone does the same. Returns `false` if
    /// it was already closed.
    ///
    /// ```
    /// # use pelton::{Channel, PublishError};
    /// let channel = Channel::new();
    /// assert!(channel.close());
    /// assert_eq!(channel.publish("too late"), Err(PublishError::Closed("too late")));
    /// ```
    pub fn close(&self) -> bool {
        self.hub.close()
    }

    /// Returns the channel's statistics.
    ///
    /// ```
    /// # let channel = pelton::Channel::new();
    /// # channel.publish(1)?;
    /// assert_eq!((channel.stats().published, channel.stats().subscribers), (1, 0));
    /// # Ok::<(), pelton::PublishError<i32>>(())
    /// ```
    pub fn stats(&self) -> ChannelStats {
        self.hub.stats()
    }
}

impl<T: 'static> Channel<T> {
    /// Calls `f` on this loop for every value published from now on, until the [`Subscription`] is dropped. Up to 1,024
    /// values wait in its inbox. Beyond that, publishers are [refused](PublishError::Full).
    ///
    /// With a [`Broker`], use [`subscribe_with`](Channel::subscribe_with) to learn of gaps.
    ///
    /// If the loop has stopped, nothing is subscribed and `f` is dropped.
    #[track_caller]
    pub fn subscribe(&self, reactor: &mut Reactor, mut f: impl FnMut(&mut Reactor, T) + 'static) -> Subscription<T> {
        self.subscribe_from(Location::caller(), reactor, SubscribeOptions::default(), move |reactor, delivery| {
            if let Delivery::Value(value) = delivery {
                f(reactor, value);
            }
        })
    }

    /// Subscribes with the given capacity and overflow policy. `f` is also called when the subscription ends.
    #[track_caller]
    pub fn subscribe_with(
        &self,
        reactor: &mut Reactor,
        options: SubscribeOptions,
        f: impl FnMut(&mut Reactor, Delivery<T>) + 'static,
    ) -> Subscription<T> {
        self.subscribe_from(Location::caller(), reactor, options, f)
    }

    fn subscribe_from(
        &self,
        place: &'static Location<'static>,
        reactor: &mut Reactor,
        options: SubscribeOptions,
        mut f: impl FnMut(&mut Reactor, Delivery<T>) + 'static,
    ) -> Subscription<T> {
        let key = reactor.subscribers.0.insert(None);
        let inbox = Arc::new(Inbox::new(options, reactor.handle(), key, place));
        let over = reactor.is_over();
        let id = if over { NOBODY } else { self.hub.admit(inbox.clone()) };
        let membership = Membership { hub: Arc::downgrade(&self.hub), id, inbox };
        let subscription = Subscription { membership: membership.clone(), kept: false };
        if over {
            // The loop is over and takes no values. Publishers must not wait for it.
            reactor.subscribers.0.remove(key);
            return subscription;
        }
        // When the callback is dropped, by a panic or with its reactor, its membership ends.
        let membership = Leaving(membership);
        let deliver = move |reactor: &mut Reactor| match membership.0.inbox.take() {
            None => ControlFlow::Continue(()),
            Some(end @ Delivery::Ended(_)) => {
                f(reactor, end);
                ControlFlow::Break(())
            }
            Some(delivery) => {
                f(reactor, delivery);
                ControlFlow::Continue(())
            }
        };
        if let Some(subscriber) = reactor.subscribers.0.get_mut(key) {
            *subscriber = Some(Box::new(deliver));
        }
        subscription
    }
}

/// Clones refer to the same channel.
impl<T> Clone for Channel<T> {
    fn clone(&self) -> Self {
        Channel { hub: self.hub.clone() }
    }
}

impl<T> Default for Channel<T> {
    fn default() -> Self {
        Channel::new()
    }
}

impl<T> fmt::Debug for Channel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

type Subscriber = Box<dyn FnMut(&mut Reactor) -> ControlFlow<()>>;

/// The subscribers on a loop. A subscriber is taken out of its slot while it is being called.
#[derive(Default)]
pub(crate) struct Subscribers(Slots<Option<Subscriber>>);

impl Reactor {
    /// Makes a subscriber take one event out of its inbox.
    fn call_subscriber(&mut self, key: Key) {
        let Some(mut subscriber) = self.subscribers.0.get_mut(key).and_then(Option::take) else { return };
        match catch(|| subscriber(self)) {
            Ok(ControlFlow::Continue(())) => {
                if let Some(slot) = self.subscribers.0.get_mut(key) {
                    *slot = Some(subscriber);
                }
            }
            Ok(ControlFlow::Break(())) => drop(self.subscribers.0.remove(key)),
            Err(panic) => {
                self.subscribers.0.remove(key);
                drop(subscriber);
                // Propagate to the code that catches and reports the panics of all callbacks.
                panic.resume();
            }
        }
    }
}
