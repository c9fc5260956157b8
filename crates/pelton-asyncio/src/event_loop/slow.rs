//! Slow callbacks: the reactor's watchdog, for callbacks in Python too.
//!
//! The watchdog reports from its own thread while a callback still runs, so it needs the name of a callback in Python before the
//! callback is called: function, file and line. Names are computed once per code object.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pelton::{CallbackKind, Reactor};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::state::LoopState;
use crate::known::known;
use pelton_cpython::call::{OrRaise, report_unraisable};
use pelton_cpython::handles::Handle;
use pelton_cpython::object::Result;
use pelton_cpython::slot::Slot;
use pelton_cpython::types;

/// The number of names that are kept. Programs have fewer functions that are callbacks, unless they make them up.
const NAMES_KEPT: usize = 1024;

/// Layers of bound methods and partial functions to look through.
const LAYERS: usize = 8;

/// What a loop knows about slow callbacks.
pub(crate) struct Slow {
    /// The program's hook.
    pub(crate) hook: Slot,
    /// Whether the reactor had a watchdog when the batch began.
    pub(crate) watched: Cell<bool>,
    /// Slow callbacks in Rust, which the next batch reports.
    native: Arc<Native>,
    names: RefCell<Names>,
}

pelton_cpython::owns!(Slow { hook });

/// The names of code objects, by address. An entry keeps its code object alive.
pub(crate) type Names = HashMap<usize, (Py<PyAny>, Arc<str>)>;

/// Slow callbacks in Rust that have not been reported to Python.
#[derive(Default)]
struct Native {
    any: AtomicBool,
    list: Mutex<Vec<(String, Duration)>>,
}

impl Native {
    fn list(&self) -> MutexGuard<'_, Vec<(String, Duration)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: String, took: Duration) {
        self.list().push((name, took));
        self.any.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<(String, Duration)> {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.list())
    }
}

impl Slow {
    pub(crate) fn new() -> Slow {
        Slow { hook: Slot::empty(), watched: Cell::new(false), native: Arc::default(), names: RefCell::default() }
    }

    /// Returns whether slow callbacks in Rust are waiting to be reported.
    #[inline]
    pub(crate) fn any_native(&self) -> bool {
        self.watched.get() && self.native.any.load(Ordering::Relaxed)
    }

    /// Takes out the names, to drop them.
    pub(crate) fn take_names(&self) -> Names {
        self.names.take()
    }
}

/// Sets the hook for callbacks that take at least `threshold`. `None` ends the reports.
pub(crate) fn set_hook(py: Python<'_>, state: &LoopState, threshold: Duration, hook: &Bound<'_, PyAny>) -> Result<()> {
    let native = state.slow.native.clone();
    let wanted = !hook.is_none();
    let set = move |reactor: &mut Reactor| {
        if !wanted {
            reactor.ignore_slow_callbacks();
            return Ok(());
        }
        // Callbacks in Python are reported by the batch that calls them: the hook gets their handle.
        reactor.on_slow_callback(threshold, move |slow| {
            if slow.finished && slow.kind != CallbackKind::Guest {
                native.add(slow.name(), slow.elapsed);
            }
        })
    };
    if !state.closed.get() {
        let mut set = Some(set);
        let done = state.with_reactor(py, |reactor| set.take().map_or(Ok(()), |set| set(reactor)))?;
        match (done, set) {
            (Some(done), _) => done.map_err(|error| raise_error(py, error))?,
            // Another thread turns the loop, which does it before it sleeps.
            (None, Some(set)) => drop(state.handle.post(move |reactor| tell_if_failed(set(reactor)))),
            (None, None) => {}
        }
    }
    // Last, because dropping the old one may run code.
    state.slow.hook.assign(py, Some(hook.as_borrowed()));
    Ok(())
}

/// Reports an error to `sys.unraisablehook`, because the call that caused it has returned.
fn tell_if_failed(outcome: std::result::Result<(), pelton::Error>) {
    if let Err(error) = outcome {
        Python::attach(|py| {
            raise_error(py, error);
            report_unraisable(py);
        });
    }
}

/// Tells the watchdog which callback is about to run. Finding the name may run Python code.
pub(crate) fn begin(state: &LoopState, callback: &Bound<'_, PyAny>) {
    let name = name(state, callback);
    state.handle.with_reactor(|reactor| reactor.name_callback(|| name));
}

