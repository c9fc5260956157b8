//! `pelton.Loop`: the final type, derived from `pelton._loop.BaseLoop`.
//!
//! It has one field of its own, a reference to its core, which Python code cannot access.

use std::ffi::c_void;
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;

use crate::event_loop::state;
use crate::event_loop::{attributes, run, scheduling, slow, stats};
use crate::handles::handle;
use crate::known::known;
use crate::readers::descriptors;
use crate::readers::{self, Side};
use crate::sockets::{datagrams, guards, operations as sockets};
use crate::transports::{opening, pipes};
use pelton_cpython::arguments::{self, Call, Scheduled};
use pelton_cpython::methods::answer;
use pelton_cpython::object::{Owned, Raised, Result, or_none, pointer, raise};
use pelton_cpython::panic::guard;
use pelton_cpython::types;
use pelton_cpython::{with_keywords, with_one, with_several, without_arguments};

/// Creates a loop object with its core. `__init__` does the rest, in Python.
unsafe extern "C" fn new(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with this type or one derived from it. `__init__` checks the arguments. The slot is null in a new
        // object, and takes the reference.
        pointer(unsafe {
            (|| {
                let core = state::new()?;
                let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
                let loop_ = Owned::returned(make(its_type, known().empty, null_mut()))?;
                state::put(loop_.as_ptr(), core);
                Ok(loop_)
            })()
        })
    })
}

/// Returns whether a loop's `_run_once` is this crate's.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
pub(crate) unsafe fn has_own_turn(loop_: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let method = Owned::returned(ffi::PyObject_GetAttr(loop_, known().names._run_once))?;
        if ffi::PyCFunction_Check(method.as_ptr()) == 0 {
            return Ok(false);
        }
        let function = ffi::PyCFunction_GetFunction(method.as_ptr());
        Ok(function.is_some_and(|function| ptr::fn_addr_eq(function, run_once as ffi::PyCFunction)))
    }
}

// All methods below are called by Python, with a live loop and live arguments.

/// A plain C function, because [`has_own_turn`] compares its address.
unsafe extern "C" fn run_once(loop_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: the loop is alive.
        answer(unsafe {
            state::of(loop_).and_then(|core| state::check_open(core).and_then(|()| run::turn(loop_, core)))
        })
    })
}

unsafe fn get_debug(loop_: *mut PyObject) -> Result<bool> {
    // SAFETY: the loop is alive.
    unsafe { Ok(state::is_in_debug_mode(loop_)) }
}

unsafe fn stop(loop_: *mut PyObject) -> Result<()> {
    // SAFETY: the loop is alive.
    unsafe { state::of(loop_).map(|core| (*core).stopping = true) }
}

/// `_add_callback(handle)`: queues a handle, which may be of asyncio's type.
unsafe fn add_callback(loop_: *mut PyObject, handle: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive.
    unsafe {
        let core = state::of(loop_)?;
        if !handle::is_cancelled(handle)? {
            ffi::Py_INCREF(handle);
            (*core).ready.push_back(handle);
        }
        Ok(())
    }
}

unsafe fn write_to_self(loop_: *mut PyObject) -> Result<()> {
    // SAFETY: the loop is alive.
    unsafe { state::of(loop_).map(|core| state::wake(core)) }
}

/// Does nothing: cancelling a `pelton.TimerHandle` removes it from the wheel, and other handles are never in the wheel.
unsafe fn timer_handle_cancelled(_: *mut PyObject, _: *mut PyObject) -> Result<()> {
    Ok(())
}

/// The descriptors that a method may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Only descriptors that no transport uses. For methods that programs call.
    Free,
    /// All descriptors. For methods that transports call.
    All,
}

unsafe fn add(loop_: *mut PyObject, call: Call, side: Side, reach: Reach) -> Result<Owned> {
    // SAFETY: the loop is alive, and `call` is the current call.
    unsafe {
        let names = [known().names.fd, known().names.callback];
        let Scheduled { named: [fd, callback], rest, context } = arguments::scheduled(call, names)?;
        arguments::refuse_context(call, context)?;
        if reach == Reach::Free {
            descriptors::refuse_transports(loop_, fd)?;
        }
        readers::add(loop_, fd, side, callback, rest)
    }
}

