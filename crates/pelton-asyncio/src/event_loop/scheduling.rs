//! The hot methods of a loop: scheduling callbacks, and creating futures and tasks.

use std::ptr::null_mut;

use pelton::Time;
use pelton_os::clock;
use pyo3::ffi::{self, PyObject};

use crate::event_loop::state::{self, LoopState};
use crate::handles::{handle, timer};
use crate::known::known;
use pelton_cpython::arguments::{self, Call, Scheduled, complain, is_called};
use pelton_cpython::object::{Owned, Raised, Result, check, fill_once, raise};
use pelton_cpython::thread_exit;

/// Reads the loop's clock, in seconds.
#[inline]
pub(crate) fn seconds() -> f64 {
    clock::now().as_nanos() as f64 / 1e9
}

/// Converts seconds to a time on the loop's clock. Rounds up, so that a timer is never early. NaN means now, as in asyncio, where
/// comparisons with it are false.
#[inline]
fn time(when: f64) -> Time {
    // The conversion saturates.
    Time::from_nanos((when * 1e9).ceil() as u64)
}

/// Checks, in debug mode, that a call comes from the loop's thread and that the callback is callable.
#[cold]
unsafe fn check_call(loop_: *mut PyObject, callback: *mut PyObject, method: *mut PyObject, thread: bool) -> Result<()> {
    // SAFETY: all are alive.
    unsafe {
        if thread {
            drop(Owned::returned(ffi::PyObject_CallMethodNoArgs(loop_, known().names._check_thread))?);
        }
        let arguments = [loop_, callback, method];
        let name = known().names._check_callback;
        let checked = ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 3, null_mut());
        Owned::returned(checked).map(drop)
    }
}

/// Schedules `callback(*arguments)`, for this crate itself.
///
/// # Safety
/// All are alive, `loop_` a `pelton.Loop`.
pub(crate) unsafe fn soon(loop_: *mut PyObject, callback: *mut PyObject, arguments: &[*mut PyObject]) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        let handle = handle::new(loop_, callback, arguments, null_mut())?;
        queue(core, &handle);
        Ok(())
    }
}

/// Queues a handle.
#[inline]
unsafe fn queue(core: *mut LoopState, handle: &Owned) {
    // SAFETY: the queue gets its own reference.
    unsafe {
        ffi::Py_INCREF(handle.as_ptr());
        (*core).ready.push_back(handle.as_ptr());
    }
}

/// `call_soon(callback, *args, context=None)`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and `call` is the current call.
pub(crate) unsafe fn call_soon(loop_: *mut PyObject, call: Call) -> Result<Owned> {
    // SAFETY: Python calls it with a live loop and valid arguments.
    unsafe {
        let names = [known().names.callback];
        let Scheduled { named: [callback], rest, context } = arguments::scheduled(call, names)?;
        let core = state::of(loop_)?;
        state::check_open(core)?;
        if (*core).debug {
            check_call(loop_, callback, known().names.call_soon, true)?;
        }
        let handle = handle::new(loop_, callback, rest, context)?;
        queue(core, &handle);
        Ok(handle)
    }
}

/// `call_soon_threadsafe(callback, *args, context=None)`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and `call` is the current call.
pub(crate) unsafe fn call_soon_threadsafe(loop_: *mut PyObject, call: Call) -> Result<Owned> {
    // SAFETY: as for `call_soon`. The lock is held, which makes it safe on other threads. A loop that sleeps without it is woken.
    unsafe {
        thread_exit::protect_thread();
        let names = [known().names.callback];
        let Scheduled { named: [callback], rest, context } = arguments::scheduled(call, names)?;
        let core = state::of(loop_)?;
        state::check_open(core)?;
        if (*core).debug {
            check_call(loop_, callback, known().names.call_soon_threadsafe, false)?;
        }
        // Not the context that the loop's handles share: replacing that would drop values of its variables on this thread.
        let copy = if context.is_null() { Some(Owned::returned(ffi::PyContext_CopyCurrent())?) } else { None };
        let context = copy.as_ref().map_or(context, Owned::as_ptr);
        let handle = handle::new(loop_, callback, rest, context)?;
        queue(core, &handle);
        (*core).counters.posts += 1;
        state::wake(core);
        Ok(handle)
    }
}

/// `call_later(delay, callback, *args, context=None)`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and `call` is the current call.
pub(crate) unsafe fn call_later(loop_: *mut PyObject, call: Call) -> Result<Owned> {
    // SAFETY: as for `call_soon`.
    unsafe {
        let names = [known().names.delay, known().names.callback];
        let Scheduled { named: [delay, callback], rest, context } = arguments::scheduled(call, names)?;
        if delay == ffi::Py_None() {
            return Err(raise(ffi::PyExc_TypeError, c"delay must not be None"));
        }
        if ffi::PyFloat_CheckExact(delay) != 0 {
            let when = seconds() + ffi::PyFloat_AS_DOUBLE(delay);
            return schedule(loop_, when, null_mut(), callback, rest, context);
        }
        // Anything that can be added to a float, as in asyncio.
        let now = Owned::returned(ffi::PyFloat_FromDouble(seconds()))?;
        let when = Owned::returned(ffi::PyNumber_Add(now.as_ptr(), delay))?;
        schedule(loop_, as_double(when.as_ptr())?, when.as_ptr(), callback, rest, context)
    }
}

