//! The queue into the loop of a hub, from all threads.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton::{Handle, Reactor};

use super::Running;
use super::subscriptions::{self, Sink};
use crate::Command;

/// How many items one tick takes. Others get their turn in between.
const PER_TICK: usize = 1024;

pub(super) enum Item {
    Publish {
        command: Command,
        size: usize,
        /// Counts the values that could not be sent.
        lost: Arc<AtomicU64>,
    },
    /// Somebody has subscribed or left. It is in the same queue, so that a program hears what it publishes after it has
    /// subscribed.
    Check(Arc<dyn Sink>),
}

pub(super) struct Queue {
    handle: Handle,
    id: u64,
    items: Mutex<Items>,
    /// Messages, and their bytes, that wait to be sent or for an answer.
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    most: usize,
    most_bytes: usize,
}

#[derive(Default)]
struct Items {
    items: VecDeque<Item>,
    /// A post is on its way that takes items, or a subscription holds them up and takes them afterwards.
    scheduled: bool,
}

/// Why a message was not queued.
pub(super) enum Refusal {
    Full,
    Stopped,
}

impl Queue {
    pub(super) fn new(handle: Handle, most: usize, most_bytes: usize) -> Queue {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (waiting, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Queue { handle, id, items: Mutex::default(), waiting, bytes, most, most_bytes }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Queues a message.
    pub(super) fn publish(&self, name: &str, payload: &[u8], lost: &Arc<AtomicU64>) -> Result<(), Refusal> {
        let size = payload.len();
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.fetch_add(size, Ordering::Relaxed);
        if waiting >= self.most || bytes.saturating_add(size) > self.most_bytes {
            self.is_done(size);
            return Err(Refusal::Full);
        }
        let command = Command::new("PUBLISH").arg(name).arg(payload);
        if !self.push(Item::Publish { command, size, lost: lost.clone() }) {
            self.is_done(size);
            return Err(Refusal::Stopped);
        }
        Ok(())
    }

    /// Records that a message was answered, or has failed.
    fn is_done(&self, size: usize) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }

    /// Queues an item. Returns `false` if the loop has stopped.
    pub(super) fn push(&self, item: Item) -> bool {
        if self.handle.has_stopped() {
            return false;
        }
        let mut items = self.lock();
        items.items.push_back(item);
        if std::mem::replace(&mut items.scheduled, true) {
            return true;
        }
        drop(items);
        self.schedule()
    }

    fn schedule(&self) -> bool {
        let id = self.id;
        self.handle.post(move |reactor: &mut Reactor| take_items(reactor, id)).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Items> {
        // No user code runs under the lock, so a panic leaves its data consistent.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works on what is queued. Called on the loop, when something was queued and when a subscription no longer holds it up.
pub(super) fn take_items(reactor: &mut Reactor, id: u64) {
    let Some(running) = Running::find(reactor, id) else { return };
    for _ in 0..PER_TICK {
        if running.link.role.holds() {
            // The call that clears this state calls again.
            return;
        }
        let item = {
            let mut items = running.queue.lock();
            let item = items.items.pop_front();
            items.scheduled = item.is_some();
            item
        };
        match item {
            None => return,
            Some(Item::Check(sink)) => subscriptions::check(&running.link, reactor, &sink),
            Some(Item::Publish { command, size, lost }) => send(&running, reactor, command, size, lost),
        }
    }
    running.queue.schedule();
}

fn send(running: &Rc<Running>, reactor: &mut Reactor, command: Command, size: usize, lost: Arc<AtomicU64>) {
    let queue = running.queue.clone();
    running.client.settle(reactor, command, move |answer| {
        queue.is_done(size);
        if let Err(error) = answer {
            lost.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "a value was not published");
        }
    });
}

/// Closes the hub when it is dropped. Hubs and channels share it.
pub(super) struct Owner(Arc<Queue>);

impl Owner {
    pub(super) fn new(queue: Arc<Queue>) -> Owner {
        Owner(queue)
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let id = self.0.id;
        // After the items that are queued. A loop that has stopped has closed its connections.
        let _ = self.0.handle.post(move |reactor: &mut Reactor| Running::close(reactor, id));
    }
}
