//! What the clones of a channel share: its subscribers, its broker, its statistics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::inbox::{Inbox, Put};
use super::{Broker, ChannelStats, Missed, PublishError, SubscriptionEnd, lock};

pub(super) struct Hub<T> {
    state: Mutex<State<T>>,
    broker: Option<Box<dyn Broker<T>>>,
}

struct State<T> {
    /// The subscribers' inboxes, in the order of subscription.
    inboxes: BTreeMap<u64, Arc<Inbox<T>>>,
    next_id: u64,
    closed: bool,
    stats: ChannelStats,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Origin {
    /// A publisher in this process, which can be refused.
    Publisher,
    /// A broker, which cannot.
    Broker,
}

impl<T> Hub<T> {
    pub(super) fn new(broker: Option<Box<dyn Broker<T>>>) -> Hub<T> {
        let state = State { inboxes: BTreeMap::new(), next_id: 0, closed: false, stats: ChannelStats::default() };
        Hub { state: Mutex::new(state), broker }
    }

    pub(super) fn broker(&self) -> Option<&dyn Broker<T>> {
        self.broker.as_deref()
    }

    /// Publishes a value through the broker.
    pub(super) fn hand_over(&self, value: T, broker: &dyn Broker<T>) -> Result<usize, PublishError<T>> {
        if lock(&self.state).closed {
            lock(&self.state).stats.refused += 1;
            return Err(PublishError::Closed(value));
        }
        let handed_over = broker.publish(value);
        let mut state = lock(&self.state);
        match handed_over {
            Ok(()) => {
                state.stats.published += 1;
                Ok(state.inboxes.len())
            }
            Err(error) => {
                state.stats.refused += 1;
                Err(error)
            }
        }
    }

    /// Puts a value into all inboxes.
    pub(super) fn spread(&self, value: T, origin: Origin) -> Result<usize, PublishError<T>>
    where
        T: Clone,
    {
        let mut copies = Vec::new();
        let mut state = loop {
            let mut state = lock(&self.state);
            if state.closed {
                state.stats.refused += u64::from(origin == Origin::Publisher);
                drop(state);
                return Err(PublishError::Closed(value));
            }
            if origin == Origin::Publisher && state.inboxes.values().any(|inbox| inbox.refuses()) {
                state.stats.refused += 1;
                drop(state);
                return Err(PublishError::Full(value));
            }
            // The last subscriber gets the value itself. Cloning runs user code, so it happens without the lock.
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
        match origin {
            Origin::Publisher => state.stats.published += 1,
            Origin::Broker => state.stats.received += 1,
        }
        state.stats.dropped += dropped.len() as u64;
        state.stats.disconnected += disconnected.len() as u64;
        let inboxes: Vec<_> = disconnected.iter().chain(&stopped).map(|id| state.inboxes.remove(id)).collect();
        // Drop these values without the lock: their destructors may be user code.
        drop(state);
        if !inboxes.is_empty() {
            self.subscribers_changed();
        }
        drop(inboxes);
        Ok(reached)
    }

    /// Tells all subscribers of a gap.
    pub(super) fn missed(&self, missed: Missed) {
        let mut state = lock(&self.state);
        state.stats.gaps += 1;
        state.inboxes.values().for_each(|inbox| inbox.miss(missed));
    }

    pub(super) fn admit(&self, inbox: Arc<Inbox<T>>) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        if state.closed {
            drop(state);
            inbox.end(SubscriptionEnd::Closed);
        } else {
            state.inboxes.insert(id, inbox);
            drop(state);
            self.subscribers_changed();
        }
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let inbox = lock(&self.state).inboxes.remove(&id);
        if inbox.is_some() {
            self.subscribers_changed();
        }
    }

    pub(super) fn has(&self, id: u64) -> bool {
        lock(&self.state).inboxes.contains_key(&id)
    }

    pub(super) fn has_subscribers(&self) -> bool {
        !lock(&self.state).inboxes.is_empty()
    }

    pub(super) fn stats(&self) -> ChannelStats {
        let lost = self.broker().map_or(0, |broker| broker.lost());
        let state = lock(&self.state);
        ChannelStats { subscribers: state.inboxes.len(), lost, ..state.stats }
    }

    pub(super) fn close(&self) -> bool {
        let mut state = lock(&self.state);
        let first = !std::mem::replace(&mut state.closed, true);
        let inboxes = std::mem::take(&mut state.inboxes);
        drop(state);
        inboxes.values().for_each(|inbox| inbox.end(SubscriptionEnd::Closed));
        if first {
            self.subscribers_changed();
        }
        first
    }

    fn subscribers_changed(&self) {
        if let Some(broker) = self.broker() {
            broker.subscribers_changed();
        }
    }
}

impl<T> Drop for Hub<T> {
    fn drop(&mut self) {
        self.close();
    }
}
