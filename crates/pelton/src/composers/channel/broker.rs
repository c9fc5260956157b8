//! Channels through a broker: the interface of brokers.

use std::fmt;
use std::sync::Weak;

use super::hub::{Hub, Origin};

/// Carries the values of a [`Channel`](super::Channel) to other processes and back. [`Channel::through`] makes a channel
/// with a broker.
///
/// A value that is published goes to [`publish`](Broker::publish). A value that arrives, from this process or another, goes
/// into the [`Inlet`], on any thread. Subscribers hear only what comes through the inlet, so all processes hear the values
/// in the same order if the broker keeps it.
///
/// ```
/// use pelton::{Broker, Channel, Inlet, PublishError, Reactor};
///
/// /// A broker that brings back everything, doubled.
/// struct Mirror(Inlet<u32>);
///
/// impl Broker<u32> for Mirror {
///     fn publish(&self, value: u32) -> Result<(), PublishError<u32>> {
///         self.0.deliver(value * 2);
///         Ok(())
///     }
/// }
///
/// let mut reactor = Reactor::new()?;
/// let channel = Channel::through(Mirror);
/// let subscription = channel.subscribe(&mut reactor, |reactor, value| {
///     assert_eq!(value, 42);
///     reactor.stop();
/// });
/// assert_eq!(channel.publish(21), Ok(1));
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
///
/// [`Channel::through`]: super::Channel::through
pub trait Broker<T>: Send + Sync {
    /// Sends a value to all processes. Must not block. A value that cannot be accepted is returned in the error.
    fn publish(&self, value: T) -> Result<(), super::PublishError<T>>;

    /// Called after somebody has subscribed or left, on any thread. [`Inlet::is_wanted`] says whether anybody is left; ask
    /// it where the calls are in one order.
    fn subscribers_changed(&self) {}

    /// Returns how many values were accepted and could not be sent, or may not have been sent.
    fn lost(&self) -> u64 {
        0
    }
}

/// Why a subscriber does not get some values of a channel with a [`Broker`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Missed {
    /// The connection to the broker was interrupted. Any number of values may have been published meanwhile.
    Interrupted,
    /// The inbox was full, and this many values were dropped here. Only with [`Overflow::Refuse`](super::Overflow::Refuse):
    /// the other policies count what they drop.
    Overflowed(u64),
    /// A message was not a value of the channel's type.
    Unreadable,
    /// The broker does not allow this program to subscribe.
    Denied,
}

impl Missed {
    /// Returns one gap in place of two that follow each other.
    pub(super) fn and(self, next: Missed) -> Missed {
        match (self, next) {
            (Missed::Overflowed(one), Missed::Overflowed(other)) => Missed::Overflowed(one.saturating_add(other)),
            (one, other) if one == other => one,
            // A gap of any length.
            _ => Missed::Interrupted,
        }
    }
}

/// Where a [`Broker`] puts the values that arrive for a channel. It does not keep the channel open.
pub struct Inlet<T> {
    hub: Weak<Hub<T>>,
}

impl<T> Inlet<T> {
    pub(super) fn new(hub: Weak<Hub<T>>) -> Inlet<T> {
        Inlet { hub }
    }

    /// Gives every subscriber of this process a clone of `value`. Returns how many had room for it.
    pub fn deliver(&self, value: T) -> usize
    where
        T: Clone,
    {
        // A channel that is closed has no subscribers.
        self.hub.upgrade().and_then(|hub| hub.spread(value, Origin::Broker).ok()).unwrap_or(0)
    }

    /// Tells every subscriber that values are missing here.
    pub fn missed(&self, missed: Missed) {
        if let Some(hub) = self.hub.upgrade() {
            hub.missed(missed);
        }
    }

    /// Returns whether the channel has subscribers in this process.
    pub fn is_wanted(&self) -> bool {
        self.hub.upgrade().is_some_and(|hub| hub.has_subscribers())
    }
}

/// Clones belong to the same channel.
impl<T> Clone for Inlet<T> {
    fn clone(&self) -> Self {
        Inlet { hub: self.hub.clone() }
    }
}

impl<T> fmt::Debug for Inlet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet").field("is_wanted", &self.is_wanted()).finish()
    }
}
