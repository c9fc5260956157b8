//! Observers and shared promises.

use std::rc::Rc;

use pelton::Rejected;
use pelton_testing::{Log, poll};

use crate::{Number, outcome, outcome_now, reactor, settle};

#[test]
fn observers_early_and_late_see_the_outcome_before_it_is_taken() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<String, &str>();
    for name in ["first", "second"] {
        let entry = log.clone();
        promise.observe(move |_, outcome| entry.add(format!("{name} {outcome:?}")));
    }
    deferred.resolve("x".to_owned()).unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["first Ok(\"x\")", "second Ok(\"x\")"]);
    let entry = log.clone();
    promise.observe(move |_, outcome| entry.add(format!("late {outcome:?}")));
    let entry = log.clone();
    promise.done(move |_, outcome| entry.add(format!("taken {outcome:?}")));
    assert_eq!(log.len(), 0);
    poll(&mut reactor);
    assert_eq!(log.take(), ["late Ok(\"x\")", "taken Ok(\"x\")"]);
}

#[test]
fn observers_outlive_the_promise() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let entry = log.clone();
    promise.observe(move |_, outcome| entry.add(format!("{outcome:?}")));
    drop(promise);
    drop(deferred);
    settle(&mut reactor);
    assert_eq!(log.take(), ["Err(Abandoned)"]);
}

#[test]
fn an_observer_may_add_another_and_consume_the_promise() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let promise = Rc::new(std::cell::RefCell::new(Some(promise)));
    let (own, entry) = (promise.clone(), log.clone());
    promise.borrow().as_ref().unwrap().observe(move |_, _| {
        let promise = own.take().unwrap();
        let second = entry.clone();
        promise.observe(move |_, _| second.add("second"));
        let third = entry.clone();
        promise.done(move |_, outcome| third.add(format!("{outcome:?}")));
        entry.add("first");
    });
    deferred.resolve(3).unwrap();
    settle(&mut reactor);
    assert_eq!(log.take(), ["first", "second", "Ok(3)"]);
}

#[test]
fn shared_promise_clones_its_outcome() {
    let mut reactor = reactor();
    let (deferred, promise) = reactor.promise::<Rc<str>, &str>();
    let shared = promise.shared();
    let (one, two) = (outcome(shared.promise()), outcome(shared.clone().promise()));
    deferred.resolve("x".into()).unwrap();
    settle(&mut reactor);
    assert!(shared.is_settled());
    let late = outcome_now(&mut reactor, shared.promise()).unwrap();
    assert!(Rc::ptr_eq(&late, &one.take().unwrap().unwrap()) && Rc::ptr_eq(&late, &two.take().unwrap().unwrap()));
}

#[test]
fn shared_rejection_reaches_all() {
    let mut reactor = reactor();
    let shared = Number::rejected(&reactor, "no").shared();
    for _ in 0..2 {
        assert_eq!(outcome_now(&mut reactor, shared.promise()), Err(Rejected::Failed("no")));
    }
}
