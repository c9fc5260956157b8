//! Membership of a channel's subscribers.

use std::fmt;
use std::sync::{Arc, Weak};

use super::Hub;
use super::inbox::Inbox;

pub(super) struct Membership<T> {
    pub(super) hub: Weak<Hub<T>>,
    pub(super) id: u64,
    pub(super) inbox: Arc<Inbox<T>>,
}

impl<T> Membership<T> {
    fn leave(&self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.remove(self.id);
        }
        self.inbox.leave();
    }
}

impl<T> Clone for Membership<T> {
    fn clone(&self) -> Self {
        Membership { hub: self.hub.clone(), id: self.id, inbox: self.inbox.clone() }
    }
}

/// Leaves the channel when it is dropped.
pub(super) struct Leaving<T>(pub(super) Membership<T>);

impl<T> Drop for Leaving<T> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A subscription to a [`Channel`](crate::Channel). Dropping it unsubscribes, on any thread: the values in its inbox
/// are dropped, and the subscriber is not called again.
///
/// ```
/// # use pelton::{Channel, Reactor};
/// let mut reactor = Reactor::new()?;
/// let channel = Channel::new();
/// let subscription = channel.subscribe(&mut reactor, |_, _: u32| unreachable!("it has unsubscribed"));
/// assert_eq!(channel.publish(1), Ok(1));
/// assert_eq!(subscription.waiting(), 1);
/// subscription.unsubscribe();
/// assert_eq!(channel.publish(2), Ok(0));
/// # reactor.turn(Some(std::time::Duration::ZERO))?;
/// # Ok::<(), pelton::Error>(())
/// ```
#[must_use = "dropping a subscription unsubscribes"]
pub struct Subscription<T> {
    pub(super) membership: Membership<T>,
    pub(super) kept: bool,
}

impl<T> Subscription<T> {
    /// Unsubscribes. Dropping the subscription does the same implicitly.
    pub fn unsubscribe(self) {
        drop(self);
    }

    /// Stays subscribed for the lifetime of the channel and the loop.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Returns how many values were dropped because the inbox was full.
    pub fn dropped(&self) -> u64 {
        self.membership.inbox.counts().1
    }

    /// Returns how many values are waiting to be delivered.
    pub fn waiting(&self) -> usize {
        self.membership.inbox.counts().0
    }

    /// Returns whether the subscription still receives published values.
    pub fn is_active(&self) -> bool {
        self.membership.hub.upgrade().is_some_and(|hub| hub.has(self.membership.id))
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.membership.leave();
        }
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Subscription");
        fields.field("waiting", &self.waiting()).field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}
