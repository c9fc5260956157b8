//! Streams: the items of a generator, with flow control.
//!
//! A stream has *credit*: the number of items that may be queued. The generator pauses when the credit is used up
//! and resumes when half of it is available again, so the loop is not woken for each item.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::TaskError;
use super::completion::Request;
use super::lock_order::{Rank, Ranked};
use super::loops::{Control, HostedLoop};
use super::waiters::{Awaited, Entry};
use crate::value::{Limits, Value};

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) request: Request,
    state: Ranked<State>,
    changed: Condvar,
    credit: usize,
    /// The `asyncio.Future` that the generator's task awaits while there is no credit. Accessed with the
    /// interpreter lock held.
    room: Ranked<Option<Py<PyAny>>>,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Value>,
    end: Option<Result<(), TaskError>>,
    /// The generator is waiting for credit.
    stopped: bool,
    /// The reader is gone.
    abandoned: bool,
    waiting: bool,
    waker: Option<Waker>,
}

impl StreamState {
    pub(crate) fn new(request: Request, credit: usize) -> StreamState {
        StreamState {
            request,
            state: Ranked::new(Rank::Reply, State::default()),
            changed: Condvar::new(),
            credit: credit.max(1),
            room: Ranked::new(Rank::Loop, None),
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let (waiting, waker) = (state.waiting, state.waker.take());
        drop(state);
        if waiting {
            self.changed.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Adds an item. Returns whether there is credit for another.
    fn put(&self, item: Value) -> bool {
        let (unwanted, more) = self.change(|state| {
            if state.abandoned {
                return (Some(item), true);
            }
            state.items.push_back(item);
            (None, state.items.len() < self.credit)
        });
        drop(unwanted);
        more
    }

    pub(crate) fn end(&self, end: Result<(), TaskError>) {
        let late = self.change(|state| if state.end.is_none() { state.end.replace(end) } else { Some(end) });
        drop(late);
    }

    /// Resumes the generator. The interpreter lock is held.
    pub(crate) fn make_room(&self, py: Python<'_>) {
        let future = self.room.lock().take();
        if let Some(future) = future {
            let future = future.into_bound(py);
            let done = future.call_method0("done").and_then(|done| done.is_truthy()).unwrap_or(true);
            if !done && let Err(error) = future.call_method1("set_result", (py.None(),)) {
                error.write_unraisable(py, Some(&future));
            }
        }
    }
}

impl Awaited for StreamState {
    fn abandon(&self) {
        self.change(|state| {
            if state.end.is_none() {
                state.end = Some(Err(TaskError::LoopGone));
                state.abandoned = true;
            }
        });
    }
}

impl State {
    /// Takes the next item or the end.
    fn take(&mut self) -> Option<Option<Result<Value, TaskError>>> {
        if let Some(item) = self.items.pop_front() {
            return Some(Some(Ok(item)));
        }
        match self.end.take() {
            None => None,
            Some(end) => {
                self.end = Some(Ok(()));
                Some(end.err().map(Err))
            }
        }
    }

    /// Returns whether the generator should resume because there is credit again.
    fn has_room(&mut self, credit: usize) -> bool {
        let room = self.stopped && self.items.len() <= credit / 2;
        self.stopped &= !room;
        room
    }
}

/// The items of a generator: a blocking iterator, with [`next_item`](Stream::next_item) for `async` code.
///
/// It ends after the last item. If the generator fails, the error is the last item. Dropping the stream cancels the
/// generator.
#[derive(Debug)]
#[must_use = "a stream that is dropped cancels its generator"]
pub struct Stream {
    shared: Arc<StreamState>,
    home: Arc<HostedLoop>,
    entry: Option<Entry>,
}

impl Stream {
    pub(crate) fn new(shared: Arc<StreamState>, home: Arc<HostedLoop>) -> Stream {
        Stream { shared, home, entry: None }
    }

    /// Registers the reader before it waits. Once is enough for all items.
    fn enter(&mut self) {
        if self.entry.is_none() {
            self.entry = self.home.waiters.enter(self.shared.clone());
        }
    }

    /// Waits for the next item, for at most `timeout`. Returns `None` if there is none by then.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Option<Result<Value, TaskError>>> {
        self.wait(Instant::now().checked_add(timeout))
    }

    /// Returns the next item.
    pub async fn next_item(&mut self) -> Option<Result<Value, TaskError>> {
        self.enter();
        poll_fn(|context| {
            let mut state = self.shared.state.lock();
            match state.take() {
                Some(item) => {
                    let room = state.has_room(self.shared.credit);
                    drop(state);
                    self.tell(room);
                    Poll::Ready(item)
                }
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Cancels the generator: it gets `asyncio.CancelledError` where it waits, or is closed where it has yielded.
    /// After the items already queued, the stream ends with [`Cancelled`](TaskError::Cancelled).
    pub fn cancel(&self) {
        self.home.cancel(&self.shared.request.tag);
    }

    fn tell(&self, room: bool) {
        if room {
            self.home.control(Control::Room(self.shared.clone()));
        }
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Option<Option<Result<Value, TaskError>>> {
        self.enter();
        let mut state = self.shared.state.lock();
        loop {
            if let Some(item) = state.take() {
                let room = state.has_room(self.shared.credit);
                drop(state);
                self.tell(room);
                return Some(item);
            }
            self.home.refuse_to_wait();
            let left = match deadline {
                None => None,
                Some(deadline) => Some(deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?),
            };
            state.waiting = true;
            let changed = &self.shared.changed;
            state = state.wait(|guard| match left {
                None => changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(left) => changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
            });
            state.waiting = false;
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Value, TaskError>;

    fn next(&mut self) -> Option<Result<Value, TaskError>> {
        self.wait(None).flatten()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (left, ended) = {
            let mut state = self.shared.state.lock();
            state.abandoned = true;
            (std::mem::take(&mut state.items), state.end.is_some())
        };
        drop(left);
        if !ended {
            self.cancel();
        }
        if let Some(entry) = self.entry.take() {
            self.home.waiters.leave(entry);
        }
    }
}

/// Receives the items from the generator's task.
#[pyclass(frozen, module = "pelton._host")]
pub(crate) struct Sink {
    pub(crate) stream: Arc<StreamState>,
}

#[pymethods]
impl Sink {
    /// Sends an item. If it returns false, await `room()` before the next.
    fn put(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = Value::from_python(item, &Limits::DEFAULT)
            .map_err(|error| pyo3::exceptions::PyTypeError::new_err(error.within("item").to_string()))?;
        Ok(self.stream.put(value))
    }

    /// Returns a future that is done when there is credit again.
    fn room<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = running.call_method0("create_future")?;
        let before = self.stream.room.lock().replace(future.clone().unbind());
        drop(before);
        // The reader may already have made room. It checks `stopped` under the lock, so at least one side sees the
        // other.
        let room = {
            let mut state = self.stream.state.lock();
            state.stopped = true;
            state.has_room(self.stream.credit)
        };
        if room {
            self.stream.make_room(py);
        }
        Ok(future)
    }
}
