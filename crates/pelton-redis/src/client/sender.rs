//! The way to a client from other threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pelton::{Handle, Reactor, Reply};

use super::Clients;
use super::requests::{self, Answer};
use crate::{Command, Error, FromValue, Value};

/// What clones of a client and its senders share. When it is dropped, the client is closed.
pub(super) struct Shared {
    pub(super) handle: Handle,
    pub(super) id: u64,
    /// Commands that senders have posted and that the loop has not taken yet.
    posted: AtomicUsize,
    most: usize,
}

impl Shared {
    pub(super) fn new(handle: Handle, most: usize) -> Shared {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Shared { handle, id: NEXT.fetch_add(1, Ordering::Relaxed), posted: AtomicUsize::new(0), most }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let id = self.id;
        // A loop that has stopped has closed its connections.
        let _ = self.handle.post(move |reactor: &mut Reactor| {
            if let Some(link) = reactor.state::<Clients>().0.remove(&id) {
                link.close(reactor);
            }
        });
    }
}

/// Sends commands of a [`Client`](super::Client) from any thread.
///
/// ```no_run
/// # use pelton::Reactor;
/// # use pelton_redis::{Client, Command};
/// # let mut reactor = Reactor::new()?;
/// let redis = Client::open(&mut reactor, "redis://localhost")?.sender();
/// let handle = reactor.handle();
/// let other = std::thread::spawn(move || {
///     let visits = redis.ask::<i64>(Command::new("INCR").arg("visits")).wait();
///     handle.stop();
///     visits
/// });
/// reactor.run()?;
/// println!("{:?}", other.join().unwrap());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>) -> Sender {
        Sender { shared }
    }

    /// Sends a command, and returns a reply with its answer. The reply can be waited for, awaited, or made a promise of
    /// another loop.
    pub fn ask<T: FromValue + Send + 'static>(&self, command: Command) -> Reply<Result<T, Error>> {
        let (replier, reply) = Reply::pair();
        self.post(command, move |answer| replier.give(answer.and_then(T::from_value)));
        reply
    }

    /// Sends a command whose answer does not matter.
    pub fn tell(&self, command: Command) {
        self.post(command, |_| {});
    }

    fn post(&self, command: Command, give: impl FnOnce(Result<Value, Error>) + Send + 'static) {
        let (name, most, id) = (command.name(), self.shared.most, self.shared.id);
        let waiting = self.shared.posted.fetch_add(1, Ordering::Relaxed);
        if waiting >= most {
            self.shared.posted.fetch_sub(1, Ordering::Relaxed);
            return give(Err(Error::Busy { command: name, waiting, most }));
        }
        // The closure keeps the client open until it has run.
        let shared = self.shared.clone();
        let posted = self.shared.handle.post(move |reactor: &mut Reactor| {
            shared.posted.fetch_sub(1, Ordering::Relaxed);
            match reactor.state::<Clients>().0.get(&id).cloned() {
                Some(link) => requests::start(&link, reactor, command, 1, Answer::Settle(Box::new(give))),
                None => give(Err(Error::Closed { command: name })),
            }
        });
        // If the loop has stopped, the closure is dropped, and the reply is lost.
        drop(posted);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let posted = self.shared.posted.load(Ordering::Relaxed);
        f.debug_struct("Sender").field("posted", &posted).finish_non_exhaustive()
    }
}
