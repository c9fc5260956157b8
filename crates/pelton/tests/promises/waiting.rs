//! Time limits, and replies from other threads.

use std::time::Duration;

use pelton::{Lost, Rejected};
use pelton_testing::{Log, run_until};

use crate::{outcome, outcome_now, reactor, settle};

#[test]
fn an_outcome_in_time_cancels_the_timer() {
    let mut reactor = reactor();
    for result in [Ok(1), Err("no")] {
        let (deferred, promise) = reactor.promise::<u32, &str>();
        let limited = promise.timeout(&mut reactor, Duration::from_secs(3600));
        assert_eq!(reactor.timer_count(), 1);
        deferred.settle(result).unwrap();
        assert_eq!(outcome_now(&mut reactor, limited), result.map_err(Rejected::Failed));
        assert_eq!(reactor.timer_count(), 0);
    }
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let limited = promise.timeout(&mut reactor, Duration::from_secs(3600));
    drop(deferred);
    assert_eq!(outcome_now(&mut reactor, limited), Err(Rejected::Abandoned));
    assert_eq!(reactor.timer_count(), 0);
}

#[test]
fn an_outcome_that_is_late_is_dropped() {
    let mut reactor = reactor();
    let limit = Duration::from_millis(1);
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let limited = outcome(promise.timeout(&mut reactor, limit));
    run_until(&mut reactor, |_| limited.borrow().is_some());
    assert_eq!(limited.take(), Some(Err(Rejected::TimedOut(limit))));
    assert_eq!(reactor.timer_count(), 0);
    reactor.on_unhandled_rejection(|_, unhandled| panic!("{unhandled}"));
    deferred.reject("late").unwrap();
    settle(&mut reactor);
    assert_eq!(limited.take(), None);
    assert_eq!(reactor.stats().panics, 0);
}

#[test]
fn unhandled_time_limit_is_reported() {
    let mut reactor = reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_unhandled_rejection(move |_, unhandled| entry.add(unhandled.message.clone()));
    let (_deferred, promise) = reactor.promise::<u32, &str>();
    drop(promise.timeout(&mut reactor, Duration::ZERO));
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["not settled within 0ns"]);
}

#[test]
fn reply_from_another_thread_becomes_a_promise() {
    let mut reactor = reactor();
    let mut other = crate::reactor();
    let reply = other.handle().post_with_reply(|reactor| reactor.engine_name().len());
    let length = outcome(reply.into_promise(&mut reactor).map(|length| length + 1));
    settle(&mut reactor);
    assert_eq!(length.take(), None);
    let expected = other.engine_name().len() + 1;
    pelton_testing::poll(&mut other);
    run_until(&mut reactor, |_| length.borrow().is_some());
    assert_eq!(length.take(), Some(Ok(expected)));
}

#[test]
fn reply_wakes_a_sleeping_loop() {
    let mut reactor = reactor();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut other = crate::reactor();
        sender.send(other.handle()).unwrap();
        other.run().unwrap();
    });
    let handle = receiver.recv().unwrap();
    let reply = handle.post_with_reply(|reactor| {
        reactor.stop();
        std::thread::sleep(Duration::from_millis(5));
        7
    });
    let answer = outcome(reply.into_promise(&mut reactor));
    run_until(&mut reactor, |_| answer.borrow().is_some());
    assert_eq!(answer.take(), Some(Ok(7)));
    thread.join().unwrap();
}

#[test]
fn lost_or_early_reply_settles_the_promise() {
    let mut reactor = reactor();
    let gone = crate::reactor().handle();
    let lost = gone.post_with_reply(|_| 1).into_promise(&mut reactor);
    assert_eq!(outcome_now(&mut reactor, lost), Err(Rejected::Failed(Lost)));
    let there = reactor.handle().post_with_reply(|_| 1);
    pelton_testing::poll(&mut reactor);
    let there = there.into_promise(&mut reactor);
    assert!(there.is_settled());
    assert_eq!(outcome_now(&mut reactor, there), Ok(1));
    // The loop is dropped first.
    let other = crate::reactor();
    let pending = other.handle().post_with_reply(|_| 1).into_promise(&mut reactor);
    drop(reactor);
    drop(other);
    drop(pending);
}
