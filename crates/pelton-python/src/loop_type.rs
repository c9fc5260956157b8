//! `pelton.Loop`: the final type, derived from `pelton._loop.BaseLoop`.
//!
//! It has one field of its own, a reference to its core, which Python code cannot get at.

use std::ffi::{CStr, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};
use pyo3::prelude::*;

use crate::arguments::{self, Scheduled, complain};
use crate::core;
use crate::known::known;
use crate::object::{Owned, Raised, Result, none, nothing, or_none, pointer, raise, replace};
use crate::panic::guard;
use crate::readers::{self, Side};
use crate::types::{self, fast, fast_with_keywords, with_one, without_arguments};
use crate::{datagrams, handle, loop_fields, run, scheduling, sockets, stats};

/// Makes a loop object, with its core; `__init__` does the rest, in Python.
unsafe extern "C" fn new(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with our type or one derived from it. Arguments are for `__init__` to look at. The slot is
        // null in a new object, and takes over the reference.
        pointer(unsafe {
            (|| {
                let core = core::new()?;
                let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
                let loop_ = Owned::returned(make(its_type, known().empty, null_mut()))?;
                core::put(loop_.as_ptr(), core);
                Ok(loop_)
            })()
        })
    })
}

/// Whether a loop's `_run_once` is this crate's turn.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
pub(crate) unsafe fn has_own_turn(loop_: *mut PyObject) -> Result<bool> {
    // SAFETY: as the caller says.
    unsafe {
        let method = Owned::returned(ffi::PyObject_GetAttr(loop_, known().names._run_once))?;
        if ffi::PyCFunction_Check(method.as_ptr()) == 0 {
            return Ok(false);
        }
        let function = ffi::PyCFunction_GetFunction(method.as_ptr());
        Ok(function.is_some_and(|function| ptr::fn_addr_eq(function, run_once as ffi::PyCFunction)))
    }
}

unsafe extern "C" fn run_once(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop.
        nothing(unsafe {
            core::core(loop_).and_then(|core| core::check_open(core).and_then(|()| run::turn(loop_, core)))
        })
    })
}

unsafe extern "C" fn run_until_stopped(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live loop, which `run_forever` has set up to run on this thread.
    guard(null_mut(), || nothing(unsafe { run::until_stopped(loop_) }))
}

unsafe extern "C" fn get_debug(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live loop.
    unsafe { ffi::PyBool_FromLong(core::is_in_debug_mode(loop_).into()) }
}

unsafe extern "C" fn stop(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live loop.
    guard(null_mut(), || nothing(unsafe { core::core(loop_).map(|core| (*core).stopping = true) }))
}

/// `_add_callback(handle)`: queues a handle, which may be asyncio's own.
unsafe extern "C" fn add_callback(loop_: *mut PyObject, handle: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop and a live argument.
        nothing(unsafe {
            (|| {
                let core = core::core(loop_)?;
                if !handle::is_cancelled(handle)? {
                    ffi::Py_INCREF(handle);
                    (*core).ready.push_back(handle);
                }
                Ok(())
            })()
        })
    })
}

unsafe extern "C" fn write_to_self(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live loop.
    guard(null_mut(), || nothing(unsafe { core::core(loop_).map(|core| core::wake(core)) }))
}

/// Cancelling a timer of ours takes it off the wheel; a handle of asyncio's own cannot be on it.
unsafe extern "C" fn timer_handle_cancelled(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    none()
}

/// Whose descriptors a method may touch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those that no transport uses: what programs call.
    Free,
    /// All: what transports call.
    All,
}

unsafe fn add(
    loop_: *mut PyObject,
    arguments: *const *mut PyObject,
    count: Py_ssize_t,
    keywords: *mut PyObject,
    (function, side, reach): (&CStr, Side, Reach),
) -> Result<Owned> {
    // SAFETY: Python has called with a live loop and arguments of a call like this.
    unsafe {
        let names = [known().names.fd, known().names.callback];
        let Scheduled { named: [fd, callback], rest, context } =
            arguments::scheduled(function, names, arguments, count, keywords)?;
        if !context.is_null() {
            return Err(complain(function, "got an unexpected keyword argument", known().names.context));
        }
        if reach == Reach::Free {
            readers::refuse_transports(loop_, fd)?;
        }
        readers::add(loop_, fd, side, callback, rest)
    }
}

