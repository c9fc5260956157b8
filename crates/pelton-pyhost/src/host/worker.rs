//! Workers: threads that run Python one call after the other, without a running loop.
//!
//! A worker is for code that expects a thread of its own: it may block, call `asyncio.run`, and use libraries that are
//! bound to the thread that imported them. It has a queue and namespaces like a loop. If a call returns an awaitable,
//! the worker runs it to its end before the next call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use pelton_sync::Receiver;
use pyo3::ffi;
use pyo3::prelude::*;

use super::completion::Completion;
use super::current;
use super::error::StartError;
use super::execute::Place;
use super::interpreter;
use super::loop_thread::Ended;
use super::loops::{Control, HostedLoop, Message, Wakes};
use super::returned::{self, Returned};
use super::thread::PythonThread;
use super::workers::Workers;
use crate::value;
use pelton_cpython::object::Owned;

/// A thread that runs Python one call after the other: [`Host::worker`](super::Host::worker). When it is dropped, the
/// thread ends after the calls that were submitted before.
#[derive(Debug)]
#[must_use = "a worker that is dropped ends"]
pub struct Worker {
    pub(crate) thread: PythonThread,
}

impl std::ops::Deref for Worker {
    type Target = PythonThread;
    fn deref(&self) -> &PythonThread {
        &self.thread
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.thread.home.closing.store(true, Ordering::Relaxed);
        self.thread.home.control(Control::Look);
    }
}

/// Starts a worker. Returns when it accepts work.
pub(crate) fn start(
    home: Arc<HostedLoop>,
    receiver: Receiver<Message>,
    workers: Arc<Workers>,
    (batch, stack): (usize, usize),
    ended: Sender<Ended>,
) -> Result<(), StartError> {
    let (started, start) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("pelton-pinned-{}", home.index)).stack_size(stack);
    thread.spawn(move || {
        let _ = home.wakes.set(Wakes::Thread(std::thread::current()));
        let _ = home.thread.set(std::thread::current().id());
        interpreter::attach(|py| {
            // SAFETY: this has no preconditions.
            home.executor.thread.store(unsafe { ffi::PyThread_get_thread_ident() } as u64, Ordering::Relaxed);
            let place = current::become_thread_of(&home, workers);
            // A failure means that the host was dropped meanwhile.
            let _ = started.send(());
            let queue = Queue { home: home.clone(), receiver, batch };
            Desk { home: home.clone(), queue, place, stopped: false }.work(py);
            current::leave();
        });
        home.closing.store(true, Ordering::Relaxed);
        home.deliveries.close();
        let executors = home.executors.clone();
        executors.lock().retain(|other| !Arc::ptr_eq(other, &home.executor));
        home.ended.store(true, Ordering::Release);
        let _ = ended.send(Ended { index: home.index, abandoned: 0 });
    })?;
    start.recv().map_err(|_| StartError::Setting("the worker's thread has ended before it began"))
}

struct Desk {
    home: Arc<HostedLoop>,
    queue: Queue,
    place: Place,
    stopped: bool,
}

/// The worker's end of its queue, which is used without the lock.
struct Queue {
    home: Arc<HostedLoop>,
    receiver: Receiver<Message>,
    batch: usize,
}

impl Queue {
    /// Waits for messages. Returns whether there will be no more.
    fn fetch(&mut self, messages: &mut Vec<Message>) -> bool {
        self.home.deliveries.flush();
        loop {
            while messages.len() < self.batch
                && let Some(message) = self.receiver.pop()
            {
                messages.push(message);
            }
            if !messages.is_empty() {
                return false;
            }
            if self.home.closing.load(Ordering::Relaxed) && self.receiver.is_empty() {
                return true;
            }
            if self.receiver.sleep() {
                self.home.asleep.store(true, Ordering::Relaxed);
                std::thread::park();
                self.receiver.awake();
                self.home.asleep.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl Desk {
    fn work(&mut self, py: Python<'_>) {
        let mut messages = Vec::with_capacity(self.queue.batch);
        while !self.stopped {
            let queue = &mut self.queue;
            let finished = py.detach(|| queue.fetch(&mut messages));
            self.home.counters.locks.fetch_add(1, Ordering::Relaxed);
            if value::has_dropped() {
                value::release_dropped(py);
            }
            let mut begun = 0;
            for message in messages.drain(..) {
                begun += self.guarded(py, message);
            }
            let counters = &self.home.counters;
            counters.tasks.fetch_add(begun, Ordering::Relaxed);
            counters.batches.fetch_add(1, Ordering::Relaxed);
            counters.namespaces.store(self.place.namespaces.len(), Ordering::Relaxed);
            if finished {
                break;
            }
        }
        // Messages that are left are dropped with the queue, which tells their tasks.
    }

    /// Handles a message. A panic is a bug in this crate: it loses the task, which is told, but not the worker.
    fn guarded(&mut self, py: Python<'_>, message: Message) -> u64 {
        self.home.activity.fetch_add(1, Ordering::Relaxed);
        catch_unwind(AssertUnwindSafe(|| self.handle(py, message))).unwrap_or_else(|_| {
            tracing::error!("a task was lost to a panic, which is a bug in pelton");
            0
        })
    }

    fn handle(&mut self, py: Python<'_>, message: Message) -> u64 {
        match message {
            Message::Task(task) => {
                self.home.taken(1);
                self.start(py, task);
                1
            }
            Message::Portion(mut portion) => {
                let tasks = portion.len();
                self.home.taken(tasks);
                while let Some(task) = portion.pop() {
                    self.start(py, task);
                }
                tasks as u64
            }
            Message::Control(control) => {
                match control {
                    Control::Forget(number) => self.place.namespaces.forget(py, number),
                    Control::Run(job) => job(py),
                    Control::CancelAll => self.home.cancelling.store(true, Ordering::Relaxed),
                    Control::Stop => self.stopped = true,
                    Control::Room(stream) => stream.make_room(py),
                    Control::Await(message) => {
                        let Returned { object, options, completion } = *message;
                        // SAFETY: the lock is held, as `py` shows, and there is no loop on this thread.
                        unsafe {
                            let object = Owned::new_reference(object.as_ptr());
                            returned::settle(py, std::ptr::null_mut(), &self.home, object, options, completion);
                        }
                    }
                    // Cancelling reaches tasks that have not started.
                    Control::Cancel(_) | Control::Look => {}
                }
                0
            }
        }
    }

    fn start(&mut self, py: Python<'_>, task: Completion) {
        // SAFETY: the lock is held, as `py` shows, and there is no loop on this thread.
        unsafe { self.place.start(py, std::ptr::null_mut(), task) };
        // Long calls must not delay the callbacks of short ones.
        if self.home.deliveries.any() {
            let home = &self.home;
            py.detach(|| home.deliveries.flush());
        }
    }
}
