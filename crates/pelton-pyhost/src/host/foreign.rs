//! Tasks of other runtimes, which convert their own arguments and results and are told about their end by a call.
//!
//! A [`Foreign`] task holds data of its runtime. With the interpreter lock held it converts its arguments directly to
//! Python objects and its result directly back, without a [`Value`](crate::Value) in between. When it has ended, its
//! thread calls [`done`](Foreign::done) exactly once, also if the loop ends first or never returns. A [`Callback`] is
//! the same for Rust code that uses values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::TaskError;
use super::completion::Request;
use super::lock_order::{Rank, Ranked};
use super::loops::{Control, HostedLoop};
use super::reply::Outcome;
use super::waiters::{Awaited, Entry};
use crate::value::{Limits, Value};

/// A task of another runtime.
///
/// `arguments` and `returned` are called with the interpreter lock held, on the thread that makes the call. `done` is
/// called once, on that thread, after the lock was released; several of a batch together. If the loop has ended or was
/// given up, another thread calls it, with `LoopGone`.
pub trait Foreign: Send + 'static {
    /// Adds the arguments of the call. The call's own arguments come first. Not called for source code.
    fn arguments(&mut self, list: &mut ArgumentList<'_>) -> PyResult<()> {
        let _ = list;
        Ok(())
    }

    /// Returns the local variables of source code, for [`Call::exec`](super::Call::exec) and
    /// [`Call::eval`](super::Call::eval). Without them, the namespace is used.
    fn locals<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let _ = py;
        Ok(None)
    }

    /// Converts the result and keeps it.
    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()>;

    /// The task has ended. With `Ok`, `returned` was called before.
    fn done(self: Box<Self>, outcome: Result<(), TaskError>);

    /// Returns whether `done` may be called while the interpreter lock is held, at once instead of at the end of a
    /// batch. Such a `done` must neither wait nor take a lock that is held by a thread that waits for Python.
    fn is_brief(&self) -> bool {
        false
    }
}

/// A task whose outcome is passed to a closure.
pub(crate) struct Callback<F> {
    pub(crate) result: Value,
    pub(crate) call: F,
}

impl<F: FnOnce(Outcome) + Send + 'static> Foreign for Callback<F> {
    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.result = Value::from_python(object, &Limits::DEFAULT).map_err(|error| error.within("result"))?;
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), TaskError>) {
        let Callback { result, call } = *self;
        call(outcome.map(|()| result));
    }
}

/// The arguments of a call, as Python objects.
pub struct ArgumentList<'py> {
    py: Python<'py>,
    /// Owned references. The first item is scratch space for the callee, as vectorcall allows.
    objects: Vec<*mut PyObject>,
    positional: usize,
    names: Vec<Bound<'py, PyString>>,
}

impl<'py> ArgumentList<'py> {
    pub(crate) fn new(py: Python<'py>) -> ArgumentList<'py> {
        let mut objects = Vec::with_capacity(8);
        objects.push(std::ptr::null_mut());
        ArgumentList { py, objects, positional: 0, names: Vec::new() }
    }

    /// Returns the token of the interpreter lock.
    pub fn py(&self) -> Python<'py> {
        self.py
    }

    /// Adds a positional argument.
    ///
    /// # Panics
    ///
    /// Panics if there are keyword arguments already.
    pub fn push(&mut self, object: Bound<'py, PyAny>) {
        assert!(self.names.is_empty(), "positional arguments come before keyword arguments");
        self.objects.push(object.into_ptr());
        self.positional += 1;
    }

    /// Adds a keyword argument.
    pub fn keyword(&mut self, name: Bound<'py, PyString>, object: Bound<'py, PyAny>) {
        self.objects.push(object.into_ptr());
        self.names.push(name);
    }

