//! Timers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Float, Integer, Ruby, Value};

use crate::access::{act, machine};
use crate::call::{self, Told};
use crate::errors;
use crate::machine::next_signature;
use crate::tuning::settings;

/// How many timers may be set, unless a program says otherwise.
static MOST: AtomicUsize = AtomicUsize::new(100_000);

/// `add_oneshot_timer`: sets a timer, in milliseconds. Returns its signature.
pub(crate) fn add_oneshot_timer(milliseconds: i64) -> Result<u64, Error> {
    set(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)))
}

fn set(delay: Duration) -> Result<u64, Error> {
    let machine = machine("install_oneshot_timer")?;
    // The timer that fires now is still counted, and EventMachine allows one more for it.
    if machine.timers.borrow().len() > MOST.load(Ordering::Relaxed) {
        return Err(errors::runtime("ran out of timers; use #set_max_timers to increase limit"));
    }
    let sig = next_signature();
    act("install_oneshot_timer", move |machine, reactor| {
        let owner = machine.clone();
        let timer = reactor.after(delay, move |reactor| {
            if owner.tell(reactor, Told::TimerFired(sig)) {
                owner.timers.borrow_mut().remove(&sig);
            }
        });
        machine.timers.borrow_mut().insert(sig, timer);
    })?;
    Ok(sig)
}

/// `add_timer`: sets a timer that calls a block or a callable, after a number of seconds. Returns its signature.
pub(crate) fn add_timer(ruby: &Ruby, arguments: &[Value]) -> Result<u64, Error> {
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
    let callback = match callback {
        Some(callback) => callback,
        None if ruby.block_given() => ruby.block_proc()?.as_value(),
        None => return Err(errors::argument("a timer needs a block or a callable")),
    };
    let seconds = match Float::from_value(interval) {
        Some(seconds) => seconds.to_f64(),
        None => interval.funcall::<_, _, f64>("to_f", ())?,
    };
    let sig = if settings().precise_timers.get() {
        set(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))?
    } else {
        // As EventMachine: whole milliseconds, rounded down.
        add_oneshot_timer((seconds * 1000.0) as i64)?
    };
    call::keep_timer(sig, callback.as_raw()).map_err(errors::continue_jump)?;
    Ok(sig)
}

/// `cancel_timer`: cancels a timer, given its signature or an object that can be cancelled.
pub(crate) fn cancel_timer(timer: Value) -> Result<Value, Error> {
    let Some(sig) = Integer::from_value(timer) else { return timer.funcall("cancel", ()) };
    let sig = sig.to_u64()?;
    if crate::machine::current().is_some() && call::drop_timer(sig).map_err(errors::continue_jump)? {
        cancel_oneshot_timer(sig)?;
    }
    Ok(Ruby::get_with(timer).qfalse().as_value())
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
