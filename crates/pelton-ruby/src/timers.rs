//! Timers.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Float, Value};
use pelton::Reactor;
use rb_sys::VALUE;

use crate::access::{act, machine};
use crate::call::{self, Told};
use crate::errors;
use crate::machine::{self, Machine, next_signature};
use crate::tuning::settings;

/// How many timers may be set, unless a program says otherwise.
static MOST: AtomicUsize = AtomicUsize::new(100_000);

/// `add_oneshot_timer`: sets a timer, in milliseconds. Returns its signature.
pub(crate) fn add_oneshot_timer(milliseconds: i64) -> Result<u64, Error> {
    set(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)))
}

fn is_full(machine: &Machine) -> bool {
    // The timer that fires now is still counted, and EventMachine allows one more for it.
    machine.timers.borrow().len() > MOST.load(Ordering::Relaxed)
}

/// Sets a timer with a signature.
fn set_here(machine: &Rc<Machine>, reactor: &mut Reactor, sig: u64, delay: Duration) {
    let owner = machine.clone();
    let timer = reactor.after(delay, move |reactor| {
        if owner.tell(reactor, Told::TimerFired(sig)) {
            owner.timers.borrow_mut().remove(&sig);
        }
    });
    machine.timers.borrow_mut().insert(sig, timer);
}

/// Sets a timer, from any thread.
fn set(delay: Duration) -> Result<u64, Error> {
    if is_full(&*machine("install_oneshot_timer")?) {
        return Err(errors::runtime("ran out of timers; use #set_max_timers to increase limit"));
    }
    let sig = next_signature();
    act("install_oneshot_timer", move |machine, reactor| set_here(machine, reactor, sig, delay))?;
    Ok(sig)
}

/// Converts seconds.
fn delay_of(seconds: f64) -> Duration {
    if settings().precise_timers.get() {
        return Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    }
    // As EventMachine: whole milliseconds, rounded down.
    Duration::from_millis(u64::try_from((seconds * 1000.0) as i64).unwrap_or(0))
}

/// Sets a timer if that needs neither Ruby code nor an error: on the loop's thread, with a number of seconds.
///
/// # Safety
/// The lock is held, and `interval` is an object.
unsafe fn set_fast(interval: VALUE) -> Option<u64> {
    // SAFETY: the caller guarantees it; numbers are converted without calling Ruby code.
    let seconds = unsafe {
        if rb_sys::FIXNUM_P(interval) {
            rb_sys::FIX2LONG(interval) as f64
        } else if rb_sys::FLONUM_P(interval) {
            rb_sys::rb_float_value(interval)
        } else {
            return None;
        }
    };
    let machine = machine::current()?;
    if is_full(&machine) {
        return None;
    }
    machine.with(|reactor| {
        let sig = next_signature();
        set_here(&machine, reactor, sig, delay_of(seconds));
        sig
    })
}

/// `add_timer`: sets a timer that calls a block or a callable, after a number of seconds. Returns its signature.
///
/// This and [`cancel_timer`] call Ruby from a frame that has nothing to drop, which saves protecting the call.
///
/// # Safety
/// Ruby calls it as a function of a module, with any number of arguments.
pub(crate) unsafe extern "C" fn add_timer(count: c_int, arguments: *const VALUE, module: VALUE) -> VALUE {
    // SAFETY: Ruby passes as many arguments as it says, and the lock is held. A jump out of the calls of Ruby leaves only this frame:
    // nothing in it needs to be dropped, and `set_fast` has returned.
    unsafe {
        let given = if count == 2 { *arguments.add(1) } else { call::nil() };
        let wants_block = given == call::nil() && (1..=2).contains(&count);
        let callback = if wants_block && rb_sys::rb_block_given_p() != 0 { rb_sys::rb_block_proc() } else { given };
        if callback != call::nil()
            && let Ok(Some(sig)) = catch_unwind(|| set_fast(*arguments))
        {
            return call::keep_timer(module, sig, callback);
        }
        // Everything else: other threads, other types, errors.
        if callback != call::nil() {
            return call::add_timer_checked(module, &[*arguments, callback]);
        }
        call::add_timer_checked(module, std::slice::from_raw_parts(arguments, count as usize))
    }
}

/// `add_timer_checked`: the same for all cases.
pub(crate) fn add_timer_checked(arguments: &[Value]) -> Result<u64, Error> {
    let (interval, callback) = match *arguments {
        [interval] => (interval, None),
        [interval, callback] => (interval, Some(callback).filter(|callback| !callback.is_nil())),
        _ => {
            return Err(errors::argument(format!(
                "wrong number of arguments (given {}, expected 1..2)",
                arguments.len()
            )));
        }
    };
    let callback = callback.ok_or_else(|| errors::argument("a timer needs a block or a callable"))?;
    let seconds = match Float::from_value(interval) {
        Some(seconds) => seconds.to_f64(),
        None => interval.funcall::<_, _, f64>("to_f", ())?,
    };
    let sig = set(delay_of(seconds))?;
    call::protect(|| {
        // SAFETY: the lock is held, and jumps are caught.
        unsafe { call::keep_timer(call::known().module, sig, callback.as_raw()) }
    })
    .map_err(errors::continue_jump)?;
    Ok(sig)
}

/// `cancel_timer`: cancels a timer, given its signature or an object that can be cancelled.
///
/// # Safety
/// Ruby calls it as a function of a module, with one argument.
pub(crate) unsafe extern "C" fn cancel_timer(module: VALUE, timer: VALUE) -> VALUE {
    // SAFETY: as in `add_timer`.
    unsafe {
        if !rb_sys::FIXNUM_P(timer) {
            return call::cancel(timer);
        }
        if call::drop_timer(module, timer) {
            let sig = rb_sys::FIX2LONG(timer) as u64;
            // Without a machine there are no timers. A panic here leaves a timer that nobody is told of.
            let _ = catch_unwind(|| cancel_oneshot_timer(sig).is_ok());
        }
        rb_sys::Qfalse as VALUE
    }
}

/// `cancel_oneshot_timer`: cancels a timer.
pub(crate) fn cancel_oneshot_timer(sig: u64) -> Result<(), Error> {
    act("cancel_oneshot_timer", move |machine, reactor| {
        // The timer that fires now is still counted, and removed when its callback returns.
        let timer = machine.timers.borrow().get(&sig).copied();
        if let Some(timer) = timer
            && reactor.cancel(timer)
        {
            machine.timers.borrow_mut().remove(&sig);
        }
    })
}

/// `get_timer_count`
pub(crate) fn get_timer_count() -> Result<usize, Error> {
    Ok(machine("get_timer_count")?.timers.borrow().len())
}

/// `get_max_timer_count`
pub(crate) fn get_max_timer_count() -> Result<usize, Error> {
    Ok(MOST.load(Ordering::Relaxed))
}

/// `set_max_timer_count`
pub(crate) fn set_max_timer_count(count: usize) -> Result<(), Error> {
    if crate::machine::current().is_some() {
        return Err(errors::runtime("eventmachine already initialized: evma_set_max_timer_count"));
    }
    MOST.store(count, Ordering::Relaxed);
    Ok(())
}
