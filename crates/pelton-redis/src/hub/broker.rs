//! Connects a channel to a hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pelton::{Broker, Channel, Inlet, Missed, PublishError};

use super::outgoing::{Item, Owner, Refusal};
use super::subscriptions::Sink;

type Encode<T> = fn(&T) -> Result<Bytes, String>;
type Decode<T> = fn(Bytes) -> Option<T>;

/// The broker of one channel.
pub(super) struct Topic<T> {
    owner: Arc<Owner>,
    encode: Encode<T>,
    end: Arc<End<T>>,
    lost: Arc<AtomicU64>,
}

/// Where messages of the channel arrive.
struct End<T> {
    name: Bytes,
    inlet: Inlet<T>,
    decode: Decode<T>,
}

impl<T: Clone + Send + 'static> Topic<T> {
    pub(super) fn channel(owner: &Arc<Owner>, name: String, encode: Encode<T>, decode: Decode<T>) -> Channel<T> {
        Channel::through(|inlet| Topic {
            owner: owner.clone(),
            encode,
            end: Arc::new(End { name: name.into(), inlet, decode }),
            lost: Arc::default(),
        })
    }
}

impl<T: Clone + Send + 'static> Broker<T> for Topic<T> {
    fn publish(&self, value: T) -> Result<(), PublishError<T>> {
        let payload = match (self.encode)(&value) {
            Ok(payload) => payload,
            Err(reason) => return Err(PublishError::Unsuitable { value, reason: reason.into() }),
        };
        // Names are text, so they are valid UTF-8.
        let name = str::from_utf8(&self.end.name).unwrap_or_default();
        self.owner.queue().publish(name, &payload, &self.lost).map_err(|refusal| match refusal {
            Refusal::Full => PublishError::Full(value),
            Refusal::Stopped => PublishError::Closed(value),
        })
    }

    fn subscribers_changed(&self) {
        // A loop that has stopped has no connection.
        self.owner.queue().push(Item::Check(self.end.clone()));
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl<T: Clone + Send + 'static> Sink for End<T> {
    fn name(&self) -> &Bytes {
        &self.name
    }

    fn message(&self, payload: Bytes) {
        match (self.decode)(payload) {
            Some(value) => {
                self.inlet.deliver(value);
            }
            None => self.inlet.missed(Missed::Unreadable),
        }
    }

    fn missed(&self, missed: Missed) {
        self.inlet.missed(missed);
    }

    fn is_wanted(&self) -> bool {
        self.inlet.is_wanted()
    }
}
