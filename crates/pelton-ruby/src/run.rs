//! Turns the loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use magnus::Error;
use pelton_os::clock;
use rb_sys::VALUE;

use crate::access::machine;
use crate::call::{self, Jump};
use crate::errors;
use crate::guard;
use crate::guest::RubyGuest;
use crate::machine::{self, Machine};

/// How often the lock is released under load, so that other threads run. Ruby's own interval is 100 milliseconds.
const UNLOCK_EVERY: Duration = Duration::from_millis(5);

/// Why the loop no longer turns.
enum Left {
    /// It was stopped.
    Stopped,
    /// A turn was requested, and is done.
    Turned,
    Jump(Jump),
    Error(String),
}

/// Makes the machine.
pub(crate) fn initialize_event_machine() -> Result<(), Error> {
    if machine::current().is_some() {
        return Err(errors::runtime("eventmachine already initialized: evma_initialize_library"));
    }
    let machine = Rc::new(Machine::new().map_err(|error| errors::runtime(error.to_string()))?);
    let guest = RubyGuest(Rc::downgrade(&machine));
    let hosted = machine.with(|reactor| reactor.host(guest));
    if let Some(Err(error)) = hosted {
        return Err(errors::runtime(error.to_string()));
    }
    machine::set_current(Some(machine));
    Ok(())
}

/// `run_machine`: turns the loop until it is stopped.
///
/// # Safety
/// Ruby calls it as a function of a module, without arguments.
pub(crate) unsafe extern "C" fn run_machine(_: VALUE) -> VALUE {
    let left = leave(|machine| machine.stopping.get());
    // SAFETY: only the enum is on this frame, and it has nothing to drop when the jump begins.
    unsafe { finish(left) };
    call::nil()
}

/// `run_machine_once`: runs one turn. Returns whether the loop goes on.
///
/// # Safety
/// As for [`run_machine`].
pub(crate) unsafe extern "C" fn run_machine_once(_: VALUE) -> VALUE {
    let left = leave(|_| true);
    let goes_on = !matches!(left, Left::Stopped);
    // SAFETY: as in `run_machine`.
    unsafe { finish(left) };
    if goes_on { rb_sys::Qtrue as VALUE } else { rb_sys::Qfalse as VALUE }
}

/// Turns the loop until `done`. Catches everything.
fn leave(done: impl Fn(&Machine) -> bool) -> Left {
    let turned = catch_unwind(AssertUnwindSafe(|| {
        let Some(machine) = machine::current() else {
            return Left::Error("eventmachine not initialized: evma_run_machine".to_owned());
        };
        if machine.is_turned() {
            return Left::Error("eventmachine is already running".to_owned());
        }
        turn_until(&machine, done)
    }));
    turned.unwrap_or_else(|panic| Left::Error(guard::text(&*panic)))
}

fn turn_until(machine: &Machine, done: impl Fn(&Machine) -> bool) -> Left {
    loop {
        let outcome = machine.turn();
        if let Some(jump) = machine.take_raised() {
            return Left::Jump(jump);
        }
        if let Err(error) = outcome {
            return Left::Error(error.to_string());
        }
        if machine.stopping.get() || !machine.is_current() {
            return Left::Stopped;
        }
        if done(machine) {
            return Left::Turned;
        }
        let now = clock::now();
        if now - machine.unlocked.get() >= UNLOCK_EVERY {
            machine.unlocked.set(now);
            if let Err(jump) = call::let_others_run() {
                return Left::Jump(jump);
            }
        }
    }
}

/// Continues a jump, or raises an error.
///
/// # Safety
/// The frames between this one and Ruby's have nothing to drop.
unsafe fn finish(left: Left) {
    match left {
        Left::Stopped | Left::Turned => {}
        // SAFETY: the caller guarantees it, and `left` holds a number here.
        Left::Jump(jump) => unsafe { jump.resume() },
        Left::Error(message) => {
            // SAFETY: the class and the message are Ruby's before the jump. The Rust string is dropped before it.
            unsafe {
                let text = rb_sys::rb_utf8_str_new(message.as_ptr().cast(), message.len() as _);
                drop(message);
                rb_sys::rb_exc_raise(rb_sys::rb_exc_new_str(rb_sys::rb_eRuntimeError, text));
            }
        }
    }
}

/// `stop`: ends the loop after the current turn.
pub(crate) fn stop() -> Result<(), Error> {
    let machine = machine("stop")?;
    machine.stopping.set(true);
    machine.wake();
    Ok(())
}

/// `stopping?`
pub(crate) fn is_stopping() -> Result<bool, Error> {
    Ok(machine("stopping")?.stopping.get())
}

/// `signal_loopbreak`: makes the loop run deferred results and ticks.
pub(crate) fn signal_loopbreak() -> Result<(), Error> {
    // Threads of the pool may finish after the loop has.
    if let Some(machine) = machine::current() {
        machine.loop_break.set(true);
        machine.wake();
    }
    Ok(())
}
