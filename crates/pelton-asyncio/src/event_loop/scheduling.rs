//! The hot methods of a loop: scheduling callbacks, and creating futures and tasks.

use std::rc::Rc;

use pelton::Time;
use pelton_os::clock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyString};

use crate::event_loop::state::{self, Loop, LoopState};
use crate::known::{known, name};
use pelton_cpython::arguments::{Argument, Call, Scheduled, is_named};
use pelton_cpython::call::{Call as _, OrRaise, call_with_keywords, call_with_tuple, raise};
use pelton_cpython::class::This;
use pelton_cpython::handles::context::copy_of_current;
use pelton_cpython::handles::{self, Handle, Queued};
use pelton_cpython::object::Result;
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
fn check_call<'py>(
    its_loop: &Bound<'py, PyAny>,
    callback: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
    thread: bool,
) -> Result<()> {
    let py = its_loop.py();
    if thread {
        its_loop.method(name!(py, _check_thread))?;
    }
    its_loop.method_two(name!(py, _check_callback), callback, method.as_any()).map(drop)
}

/// Schedules `callback(*arguments)`, for this crate itself.
pub(crate) fn soon<'py>(
    its_loop: &Bound<'py, PyAny>,
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
) -> Result<()> {
    let state = state::of(its_loop)?;
    state.check_open(its_loop.py())?;
    state.queue(handles::new(state.home(its_loop), callback, arguments, None)?);
    Ok(())
}

/// `call_soon(callback, *args, context=None)`
pub(crate) fn call_soon<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let Scheduled { named: [callback], rest, context } = call.scheduled(py, [name!(py, callback)])?;
    let state = this.state()?;
    state.check_open(py)?;
    if state.debug.get() {
        check_call(&this, &callback, name!(py, call_soon), true)?;
    }
    let handle = handles::new(state.home(&this), &callback, rest, context.as_deref())?;
    state.queue(handle.clone());
    Ok(handle)
}

/// `call_soon_threadsafe(callback, *args, context=None)`
///
/// The lock is held, which makes it safe on other threads. A loop that sleeps without it is woken.
pub(crate) fn call_soon_threadsafe<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    thread_exit::protect_thread();
    let Scheduled { named: [callback], rest, context } = call.scheduled(py, [name!(py, callback)])?;
    let state = this.state()?;
    state.check_open(py)?;
    if state.debug.get() {
        check_call(&this, &callback, name!(py, call_soon_threadsafe), false)?;
    }
    // Not the context that the loop's handles share: replacing that would drop values of its variables on this thread.
    let context = match context {
        Some(context) => context.to_owned(),
        None => copy_of_current(py)?,
    };
    let handle = handles::new(state.home(&this), &callback, rest, Some(&context))?;
    state.queue(handle.clone());
    state.counters.posts.set(state.counters.posts.get() + 1);
    state.wake();
    Ok(handle)
}

/// `call_later(delay, callback, *args, context=None)`
pub(crate) fn call_later<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let names = [name!(py, delay), name!(py, callback)];
    let Scheduled { named: [delay, callback], rest, context } = call.scheduled(py, names)?;
    if delay.is_none() {
        return Err(raise::<PyTypeError>(py, "delay must not be None"));
    }
    if let Ok(delay) = delay.cast_exact::<PyFloat>() {
        return schedule(this, (seconds() + delay.value(), None), &callback, rest, context);
    }
    // Anything that can be added to a float, as in asyncio.
    let when = PyFloat::new(py, seconds()).add(delay).or_raise(py)?;
    schedule(this, (when.number()?, Some(&when)), &callback, rest, context)
}

/// `call_at(when, callback, *args, context=None)`
pub(crate) fn call_at<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let names = [name!(py, when), name!(py, callback)];
    let Scheduled { named: [when, callback], rest, context } = call.scheduled(py, names)?;
    if when.is_none() {
        return Err(raise::<PyTypeError>(py, "when cannot be None"));
    }
    schedule(this, (when.number()?, Some(&when)), &callback, rest, context)
}

