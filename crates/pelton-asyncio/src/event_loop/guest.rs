//! Python as a [guest](pelton::Guest) of the reactor.
//!
//! The order is asyncio's. The reactor polls, and dispatch queues the handles of ready descriptors. Then the batch queues due timers and
//! calls the handles that are in the queue when it begins. The interpreter lock is held throughout. It is released around the one
//! system call that sleeps, and every few milliseconds under load, because callbacks written in C never release it themselves.
//!
//! Within a turn, Python code runs only in a batch and before the loop sleeps. The reactor is lent to it there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

use pelton::{Batch, Guest, Reactor, Sleep, Time};
use pelton_os::clock;
use pyo3::Python;
use pyo3::ffi::{self, PyObject};

use crate::event_loop::state::LoopState;
use crate::event_loop::{batch, slow};
use crate::handles::contexts;
use crate::readers;
use crate::sockets::operations as sockets;
use pelton_cpython::object::{Raised, Result, check};

/// While a loop spins, it polls the engine once per this many looks at its own queue.
const LOOKS_PER_POLL: u32 = 64;

struct PythonGuest {
    core: *mut LoopState,
}

/// Makes Python the guest of a loop's reactor. Inside a batch, this is the stand-in for the guest that is running.
///
/// # Safety
/// `core` belongs to a live loop, and `reactor` is its reactor.
pub(crate) unsafe fn host(core: *mut LoopState, reactor: &mut Reactor) {
    // Fails if the guest is already registered.
    let _ = reactor.host(PythonGuest { core });
}

// SAFETY, for all methods: the core owns the reactor, which owns this, so the core is alive. They are called in a turn, with the lock
// held.
impl Guest for PythonGuest {
    #[inline]
    fn has_work(&mut self) -> bool {
        let core = self.core;
        // SAFETY: see above. Nothing here runs Python code.
        unsafe {
            !(*core).ready.is_empty()
                || (*core).stopping
                || (*core).was_parked
                || (*core).raised
                || (*core).readers.is_untidy()
                || (*core).slow.any_native()
                || has_intake(core)
        }
    }

    fn next_deadline(&mut self) -> Option<Time> {
        let core = self.core;
        // SAFETY: see above.
        unsafe {
            let timer = if (*core).timers.is_empty() { None } else { (*core).timers.next_deadline() };
            [timer, (*core).check_again].into_iter().flatten().min()
        }
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        let core = self.core;
        // SAFETY: see above.
        unsafe {
            // asyncio's order depends on which timers are due when a batch begins.
            let now = if (*core).timers.is_empty() { reactor.now() } else { reactor.batch_clock() };
            if !(*core).raised {
                (*core).slow.watched = reactor.reports_slow_callbacks();
                (*core).raised = reactor.enter(|| run_batch(core, now)).is_err();
            }
            let goes_on = !(*core).raised && !(*core).stopping && !(*core).closed;
            if goes_on { Batch::MayContinue } else { Batch::EndsTurn }
        }
    }

    fn before_sleep(&mut self, reactor: &mut Reactor) {
        let core = self.core;
        let now = reactor.now();
        // SAFETY: see above. Both may run Python code, which may schedule more work.
        unsafe {
            let checked = reactor.enter(|| {
                contexts::forget_foreign(core);
                sockets::check_closed(core, now)
            });
            match checked {
                Ok(check_again) => (*core).check_again = check_again,
                Err(Raised) => (*core).raised = true,
            }
        }
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        let core = self.core;
        // SAFETY: see above. The sleeping part stays on this thread.
        unsafe {
            // Other threads see it while the loop sleeps. After the turn, the reactor's own number takes its place.
            (*core).counters.reactor.sleeps += 1;
            let lent = Lent { core, sleep: (&raw mut *sleep).cast() };
            let outcome = without_lock(core, move || lent.sleep());
            (*core).check_again = None;
            outcome
        }
    }

    /// While no descriptor has a reader or writer, polling before each batch does not pay off: it could only find a signal.
    fn quiet_sources(&self) -> usize {
        // SAFETY: see above.
        unsafe {
            let readers = &(*self.core).readers;
            let polls = (*self.core).run_begins || (*self.core).stopping;
            if polls || readers.any_beside((*self.core).internal_descriptors) { 0 } else { readers.watched() }
        }
    }
}

