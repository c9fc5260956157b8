//! Promises: what holds of them whatever engine they run on.

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

/// What most tests promise.
type Number = Promise<u32, &'static str>;

type Outcome<T = u32, E = &'static str> = Result<T, Rejected<E>>;

/// What panics in a callback fails the test, unless that is about such panics and says so.
fn builder() -> Builder {
    Reactor::builder().panic_policy(PanicPolicy::Propagate)
}

fn reactor() -> EventLoop {
    builder().build().unwrap()
}

/// One that catches panics, as reactors do by default.
fn catching() -> EventLoop {
    Reactor::new().unwrap()
}

/// Turns until no tick waits.
fn settle(reactor: &mut EventLoop) {
    while reactor.stats().pending_ticks > 0 {
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
fn outcome_now<T: 'static, E: fmt::Debug + 'static>(reactor: &mut EventLoop, promise: Promise<T, E>) -> Outcome<T, E> {
    let place = outcome(promise);
    settle(reactor);
    place.take().expect("it is settled")
}