/// Tells the watchdog that the callback has returned. Returns how long it took if that was too long.
pub(crate) fn end(state: &LoopState) -> Option<Duration> {
    state.handle.with_reactor(Reactor::end_callback).flatten()
}

/// Calls the program's hook for a callback that took too long: a handle, or the name of a callback in Rust.
pub(crate) fn tell(state: &LoopState, callback: &Bound<'_, PyAny>, took: Duration) -> Result<()> {
    let py = callback.py();
    let Some(hook) = state.slow.hook.get(py) else { return Ok(()) };
    hook.call1((callback, took.as_secs_f64())).or_raise(py).map(drop)
}

/// Reports slow callbacks in Rust. Only an exception that ends the run is an error.
#[cold]
pub(crate) fn tell_native(py: Python<'_>, state: &LoopState) -> Result<()> {
    for (name, took) in state.slow.native.take() {
        tell(state, PyString::new(py, &name).as_any(), took)?;
    }
    Ok(())
}

/// Returns the name of a handle's callback.
fn name(state: &LoopState, callback: &Bound<'_, PyAny>) -> Arc<str> {
    let Some(handle) = Handle::of(callback) else { return type_name(callback).into() };
    let Some(callback) = handle.callback() else { return "a cancelled callback".into() };
    let Some(code) = code(&callback, LAYERS).ok().flatten() else { return described(&callback).into() };
    let key = code.as_ptr().addr();
    if let Some((_, name)) = state.slow.names.borrow().get(&key) {
        return name.clone();
    }
    let name: Arc<str> = place(&code).unwrap_or_else(|_| "a function".to_owned()).into();
    // Dropping a code object may run a weak reference's callback.
    let old = if state.slow.names.borrow().len() >= NAMES_KEPT { Some(state.slow.take_names()) } else { None };
    state.slow.names.borrow_mut().insert(key, (code.unbind(), name.clone()));
    drop(old);
    name
}

/// Returns the code of a function, of the function behind a bound method or a partial one, or of a task's coroutine.
fn code<'py>(callable: &Bound<'py, PyAny>, layers: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = callable.py();
    // The attributes of other objects are the program's own code.
    if layers == 0 || !is_native(callable) {
        return Ok(None);
    }
    if let Some(code) = callable.getattr_opt("__code__").ok().flatten().filter(is_native) {
        return Ok(Some(code));
    }
    if let Some(inner) = callable.getattr_opt("__func__")? {
        return code(&inner, layers - 1);
    }
    if let Some(inner) = callable.getattr_opt("func")? {
        return code(&inner, layers - 1);
    }
    let Some(task) = callable.getattr_opt("__self__")? else { return Ok(None) };
    let task_type = known().task.bind(py);
    if !task.is_instance(task_type)? {
        return Ok(None);
    }
    // The method of the class: a derived class may have another.
    let coroutine = task_type.call_method1("get_coro", (&task,))?;
    if !is_native(&coroutine) {
        return Ok(None);
    }
    match coroutine.getattr_opt("cr_code")? {
        Some(code) => Ok(Some(code)),
        None => coroutine.getattr_opt("gi_code"),
    }
}

/// Returns whether an object's class is written in C, so that reading an attribute runs no code of the program.
fn is_native(object: &Bound<'_, PyAny>) -> bool {
    types::is_written_in_c(&object.get_type())
}

/// Returns function, file and line.
fn place(code: &Bound<'_, PyAny>) -> PyResult<String> {
    let (name, file) = (code.getattr("co_qualname")?, code.getattr("co_filename")?);
    Ok(format!("{name} ({file}:{})", code.getattr("co_firstlineno")?))
}

/// Describes a callable that is not written in Python.
fn described(callable: &Bound<'_, PyAny>) -> String {
    let name = if is_native(callable) { callable.getattr_opt("__qualname__").ok().flatten() } else { None };
    match name {
        Some(name) => format!("{name} (a {})", type_name(callable)),
        None => format!("a {}", type_name(callable)),
    }
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object of an unknown type".to_owned(), |name| name.to_string())
}

/// Converts `_set_slow_hook`'s number of nanoseconds.
pub(crate) fn threshold(nanoseconds: &Bound<'_, PyAny>) -> Result<Duration> {
    nanoseconds.extract::<u64>().or_raise(nanoseconds.py()).map(Duration::from_nanos)
}