/// Runs one batch.
unsafe fn run_batch(core: *mut LoopState, now: Time) -> Result<()> {
    // SAFETY: the core belongs to the loop that this thread turns. No Rust reference into it is held while Python code runs.
    unsafe {
        let loop_ = (*core).turning;
        (*core).counters.turns += 1;
        (*core).run_begins = false;
        (*core).check_again = None;
        if now - (*core).unlocked >= (*core).unlock_every && !(*core).was_parked {
            without_lock(core, || ());
        }
        if (*core).readers.is_untidy() {
            readers::tidy(core)?;
        }
        if std::mem::take(&mut (*core).was_parked) {
            // A signal may have ended the sleep. This runs its handler.
            check(ffi::PyErr_CheckSignals())?;
        }
        if (*core).slow.any_native() {
            slow::tell_native(core)?;
        }
        batch::queue_timers(core, now);
        take_in(loop_, core);
        batch::call_queued(loop_, core)
    }
}

/// Calls `work` without the interpreter lock. Other threads see that the core is parked.
unsafe fn without_lock<T: Send>(core: *mut LoopState, work: impl FnOnce() -> T + Send) -> T {
    // SAFETY: only the guest's methods call this, so this thread turns the loop and holds the lock.
    unsafe {
        (*core).parked = true;
        (*core).posted.store(false, Ordering::Relaxed);
        // With pyo3, which tracks whether the thread holds the lock; otherwise it would drop objects without it.
        let outcome = Python::assume_attached().detach(move || catch_unwind(AssertUnwindSafe(work)));
        (*core).parked = false;
        (*core).was_parked = true;
        if let Some(intake) = (*core).intake.as_mut() {
            intake.locked();
        }
        (*core).unlocked = clock::now();
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Returns whether there is work from outside of Python.
#[inline]
unsafe fn has_intake(core: *mut LoopState) -> bool {
    // SAFETY: only this thread uses the intake, and `has_work` runs no Python code.
    unsafe { (*core).intake.as_mut().is_some_and(|intake| intake.has_work()) }
}

/// Processes a batch of the work from outside of Python.
#[inline]
unsafe fn take_in(loop_: *mut PyObject, core: *mut LoopState) {
    // SAFETY: the intake is taken out of the core meanwhile, so a turn inside this one finds none.
    unsafe {
        if !has_intake(core) {
            return;
        }
        if let Some(mut intake) = (*core).intake.take() {
            intake.process(&pyo3::Bound::from_borrowed_ptr(pyo3::Python::assume_attached(), loop_));
            if (*core).closed {
                drop(intake);
            } else {
                (*core).intake = Some(intake);
            }
        }
    }
}

/// The core and the reactor's sleep state, used during the part of a turn that runs without the lock.
struct Lent {
    core: *mut LoopState,
    sleep: *mut Sleep<'static>,
}

// SAFETY: it stays on its thread. pyo3 requires `Send` for code that runs without the lock; both parts may be used without it while the
// core is parked.
unsafe impl Send for Lent {}

impl Lent {
    fn sleep(&self) -> io::Result<()> {
        // SAFETY: only `park` creates one, and calls this while the core is parked. The sleep outlives it.
        unsafe { sleep(self.core, &mut *self.sleep) }
    }
}

/// Sleeps, without the lock, until there is work for which the lock is needed.
///
/// # Safety
/// The core is parked. This thread has exclusive access to the intake and the sleep, and uses nothing else of the core but `posted`
/// and `spin_pays`.
unsafe fn sleep(core: *mut LoopState, sleep: &mut Sleep<'_>) -> io::Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let Some(intake) = (*core).intake.as_mut() else { return sleep.block() };
        let until = sleep.until();
        let due = |now: Time| until.is_some_and(|until| until <= now);
        let posted = &(*core).posted;
        let posted = || posted.load(Ordering::Acquire);
        let spin = intake.spin();
        let begun = if spin.is_zero() { Time::ZERO } else { clock::now() };
        let mut spinning = !spin.is_zero() && (*core).spin_pays;
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
                (*core).spin_pays = clock::now() - begun < spin;
            }
            if intake.fetch() || outcome.is_err() || posted() || sleep.has_work() || due(clock::now()) {
                return outcome;
            }
            // A late wake-up for work that was fetched before. The lock is not needed for it.
        }
    }
}
