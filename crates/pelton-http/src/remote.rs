//! Answers from other threads.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pelton::{Handle, Reactor};

use crate::{Responder, Response};

/// Answers one request from any thread, as a [`Responder`] does on the loop. If it is dropped without an answer, the client
/// gets a 500.
///
/// ```
/// use pelton::{ActorRef, Pool, Reactor};
/// use pelton_http::{Handler, KeptRequest, RemoteResponder, Request, Responder, Server};
///
/// /// Counts visits for all reactors in one place.
/// fn counted(counter: ActorRef<RemoteResponder>) -> impl Handler {
///     move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
///         let remote = responder.remote(reactor);
///         // If the actor does not accept it, it is returned and answers when it is dropped.
///         let _ = counter.try_send(remote);
///     }
/// }
///
/// let pool = Pool::builder().workers(1).build()?;
/// let mut visits = 0;
/// let counter = pool.spawn_fn(move |remote: RemoteResponder, _| {
///     visits += 1;
///     remote.respond(format!("visitor {visits}\n"));
/// });
/// let server = Server::new(counted(counter));
/// # Ok::<(), pelton::Error>(())
/// ```
#[must_use = "a request that is not answered gets a 500"]
pub struct RemoteResponder {
    handle: Handle,
    key: u64,
    gone: Arc<AtomicBool>,
    answered: bool,
}

/// Responders on the loop that wait for an answer from another thread.
#[derive(Default)]
struct Waiting {
    responders: HashMap<u64, Responder>,
    last: u64,
}

impl Responder {
    /// Lets another thread answer.
    pub fn remote(self, reactor: &mut Reactor) -> RemoteResponder {
        let gone = Arc::new(AtomicBool::new(false));
        let flag = gone.clone();
        self.on_gone(reactor, move |_| flag.store(true, Ordering::Relaxed));
        let waiting = reactor.state::<Waiting>();
        waiting.last += 1;
        let key = waiting.last;
        waiting.responders.insert(key, self);
        RemoteResponder { handle: reactor.handle(), key, gone, answered: false }
    }
}

impl RemoteResponder {
    /// Sends the response. Does nothing if the client or the server is gone.
    pub fn respond(mut self, response: impl Into<Response>) {
        self.answered = true;
        self.settle(Some(response.into()));
    }

    /// Whether the client has disconnected, so that work for it can stop.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn settle(&self, response: Option<Response>) {
        let key = self.key;
        let answer = move |reactor: &mut Reactor| {
            if let Some(responder) = reactor.state::<Waiting>().responders.remove(&key)
                && let Some(response) = response
            {
                responder.respond(reactor, response);
            }
        };
        // If the loop is gone, the connection is closed.
        let _ = self.handle.post(answer);
    }
}

impl Drop for RemoteResponder {
    fn drop(&mut self) {
        if !self.answered {
            self.settle(None);
        }
    }
}

impl fmt::Debug for RemoteResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteResponder").field("gone", &self.is_gone()).finish_non_exhaustive()
    }
}
