//! Timers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use magnus::Error;

use crate::access::{act, machine};
use crate::call::Told;
use crate::errors;
use crate::machine::next_signature;

/// How many timers may be set, unless a program says otherwise.
static MOST: AtomicUsize = AtomicUsize::new(100_000);

/// `add_oneshot_timer`: sets a timer, in milliseconds. Returns its signature.
pub(crate) fn add_oneshot_timer(milliseconds: i64) -> Result<u64, Error> {
    let machine = machine("install_oneshot_timer")?;
    // The timer that fires now is still counted, and EventMachine allows one more for it.
    if machine.timers.borrow().len() > MOST.load(Ordering::Relaxed) {
        return Err(errors::runtime("ran out of timers; use #set_max_timers to increase limit"));
    }
    let sig = next_signature();
    let delay = Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0));
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