unsafe fn remove(loop_: *mut PyObject, fd: *mut PyObject, side: Side, reach: Reach) -> *mut PyObject {
    // SAFETY: Python has called with a live loop and a live argument.
    guard(null_mut(), || unsafe {
        let allowed = if reach == Reach::Free { readers::refuse_transports(loop_, fd) } else { Ok(()) };
        let removed = allowed.and_then(|()| readers::remove(loop_, fd, side));
        removed.map_or(null_mut(), |removed| ffi::PyBool_FromLong(removed.into()))
    })
}

/// Methods that differ in whom they are for: `_add_reader` returns its handle, `add_reader` returns nothing.
macro_rules! adding {
    ($name:ident, $function:expr, $side:expr, $reach:expr) => {
        unsafe extern "C" fn $name(
            loop_: *mut PyObject,
            arguments: *const *mut PyObject,
            count: Py_ssize_t,
            keywords: *mut PyObject,
        ) -> *mut PyObject {
            guard(null_mut(), || {
                // SAFETY: what Python has called with.
                let added = unsafe { add(loop_, arguments, count, keywords, ($function, $side, $reach)) };
                if $reach == Reach::Free { nothing(added.map(drop)) } else { pointer(added) }
            })
        }
    };
}

macro_rules! removing {
    ($name:ident, $side:expr, $reach:expr) => {
        unsafe extern "C" fn $name(loop_: *mut PyObject, fd: *mut PyObject) -> *mut PyObject {
            // SAFETY: what Python has called with.
            unsafe { remove(loop_, fd, $side, $reach) }
        }
    };
}

adding!(add_reader, c"add_reader", Side::Reader, Reach::Free);
adding!(add_writer, c"add_writer", Side::Writer, Reach::Free);
adding!(add_any_reader, c"_add_reader", Side::Reader, Reach::All);
adding!(add_any_writer, c"_add_writer", Side::Writer, Reach::All);
removing!(remove_reader, Side::Reader, Reach::Free);
removing!(remove_writer, Side::Writer, Reach::Free);
removing!(remove_any_reader, Side::Reader, Reach::All);
removing!(remove_any_writer, Side::Writer, Reach::All);

/// `_watched(fd)`: reader and writer of a descriptor, each a handle or `None`.
unsafe extern "C" fn watched(loop_: *mut PyObject, fd: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop and a live argument. Both handles get a reference before anything is called.
        pointer(unsafe {
            (|| {
                let core = core::core(loop_)?;
                let (reader, writer) = (*core).readers.of(readers::descriptor(fd)?);
                let pair = [Owned::returned(or_none(reader))?, Owned::returned(or_none(writer))?];
                Owned::returned(ffi::PyTuple_Pack(2, pair[0].as_ptr(), pair[1].as_ptr()))
            })()
        })
    })
}

/// `_watched_descriptors()`: a list of numbers.
unsafe extern "C" fn watched_descriptors(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop.
        unsafe {
            let Ok(core) = core::core(loop_) else { return null_mut() };
            let descriptors = (*core).readers.descriptors();
            Python::attach(|py| match descriptors.into_pyobject(py) {
                Ok(list) => list.into_ptr(),
                Err(error) => {
                    error.restore(py);
                    null_mut()
                }
            })
        }
    })
}

/// `_close_core()`
unsafe extern "C" fn close_core(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop.
        nothing(unsafe {
            core::core(loop_).and_then(|core| {
                if (*core).parked {
                    return Err(raise(ffi::PyExc_RuntimeError, c"Cannot close a running event loop"));
                }
                core::close(core);
                Ok(())
            })
        })
    })
}

unsafe extern "C" fn stats_method(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop.
        unsafe {
            let Ok(core) = core::core(loop_) else { return null_mut() };
            Python::attach(|py| match stats::snapshot(py, core) {
                Ok(stats) => stats.into_ptr(),
                Err(error) => {
                    error.restore(py);
                    null_mut()
                }
            })
        }
    })
}

/// `_set_slow_hook(nanoseconds, hook)`
unsafe extern "C" fn set_slow_hook(
    loop_: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop and this many arguments.
        nothing(unsafe {
            (|| {
                let core = core::core(loop_)?;
                if count != 2 {
                    return Err(raise(ffi::PyExc_TypeError, c"a number of nanoseconds and a callback are needed"));
                }
                let nanos = ffi::PyLong_AsUnsignedLongLong(*arguments);
                if !ffi::PyErr_Occurred().is_null() {
                    return Err(Raised);
                }
                (*core).slow = nanos;
                replace(&raw mut (*core).on_slow, *arguments.add(1));
                Ok(())
            })()
        })
    })
}

