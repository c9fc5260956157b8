//! Slow callbacks: the reactor's watchdog, for callbacks in Python too.
//!
//! The watchdog reports from its own thread while a callback still runs, so it needs the name of a callback in Python before the
//! callback is called: function, file and line. Names are computed once per code object.

use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pelton::{CallbackKind, Reactor};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::state::{self, LoopState};
use crate::handles::handle;
use crate::known::known;
use pelton_cpython::object::{Owned, Raised, Result, replace};

/// The number of names that are kept. Programs have fewer functions that are callbacks, unless they make them up.
const NAMES_KEPT: usize = 1024;

/// Layers of bound methods and partial functions to look through.
const LAYERS: usize = 8;

/// What a loop knows about slow callbacks.
pub(crate) struct Slow {
    /// The program's hook, an owned reference or null.
    pub(crate) hook: *mut PyObject,
    /// Whether the reactor had a watchdog when the batch began.
    pub(crate) watched: bool,
    /// Slow callbacks in Rust, which the next batch reports.
    native: Arc<Native>,
    names: Names,
}

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
        Slow { hook: null_mut(), watched: false, native: Arc::default(), names: Names::new() }
    }

    /// Returns whether slow callbacks in Rust are waiting to be reported.
    #[inline]
    pub(crate) fn any_native(&self) -> bool {
        self.watched && self.native.any.load(Ordering::Relaxed)
    }

    /// Takes out the names, to drop them.
    pub(crate) fn take_names(&mut self) -> Names {
        std::mem::take(&mut self.names)
    }
}

/// Sets the hook for callbacks that take at least `threshold`. `None` ends the reports.
///
/// # Safety
/// `core` belongs to a live loop, and `hook` is alive.
pub(crate) unsafe fn set_hook(core: *mut LoopState, threshold: Duration, hook: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees it. The hook is replaced last, because dropping the old one may run code.
    unsafe {
        let native = (*core).slow.native.clone();
        let wanted = hook != ffi::Py_None();
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
        if !(*core).closed {
            let mut set = Some(set);
            let done = state::with_reactor(core, |reactor| set.take().map_or(Ok(()), |set| set(reactor)))?;
            match (done, set) {
                (Some(done), _) => done.map_err(raise_error)?,
                // Another thread turns the loop, which does it before it sleeps.
                (None, Some(set)) => drop((*core).handle.post(move |reactor| tell_if_failed(set(reactor)))),
                (None, None) => {}
            }
        }
        replace(&raw mut (*core).slow.hook, hook);
        Ok(())
    }
}

/// Reports an error to `sys.unraisablehook`, because the call that caused it has returned.
fn tell_if_failed(outcome: std::result::Result<(), pelton::Error>) {
    if let Err(error) = outcome {
        raise_error(error);
        // SAFETY: posts run in a turn, with the lock held. An exception is set.
        unsafe { ffi::PyErr_WriteUnraisable(null_mut()) };
    }
}

/// Tells the watchdog which callback is about to run.
///
/// # Safety
/// `core` belongs to a live loop that this thread turns, `callback` is a handle that the caller owns a reference to. No Rust reference
/// into the core is held: finding the name may run Python code.
pub(crate) unsafe fn begin(core: *mut LoopState, callback: *mut PyObject) {
    // SAFETY: the caller guarantees it.
    unsafe {
        let name = name(core, callback);
        (*core).handle.with_reactor(|reactor| reactor.name_callback(|| name));
    }
}

/// Tells the watchdog that the callback has returned. Returns how long it took if that was too long.
///
/// # Safety
/// As for [`begin`].
pub(crate) unsafe fn end(core: *mut LoopState) -> Option<Duration> {
    // SAFETY: the caller guarantees it.
    unsafe { (*core).handle.with_reactor(Reactor::end_callback).flatten() }
}

/// Calls the program's hook for a callback that took too long.
///
/// # Safety
/// `core` belongs to a live loop; `callback` is a live handle, or the name of a callback in Rust. No Rust reference into the core is
/// held.
pub(crate) unsafe fn tell(core: *mut LoopState, callback: *mut PyObject, took: Duration) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        if (*core).slow.hook.is_null() {
            return Ok(());
        }
        let hook = Owned::new_reference((*core).slow.hook);
        let seconds = Owned::returned(ffi::PyFloat_FromDouble(took.as_secs_f64()))?;
        let arguments = [callback, seconds.as_ptr()];
        Owned::returned(ffi::PyObject_Vectorcall(hook.as_ptr(), arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}

/// Reports slow callbacks in Rust. Only an exception that ends the run is an error.
///
/// # Safety
/// As for [`begin`].
#[cold]
pub(crate) unsafe fn tell_native(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it. The list is taken out first.
    unsafe {
        let list = (*core).slow.native.take();
        for (name, took) in list {
            let name = Owned::returned(ffi::PyUnicode_FromStringAndSize(name.as_ptr().cast(), name.len() as _))?;
            tell(core, name.as_ptr(), took)?;
        }
        Ok(())
    }
}

/// Returns the name of a handle's callback.
unsafe fn name(core: *mut LoopState, callback: *mut PyObject) -> Arc<str> {
    // SAFETY: the caller of `begin` guarantees it, and the lock is held.
    unsafe {
        let py = Python::assume_attached();
        if !handle::is_ours(callback) {
            return type_name(&Bound::from_borrowed_ptr(py, callback)).into();
        }
        let callback = (*handle::fields(callback)).callback;
        if callback.is_null() {
            return "a cancelled callback".into();
        }
        let Some(code) = code(&Bound::from_borrowed_ptr(py, callback), LAYERS).unwrap_or_else(ignore) else {
            return described(&Bound::from_borrowed_ptr(py, callback)).into();
        };
        let key = code.as_ptr().addr();
        if let Some((_, name)) = (*core).slow.names.get(&key) {
            return name.clone();
        }
        let name: Arc<str> = place(&code).unwrap_or_else(|_| "a function".to_owned()).into();
        // Dropping a code object may run a weak reference's callback.
        let old = if (*core).slow.names.len() >= NAMES_KEPT { Some((*core).slow.take_names()) } else { None };
        (*core).slow.names.insert(key, (code.unbind(), name.clone()));
        drop(old);
        name
    }
}

/// An error while looking for a name only means that there is none.
fn ignore(_: PyErr) -> Option<Bound<'static, PyAny>> {
    None
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
    // SAFETY: the class is never freed.
    let task_type = unsafe { Bound::from_borrowed_ptr(py, known().task) };
    if !task.is_instance(&task_type)? {
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
    let flags = ffi::Py_TPFLAGS_HEAPTYPE | ffi::Py_TPFLAGS_IMMUTABLETYPE;
    // SAFETY: every object has a live type.
    let its = unsafe { ffi::PyType_GetFlags(ffi::Py_TYPE(object.as_ptr())) };
    its & flags != ffi::Py_TPFLAGS_HEAPTYPE
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
///
/// # Safety
/// `nanoseconds` is alive.
pub(crate) unsafe fn threshold(nanoseconds: *mut PyObject) -> Result<Duration> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let nanoseconds = ffi::PyLong_AsUnsignedLongLong(nanoseconds);
        if ffi::PyErr_Occurred().is_null() { Ok(Duration::from_nanos(nanoseconds)) } else { Err(Raised) }
    }
}
