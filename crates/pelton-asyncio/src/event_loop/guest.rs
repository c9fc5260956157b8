//! Python as a [guest](pelton::Guest) of the reactor.
//!
//! The order is asyncio's. The reactor polls, and dispatch queues the handles of ready descriptors. Then the batch queues due timers and
//! calls the handles that are in the queue when it begins. The interpreter lock is held throughout. It is released around the one
//! system call that sleeps, and every few milliseconds under load, because callbacks written in C never release it themselves.
//!
//! Within a turn, Python code runs only in a batch and before the loop sleeps. The reactor is lent to it there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pelton::{Batch, Guest, Reactor, Sleep, Time};
use pelton_os::clock;
use pyo3::prelude::*;

use crate::event_loop::intake::Intake;
use crate::event_loop::state::LoopState;
use crate::event_loop::{batch, slow};
use crate::readers;
use crate::sockets::operations as sockets;
use pelton_cpython::class::check_signals;
use pelton_cpython::lock;
use pelton_cpython::object::{Raised, Result};

/// While a loop spins, it polls the engine once per this many looks at its own queue.
const LOOKS_PER_POLL: u32 = 64;

struct PythonGuest {
    state: Rc<LoopState>,
}

/// Makes Python the guest of a loop's reactor. Inside a batch, this is the stand-in for the guest that is running.
pub(crate) fn host(state: &Rc<LoopState>, reactor: &mut Reactor) {
    // Fails if the guest is already registered.
    let _ = reactor.host(PythonGuest { state: state.clone() });
}

impl Guest for PythonGuest {
    #[inline]
    fn has_work(&mut self) -> bool {
        let state = &*self.state;
        !state.ready.borrow().is_empty()
            || state.stopping.get()
            || state.was_parked.get()
            || state.raised.get()
            || state.readers.is_untidy()
            || state.slow.any_native()
            || has_intake(state)
    }

    fn next_deadline(&mut self) -> Option<Time> {
        let mut timers = self.state.timers.borrow_mut();
        let timer = if timers.is_empty() { None } else { timers.next_deadline() };
        [timer, self.state.check_again.get()].into_iter().flatten().min()
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        let state = &self.state;
        // asyncio's order depends on which timers are due when a batch begins.
        let now = if state.timers.borrow().is_empty() { reactor.now() } else { reactor.batch_clock() };
        if !state.raised.get() {
            state.slow.watched.set(reactor.reports_slow_callbacks());
            let ran = reactor.enter(|| lock::held(|py| run_batch(py, state, now)));
            state.raised.set(ran.is_err());
        }
        let goes_on = !state.raised.get() && !state.stopping.get() && !state.closed.get();
        if goes_on { Batch::MayContinue } else { Batch::EndsTurn }
    }