fn methods() -> *mut c_void {
    types::methods(vec![
        fast_with_keywords(
            c"call_soon",
            scheduling::call_soon,
            c"Arrange for a callback to be called as soon as possible.",
        ),
        fast_with_keywords(
            c"call_soon_threadsafe",
            scheduling::call_soon_threadsafe,
            c"Like call_soon(), but may be called from any thread.",
        ),
        fast_with_keywords(
            c"call_later",
            scheduling::call_later,
            c"Arrange for a callback to be called after a delay.",
        ),
        fast_with_keywords(
            c"call_at",
            scheduling::call_at,
            c"Arrange for a callback to be called at a time of loop.time().",
        ),
        fast_with_keywords(c"create_task", scheduling::create_task, c"Schedule a coroutine, and return a task for it."),
        without_arguments(c"create_future", scheduling::create_future, c"Create a future that belongs to the loop."),
        without_arguments(c"time", scheduling::time_method, c"Return the time on the loop's clock, in seconds."),
        without_arguments(c"get_debug", get_debug, c"Return whether the loop is in debug mode."),
        without_arguments(c"stop", stop, c"Stop running the loop, after the turn under way."),
        without_arguments(c"stats", stats_method, c"Return what the loop has counted, as a dictionary."),
        without_arguments(c"_run_once", run_once, c"Run one turn of the loop."),
        without_arguments(c"_run_until_stopped", run_until_stopped, c"Turn the loop until it is told to stop."),
        without_arguments(c"_write_to_self", write_to_self, c"Wake the loop if it sleeps."),
        without_arguments(c"_watched_descriptors", watched_descriptors, c"Return the descriptors that are watched."),
        without_arguments(c"_close_core", close_core, c"Let go of everything that is queued or watched."),
        with_one(c"_add_callback", add_callback, c"Queue a handle."),
        with_one(c"_timer_handle_cancelled", timer_handle_cancelled, c"Nothing that the loop needs to be told."),
        with_one(c"_watched", watched, c"Return the handles of the reader and the writer of a descriptor."),
        with_one(c"remove_reader", remove_reader, c"Stop watching a descriptor for reading."),
        with_one(c"remove_writer", remove_writer, c"Stop watching a descriptor for writing."),
        with_one(c"_remove_reader", remove_any_reader, c"Stop watching any descriptor for reading."),
        with_one(c"_remove_writer", remove_any_writer, c"Stop watching any descriptor for writing."),
        fast_with_keywords(c"add_reader", add_reader, c"Have a callback called when a descriptor is readable."),
        fast_with_keywords(c"add_writer", add_writer, c"Have a callback called when a descriptor is writable."),
        fast_with_keywords(c"_add_reader", add_any_reader, c"Have a callback called when any descriptor is readable."),
        fast_with_keywords(c"_add_writer", add_any_writer, c"Have a callback called when any descriptor is writable."),
        with_one(c"_accept", sockets::accept, c"Accept a connection, and return its descriptor."),
        with_one(c"_recv_datagram", datagrams::receive, c"Receive a datagram."),
        fast(c"_send_datagram", datagrams::send, c"Send a datagram, if that takes no waiting and no looking up."),
        fast(c"_recv", sockets::recv, c"Receive, or return a future for what will be received."),
        fast(c"_recv_ready", sockets::recv_ready, c"Receive what somebody waits for."),
        fast(c"_stop_waiting", sockets::stop_waiting, c"Give up waiting to receive."),
        fast(c"_send", sockets::send, c"Send what there is room for."),
        fast(c"_set_slow_hook", set_slow_hook, c"Have a callback told of slow callbacks."),
    ])
}

/// Makes the type.
///
/// # Safety
/// `base` is `pelton._loop.BaseLoop`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_new, new as *mut c_void),
        (ffi::Py_tp_methods, methods()),
        (ffi::Py_tp_getset, loop_fields::attributes()),
        (ffi::Py_tp_doc, c"An asyncio event loop on the Pelton reactor.".as_ptr() as *mut c_void),
    ];
    // SAFETY: as the caller says.
    let (its_type, offset) = unsafe { types::make_with_hidden_field(c"pelton.Loop", base, &slots)? };
    core::set_offset(offset);
    Ok(its_type)
}
