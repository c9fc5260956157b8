//! Ruby as a [guest](pelton::Guest) of the reactor.
//!
//! Callbacks of connections and timers run in the reactor's own phases. The batch after dispatch runs deferred results and
//! ticks. The lock of the interpreter is held throughout, and released around the one system call that sleeps.

use std::io;
use std::rc::Weak;

use pelton::{Batch, Guest, Reactor, Sleep};

use crate::call::{self, Told};
use crate::lock;
use crate::machine::Machine;

pub(crate) struct RubyGuest(pub(crate) Weak<Machine>);

impl Guest for RubyGuest {
    fn has_work(&mut self) -> bool {
        self.0.upgrade().is_none_or(|machine| {
            machine.loop_break.get() || machine.stopping.get() || machine.has_raised() || !machine.is_current()
        })
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        let Some(machine) = self.0.upgrade() else { return Batch::EndsTurn };
        for (sig, error) in machine.untold.take() {
            machine.unbind(reactor, sig, error);
        }
        if machine.loop_break.replace(false) && !machine.tell(reactor, Told::LoopBreak) {
            machine.loop_break.set(true);
        }
        let goes_on = !machine.stopping.get() && !machine.has_raised() && machine.is_current();
        if goes_on { Batch::MayContinue } else { Batch::EndsTurn }
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        let Some(machine) = self.0.upgrade() else { return Ok(()) };
        machine.parked.set(true);
        let slept = lock::without(Some(&machine.handle), || sleep.block());
        machine.parked.set(false);
        machine.unlocked.set(sleep.clock());
        if let Err(jump) = call::check_interrupts() {
            sleep.end_turn();
            machine.raise(jump);
        }
        slept.unwrap_or(Ok(()))
    }
}