    fn before_sleep(&mut self, reactor: &mut Reactor) {
        let state = &self.state;
        let now = reactor.now();
        // Both may run Python code, which may schedule more work.
        let checked = reactor.enter(|| {
            lock::held(|py| {
                state.contexts.forget_foreign(py);
                sockets::check_closed(py, state, now)
            })
        });
        match checked {
            Ok(check_again) => state.check_again.set(check_again),
            Err(Raised) => state.raised.set(true),
        }
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        let state = &*self.state;
        // Other threads see it while the loop sleeps. After the turn, the reactor's own number takes its place.
        let mut counts = state.counters.reactor.get();
        counts.sleeps += 1;
        state.counters.reactor.set(counts);
        let mut idle = Idle {
            intake: state.intake.borrow_mut().take(),
            posted: state.posted.clone(),
            spin_pays: state.spin_pays.get(),
        };
        let outcome = lock::held(|py| {
            without_lock(state, || match idle.intake {
                None => lock::sleep(py, sleep, &mut (), |sleep, ()| sleep.block()),
                Some(_) => lock::sleep(py, sleep, &mut idle, sleep_with_intake),
            })
        });
        state.spin_pays.set(idle.spin_pays);
        if let Some(mut intake) = idle.intake {
            intake.locked();
            *state.intake.borrow_mut() = Some(intake);
        }
        state.check_again.set(None);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// While no descriptor has a reader or writer, polling before each batch does not pay off: it could only find a signal.
    fn quiet_sources(&self) -> usize {
        let state = &*self.state;
        let polls = state.run_begins.get() || state.stopping.get();
        if polls || state.readers.any_beside(state.internal_descriptors.get()) { 0 } else { state.readers.watched() }
    }
}

/// Runs one batch.
fn run_batch(py: Python<'_>, state: &Rc<LoopState>, now: Time) -> Result<()> {
    let Some(its_loop) = state.turning.get(py) else { return Ok(()) };
    state.counters.turns.set(state.counters.turns.get() + 1);
    state.run_begins.set(false);
    state.check_again.set(None);
    if now - state.unlocked.get() >= state.unlock_every.get() && !state.was_parked.get() {
        if let Err(panic) = without_lock(state, || lock::yield_to_others(py)) {
            resume_unwind(panic);
        }
        if let Some(intake) = state.intake.borrow_mut().as_mut() {
            intake.locked();
        }
    }
    if state.readers.is_untidy() {
        readers::tidy(py, state)?;
    }
    if state.was_parked.take() {
        // A signal may have ended the sleep. This runs its handler.
        check_signals(py)?;
    }
    if state.slow.any_native() {
        slow::tell_native(py, state)?;
    }
    batch::queue_timers(py, state, now);
    take_in(state, &its_loop);
    batch::call_queued(&its_loop, state)
}

/// Calls `work`, which releases the interpreter lock. Other threads see that the loop is parked.
fn without_lock<T>(state: &LoopState, work: impl FnOnce() -> T) -> std::thread::Result<T> {
    state.parked.set(true);
    state.posted.store(false, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    state.parked.set(false);
    state.was_parked.set(true);
    state.unlocked.set(clock::now());
    outcome
}

/// Returns whether there is work from outside of Python.
#[inline]
fn has_intake(state: &LoopState) -> bool {
    state.intake.borrow_mut().as_mut().is_some_and(|intake| intake.has_work())
}

/// Processes a batch of the work from outside of Python. The intake is taken out meanwhile, so a turn inside this one finds none.
#[inline]
fn take_in(state: &LoopState, its_loop: &Bound<'_, PyAny>) {
    if !has_intake(state) {
        return;
    }
    let intake = state.intake.borrow_mut().take();
    if let Some(mut intake) = intake {
        intake.process(its_loop);
        if !state.closed.get() {
            *state.intake.borrow_mut() = Some(intake);
        }
    }
}

/// What the loop uses while it sleeps without the lock.
struct Idle {
    intake: Option<Box<dyn Intake>>,
    posted: Arc<AtomicBool>,
    spin_pays: bool,
}

/// Sleeps, without the lock, until there is work for which the lock is needed.
fn sleep_with_intake(sleep: &mut Sleep<'_>, idle: &mut Idle) -> io::Result<()> {
    let Some(intake) = idle.intake.as_mut() else { return sleep.block() };
    let until = sleep.until();
    let due = |now: Time| until.is_some_and(|until| until <= now);
    let posted = || idle.posted.load(Ordering::Acquire);
    let spin = intake.spin();
    let begun = if spin.is_zero() { Time::ZERO } else { clock::now() };
    let mut spinning = !spin.is_zero() && idle.spin_pays;
    loop {
        if spinning {
            // The engine is polled only now and then: a system call takes longer than everything else here.
            for look in 1.. {
                let found = if look % LOOKS_PER_POLL == 0 { sleep.poll()? } else { intake.fetch() || posted() };
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
        let outcome = sleep.block();
        intake.awake();
        if !spin.is_zero() {
            idle.spin_pays = clock::now() - begun < spin;
        }
        if intake.fetch() || outcome.is_err() || posted() || sleep.has_work() || due(clock::now()) {
            return outcome;
        }
        // A late wake-up for work that was fetched before. The lock is not needed for it.
    }
}