    /// Calls a function with these arguments.
    pub(crate) fn call(&mut self, function: *mut PyObject) -> PyResult<Bound<'py, PyAny>> {
        let names = if self.names.is_empty() { None } else { Some(pyo3::types::PyTuple::new(self.py, &self.names)?) };
        let names = names.as_ref().map_or(std::ptr::null_mut(), |names| names.as_ptr());
        let flagged = self.positional | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
        // SAFETY: the lock is held, as `py` shows. The array has this many positional arguments and one object for each
        // name, all of them owned; the caller keeps the function alive.
        unsafe {
            let returned = ffi::PyObject_Vectorcall(function, self.objects.as_ptr().add(1), flagged, names);
            Bound::from_owned_ptr_or_err(self.py, returned)
        }
    }

    /// Returns the positional arguments as a tuple and the others as a dictionary, for another thread to call with.
    pub(crate) fn packed(&self) -> PyResult<(Py<PyAny>, Option<Py<PyAny>>)> {
        // SAFETY: the lock is held, as `py` shows, and the list owns the objects.
        let bound = |object: &*mut PyObject| unsafe { Bound::<PyAny>::from_borrowed_ptr(self.py, *object) };
        let positional = self.objects[1..=self.positional].iter().map(bound).collect::<Vec<_>>();
        let tuple = pyo3::types::PyTuple::new(self.py, positional)?;
        if self.names.is_empty() {
            return Ok((tuple.into_any().unbind(), None));
        }
        let dictionary = pyo3::types::PyDict::new(self.py);
        for (name, object) in self.names.iter().zip(&self.objects[self.positional + 1..]) {
            dictionary.set_item(name, bound(object))?;
        }
        Ok((tuple.into_any().unbind(), Some(dictionary.into_any().unbind())))
    }
}

impl Drop for ArgumentList<'_> {
    fn drop(&mut self) {
        for object in &self.objects[1..] {
            // SAFETY: the list owns the references, and the lock is held as long as it exists.
            unsafe { ffi::Py_DECREF(*object) };
        }
    }
}

impl std::fmt::Debug for ArgumentList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} positional arguments, {} by keyword", self.positional, self.names.len())
    }
}

/// A submitted foreign task.
pub(crate) struct ForeignTask {
    pub(crate) request: Request,
    state: Ranked<State>,
    home: Arc<HostedLoop>,
    /// Its place among the loop's waiters.
    entry: AtomicUsize,
}

enum State {
    Here(Box<dyn Foreign>),
    /// A conversion has it.
    InUse,
    /// The loop was given up during a conversion.
    AbandonedInUse,
    Done,
}

const NO_ENTRY: usize = usize::MAX;

impl ForeignTask {
    /// Creates a task and registers it, so that it is told if its loop is given up.
    pub(crate) fn register(request: Request, foreign: Box<dyn Foreign>, home: &Arc<HostedLoop>) -> Arc<ForeignTask> {
        let state = Ranked::new(Rank::Reply, State::Here(foreign));
        let task = Arc::new(ForeignTask { request, state, home: home.clone(), entry: AtomicUsize::new(NO_ENTRY) });
        if let Some(entry) = home.waiters.enter(task.clone()) {
            task.entry.store(entry.place(), Ordering::Relaxed);
        }
        task
    }

    /// Lets the task convert something. Returns `None` if it has ended.
    pub(crate) fn with<R>(&self, convert: impl FnOnce(&mut dyn Foreign) -> R) -> Option<R> {
        let mut foreign = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::InUse) {
                State::Here(foreign) => foreign,
                other => {
                    *state = other;
                    return None;
                }
            }
        };
        let result = convert(&mut *foreign);
        let mut state = self.state.lock();
        match *state {
            State::AbandonedInUse => {
                *state = State::Done;
                drop(state);
                self.deliver(foreign, Err(TaskError::LoopGone));
            }
            _ => *state = State::Here(foreign),
        }
        Some(result)
    }

    fn leave(&self) {
        let place = self.entry.swap(NO_ENTRY, Ordering::Relaxed);
        if place != NO_ENTRY {
            self.home.waiters.leave(Entry::at(place));
        }
    }

    /// Takes the runtime's part back, for a task that no loop has accepted.
    pub(crate) fn take_back(&self) -> Option<Box<dyn Foreign>> {
        self.leave();
        match std::mem::replace(&mut *self.state.lock(), State::Done) {
            State::Here(foreign) => Some(foreign),
            _ => None,
        }
    }

    pub(crate) fn settle(&self, outcome: Outcome) {
        self.leave();
        let before = std::mem::replace(&mut *self.state.lock(), State::Done);
        if let State::Here(foreign) = before {
            self.deliver(foreign, outcome.map(drop));
        }
    }

    fn deliver(&self, foreign: Box<dyn Foreign>, outcome: Result<(), TaskError>) {
        if foreign.is_brief() {
            return told(foreign, outcome);
        }
        self.home.deliveries.push(foreign, outcome);
        // A thread for blocking functions has made the call. The loop may be asleep.
        if self.home.thread.get() != Some(&std::thread::current().id()) {
            self.home.control(Control::Look);
        }
    }
}

