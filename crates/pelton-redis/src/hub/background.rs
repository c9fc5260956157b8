//! Hubs on a loop in the background, for programs that give none.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};

use bytes::Bytes;
use pelton::{Channel, Reactor, ReactorThread};

use super::Hub;
use super::outgoing::Owner;
use crate::{ConfigError, Options};

/// The loop of all hubs that no program's loop runs. It is started when the first one is needed, and is never stopped.
static BACKGROUND: Mutex<Option<Background>> = Mutex::new(None);

struct Background {
    /// The process that the thread belongs to: after a fork, the child has only a copy of its memory.
    process: u32,
    thread: ReactorThread,
    /// The hubs that are open, by URL.
    hubs: HashMap<String, Weak<Owner>>,
}

/// Returns a channel of values with this name, on the server with this URL. It is the same type as
/// [`Channel::new`] makes, with the same methods, and reaches subscribers in all processes. Values are sent as JSON.
///
/// All such channels of a process share a loop in the background, and those of one URL share two connections. On a loop of
/// its own, a program uses [`Hub`] and saves the way through another thread.
///
/// At most once: a value may be lost if a connection ends, and is never delivered twice. Subscribers hear the values of one
/// publisher in the order in which it has published them, and are told of gaps
/// ([`Delivery::Missed`](pelton::Delivery::Missed)).
///
/// ```no_run
/// use pelton::Reactor;
///
/// let news = pelton_redis::channel::<String>("redis://localhost", "news")?;
/// let mut reactor = Reactor::new()?;
/// news.subscribe(&mut reactor, |_, headline| println!("{headline}")).keep();
/// news.publish("water found".into())?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "json")]
pub fn channel<T>(url: &str, name: impl Into<String>) -> Result<Channel<T>, ConfigError>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static,
{
    Ok(hub(url)?.channel(name))
}

/// Returns a channel of bytes with this name, on the server with this URL. See [`channel`](fn@crate::channel).
pub fn bytes_channel(url: &str, name: impl Into<String>) -> Result<Channel<Bytes>, ConfigError> {
    Ok(hub(url)?.bytes_channel(name))
}

/// Returns the hub for this URL.
fn hub(url: &str) -> Result<Hub, ConfigError> {
    let options: Options = url.parse()?;
    // Nothing under the lock leaves the data inconsistent by a panic.
    let mut background = BACKGROUND.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    let usable = |background: &Background| background.process == process && !background.thread.has_stopped();
    if !background.as_ref().is_some_and(usable) {
        let thread = ReactorThread::start("pelton-redis", Reactor::builder, |_| Ok(()))?;
        let new = Background { process, thread, hubs: HashMap::new() };
        // The thread of a parent process cannot be joined.
        std::mem::forget(background.replace(new));
    }
    let Some(background) = background.as_mut() else { return Err(pelton::Error::Stopped.into()) };
    if let Some(owner) = background.hubs.get(url).and_then(Weak::upgrade) {
        return Ok(Hub { owner });
    }
    let opened = background.thread.post_with_reply(move |reactor| Hub::open(reactor, options));
    let hub = opened.wait().map_err(|_| pelton::Error::Stopped)??;
    background.hubs.retain(|_, owner| owner.strong_count() > 0);
    background.hubs.insert(url.to_owned(), std::sync::Arc::downgrade(&hub.owner));
    Ok(hub)
}