unsafe fn remove(loop_: *mut PyObject, fd: *mut PyObject, side: Side, reach: Reach) -> Result<bool> {
    // SAFETY: both are alive.
    unsafe {
        if reach == Reach::Free {
            descriptors::refuse_transports(loop_, fd)?;
        }
        readers::remove(loop_, fd, side)
    }
}

/// The methods for one side of a descriptor. Those with an underscore return the handle, the others nothing.
macro_rules! watching {
    ($side:expr, $add:ident, $add_any:ident, $remove:ident, $remove_any:ident) => {
        unsafe fn $add(loop_: *mut PyObject, call: Call) -> Result<()> {
            // SAFETY: as for all methods.
            unsafe { add(loop_, call, $side, Reach::Free).map(drop) }
        }

        unsafe fn $add_any(loop_: *mut PyObject, call: Call) -> Result<Owned> {
            // SAFETY: as for all methods.
            unsafe { add(loop_, call, $side, Reach::All) }
        }

        unsafe fn $remove(loop_: *mut PyObject, call: Call) -> Result<bool> {
            // SAFETY: as for all methods.
            unsafe {
                let [fd] = arguments::named(call, [known().names.fd])?;
                remove(loop_, fd, $side, Reach::Free)
            }
        }

        unsafe fn $remove_any(loop_: *mut PyObject, fd: *mut PyObject) -> Result<bool> {
            // SAFETY: as for all methods.
            unsafe { remove(loop_, fd, $side, Reach::All) }
        }
    };
}

watching!(Side::Reader, add_reader, add_any_reader, remove_reader, remove_any_reader);
watching!(Side::Writer, add_writer, add_any_writer, remove_writer, remove_any_writer);

/// `_watched(fd)`: returns the reader and the writer of a descriptor, each a handle or `None`.
unsafe fn watched(loop_: *mut PyObject, fd: *mut PyObject) -> Result<Owned> {
    // SAFETY: both are alive. The handles get a reference before any Python code runs.
    unsafe {
        let fd = descriptors::descriptor(fd)?;
        let (reader, writer) = (*state::of(loop_)?).readers.of(fd);
        let pair = [Owned::returned(or_none(reader))?, Owned::returned(or_none(writer))?];
        Owned::returned(ffi::PyTuple_Pack(2, pair[0].as_ptr(), pair[1].as_ptr()))
    }
}

/// `_watched_descriptors()`: returns a list of numbers.
unsafe fn watched_descriptors(loop_: *mut PyObject) -> Result<Owned> {
    // SAFETY: the loop is alive.
    unsafe {
        let descriptors = (*state::of(loop_)?).readers.descriptors();
        made(|py| descriptors.into_pyobject(py))
    }
}

