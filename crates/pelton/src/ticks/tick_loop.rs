//! Work that runs once per turn.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::Location;
use std::rc::Rc;

use pelton_sync::Closure;

use crate::reactor::panics::catch;
use crate::{Deferred, Promise, Reactor, Rejected};

/// Cancels a [`Reactor::tick_loop`]. Can be cloned. Dropping it does not cancel the loop.
#[derive(Clone)]
pub struct TickLoop {
    cancelled: Rc<Cell<bool>>,
}

impl TickLoop {
    /// Stops the work from running again, also from inside it. It is dropped in the next turn, and its promise is
    /// [abandoned](Rejected::Abandoned).
    ///
    /// ```
    /// # use pelton::{Reactor, Rejected};
    /// # use std::ops::ControlFlow;
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let (work, result) = reactor.tick_loop(|_| ControlFlow::<()>::Continue(()));
    /// result.done(|reactor, result| {
    ///     assert_eq!(result, Err(Rejected::Abandoned));
    ///     reactor.stop();
    /// });
    /// reactor.after(Duration::from_millis(1), move |_| work.cancel());
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.cancelled.set(true);
    }
}

impl fmt::Debug for TickLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TickLoop").field("cancelled", &self.cancelled.get()).finish()
    }
}

struct Repeating<F, T: 'static> {
    step: F,
    cancelled: Rc<Cell<bool>>,
    result: Deferred<T, Infallible>,
    place: &'static Location<'static>,
}

impl<F: FnMut(&mut Reactor) -> ControlFlow<T> + 'static, T: 'static> Repeating<F, T> {
    /// Reuses its box, so repeating does not allocate.
    fn run(mut self: Box<Self>, reactor: &mut Reactor) {
        if self.cancelled.get() {
            return;
        }
        match catch(|| (self.step)(reactor)) {
            // A tick queued during a tick phase waits for that of the next turn.
            Ok(ControlFlow::Continue(())) => {
                reactor.tick_from(self.place, Closure::new(move |reactor: &mut Reactor| self.run(reactor)))
            }
            Ok(ControlFlow::Break(value)) => drop(self.result.resolve(value)),
            Err(panic) => {
                let _ = self.result.settle_with(Err(Rejected::Panicked(panic.message().into())));
                drop(self);
                // Propagate to the code that catches and reports the panics of all callbacks.
                panic.resume();
            }
        }
    }
}

impl Reactor {
    /// Runs `step` once per turn, as a [tick](Reactor::next_tick), until it breaks. Use it for work in small pieces
    /// that must progress even on a busy loop. The promise resolves with the value it breaks with.
    ///
    /// Between two pieces the loop does everything else that a turn does: timers, other ticks, events. **The loop does
    /// not sleep meanwhile**, so use it only while there is work to do. Work that can wait until there is nothing else
    /// to do is [idle work](Reactor::whenever_idle), which a busy loop does not run.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use std::ops::ControlFlow;
    /// let mut reactor = Reactor::new()?;
    /// let (mut number, mut sum) = (0, 0_u64);
    /// let (_, result) = reactor.tick_loop(move |_| {
    /// // A thousand at a time, so that events wait for a few microseconds at most.
    ///     sum += (number..number + 1000).sum::<u64>();
    ///     number += 1000;
    ///     if number < 100_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(sum) }
    /// });
    /// result.done(|reactor, sum| {
    ///     assert_eq!(sum, Ok(4_999_950_000));
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn tick_loop<T: 'static>(
        &mut self,
        step: impl FnMut(&mut Reactor) -> ControlFlow<T> + 'static,
    ) -> (TickLoop, Promise<T, Infallible>) {
        let place = Location::caller();
        let (result, promise) = self.promise();
        let cancelled = Rc::new(Cell::new(false));
        let repeating = Box::new(Repeating { step, cancelled: cancelled.clone(), result, place });
        self.tick_from(place, Closure::new(move |reactor: &mut Reactor| repeating.run(reactor)));
        (TickLoop { cancelled }, promise)
    }
}
