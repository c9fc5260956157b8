//! Channels across processes, over the publish and subscribe of Redis.
//!
//! A hub has two connections: one publishes, the other is subscribed. `outgoing.rs` is the queue into its loop, from all
//! threads; `subscriptions.rs` is the subscribed connection; `broker.rs` connects a channel to both; `background.rs` has the
//! loop of hubs that no program's loop runs.

mod background;
mod broker;
mod outgoing;
mod subscriptions;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pelton::{Channel, Reactor};

use self::broker::Topic;
use self::outgoing::{Owner, Queue};
use self::subscriptions::Subscriptions;
use crate::link::Link;
use crate::{Client, ConfigError, Options};

pub use self::background::bytes_channel;
#[cfg(feature = "json")]
pub use self::background::channel;

/// Makes [channels](Channel) that reach other processes, over one server. Clones share its two connections, which belong to
/// the loop that it was opened on. It can be used on any thread. When the last clone and the last channel are dropped, the
/// connections are closed.
///
/// [`channel`](fn@crate::channel) needs no loop of the program: it uses one in the background.
///
/// ```no_run
/// use pelton::{Delivery, Reactor, SubscribeOptions};
/// use pelton_redis::Hub;
///
/// let mut reactor = Reactor::new()?;
/// let hub = Hub::open(&mut reactor, "redis://localhost")?;
/// let prices = hub.channel::<(String, u32)>("prices");
/// prices.subscribe_with(&mut reactor, SubscribeOptions::default(), |_, delivery| match delivery {
///     Delivery::Value((name, price)) => println!("{name} costs {price}"),
///     Delivery::Missed(gap) => println!("some prices are missing here: {gap:?}"),
///     Delivery::Ended(_) => {}
/// }).keep();
/// prices.publish(("tea".to_owned(), 3))?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Hub {
    owner: Arc<Owner>,
}

/// The statistics of a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HubStats {
    /// Messages that wait to be sent, or for the server's answer.
    pub waiting: usize,
    /// Their size in bytes.
    pub waiting_bytes: usize,
}

/// The hubs of a loop, in the loop's state. Other threads find them by number.
#[derive(Default)]
struct Hubs(HashMap<u64, Rc<Running>>);

/// A hub, on its loop.
struct Running {
    client: Client,
    link: Rc<Link<Subscriptions>>,
    queue: Arc<Queue>,
}

impl Hub {
    /// Opens a hub for this URL, or these [`Options`]. It connects in the background.
    ///
    /// [`Options::in_flight`] and [`Options::queued_bytes`] bound what waits to be published. Past that,
    /// [`publish`](Channel::publish) fails with [`PublishError::Full`](pelton::PublishError::Full).
    pub fn open(
        reactor: &mut Reactor,
        options: impl TryInto<Options, Error: Into<ConfigError>>,
    ) -> Result<Hub, ConfigError> {
        let options = options.try_into().map_err(Into::into)?;
        let queue = Arc::new(Queue::new(reactor.handle(), options.in_flight, options.queued_bytes));
        // The queue into the loop has the bounds, so that publishers are refused and nothing is lost later.
        let client = Client::open(reactor, options.clone().in_flight(usize::MAX).queued_bytes(usize::MAX / 4))?;
        let link = Rc::new(Link::new(Subscriptions::new(queue.id()), options)?);
        let running = Running { client, link, queue: queue.clone() };
        reactor.state::<Hubs>().0.insert(queue.id(), Rc::new(running));
        Ok(Hub { owner: Arc::new(Owner::new(queue)) })
    }

    /// Returns a channel of bytes with this name. Other programs may publish and subscribe under the same name, with any
    /// client of Redis.
    pub fn bytes_channel(&self, name: impl Into<String>) -> Channel<Bytes> {
        Topic::channel(&self.owner, name.into(), |bytes: &Bytes| Ok(bytes.clone()), Some)
    }

    /// Returns a channel of values with this name. They are sent as JSON.
    #[cfg(feature = "json")]
    pub fn channel<T>(&self, name: impl Into<String>) -> Channel<T>
    where
        T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static,
    {
        let encode = |value: &T| serde_json::to_vec(value).map(Bytes::from).map_err(|error| error.to_string());
        Topic::channel(&self.owner, name.into(), encode, |bytes| serde_json::from_slice(&bytes).ok())
    }

    /// Returns the statistics.
    pub fn stats(&self) -> HubStats {
        let (waiting, waiting_bytes) = self.owner.queue().waiting();
        HubStats { waiting, waiting_bytes }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Running {
    fn find(reactor: &mut Reactor, id: u64) -> Option<Rc<Running>> {
        reactor.state::<Hubs>().0.get(&id).cloned()
    }

    fn close(reactor: &mut Reactor, id: u64) {
        if let Some(running) = reactor.state::<Hubs>().0.remove(&id) {
            running.link.close(reactor);
            running.client.close(reactor);
        }
    }
}
