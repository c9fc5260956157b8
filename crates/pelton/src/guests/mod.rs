//! Guests: other runtimes that take part in the loop's turn.

mod hosting;

use std::io;

pub(crate) use hosting::Hosting;

use crate::reactor::sleep::Sleep;
use crate::{Reactor, Time};

/// A runtime that shares the thread with a reactor, such as the interpreter of another language with its own queue of
/// callbacks and its own timers.
///
/// The guest takes part in every turn. Before the loop waits, it asks the guest whether it has work and when it is next
/// due, and sleeps no longer than that. After dispatch, in the guest phase, the guest runs one batch. docs/embedding.md
/// shows how to write one.
///
/// A reactor has at most one guest. A guest usually holds its runtime's lock while it runs and while the reactor works.
/// With two of them, each would hold its lock while it waits for the other's: a deadlock if any other thread takes them
/// in the opposite order. Two runtimes need two loops, which post to each other.
///
/// Registered with [`Reactor::host`].
///
/// ```
/// use std::cell::RefCell;
/// use std::collections::VecDeque;
/// use std::rc::Rc;
///
/// use pelton::{Batch, Guest, Reactor};
///
/// type Queue = Rc<RefCell<VecDeque<&'static str>>>;
/// struct Printer(Queue);
///
/// impl Guest for Printer {
///     fn has_work(&mut self) -> bool {
///         !self.0.borrow().is_empty()
///     }
///
///     fn run(&mut self, reactor: &mut Reactor) -> Batch {
///         // The batch is the queue as it stands.
///         for line in self.0.take() {
///             println!("{line}");
///         }
///         reactor.stop();
///         Batch::EndsTurn
///     }
/// }
///
/// let queue = Queue::default();
/// let mut reactor = Reactor::new()?;
/// reactor.host(Printer(queue.clone()))?;
/// reactor.next_tick(move |_| queue.borrow_mut().push_back("queued by a tick, printed in the same turn"));
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub trait Guest {
    /// Returns whether there is something to run now. While there is, the loop polls instead of sleeping. It also asks
    /// between two batches.
    fn has_work(&mut self) -> bool;

    /// Returns when the guest must run at the latest even if it has no work before: the deadline of its next timer.
    fn next_deadline(&mut self) -> Option<Time> {
        None
    }

    /// Runs one batch: what is queued when it begins, but not what is queued meanwhile. It is called if the guest has
    /// work or its deadline has passed. [`Reactor::now`] may be a few short batches old; a guest with timers calls
    /// [`Reactor::batch_clock`].
    ///
    /// Code that the guest calls reaches the reactor if the guest [enters](Reactor::enter) it.
    ///
    /// A panic ends the guest, as it ends any source: the guest is dropped and the panic reported.
    fn run(&mut self, reactor: &mut Reactor) -> Batch;

    /// Tells the guest that the loop is about to sleep because there is nothing to do. If the guest has work afterwards,
    /// or the reactor has, the loop does not sleep.
    fn before_sleep(&mut self, reactor: &mut Reactor) {
        let _ = reactor;
    }

    /// Sleeps. A guest that holds a lock releases it, calls [`Sleep::block`] and takes the lock again. This is called
    /// only if a poll has found nothing, so a busy loop keeps the lock.
    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        sleep.block()
    }

    /// Returns how many of the reactor's sources the guest does not need to be polled between two batches, such as a
    /// watched descriptor that only ends a sleep. If the reactor has more sources than these, the loop polls before
    /// every batch.
    fn quiet_sources(&self) -> usize {
        0
    }
}

/// What may follow a batch of a [`Guest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch {
    /// The next batch may follow in the same turn, if the guest has work and the reactor has nothing to do.
    MayContinue,
    /// The turn ends after this batch, so that [`EventLoop::turn`](crate::EventLoop::turn) returns. A runtime whose own
    /// `stop` was called says this. The reactor is not stopped and can be turned again.
    EndsTurn,
}
