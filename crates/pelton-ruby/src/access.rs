//! How functions reach the reactor.
//!
//! In a callback, and while nobody turns the loop, directly. On other threads, and in a trap handler that interrupts the loop's
//! sleep, the reactor is out of reach: what needs no answer is posted, and everything else is posted and waited for.

use std::rc::Rc;
use std::time::Duration;

use magnus::Error;
use pelton::Reactor;

use crate::call;
use crate::errors;
use crate::lock;
use crate::machine::{self, Machine};

/// How often a thread that waits for the loop looks for interrupts.
const LOOK_FOR_INTERRUPTS: Duration = Duration::from_millis(20);

/// Returns the machine, or the error that `function` raises without one.
pub(crate) fn machine(function: &str) -> Result<Rc<Machine>, Error> {
    machine::current().ok_or_else(|| errors::not_initialized(function))
}

/// Calls `f` with the machine and its reactor, on the loop's thread, and returns its answer. `f` must not call Ruby.
pub(crate) fn ask<T: Send + 'static>(
    function: &'static str,
    f: impl FnOnce(&Rc<Machine>, &mut Reactor) -> T + Send + 'static,
) -> Result<T, Error> {
    let machine = machine(function)?;
    let mut f = Some(f);
    let answer = machine.with(|reactor| f.take().map(|f| f(&machine, reactor)));
    if let Some(answer) = answer.flatten() {
        return Ok(answer);
    }
    let Some(f) = f else { return Err(errors::runtime(format!("{function}: no answer"))) };
    if !machine.is_turned() {
        return Err(errors::not_initialized(function));
    }
    if machine.is_turned_here() {
        return Err(errors::runtime(format!(
            "{function}: cannot be called in a trap handler that interrupts the reactor; use EventMachine.next_tick"
        )));
    }
    let mut reply =
        machine.handle.post_with_reply(move |reactor| machine::current().map(|machine| f(&machine, reactor)));
    loop {
        let mut waits = Some(reply);
        let waited = lock::without(None, || waits.take().map(|reply| reply.wait_timeout(LOOK_FOR_INTERRUPTS)));
        reply = match waited.flatten() {
            Some(Ok(Ok(Some(answer)))) => return Ok(answer),
            Some(Ok(_)) => return Err(errors::runtime(format!("{function}: the reactor has stopped"))),
            Some(Err(reply)) => reply,
            None => waits.ok_or_else(|| errors::runtime(format!("{function}: no answer")))?,
        };
        if let Err(jump) = call::check_interrupts() {
            drop(reply);
            return Err(errors::continue_jump(jump));
        }
    }
}

/// Calls `f` with the machine and its reactor: now if they are in reach, else soon, on the loop's thread. `f` must not call Ruby.
pub(crate) fn act(
    function: &'static str,
    f: impl FnOnce(&Rc<Machine>, &mut Reactor) + Send + 'static,
) -> Result<(), Error> {
    let machine = machine(function)?;
    let mut f = Some(f);
    machine.with(|reactor| f.take().map(|f| f(&machine, reactor)));
    if let Some(f) = f {
        // Fails if the loop has stopped; then there is nothing left to act on.
        let _ = machine.handle.post(move |reactor| {
            if let Some(machine) = machine::current() {
                f(&machine, reactor);
            }
        });
    }
    Ok(())
}
