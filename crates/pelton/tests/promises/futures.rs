//! Promises as futures.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pelton::{Promise, Rejected};
use pelton_testing::{Log, poll};

use crate::{Number, catching, reactor, settle};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn wakes() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes::default());
    (wakes.clone(), Waker::from(wakes))
}

#[test]
fn a_promise_wakes_the_task_that_polled_it_last() {
    let reactor = reactor();
    let ((first, first_waker), (last, last_waker)) = (wakes(), wakes());
    let (deferred, mut promise) = reactor.promise::<u32, &str>();
    for waker in [&first_waker, &last_waker] {
        assert_eq!(Pin::new(&mut promise).poll(&mut Context::from_waker(waker)), Poll::Pending);
    }
    deferred.resolve(1).unwrap();
    assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
    let mut context = Context::from_waker(&last_waker);
    assert_eq!(Pin::new(&mut promise).poll(&mut context), Poll::Ready(Ok(1)));
    assert_eq!(
        Pin::new(&mut promise).poll(&mut context),
        Poll::Ready(Err(Rejected::Abandoned)),
        "the outcome was already taken"
    );
}

#[test]
fn observers_come_before_the_task() {
    let mut reactor = reactor();
    let (wakes, waker) = wakes();
    let log = Log::default();
    let (deferred, mut promise) = reactor.promise::<u32, &str>();
    let entry = log.clone();
    promise.observe(move |_, _| entry.add("observed"));
    deferred.resolve(1).unwrap();
    let mut context = Context::from_waker(&waker);
    assert_eq!(Pin::new(&mut promise).poll(&mut context), Poll::Pending);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    poll(&mut reactor);
    assert_eq!(log.take(), ["observed"]);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(Pin::new(&mut promise).poll(&mut context), Poll::Ready(Ok(1)));
}

#[test]
fn a_promise_that_was_polled_can_still_be_chained() {
    let mut reactor = reactor();
    let (wakes, waker) = wakes();
    let (deferred, mut promise) = reactor.promise::<u32, &str>();
    assert!(Pin::new(&mut promise).poll(&mut Context::from_waker(&waker)).is_pending());
    let chained = crate::outcome(promise.map(|value| value + 1));
    deferred.resolve(1).unwrap();
    settle(&mut reactor);
    assert_eq!(chained.take(), Some(Ok(2)));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
}

#[test]
fn rejection_of_a_dropped_future_is_reported() {
    let mut reactor = reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_unhandled_rejection(move |_, unhandled| entry.add(unhandled.message.clone()));
    let (_, waker) = wakes();
    let (deferred, mut promise) = reactor.promise::<u32, &str>();
    assert!(Pin::new(&mut promise).poll(&mut Context::from_waker(&waker)).is_pending());
    deferred.reject("lost").unwrap();
    drop(promise);
    let mut taken = Number::rejected(&reactor, "taken");
    assert!(Pin::new(&mut taken).poll(&mut Context::from_waker(&waker)).is_ready());
    drop(taken);
    settle(&mut reactor);
    assert_eq!(log.take(), ["\"lost\""]);
}

#[test]
fn a_promise_can_be_awaited_after_the_loop_is_gone() {
    let reactor = reactor();
    let (_, waker) = wakes();
    let (deferred, mut promise) = reactor.promise::<u32, &str>();
    promise.observe(|_, _| unreachable!("there is no loop to call it"));
    drop(reactor);
    deferred.resolve(1).unwrap();
    assert_eq!(Pin::new(&mut promise).poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(1)));
}

#[test]
fn promise_of_a_future_is_settled_by_it_or_abandoned() {
    let mut reactor = catching();
    let faults = Rc::new(RefCell::new(Vec::new()));
    let list = faults.clone();
    // Assertions in a hook are caught.
    reactor.on_fault(move |_, fault| list.borrow_mut().push(fault.message.clone()));
    let kept = crate::outcome(Promise::of_future(&mut reactor, async { Ok::<_, &str>(1) }));
    let rejected = crate::outcome(Promise::of_future(&mut reactor, async { Err::<u32, _>("no") }));
    let panics = async { std::panic::resume_unwind(Box::new("on purpose")) };
    let panicked = crate::outcome(Promise::<u32, &str>::of_future(&mut reactor, panics));
    settle(&mut reactor);
    assert_eq!(kept.take(), Some(Ok(1)));
    assert_eq!(rejected.take(), Some(Err(Rejected::Failed("no"))));
    assert_eq!(panicked.take(), Some(Err(Rejected::Abandoned)));
    assert_eq!(*faults.borrow(), ["on purpose"]);
    let never = Promise::of_future(&mut reactor, std::future::pending::<Result<u32, &str>>());
    let never = crate::outcome(never);
    drop(reactor);
    assert_eq!(never.take(), None, "the observer is not called any more");
}
