//! Tells workers of this process that jobs may be ready.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton::{Handle, Reactor};

use crate::store::{Listening, Ring};

/// The workers that listen, by queue. It can be used on any thread.
#[derive(Clone, Default)]
pub(crate) struct Bells {
    listeners: Arc<Mutex<HashMap<String, Vec<Listener>>>>,
}

#[derive(Clone)]
struct Listener {
    id: u64,
    handle: Handle,
    /// It was rung, and has not heard it yet. Further rings say nothing new.
    rung: Arc<AtomicBool>,
}

/// What to call, in the state of the loop of each worker.
#[derive(Default)]
struct Rings(HashMap<u64, Ring>);

impl Bells {
    pub(crate) fn listen(&self, reactor: &mut Reactor, queue: &str, ring: Ring) -> Rc<dyn Listening> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        reactor.state::<Rings>().0.insert(id, ring);
        let listener = Listener { id, handle: reactor.handle(), rung: Arc::default() };
        self.lock().entry(queue.to_owned()).or_default().push(listener.clone());
        Rc::new(Heard { bells: self.clone(), queue: queue.to_owned(), listener })
    }

    /// Rings for all workers of the queue.
    pub(crate) fn ring(&self, queue: &str) {
        let listeners = self.lock().get(queue).cloned();
        for listener in listeners.into_iter().flatten() {
            listener.ring();
        }
    }

    /// No other code runs under the lock, so a panic leaves the data consistent.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    fn ring(self) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let Listener { id, handle, rung } = self;
        // A loop that has stopped has no workers.
        let _ = handle.post(move |reactor: &mut Reactor| {
            rung.store(false, Ordering::Release);
            if let Some(ring) = reactor.state::<Rings>().0.get(&id).cloned() {
                ring(reactor);
            }
        });
    }
}

/// Ends a worker's listening when it is dropped.
struct Heard {
    bells: Bells,
    queue: String,
    listener: Listener,
}

/// Everybody is rung, so there is nothing to pass on.
impl Listening for Heard {
    fn wait(&self, _: &mut Reactor) {}

    fn pass_on(&self, _: &mut Reactor) {}
}

impl Drop for Heard {
    fn drop(&mut self) {
        let id = self.listener.id;
        let mut listeners = self.bells.lock();
        if let Some(of_queue) = listeners.get_mut(&self.queue) {
            of_queue.retain(|listener| listener.id != id);
            if of_queue.is_empty() {
                listeners.remove(&self.queue);
            }
        }
        drop(listeners);
        let _ = self.listener.handle.post(move |reactor: &mut Reactor| drop(reactor.state::<Rings>().0.remove(&id)));
    }
}
