//! The loop's end of the task queue.
//!
//! There are two steps. First the loop takes a batch out of the queue, without the interpreter lock if it was
//! asleep. Then it executes the whole batch under one acquisition of the lock. While there is more, the loop
//! continues with the next batch and keeps the lock. It releases the lock every few milliseconds, as for all
//! callbacks. Releasing it after each batch would cost milliseconds whenever another thread runs Python code,
//! because that thread keeps the lock as long as it can.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pelton_sync::Receiver;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use super::callbacks;
use super::execute::Place;
use super::loops::{Control, HostedLoop, Message};
use super::returned::{self, Returned};
use crate::value;
use pelton_asyncio::Intake;
use pelton_asyncio::hosting;
use pelton_cpython::object::Owned;

pub(crate) struct Inbox {
    receiver: Receiver<Message>,
    fetched: VecDeque<Message>,
    /// Number of tasks among the fetched messages.
    tasks: usize,
    batch: usize,
    spin: Duration,
    place: Place,
}

impl Inbox {
    pub(crate) fn new(receiver: Receiver<Message>, batch: usize, spin: Duration, place: Place) -> Inbox {
        Inbox { receiver, fetched: VecDeque::with_capacity(batch), tasks: 0, batch, spin, place }
    }

    fn home(&self) -> &Arc<HostedLoop> {
        &self.place.home
    }

    unsafe fn control(&mut self, py: Python<'_>, loop_: *mut PyObject, control: Control) {
        match control {
            Control::Cancel(number) => callbacks::cancel(py, &self.place.home, number),
            Control::Room(stream) => stream.make_room(py),
            Control::Forget(number) => self.place.namespaces.forget(py, number),
            Control::Run(job) => job(py),
            Control::Look => {}
            Control::CancelAll => {
                let numbers: Vec<u64> = self.home().waiting.lock().keys().copied().collect();
                for number in numbers {
                    callbacks::cancel(py, &self.place.home, number);
                }
            }
            // SAFETY: the caller guarantees that the loop is alive.
            Control::Stop => hosting::stop(&unsafe { Bound::from_borrowed_ptr(py, loop_) }),
            Control::Await(message) => {
                let Returned { object, options, completion } = *message;
                // SAFETY: the caller guarantees that the loop is alive and holds the lock.
                unsafe {
                    let object = Owned::new_reference(object.as_ptr());
                    returned::settle(py, loop_, &self.place.home, object, options, completion);
                }
            }
        }
    }

    /// Runs `work` and catches panics, which are bugs in this crate. A panic loses the task, whose completion is
    /// settled when it is dropped, but not the loop.
    #[inline]
    fn guarded(&mut self, work: impl FnOnce(&mut Inbox)) {
        let activity = &self.place.home.activity;
        activity.store(activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            tracing::error!("a task was lost to a panic, which is a bug in pelton");
        }
    }

    /// Returns whether the loop has finished all its work.
    fn is_finished(&self) -> bool {
        let home = self.home();
        home.closing.load(Ordering::Relaxed)
            && self.fetched.is_empty()
            && self.receiver.is_empty()
            && home.on_workers.load(Ordering::Relaxed) == 0
            && home.waiting.lock().is_empty()
    }
}

impl Intake for Inbox {
    fn has_work(&mut self) -> bool {
        let activity = &self.place.home.activity;
        activity.store(activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        !self.fetched.is_empty() || !self.receiver.is_empty() || self.home().deliveries.any()
    }

    fn sleep(&mut self) -> bool {
        let sleeps = self.receiver.sleep();
        self.home().asleep.store(sleeps, Ordering::Relaxed);
        sleeps
    }

    fn awake(&mut self) {
        self.receiver.awake();
        self.home().asleep.store(false, Ordering::Relaxed);
    }

    fn fetch(&mut self) -> bool {
        let before = self.tasks;
        while self.tasks < self.batch && self.fetched.len() < self.batch {
            let Some(message) = self.receiver.pop() else { break };
            self.tasks += match &message {
                Message::Task(_) => 1,
                Message::Portion(portion) => portion.len(),
                Message::Control(_) => 0,
            };
            self.fetched.push_back(message);
        }
        if self.tasks > before {
            self.place.home.fetched.store(self.tasks, Ordering::Relaxed);
            self.place.home.taken(self.tasks - before);
        }
        !self.fetched.is_empty()
    }

    fn spin(&self) -> Duration {
        self.spin
    }

    fn locked(&mut self) {
        self.home().counters.locks.fetch_add(1, Ordering::Relaxed);
    }

    fn process(&mut self, its_loop: &Bound<'_, PyAny>) {
        let (py, loop_) = (its_loop.py(), its_loop.as_ptr());
        self.fetch();
        if value::has_dropped() {
            value::release_dropped(py);
        }
        let mut begun = 0;
        // Take the fetched messages, so that a nested turn finds none. The last portion may be left in part.
        let mut messages = std::mem::take(&mut self.fetched);
        while begun < self.batch
            && let Some(message) = messages.pop_front()
        {
            match message {
                Message::Task(task) => {
                    begun += 1;
                    self.guarded(|inbox| {
                        inbox.place.home.fetched.store(inbox.tasks - begun, Ordering::Relaxed);
                        // SAFETY: the caller holds the lock, and `loop_` is the loop of this thread.
                        unsafe { inbox.place.start(py, loop_, task) }
                    });
                }
                Message::Portion(mut portion) => {
                    while begun < self.batch
                        && let Some(task) = portion.pop()
                    {
                        begun += 1;
                        self.guarded(|inbox| {
                            inbox.place.home.fetched.store(inbox.tasks - begun, Ordering::Relaxed);
                            // SAFETY: the caller holds the lock, and `loop_` is the loop of this thread.
                            unsafe { inbox.place.start(py, loop_, task) }
                        });
                    }
                    if portion.len() > 0 {
                        messages.push_front(Message::Portion(portion));
                    }
                }
                Message::Control(control) => self.guarded(|inbox| {
                    // SAFETY: the caller holds the lock, and `loop_` is the loop of this thread.
                    unsafe { inbox.control(py, loop_, control) }
                }),
            }
        }
        self.fetched = messages;
        self.tasks -= begun;
        let counters = &self.place.home.counters;
        counters.batches.store(counters.batches.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        counters.tasks.store(counters.tasks.load(Ordering::Relaxed) + begun as u64, Ordering::Relaxed);
        self.home().counters.namespaces.store(self.place.namespaces.len(), Ordering::Relaxed);
        if self.home().deliveries.any() {
            let home = self.home().clone();
            py.detach(|| home.deliveries.flush());
        }
        if self.is_finished() {
            hosting::stop(its_loop);
        }
    }
}
