//! The turn, and the interpreter lock.
//!
//! A turn is asyncio's: ask what is ready and queue it, queue the timers that are due, then call what is in the queue, as it
//! stood. The lock is held all the way, and let go of around the one system call that sleeps, when there is nothing to do;
//! and now and then under load, because callbacks written in C never let go of it themselves.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pelton::{Engine, Time};
use pelton_os::clock;
use pyo3::Python;
use pyo3::ffi::{self, PyObject};

use crate::contexts::{self, Entered};
use crate::core::{self, Core};
use crate::known::known;
use crate::object::{Owned, Raised, Result, check, raise, raise_io, replace};
use crate::thread_exit::Suspended;
use crate::{handle, handle_memory};
use crate::{loop_type, readers, sockets, timer_handle};

/// While there is work and no descriptor is watched, the engine is polled no more often than this. Only a signal could be
/// found, and a system call costs as much as several callbacks.
const POLL_EVERY: Duration = Duration::from_micros(100);

/// While there is work, the lock is let go of no more often than this, however short the interpreter's own interval is.
const UNLOCK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// While a loop looks for work instead of sleeping, one look in so many asks the engine.
const LOOKS_PER_POLL: u32 = 64;

/// Turns the loop until it is told to stop.
///
/// # Safety
/// `loop_` is a live `pelton.Loop` that runs on this thread.
pub(crate) unsafe fn until_stopped(loop_: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says, and it keeps the loop alive, which keeps its core.
    unsafe {
        let core = core::core(loop_)?;
        let _suspended = Suspended::instead_of_exit();
        // Who runs a loop for a single turn relies on descriptors being looked at in it.
        (*core).polled = Time::ZERO;
        (*core).unlock_every = unlock_every()?;
        // Somebody may have put another turn in the place of ours, as asyncio's own tests do.
        let own_turn = loop_type::has_own_turn(loop_)?;
        loop {
            if own_turn {
                turn(loop_, core)?;
            } else {
                drop(Owned::returned(ffi::PyObject_CallMethodNoArgs(loop_, known().names._run_once))?);
            }
            if (*core).stopping {
                return Ok(());
            }
        }
    }
}

/// How often other threads get their chance at the lock while there is work.
///
/// Who waits for the lock asks for it when it has not become free for `sys.getswitchinterval()`; only then is it certain to get it from
/// whoever lets go of it next. Letting go wakes those who wait, and they wait anew if they are too slow; so who lets go in just that
/// interval, or more often, may keep them waiting for ever.
unsafe fn unlock_every() -> Result<Duration> {
    // SAFETY: the lock is held; what `sys` has is borrowed from it for the call, and the rest is ours.
    unsafe {
        let ask = ffi::PySys_GetObject(c"getswitchinterval".as_ptr());
        if ask.is_null() {
            return Ok(UNLOCK_AT_MOST_EVERY);
        }
        let interval = Owned::returned(ffi::PyObject_CallNoArgs(ask))?;
        let interval = ffi::PyFloat_AsDouble(interval.as_ptr());
        if interval == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        Ok(Duration::try_from_secs_f64(interval * 1.5).unwrap_or(Duration::MAX).max(UNLOCK_AT_MOST_EVERY))
    }
}

/// One turn.
///
/// # Safety
/// `core` is that of `loop_`, which is alive, open, and not running on another thread.
pub(crate) unsafe fn turn(loop_: *mut PyObject, core: *mut Core) -> Result<()> {
    // SAFETY: as the caller says; what is called here holds no Rust reference into the core while Python runs.
    unsafe {
        if (*core).parked {
            // Another thread sleeps in the engine, which has nobody else in mind.
            return Err(raise(ffi::PyExc_RuntimeError, c"This event loop is already running"));
        }
        (*core).counters.turns += 1;
        let mut now = clock::now();
        if (*core).stopping || !(*core).ready.is_empty() || has_intake(core) {
            if (*core).stopping || watches(core) || now - (*core).polled >= POLL_EVERY {
                (*core).polled = now;
                let lock = if now - (*core).unlocked >= (*core).unlock_every { Lock::LetGo } else { Lock::Hold };
                poll(core, Some(Time::ZERO), lock)?;
            }
        } else {
            // Often something is ready already, and the lock need not change hands.
            poll(core, Some(Time::ZERO), Lock::Hold)?;
            now = clock::now();
            if must_sleep(core, now) {
                // Both may run Python, and that may schedule anything.
                contexts::forget_foreign(core);
                let check_again = sockets::check_closed(core, now)?;
                if must_sleep(core, now) {
                    let deadline = [(*core).timers.next_deadline(), check_again].into_iter().flatten().min();
                    poll(core, deadline, Lock::LetGo)?;
                    now = clock::now();
                }
            }
            (*core).polled = now;
        }
        queue_timers(core, now);
        take_in(loop_, core);
        call_queued(loop_, core)
    }
}