/// Sets a timer.
#[inline]
fn schedule<'py>(
    this: This<'_, 'py, Loop>,
    when: (f64, Option<&Bound<'py, PyAny>>),
    callback: &Bound<'py, PyAny>,
    rest: &[Argument<'_, 'py>],
    context: Option<Argument<'_, 'py>>,
) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let state = this.state()?;
    state.check_open(py)?;
    if state.debug.get() {
        // asyncio's `call_later` calls `call_at`, which is named in the error.
        check_call(&this, callback, name!(py, call_at), true)?;
    }
    let timer = handles::new_timer(state.home(&this), when, callback, rest, context.as_deref())?;
    let key = state.timers.borrow_mut().insert(time(when.0), Queued::new(timer.clone()));
    if let Some(handle) = Handle::of(&timer) {
        handle.set_key(Some(key));
    }
    Ok(timer)
}

/// `create_future()`
pub(crate) fn create_future<'py>(this: This<'_, 'py, Loop>) -> Result<Bound<'py, PyAny>> {
    future(&this, this.state()?)
}

/// Creates a future that belongs to a loop.
pub(crate) fn future<'py>(its_loop: &Bound<'py, PyAny>, state: &Rc<LoopState>) -> Result<Bound<'py, PyAny>> {
    let py = its_loop.py();
    let keywords = loop_keyword(its_loop, state)?;
    call_with_tuple(known().future.bind(py), known().empty.bind(py), &keywords)
}

/// Returns `{"loop": loop}`, which saves creating a dictionary for each future and task. It belongs to the loop; programs never see it.
#[inline]
fn loop_keyword<'py>(its_loop: &Bound<'py, PyAny>, state: &LoopState) -> Result<Bound<'py, PyAny>> {
    let py = its_loop.py();
    if let Some(keywords) = state.loop_keyword.get(py) {
        return Ok(keywords);
    }
    let keywords = PyDict::new(py);
    keywords.set_item(name!(py, loop_), its_loop).or_raise(py)?;
    Ok(state.loop_keyword.fill(keywords.into_any()))
}

/// `create_task(coro, *, name=None, context=None)`
pub(crate) fn create_task<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let state = this.state()?;
    state.check_open(py)?;
    let (mut name, mut context) = (None, None);
    let mut usual = call.positional().len() == 1 && state.task_factory.is_empty();
    for (keyword, value) in call.keywords() {
        if is_named(&keyword, name!(py, name)) {
            name = Some(value);
        } else if is_named(&keyword, name!(py, context)) {
            context = Some(value);
        } else {
            usual = false;
        }
    }
    let Some(coroutine) = call.positional().first().filter(|_| usual) else {
        if call.positional().is_empty() && call.keyword_count() == 0 {
            return Err(call.complain(py, "missing required positional argument:", "coro"));
        }
        // `BaseEventLoop.create_task`, for task factories and for arguments of later versions.
        return call.pass_on(known().create_task.bind(py), Some(&this));
    };
    let name = name.filter(|name| !name.is_none());
    let context = context.filter(|context| !context.is_none());
    let task = known().task.bind(py);
    if context.is_none() && name.is_none() {
        let keywords = loop_keyword(&this, state)?;
        return call_with_one_and_keywords(task, coroutine, &keywords);
    }
    // Fewer keywords are less for `Task` to parse.
    let names = known().task_keywords[usize::from(name.is_some())].bind(py);
    let none = py.None().into_bound(py);
    let given =
        [*coroutine, this.as_borrowed(), context.unwrap_or(none.as_borrowed()), name.unwrap_or(none.as_borrowed())];
    call_with_keywords(task, &given[..if name.is_some() { 4 } else { 3 }], names)
}

#[inline]
fn call_with_one_and_keywords<'py>(
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
    keywords: &Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>> {
    let py = function.py();
    let positional = pyo3::types::PyTuple::new(py, [argument]).or_raise(py)?;
    call_with_tuple(function, &positional, keywords)
}

/// `time()`
pub(crate) fn time_method(_: This<'_, '_, Loop>) -> Result<f64> {
    Ok(seconds())
}