/// `call_at(when, callback, *args, context=None)`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and `call` is the current call.
pub(crate) unsafe fn call_at(loop_: *mut PyObject, call: Call) -> Result<Owned> {
    // SAFETY: as for `call_soon`.
    unsafe {
        let names = [known().names.when, known().names.callback];
        let Scheduled { named: [when, callback], rest, context } = arguments::scheduled(call, names)?;
        if when == ffi::Py_None() {
            return Err(raise(ffi::PyExc_TypeError, c"when cannot be None"));
        }
        schedule(loop_, as_double(when)?, when, callback, rest, context)
    }
}

unsafe fn as_double(number: *mut PyObject) -> Result<f64> {
    // SAFETY: it is alive.
    unsafe {
        let value = ffi::PyFloat_AsDouble(number);
        if value == -1.0 && !ffi::PyErr_Occurred().is_null() { Err(Raised) } else { Ok(value) }
    }
}

/// Sets a timer.
#[inline]
unsafe fn schedule(
    loop_: *mut PyObject,
    when: f64,
    when_object: *mut PyObject,
    callback: *mut PyObject,
    rest: &[*mut PyObject],
    context: *mut PyObject,
) -> Result<Owned> {
    // SAFETY: all are alive. The wheel gets its own reference, and runs no Python code.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        if (*core).debug {
            // asyncio's `call_later` calls `call_at`, which is named in the error.
            check_call(loop_, callback, known().names.call_at, true)?;
        }
        let timer = timer::new(loop_, when, when_object, callback, rest, context)?;
        ffi::Py_INCREF(timer.as_ptr());
        let key = (*core).timers.insert(time(when), timer.as_ptr());
        timer::set_key(timer.as_ptr(), Some(key));
        Ok(timer)
    }
}

/// `create_future()`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
pub(crate) unsafe fn create_future(loop_: *mut PyObject) -> Result<Owned> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let keywords = loop_keyword(loop_, state::of(loop_)?)?;
        Owned::returned(ffi::PyObject_Call(known().future, known().empty, keywords.as_ptr()))
    }
}

/// Returns `{"loop": loop}`, which saves creating a dictionary for each future and task. It belongs to the core; programs never see it.
///
/// # Safety
/// `core` belongs to `loop_`, which is alive.
#[inline]
unsafe fn loop_keyword(loop_: *mut PyObject, core: *mut LoopState) -> Result<Owned> {
    // SAFETY: the caller guarantees it.
    unsafe {
        if (*core).loop_keyword.is_null() {
            let keywords = Owned::returned(ffi::PyDict_New())?;
            check(ffi::PyDict_SetItem(keywords.as_ptr(), known().names.loop_, loop_))?;
            return Ok(fill_once(&raw mut (*core).loop_keyword, keywords));
        }
        Ok(Owned::new_reference((*core).loop_keyword))
    }
}

/// `create_task(coro, *, name=None, context=None)`
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and `call` is the current call.
pub(crate) unsafe fn create_task(loop_: *mut PyObject, call: Call) -> Result<Owned> {
    let Call { arguments, count, keywords, .. } = call;
    // SAFETY: the caller guarantees it. All arrays have the lengths that are passed.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        let (mut name, mut context) = (null_mut(), null_mut());
        let mut usual = count == 1 && (*core).task_factory.is_null();
        let keyword_count = if keywords.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(keywords) };
        for index in 0..keyword_count {
            let keyword = ffi::PyTuple_GET_ITEM(keywords, index);
            let value = *arguments.add(count + index as usize);
            if is_called(keyword, known().names.name)? {
                name = value;
            } else if is_called(keyword, known().names.context)? {
                context = value;
            } else {
                usual = false;
            }
        }
        if !usual {
            if count == 0 && keyword_count == 0 {
                return Err(complain(call.function, "missing required positional argument:", known().names.coro));
            }
            return inherited_create_task(loop_, call, keyword_count as usize);
        }
        let none = |value: *mut PyObject| value.is_null() || value == ffi::Py_None();
        if none(context) && none(name) {
            let keywords = loop_keyword(loop_, core)?;
            let positional = handle::tuple(&[*arguments])?;
            return Owned::returned(ffi::PyObject_Call(known().task, positional.as_ptr(), keywords.as_ptr()));
        }
        // Fewer keywords are less for `Task` to parse.
        let names = known().task_keywords[usize::from(!none(name))];
        let given = [*arguments, loop_, context, name];
        let given = given.map(|value| if value.is_null() { ffi::Py_None() } else { value });
        Owned::returned(ffi::PyObject_Vectorcall(known().task, given.as_ptr(), 1, names))
    }
}

/// Calls `BaseEventLoop.create_task`, for task factories and for arguments of later versions.
#[cold]
unsafe fn inherited_create_task(loop_: *mut PyObject, call: Call, keyword_count: usize) -> Result<Owned> {
    let Call { arguments, count, keywords, .. } = call;
    // SAFETY: the caller's array has that many arguments.
    unsafe {
        let mut call = Vec::with_capacity(1 + count + keyword_count);
        call.push(loop_);
        call.extend((0..count + keyword_count).map(|index| *arguments.add(index)));
        let inherited = known().create_task;
        Owned::returned(ffi::PyObject_Vectorcall(inherited, call.as_ptr(), 1 + count, keywords))
    }
}

/// `time()`
///
/// # Safety
/// The lock is held.
pub(crate) unsafe fn time_method(_: *mut PyObject) -> Result<f64> {
    Ok(seconds())
}
