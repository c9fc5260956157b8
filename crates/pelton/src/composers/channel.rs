//! Publish and subscribe, inside one process.
//!
//! Each subscriber has an inbox, which publishers fill and its loop empties. For each value that goes into an inbox there is one
//! post to the loop, which takes one value out: so deliveries are ticks like any other, in order with them and counted by the
//! same budget, and a subscriber that panics costs nobody else anything.

mod inbox;
mod subscription;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::inbox::{Inbox, Put};
pub use self::subscription::Subscription;
use self::subscription::{Leaving, Membership};
use crate::Reactor;
use crate::reactor::slots::{Key, Slots};

/// How many values may wait for a subscriber, unless it says otherwise: a burst, not a backlog.
const CAPACITY: usize = 1024;

/// Values go in at any thread, and out to everybody who has subscribed, each on its own loop.
///
/// It may be cloned, sent and shared freely, if its values may be sent. Everybody gets a clone of each value, in the order in
/// which they were published, which is the same for all; what is costly to clone goes into an [`Arc`], or is
/// [`Bytes`](crate::Bytes). Subscribers are called from the tick queue, never inside [`publish`](Channel::publish).
///
/// A subscriber that is slower than the publishers has an [inbox](SubscribeOptions) that fills up. What happens then is
/// [for the subscriber to say](Overflow).
///
/// A subscriber that panics is reported like any callback, and its subscription ends. The others do not notice.
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

/// What happens to a value that a subscriber's inbox has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Overflow {
    /// The publisher is [refused](PublishError::Full), and nobody gets the value: publishers go as fast as this subscriber.
    #[default]
    Refuse,
    /// The value that has waited longest makes room: for who wants to know how things are, not how they were.
    DropOldest,
    /// This subscriber does not get it: for who wants the beginning of a burst.
    DropNewest,
    /// The subscription ends: for who can do nothing with values if some are missing. What waits is delivered first.
    Disconnect,
}

/// How much may wait for a subscriber, and what happens if more comes.
///
/// ```
/// # use pelton::{Channel, Delivery, Overflow, Reactor, SubscribeOptions, SubscriptionEnd};
/// let mut reactor = Reactor::new()?;
/// let prices = Channel::new();
/// let options = SubscribeOptions { capacity: 2, overflow: Overflow::Disconnect };
/// let slow = prices.subscribe_with(&mut reactor, options, |reactor, delivery| match delivery {
///     Delivery::Value(price) => assert!(price < 3),
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
    /// How many values may wait. One, if this is 0. By default 1,024.
    pub capacity: usize,
    /// What happens if more come. By default they are [refused](Overflow::Refuse).
    pub overflow: Overflow,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions { capacity: CAPACITY, overflow: Overflow::default() }
    }
}

/// The number of a subscriber that was never admitted.
const NOBODY: u64 = u64::MAX;

/// What a subscriber is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery<T> {
    /// A value was published.
    Value(T),
    /// There will be no more: the last there is to tell.
    Ended(SubscriptionEnd),
}

/// Why a subscription is over, though nobody unsubscribed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SubscriptionEnd {
    /// The channel was [closed](Channel::close), or all of its clones are gone.
    Closed,
    /// More came than the inbox had room for, and [`Overflow::Disconnect`] was asked for.
    Overflowed,
}

/// Why a value was not published. It comes back; nobody got it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError<T> {
    /// A subscriber that [does not want to miss anything](Overflow::Refuse) is behind.
    #[error("publish to a channel: a subscriber is behind")]
    Full(T),
    /// The channel is [closed](Channel::close).
    #[error("publish to a channel: it is closed")]
    Closed(T),
}

impl<T> PublishError<T> {
    /// The value that was refused.
    pub fn into_inner(self) -> T {
        match self {
            PublishError::Full(value) | PublishError::Closed(value) => value,
        }
    }
}

impl<T> fmt::Debug for PublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PublishError::Full(_) => "Full(..)",
            PublishError::Closed(_) => "Closed(..)",
        })
    }
}

/// What has gone through a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Values that were published.
    pub published: u64,
    /// Values that were [refused](PublishError).
    pub refused: u64,
    /// Values that were dropped because an inbox was full, one for each subscriber that missed one.
    pub dropped: u64,
    /// Subscriptions that were ended because an inbox was full.
    pub disconnected: u64,
    /// Subscribers that there are now.
    pub subscribers: usize,
}

struct Hub<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    /// In the order in which they came.
    inboxes: BTreeMap<u64, Arc<Inbox<T>>>,
    next_id: u64,
    closed: bool,
    stats: ChannelStats,
}

