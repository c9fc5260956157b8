//! The inbox of one subscriber of a channel.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Mutex;

use super::{Delivery, Missed, Overflow, SubscribeOptions, SubscriptionEnd, lock};
use crate::reactor::slots::Key;
use crate::{Handle, Reactor};

/// The values that wait for one subscriber.
pub(super) struct Inbox<T> {
    state: Mutex<Waiting<T>>,
    capacity: usize,
    overflow: Overflow,
    handle: Handle,
    /// The key of the callback in its reactor.
    key: Key,
    /// Where the subscription was made.
    place: &'static Location<'static>,
}

struct Waiting<T> {
    values: VecDeque<Entry<T>>,
    /// The end of the subscription, delivered after the values.
    end: Option<SubscriptionEnd>,
    /// The subscriber has left.
    left: bool,
    dropped: u64,
}

impl<T> Waiting<T> {
    /// Removes the oldest value. The gaps before and after it become one; the post for the other finds nothing, or serves a
    /// later entry.
    fn drop_oldest(&mut self) -> Option<T> {
        let at = self.values.iter().position(|entry| matches!(entry, Entry::Value(_)))?;
        let removed = self.values.remove(at);
        if let Some(before) = at.checked_sub(1)
            && let (Some(Entry::Missed(one)), Some(Entry::Missed(other))) =
                (self.values.get(before), self.values.get(at))
        {
            let both = one.and(*other);
            self.values.remove(at);
            self.values[before] = Entry::Missed(both);
        }
        match removed? {
            Entry::Value(value) => Some(value),
            Entry::Missed(_) => None,
        }
    }
}

enum Entry<T> {
    Value(T),
    Missed(Missed),
}

/// The result of putting a value into an inbox.
pub(super) enum Put<T> {
    Taken,
    InPlaceOf(T),
    Dropped(T),
    Disconnected(T),
    /// The loop has stopped and takes no more values.
    Stopped(T),
}

impl<T> Inbox<T> {
    pub(super) fn new(options: SubscribeOptions, handle: Handle, key: Key, place: &'static Location<'static>) -> Self {
        let state = Mutex::new(Waiting { values: VecDeque::new(), end: None, left: false, dropped: 0 });
        Inbox { state, capacity: options.capacity.max(1), overflow: options.overflow, handle, key, place }
    }

    /// Returns how many values are waiting, and how many were dropped.
    pub(super) fn counts(&self) -> (usize, u64) {
        let state = lock(&self.state);
        (state.values.len(), state.dropped)
    }

    pub(super) fn refuses(&self) -> bool {
        self.overflow == Overflow::Refuse && {
            let state = lock(&self.state);
            !state.left && state.values.len() >= self.capacity
        }
    }

    pub(super) fn put(&self, value: T) -> Put<T> {
        let mut state = lock(&self.state);
        if state.left {
            return Put::Dropped(value);
        }
        if state.values.len() < self.capacity {
            state.values.push_back(Entry::Value(value));
            drop(state);
            if self.call() {
                return Put::Taken;
            }
            // Publishers are serialised, so the last value is this one, unless the loop has just taken it.
            return match lock(&self.state).values.pop_back() {
                Some(Entry::Value(value)) => Put::Stopped(value),
                _ => Put::Taken,
            };
        }
        state.dropped += 1;
        match self.overflow {
            // The post made for the oldest value now serves the next one.
            Overflow::DropOldest => {
                let oldest = state.drop_oldest();
                state.values.push_back(Entry::Value(value));
                oldest.map_or(Put::Taken, Put::InPlaceOf)
            }
            Overflow::Disconnect => {
                drop(state);
                self.end(SubscriptionEnd::Overflowed);
                Put::Disconnected(value)
            }
            Overflow::DropNewest => Put::Dropped(value),
            // Publishers check for room first. A broker has no publisher to refuse.
            Overflow::Refuse => {
                drop(state);
                self.miss(Missed::Overflowed(1));
                Put::Dropped(value)
            }
        }
    }

    /// Adds a gap. Gaps that follow each other are one, so there are never more than values and one.
    pub(super) fn miss(&self, missed: Missed) {
        let mut state = lock(&self.state);
        if state.left {
            return;
        }
        if let Some(Entry::Missed(last)) = state.values.back_mut() {
            *last = last.and(missed);
            return;
        }
        state.values.push_back(Entry::Missed(missed));
        drop(state);
        // A stopped loop does not need the event.
        self.call();
    }

    pub(super) fn take(&self) -> Option<Delivery<T>> {
        let mut state = lock(&self.state);
        let value = state.values.pop_front().map(|entry| match entry {
            Entry::Value(value) => Delivery::Value(value),
            Entry::Missed(missed) => Delivery::Missed(missed),
        });
        value.or_else(|| state.end.take().map(Delivery::Ended))
    }

    pub(super) fn end(&self, end: SubscriptionEnd) {
        let mut state = lock(&self.state);
        if !state.left && state.end.is_none() {
            state.end = Some(end);
            drop(state);
            // A stopped loop does not need the event.
            self.call();
        }
    }

    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.left, true) {
            return;
        }
        state.end = None;
        let values = std::mem::take(&mut state.values);
        drop(state);
        drop(values);
        let key = self.key;
        let forget = move |reactor: &mut Reactor| drop(reactor.subscribers.0.remove(key));
        // A loop that has ended has already removed it.
        let _ = self.handle.post_from(self.place, forget, None);
    }

    /// Posts a call that takes one event out of the inbox. Returns `false` if the loop has stopped.
    fn call(&self) -> bool {
        let key = self.key;
        self.handle.post_from(self.place, move |reactor| reactor.call_subscriber(key), None).is_ok()
    }
}