/// Calls a function that creates an object with PyO3.
fn made<T>(make: impl FnOnce(Python<'_>) -> PyResult<Bound<'_, T>>) -> Result<Owned> {
    Python::attach(|py| match make(py) {
        // SAFETY: the reference is owned; the lock is held.
        Ok(object) => unsafe { Owned::returned(object.into_any().into_ptr()) },
        Err(error) => {
            error.restore(py);
            Err(Raised)
        }
    })
}

/// `_close_core()`
unsafe fn close_core(loop_: *mut PyObject) -> Result<()> {
    // SAFETY: the loop is alive.
    unsafe {
        let core = state::of(loop_)?;
        if !state::can_close(core) {
            return Err(raise(ffi::PyExc_RuntimeError, c"Cannot close a running event loop"));
        }
        state::close(core);
        Ok(())
    }
}

unsafe fn stats_method(loop_: *mut PyObject) -> Result<Owned> {
    // SAFETY: the loop is alive.
    unsafe {
        let core = state::of(loop_)?;
        made(|py| stats::snapshot(py, core))
    }
}

/// `_set_slow_hook(nanoseconds, hook)`
unsafe fn set_slow_hook(loop_: *mut PyObject, [nanoseconds, hook]: [*mut PyObject; 2]) -> Result<()> {
    // SAFETY: all are alive.
    unsafe {
        let core = state::of(loop_)?;
        slow::set_hook(core, slow::threshold(nanoseconds)?, hook)
    }
}

// The docs of public methods begin with the signature, in the form that `inspect.signature` parses.
fn methods() -> *mut c_void {
    types::methods(vec![
        with_keywords!(
            c"call_soon",
            scheduling::call_soon,
            c"call_soon($self, callback, *args, context=None)\n--\n\nArrange for a callback to be called as soon as possible.",
        ),
        with_keywords!(
            c"call_soon_threadsafe",
            scheduling::call_soon_threadsafe,
            c"call_soon_threadsafe($self, callback, *args, context=None)\n--\n\nLike call_soon(), but may be called from any thread.",
        ),
        with_keywords!(c"call_later", scheduling::call_later, c"call_later($self, delay, callback, *args, context=None)\n--\n\nArrange for a callback to be called after a delay.",),
        with_keywords!(
            c"call_at",
            scheduling::call_at,
            c"call_at($self, when, callback, *args, context=None)\n--\n\nArrange for a callback to be called at a time of loop.time().",
        ),
        with_keywords!(c"create_task", scheduling::create_task, c"create_task($self, coro, *, name=None, context=None)\n--\n\nSchedule a coroutine, and return a task for it."),
        without_arguments!(c"create_future", scheduling::create_future, c"create_future($self)\n--\n\nCreate a future that belongs to the loop."),
        without_arguments!(c"time", scheduling::time_method, c"time($self)\n--\n\nReturn the time on the loop's clock, in seconds."),
        without_arguments!(c"get_debug", get_debug, c"get_debug($self)\n--\n\nReturn whether the loop is in debug mode."),
        without_arguments!(c"stop", stop, c"stop($self)\n--\n\nStop running the loop, after the turn under way."),
        without_arguments!(c"stats", stats_method, c"stats($self)\n--\n\nReturn what the loop has counted, as a dictionary."),
        types::without_arguments(c"_run_once", run_once, c"Run one turn of the loop."),
        without_arguments!(c"_run_until_stopped", run::until_stopped, c"Turn the loop until it is told to stop."),
        without_arguments!(c"_write_to_self", write_to_self, c"Wake the loop if it sleeps."),
        without_arguments!(c"_watched_descriptors", watched_descriptors, c"Return the descriptors that are watched."),
        without_arguments!(c"_close_core", close_core, c"Let go of everything that is queued or watched."),
        with_one!(c"_add_callback", add_callback, c"Queue a handle."),
        with_one!(c"_timer_handle_cancelled", timer_handle_cancelled, c"Nothing that the loop needs to be told."),
        with_one!(c"_watched", watched, c"Return the handles of the reader and the writer of a descriptor."),
        with_keywords!(c"remove_reader", remove_reader, c"remove_reader($self, fd)\n--\n\nStop watching a descriptor for reading."),
        with_keywords!(c"remove_writer", remove_writer, c"remove_writer($self, fd)\n--\n\nStop watching a descriptor for writing."),
        with_one!(c"_remove_reader", remove_any_reader, c"Stop watching any descriptor for reading."),
        with_one!(c"_remove_writer", remove_any_writer, c"Stop watching any descriptor for writing."),
        with_keywords!(c"add_reader", add_reader, c"add_reader($self, fd, callback, *args)\n--\n\nHave a callback called when a descriptor is readable."),
        with_keywords!(c"add_writer", add_writer, c"add_writer($self, fd, callback, *args)\n--\n\nHave a callback called when a descriptor is writable."),
        with_keywords!(c"_add_reader", add_any_reader, c"Have a callback called when any descriptor is readable."),
        with_keywords!(c"_add_writer", add_any_writer, c"Have a callback called when any descriptor is writable."),
        with_several!(c"_accept_streams", opening::accept, c"Accept connections, and make transports for them."),
        with_several!(c"_accept_one", opening::accept_one, c"Accept a connection, and make a socket for it."),
        with_several!(c"_open_stream", opening::open_descriptor, c"Make a transport for a connected socket."),
        without_arguments!(c"_sockets_are_guarded", guards::are_guarded, c"Return whether somebody watches over sockets."),
        with_several!(c"_start_connecting", opening::connect, c"Begin to connect to an address."),
        with_one!(c"_connect_outcome", opening::connect_outcome, c"Return the number of the error, or 0."),
        with_several!(c"_adopt_listener", readers::adopt_listener, c"Make a listener of a listening socket."),
        with_several!(c"_adopt_datagrams", readers::adopt_datagrams, c"Make a datagram socket of a socket."),
        with_one!(c"_adopt_pipe", readers::adopt_pipe, c"Make a connection of an end of a pipe."),
        with_one!(c"_release", readers::release_descriptor, c"Give back a descriptor that was adopted."),
        with_several!(c"_pause_accepting", readers::pause_accepting, c"Accept nothing for some seconds."),
        with_several!(c"_receive_datagrams", datagrams::receive, c"Receive datagrams, and tell a protocol of them."),
        with_several!(c"_send_datagram", datagrams::send, c"Send a datagram, or queue it if there is no room."),
        with_several!(c"_queue_datagram", datagrams::queue, c"Queue a datagram."),
        with_one!(c"_queued_datagrams", datagrams::queued, c"Return the number of queued datagrams and bytes."),
        with_one!(c"_check_datagrams", datagrams::check, c"Raise the error of a queued datagram."),
        with_one!(c"_drop_datagrams", datagrams::drop_queue, c"Drop the queued datagrams."),
        with_several!(c"_sendto", datagrams::send_to, c"Send a datagram, if that takes no waiting and no looking up."),
        with_several!(c"_receive_from_pipe", pipes::receive, c"Receive from a pipe."),
        with_several!(c"_send_to_pipe", pipes::send, c"Send to a pipe, and queue what has no room."),
        with_several!(c"_queue_for_pipe", pipes::queue, c"Queue data until a pipe has room."),
        with_one!(c"_queued_for_pipe", pipes::queued, c"Return how much is queued, or raise why it was not sent."),
        with_one!(c"_pipe_backlog", pipes::backlog, c"Return how much is queued."),
        with_one!(c"_drop_pipe_queue", pipes::drop_queue, c"Drop what is queued."),
        with_several!(c"_recv", sockets::recv, c"Receive, or return a future for what will be received."),
        with_several!(c"_recv_ready", sockets::recv_ready, c"Receive what somebody waits for."),
        with_several!(c"_recv_into", sockets::recv_into, c"Likewise, into a buffer."),
        with_several!(c"_recv_into_ready", sockets::recv_into_ready, c"Likewise, into a buffer."),
        with_several!(c"_recvfrom", sockets::recvfrom, c"Likewise, with the address that it comes from."),
        with_several!(c"_recvfrom_ready", sockets::recvfrom_ready, c"Likewise, with the address that it comes from."),
        with_several!(c"_accept", sockets::accept, c"Accept a connection, or return a future for one."),
        with_several!(c"_accept_ready", sockets::accept_ready, c"Accept a connection that somebody waits for."),
        with_several!(c"_connect", sockets::connect, c"Begin to connect a socket."),
        with_several!(c"_stop_waiting", sockets::stop_waiting, c"Give up waiting to receive."),
        with_several!(c"_send", sockets::send, c"Send what there is room for."),
        with_several!(c"_set_slow_hook", set_slow_hook, c"Have a callback told of slow callbacks."),
    ])
}

/// Creates the type.
///
/// # Safety
/// `base` is `pelton._loop.BaseLoop`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_new, new as *mut c_void),
        (ffi::Py_tp_methods, methods()),
        (ffi::Py_tp_getset, attributes::attributes()),
        (ffi::Py_tp_doc, c"An asyncio event loop on the Pelton reactor.".as_ptr() as *mut c_void),
    ];
    // SAFETY: the caller guarantees it.
    let (its_type, offset) = unsafe { types::make_with_hidden_field(c"pelton.Loop", base, &slots)? };
    state::set_offset(offset);
    state::set_loop_type(its_type);
    Ok(its_type)
}