/// Whether there is nothing to do for now. What is called between asking this and sleeping must not run any Python: what that
/// schedules would wait for something else to wake the loop.
#[inline]
unsafe fn must_sleep(core: *mut Core, now: Time) -> bool {
    // SAFETY: nothing in here calls anything.
    unsafe {
        !(*core).stopping
            && (*core).ready.is_empty()
            && !has_intake(core)
            && (*core).timers.next_deadline().is_none_or(|deadline| deadline > now)
    }
}

/// Whether the program watches a descriptor. Then every turn polls, as in asyncio: protocols see data in the same order.
#[inline]
unsafe fn watches(core: *mut Core) -> bool {
    // SAFETY: the core is that of a live loop, and nothing is called.
    unsafe { (*core).readers.any_beside((*core).internal_descriptors) }
}

/// Whether something has come from outside of Python.
#[inline]
unsafe fn has_intake(core: *mut Core) -> bool {
    // SAFETY: only this thread touches the intake, and asking it calls nothing.
    unsafe { (*core).intake.as_mut().is_some_and(|intake| intake.has_work()) }
}

/// Does a batch of what has come from outside of Python.
#[inline]
unsafe fn take_in(loop_: *mut PyObject, core: *mut Core) {
    // SAFETY: the intake is out of the core while it works, so that a turn inside of a turn, which programs that patch asyncio
    // do, finds none.
    unsafe {
        if !has_intake(core) {
            return;
        }
        if let Some(mut intake) = (*core).intake.take() {
            intake.process(loop_);
            if (*core).closed {
                drop(intake);
            } else {
                (*core).intake = Some(intake);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Hold,
    LetGo,
}

/// Asks the engine what is ready, waiting until `deadline`, and queues it.
unsafe fn poll(core: *mut Core, deadline: Option<Time>, lock: Lock) -> Result<()> {
    // SAFETY: the engine is used by this thread alone: while the lock is let go of, `parked` keeps others from it.
    unsafe {
        let engine: *mut dyn Engine = core::engine(core)?;
        (*core).counters.polls += 1;
        let outcome = if lock == Lock::Hold {
            (*engine).park(deadline).block()
        } else {
            (*core).counters.sleeps += u64::from(deadline != Some(Time::ZERO));
            (*core).parked = true;
            (*core).posted.store(false, Ordering::Relaxed);
            let lent = Lent { core, engine };
            // By way of pyo3, which counts who has the lock, and would otherwise let go of objects in there.
            let outcome =
                Python::assume_attached().detach(move || catch_unwind(AssertUnwindSafe(|| lent.sleep(deadline))));
            (*core).parked = false;
            if let Some(intake) = (*core).intake.as_mut() {
                intake.locked();
            }
            (*core).unlocked = clock::now();
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        };
        outcome.map_err(|error| raise_io(&error))?;
        readers::collect(core);
        if lock == Lock::LetGo {
            readers::apply_postponed(core);
            // Whatever has woken us may have been a signal, whose handler in Python runs now.
            check(ffi::PyErr_CheckSignals())?;
        }
        Ok(())
    }
}

/// A core and its engine, for the part of a turn that does without the lock.
struct Lent {
    core: *mut Core,
    engine: *mut dyn Engine,
}

// SAFETY: it stays on its thread. That it can be sent is how pyo3 asks whether something may be used without the lock, and that it may,
// as `parked` says.
unsafe impl Send for Lent {}

impl Lent {
    fn sleep(&self, deadline: Option<Time>) -> io::Result<()> {
        // SAFETY: only `poll` makes one, after it has parked the core.
        unsafe { sleep(self.core, self.engine, deadline) }
    }
}

/// Waits, without the lock, until there is something for which the lock is needed.
///
/// # Safety
/// The core is parked: engine and intake belong to this thread, and the rest of it is not touched but for `posted`.
unsafe fn sleep(core: *mut Core, engine: *mut dyn Engine, deadline: Option<Time>) -> io::Result<()> {
    // SAFETY: as the caller says.
    unsafe {
        let Some(intake) = (*core).intake.as_mut() else { return (*engine).park(deadline).block() };
        let due = |now: Time| deadline.is_some_and(|deadline| deadline <= now);
        let posted = &(*core).posted;
        let posted = || posted.load(Ordering::Acquire);
        let spin = intake.spin();
        let begun = if spin.is_zero() { Time::ZERO } else { clock::now() };
        let mut spinning = !spin.is_zero() && (*core).spin_pays && deadline != Some(Time::ZERO);
        loop {
            if spinning {
                // The engine is asked now and then only: a system call takes longer than all the rest.
                for look in 1.. {
                    let found = if look % LOOKS_PER_POLL == 0 {
                        (*engine).park(Some(Time::ZERO)).block()?;
                        (*core).found = (*engine).next();
                        (*core).found.is_some()
                    } else {
                        intake.fetch() || posted()
                    };
                    let now = clock::now();
                    if found || due(now) {
                        return Ok(());
                    }
                    if now - begun >= spin {
                        break;
                    }
                    std::hint::spin_loop();
                }
                spinning = false;
            }
            if !intake.sleep() {
                intake.fetch();
                return Ok(());
            }
            let outcome = (*engine).park(deadline).block();
            intake.awake();
            if !spin.is_zero() {
                (*core).spin_pays = clock::now() - begun < spin;
            }
            if intake.fetch() || outcome.is_err() || posted() {
                return outcome;
            }
            (*core).found = (*engine).next();
            if (*core).found.is_some() || due((*engine).now()) {
                return Ok(());
            }
            // Woken for what had been fetched before: its sender came late. The lock is not needed for that.
        }
    }
}

/// Queues the timers that are due.
#[inline]
unsafe fn queue_timers(core: *mut Core, now: Time) {
    // SAFETY: nothing in here calls Python. The wheel's references become the queue's.
    unsafe {
        let timers = &mut (*core).timers;
        if timers.is_empty() {
            return;
        }
        timers.expire(now);
        while let Some(due) = timers.next_due() {
            let Some(timer) = timers.cancel(due.key) else { continue };
            timer_handle::set_key(timer, None);
            (*core).ready.push_back(timer);
            (*core).counters.timers += 1;
        }
    }
}

/// Calls what is in the queue, as it stands.
unsafe fn call_queued(loop_: *mut PyObject, core: *mut Core) -> Result<()> {
    // SAFETY: each handle is taken out of the queue, with the queue's reference to it, before it is called.
    unsafe {
        let count = (*core).ready.len();
        (*core).counters.most_ready = (*core).counters.most_ready.max(count as u64);
        let mut entered = Entered::NONE;
        for _ in 0..count {
            let Some(handle) = (*core).ready.pop_front() else { break };
            let called = call_one(loop_, core, handle, &mut entered);
            if !goes_silently(&called, handle) {
                entered.leave();
            }
            let outcome = called.map(drop);
            handle_memory::release(handle);
            if outcome.is_err() {
                // What is left stays queued, for whoever runs the loop again.
                entered.leave();
                return outcome;
            }
        }
        entered.leave();
        Ok(())
    }
}

/// Whether the result of a callback and its handle can be let go of without running any code. If not, that is to be done outside of
/// the callback's context, as in asyncio: a finalizer would see its variables, and could not enter it.
#[inline]
unsafe fn goes_silently(called: &Result<Option<Owned>>, handle: *mut PyObject) -> bool {
    // SAFETY: all are alive.
    unsafe {
        let Ok(result) = called else { return false };
        let result = result.as_ref().map_or(ffi::Py_None(), Owned::as_ptr);
        (ffi::Py_REFCNT(result) > 1 || handle_memory::is_plain(result)) && handle_memory::is_released_silently(handle)
    }
}

/// Calls one handle, and returns what the callback has. Only what is to end the run is an error.
#[inline]
unsafe fn call_one(
    loop_: *mut PyObject,
    core: *mut Core,
    handle: *mut PyObject,
    entered: &mut Entered,
) -> Result<Option<Owned>> {
    // SAFETY: the caller has a reference to the handle.
    unsafe {
        if (*core).debug || !(*core).on_slow.is_null() || !handle::is_ours(handle) {
            entered.leave();
            return call_with_care(loop_, core, handle).map(|()| None);
        }
        if handle::is_cancelled(handle)? {
            return Ok(None);
        }
        let called = entered.enter(core, handle::fields(handle)).and_then(|()| {
            // Leaving the context before may have run a finalizer, and that may have cancelled this handle.
            if handle::is_cancelled(handle)? {
                return Ok(None);
            }
            (*core).counters.callbacks += 1;
            handle::call(handle).map(Some)
        });
        match called {
            Ok(result) if handle::is_cancelled(handle)? => {
                entered.leave();
                handle::forget_if_cancelled(handle);
                drop(result);
                Ok(None)
            }
            Ok(result) => Ok(result),
            Err(Raised) => {
                // Not while the callback's context is entered: the exception handler is run in it.
                entered.leave_keeping_exception();
                let outcome = handle::report(handle);
                handle::forget_if_cancelled(handle);
                outcome.map(|()| None)
            }
        }
    }
}

/// Calls a handle that may be anybody's, or whose time is to be taken.
#[cold]
unsafe fn call_with_care(loop_: *mut PyObject, core: *mut Core, handle: *mut PyObject) -> Result<()> {
    // SAFETY: the caller has a reference to the handle.
    unsafe {
        if handle::is_cancelled(handle)? {
            return Ok(());
        }
        (*core).counters.callbacks += 1;
        let debug = (*core).debug;
        if debug {
            replace(&raw mut (*core).current_handle, handle);
        }
        let start = clock::now();
        let outcome = if handle::is_ours(handle) {
            handle::run_alone(handle)
        } else {
            Owned::returned(ffi::PyObject_CallMethodNoArgs(handle, known().names._run)).map(drop)
        };
        let took = clock::now() - start;
        let outcome = outcome.and_then(|()| if debug { tell_if_slow(loop_, handle, took) } else { Ok(()) });
        if debug {
            replace(&raw mut (*core).current_handle, null_mut());
        }
        outcome?;
        if took.as_nanos() as u64 >= (*core).slow && !(*core).on_slow.is_null() {
            let hook = Owned::new_reference((*core).on_slow);
            let seconds = Owned::returned(ffi::PyFloat_FromDouble(took.as_secs_f64()))?;
            let arguments = [handle, seconds.as_ptr()];
            let told = ffi::PyObject_Vectorcall(hook.as_ptr(), arguments.as_ptr(), 2, null_mut());
            return Owned::returned(told).map(drop).or_else(|Raised| handle::report(handle));
        }
        Ok(())
    }
}

/// In debug mode: logs a callback that took longer than `loop.slow_callback_duration`.
unsafe fn tell_if_slow(loop_: *mut PyObject, handle: *mut PyObject, took: Duration) -> Result<()> {
    // SAFETY: all are alive.
    unsafe {
        let limit = Owned::returned(ffi::PyObject_GetAttr(loop_, known().names.slow_callback_duration))?;
        let limit = ffi::PyFloat_AsDouble(limit.as_ptr());
        if limit == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        if took.as_secs_f64() < limit {
            return Ok(());
        }
        let seconds = Owned::returned(ffi::PyFloat_FromDouble(took.as_secs_f64()))?;
        let arguments = [handle, seconds.as_ptr()];
        let told = ffi::PyObject_Vectorcall(known().callback_was_slow, arguments.as_ptr(), 2, null_mut());
        Owned::returned(told).map(drop)
    }
}