impl Awaited for ForeignTask {
    fn abandon(&self) {
        let foreign = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Done) {
                State::Here(foreign) => Some(foreign),
                State::InUse => {
                    *state = State::AbandonedInUse;
                    None
                }
                _ => None,
            }
        };
        if let Some(foreign) = foreign {
            told(foreign, Err(TaskError::LoopGone));
        }
    }
}

impl std::fmt::Debug for ForeignTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForeignTask")
    }
}

/// Calls `done`, which is the program's code: its panics end nothing else.
fn told(foreign: Box<dyn Foreign>, outcome: Result<(), TaskError>) {
    let call = std::panic::AssertUnwindSafe(|| foreign.done(outcome));
    if std::panic::catch_unwind(call).is_err() {
        tracing::error!("the callback of a Python task panicked");
    }
}

type Delivery = (Box<dyn Foreign>, Result<(), TaskError>);

/// Ended tasks that have not been told yet, because their thread holds the interpreter lock.
pub(crate) struct Deliveries {
    list: Ranked<Option<Vec<Delivery>>>,
    any: AtomicBool,
}

impl Deliveries {
    pub(crate) fn new() -> Deliveries {
        Deliveries { list: Ranked::new(Rank::Reply, Some(Vec::new())), any: AtomicBool::new(false) }
    }

    fn push(&self, foreign: Box<dyn Foreign>, outcome: Result<(), TaskError>) {
        let mut list = self.list.lock();
        if let Some(list) = list.as_mut() {
            list.push((foreign, outcome));
            self.any.store(true, Ordering::Release);
            return;
        }
        drop(list);
        // The thread has ended, so nothing else will call it.
        if crate::value::has_lock() {
            // SAFETY: the lock is held, as was just checked.
            unsafe { Python::assume_attached() }.detach(|| told(foreign, outcome));
        } else {
            told(foreign, outcome);
        }
    }

    /// Returns whether there are any. Costs one load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Calls them. The thread does not hold the interpreter lock.
    pub(crate) fn flush(&self) {
        while self.any.swap(false, Ordering::AcqRel) {
            let list = self.list.lock().as_mut().map(std::mem::take).unwrap_or_default();
            for (foreign, outcome) in list {
                told(foreign, outcome);
            }
        }
    }

    /// Calls them for the last time: from now on, each is called by the thread that ends it.
    pub(crate) fn close(&self) {
        let list = self.list.lock().take().unwrap_or_default();
        self.any.store(false, Ordering::Release);
        for (foreign, outcome) in list {
            told(foreign, outcome);
        }
    }
}

/// A submitted task whose outcome goes elsewhere. Dropping it has no effect.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub(crate) task: Arc<ForeignTask>,
}

impl Submitted {
    /// Cancels the task, as [`Reply::cancel`](super::Reply::cancel) does.
    pub fn cancel(&self) {
        self.task.home.cancel(&self.task.request.tag);
    }

    /// Interrupts the task if it is running right now, as [`Reply::interrupt`](super::Reply::interrupt) does.
    pub fn interrupt(&self) -> bool {
        self.task.home.interrupt(&self.task.request.tag)
    }
}

/// A refused foreign task, returned unchanged.
pub struct RefusedTask {
    /// The reason, and the call.
    pub refused: super::Refused,
    /// The task.
    pub task: Box<dyn Foreign>,
}

impl std::fmt::Debug for RefusedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.refused.fmt(f)
    }
}

impl std::fmt::Display for RefusedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.refused.fmt(f)
    }
}

impl std::error::Error for RefusedTask {}
