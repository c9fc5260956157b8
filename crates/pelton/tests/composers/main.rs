//! Composers: channels, queues, work in turns, pools of resources, tick loops.

mod channel;
mod each;
mod queue;
mod resource_pool;
mod tick_loop;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pelton::{EventLoop, PanicPolicy, Promise, Reactor, Rejected};
use pelton_testing::{Alive, Counted, count_faults};

type Outcome<T, E> = Result<T, Rejected<E>>;

/// What panics in a callback fails the test.
fn reactor() -> EventLoop {
    Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap()
}

/// One that catches panics, for tests that are about them.
fn catching() -> EventLoop {
    Reactor::new().unwrap()
}

/// Turns until neither a tick nor a post waits.
fn settle(reactor: &mut EventLoop) {
    while reactor.stats().pending_ticks > 0 || reactor.handle().pending_posts() > 0 {
        reactor.turn(Some(Duration::ZERO)).unwrap();
    }
}

/// Where the outcome of a promise turns up.
fn outcome<T: 'static, E: fmt::Debug + 'static>(promise: Promise<T, E>) -> Rc<RefCell<Option<Outcome<T, E>>>> {
    let place = Rc::new(RefCell::new(None));
    let to = place.clone();
    promise.done(move |_, outcome| *to.borrow_mut() = Some(outcome));
    place
}

/// What becomes of a promise that nothing but ticks keeps from being settled.
fn outcome_now<T: 'static, E: fmt::Debug + 'static>(promise: Promise<T, E>, reactor: &mut EventLoop) -> Outcome<T, E> {
    let place = outcome(promise);
    settle(reactor);
    place.take().expect("it is settled")
}

/// What came in, in order.
type List<T> = Rc<RefCell<Vec<T>>>;

/// Says that it was dropped.
struct DropFlag(Rc<Cell<bool>>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}