/// No user code runs under a lock, so what a panic left behind is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Channel<T> {
    /// A channel that nobody has subscribed to yet.
    pub fn new() -> Channel<T> {
        let state = State { inboxes: BTreeMap::new(), next_id: 0, closed: false, stats: ChannelStats::default() };
        Channel { hub: Arc::new(Hub { state: Mutex::new(state) }) }
    }

    /// Gives everybody who has subscribed a clone of `value`. Says how many had room for it; nobody having subscribed is no
    /// error. Nobody is called before this returns, on whatever thread it is.
    ///
    /// All or nothing, as far as [`Overflow::Refuse`] goes: if one such subscriber has no room, nobody gets the value.
    pub fn publish(&self, value: T) -> Result<usize, PublishError<T>>
    where
        T: Clone,
    {
        let mut copies = Vec::new();
        let mut state = loop {
            let mut state = lock(&self.hub.state);
            if state.closed {
                state.stats.refused += 1;
                drop(state);
                return Err(PublishError::Closed(value));
            }
            if state.inboxes.values().any(|inbox| inbox.refuses()) {
                state.stats.refused += 1;
                drop(state);
                return Err(PublishError::Full(value));
            }
            // The value itself is for the last one. To clone is the user's code, so the lock has to go meanwhile.
            let missing = state.inboxes.len().saturating_sub(copies.len() + 1);
            if missing == 0 {
                break state;
            }
            drop(state);
            copies.extend((0..missing).map(|_| value.clone()));
        };
        copies.push(value);
        let mut reached = 0;
        let (mut disconnected, mut stopped) = (Vec::new(), Vec::new());
        let mut dropped = Vec::new();
        for (id, inbox) in &state.inboxes {
            let Some(value) = copies.pop() else { break };
            match inbox.put(value) {
                Put::Taken => reached += 1,
                Put::InPlaceOf(oldest) => {
                    reached += 1;
                    dropped.push(oldest);
                }
                Put::Dropped(value) => dropped.push(value),
                Put::Disconnected(value) => {
                    copies.push(value);
                    disconnected.push(*id);
                }
                Put::Stopped(value) => {
                    copies.push(value);
                    stopped.push(*id);
                }
            }
        }
        state.stats.published += 1;
        state.stats.dropped += dropped.len() as u64;
        state.stats.disconnected += disconnected.len() as u64;
        let inboxes: Vec<_> = disconnected.iter().chain(&stopped).map(|id| state.inboxes.remove(id)).collect();
        // What is dropped now, when the function ends, may be the user's.
        drop(state);
        drop(inboxes);
        Ok(reached)
    }

    /// Ends all subscriptions, once what waits has been delivered, with [`SubscriptionEnd::Closed`]. Nothing can be published any
    /// more. The same happens when the last clone is dropped. `false` if it was closed before.
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

    /// What has gone through it, and how many have subscribed.
    ///
    /// ```
    /// # let channel = pelton::Channel::new();
    /// # channel.publish(1)?;
    /// assert_eq!((channel.stats().published, channel.stats().subscribers), (1, 0));
    /// # Ok::<(), pelton::PublishError<i32>>(())
    /// ```
    pub fn stats(&self) -> ChannelStats {
        let state = lock(&self.hub.state);
        ChannelStats { subscribers: state.inboxes.len(), ..state.stats }
    }
}

impl<T: 'static> Channel<T> {
    /// Calls `f` on this loop for every value that is published from now on, until the [`Subscription`] is dropped. At most 1,024
    /// values wait for it; then publishers are [refused](PublishError::Full).
    ///
    /// On a loop that has stopped, nobody is subscribed, and `f` is dropped.
    #[track_caller]
    pub fn subscribe(&self, reactor: &mut Reactor, mut f: impl FnMut(&mut Reactor, T) + 'static) -> Subscription<T> {
        self.subscribe_from(Location::caller(), reactor, SubscribeOptions::default(), move |reactor, delivery| {
            if let Delivery::Value(value) = delivery {
                f(reactor, value);
            }
        })
    }

    /// [`subscribe`](Channel::subscribe) with a say in how much may wait and what happens to the rest. `f` is also told when
    /// there will be no more.
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
            // Publishers are not to wait for a loop that takes nothing any more.
            reactor.subscribers.0.remove(key);
            return subscription;
        }
        // If the callback goes, by a panic or with its reactor, so does the membership.
        let membership = Leaving(membership);
        let deliver = move |reactor: &mut Reactor| match membership.0.inbox.take() {
            None => ControlFlow::Continue(()),
            Some(Delivery::Value(value)) => {
                f(reactor, Delivery::Value(value));
                ControlFlow::Continue(())
            }
            Some(end) => {
                f(reactor, end);
                ControlFlow::Break(())
            }
        };
        if let Some(subscriber) = reactor.subscribers.0.get_mut(key) {
            *subscriber = Some(Box::new(deliver));
        }
        subscription
    }
}

impl<T> Hub<T> {
    fn admit(&self, inbox: Arc<Inbox<T>>) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        if state.closed {
            drop(state);
            inbox.end(SubscriptionEnd::Closed);
        } else {
            state.inboxes.insert(id, inbox);
        }
        id
    }

    fn close(&self) -> bool {
        let mut state = lock(&self.state);
        let first = !std::mem::replace(&mut state.closed, true);
        let inboxes = std::mem::take(&mut state.inboxes);
        drop(state);
        inboxes.values().for_each(|inbox| inbox.end(SubscriptionEnd::Closed));
        first
    }
}

impl<T> Drop for Hub<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Another way to the same channel.
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

/// The subscribers on a loop. One that is being called is not there meanwhile.
#[derive(Default)]
pub(crate) struct Subscribers(Slots<Option<Subscriber>>);

impl Reactor {
    /// Has a subscriber take one thing out of its inbox.
    fn call_subscriber(&mut self, key: Key) {
        let Some(mut subscriber) = self.subscribers.0.get_mut(key).and_then(Option::take) else { return };
        match catch_unwind(AssertUnwindSafe(|| subscriber(self))) {
            Ok(ControlFlow::Continue(())) => {
                if let Some(place) = self.subscribers.0.get_mut(key) {
                    *place = Some(subscriber);
                }
            }
            Ok(ControlFlow::Break(())) => drop(self.subscribers.0.remove(key)),
            Err(panic) => {
                self.subscribers.0.remove(key);
                drop(subscriber);
                // Goes on to where the panics of all callbacks are caught and reported.
                resume_unwind(panic);
            }
        }
    }
}
