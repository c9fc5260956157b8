//! Promises, independent of the engine.

mod algebra;
mod chains;
mod combining;
mod dropping;
mod faults;
mod futures;
mod observing;
mod order;
mod settling;
mod waiting;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Builder, EventLoop, PanicPolicy, Promise, Reactor, Rejected};

/// The promise type of most tests.
type Number = Promise<u32, &'static str>;

type Outcome<T = u32, E = &'static str> = Result<T, Rejected<E>>;

/// A reactor on which panics in callbacks fail the test, unless the test opts out.
fn builder() -> Builder {
    Reactor::builder().panic_policy(PanicPolicy::Propagate)
}

fn reactor() -> EventLoop {
    builder().build().unwrap()
}

/// A reactor that catches panics, as reactors do by default.
fn catching() -> EventLoop {
    Reactor::new().unwrap()
}

/// Runs turns until no tick is pending.
fn settle(reactor: &mut EventLoop) {
    while reactor.stats().pending_ticks > 0 {
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
fn outcome_now<T: 'static, E: fmt::Debug + 'static>(reactor: &mut EventLoop, promise: Promise<T, E>) -> Outcome<T, E> {
    let place = outcome(promise);
    settle(reactor);
    place.take().expect("not settled")
}
