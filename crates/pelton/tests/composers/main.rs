//! Composers: channels, queues, each, resource pools, tick loops.

mod broker;
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

/// A reactor on which panics in callbacks fail the test.
fn reactor() -> EventLoop {
    Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap()
}

/// A reactor that catches panics, for tests about panics.
fn catching() -> EventLoop {
    Reactor::new().unwrap()
}

/// Runs turns until no tick or post is pending.
fn settle(reactor: &mut EventLoop) {
    while reactor.stats().pending_ticks > 0 || reactor.handle().pending_posts() > 0 {
        reactor.turn(Some(Duration::ZERO)).unwrap();
    }
}

/// Receives the outcome of a promise.
fn outcome<T: 'static, E: fmt::Debug + 'static>(promise: Promise<T, E>) -> Rc<RefCell<Option<Outcome<T, E>>>> {
    let place = Rc::new(RefCell::new(None));
    let to = place.clone();
    promise.done(move |_, outcome| *to.borrow_mut() = Some(outcome));
    place
}

/// The outcome of a promise that only needs ticks to settle.
fn outcome_now<T: 'static, E: fmt::Debug + 'static>(promise: Promise<T, E>, reactor: &mut EventLoop) -> Outcome<T, E> {
    let place = outcome(promise);
    settle(reactor);
    place.take().expect("not settled")
}

/// The received values, in order.
type List<T> = Rc<RefCell<Vec<T>>>;

/// Records that it was dropped.
struct DropFlag(Rc<Cell<bool>>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}
