//! Chains: outcomes and their cost.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use allocation_counter::measure;
use pelton::{Promise, Reactor, Rejected};
use pelton_testing::{Log, poll};

use crate::{Number, outcome, outcome_now, reactor, settle};

/// Long enough that a recursion with a hundred bytes per link would overflow the stack.
const LINKS: u32 = 100_000;

#[test]
fn continuations_return_results_and_promises() {
    let mut reactor = reactor();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let chain = promise
        .map(|value| value + 1)
        .then(|_, value| Ok(value * 2))
        .then(|reactor, value| {
            let (deferred, later) = reactor.promise();
            reactor.after(Duration::from_millis(1), move |_| drop(deferred.resolve(format!("<{value}>"))));
            later
        })
        .then(|_, text| if text == "<4>" { Ok(text.len()) } else { Err("another text") });
    let chain = outcome(chain);
    deferred.resolve(1).unwrap();
    pelton_testing::run_until(&mut reactor, |_| chain.borrow().is_some());
    assert_eq!(chain.take(), Some(Ok(3)));
}

#[test]
fn rejection_skips_continuations_for_values() {
    let mut reactor = reactor();
    let chain = Number::rejected(&reactor, "no")
        .map(|_| unreachable!("there is no value"))
        .then(|_, _: u32| -> Result<u32, _> { unreachable!("there is no value") })
        .map_err(str::len);
    assert_eq!(outcome_now(&mut reactor, chain), Err(Rejected::Failed(2)));
    let chain = Number::resolved(&reactor, 1)
        .then(|_, _| Err::<u32, _>("not this one"))
        .or_else(|_, rejected| if rejected == Rejected::Failed("not this one") { Ok(7) } else { Err(rejected) })
        .or_else(|_, _| -> Result<u32, _> { unreachable!("there is a value") });
    assert_eq!(outcome_now(&mut reactor, chain), Ok(7));
}

#[test]
fn a_rejection_can_be_passed_on_or_replaced() {
    let mut reactor = reactor();
    let passed = Number::rejected(&reactor, "no").or_else(|_, rejected| Err(rejected));
    assert_eq!(outcome_now(&mut reactor, passed), Err(Rejected::Failed("no")));
    let replaced = Number::rejected(&reactor, "no").or_else(|_, _| Err("yes".into()));
    assert_eq!(outcome_now(&mut reactor, replaced), Err(Rejected::Failed("yes")));
    let again = Number::rejected(&reactor, "no").or_else(|reactor, _| Number::resolved(reactor, 2));
    assert_eq!(outcome_now(&mut reactor, again), Ok(2));
    let (deferred, promise) = reactor.promise::<u32, &str>();
    drop(deferred);
    assert_eq!(
        outcome_now(&mut reactor, promise.map_err(str::len)),
        Err(Rejected::Abandoned),
        "an error of another type"
    );
}

#[test]
fn finally_always_runs_and_passes_the_outcome_on() {
    let mut reactor = reactor();
    let log = Log::default();
    for promise in [Number::resolved(&reactor, 1), Number::rejected(&reactor, "no")] {
        let entry = log.clone();
        let outcome = outcome_now(&mut reactor, promise.finally(move |_| entry.add("finally")));
        log.add(format!("{outcome:?}"));
    }
    assert_eq!(log.take(), ["finally", "Ok(1)", "finally", "Err(Failed(\"no\"))"]);
}

#[test]
fn a_chain_runs_within_a_turn() {
    let mut reactor = reactor();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let chain = outcome((0..100).fold(promise, |chain, _| chain.map(|value| value + 1)));
    reactor.next_tick(move |_| deferred.resolve(0).unwrap());
    poll(&mut reactor);
    assert_eq!(chain.take(), Some(Ok(100)));
}

#[test]
fn endless_chain_starves_nothing() {
    fn forever(reactor: &Reactor, count: u32) -> Number {
        Number::resolved(reactor, count).then(|reactor, count| forever(reactor, count + 1))
    }
    let mut reactor = crate::builder().ticks_per_turn(10).build().unwrap();
    forever(&reactor, 0).done(|_, _| unreachable!("the chain never ends"));
    reactor.after(Duration::from_millis(2), |reactor| reactor.stop());
    pelton_testing::run(&mut reactor);
    assert!(reactor.stats().turns > 1);
}

#[test]
fn a_link_is_one_allocation_and_one_tick() {
    let mut reactor = reactor();
    let mut chain = |links: u32| {
        let (deferred, mut promise) = reactor.promise::<u32, &str>();
        let made = measure(|| {
            for index in 0..links {
                let link = std::mem::replace(&mut promise, Number::resolved(&reactor, 0));
                promise = link.then(move |_, value| Ok(value + index % 2));
            }
        });
        // One allocation for the promise that replaced each.
        assert_eq!(made.count_total, 2 * u64::from(links));
        let end = Rc::new(Cell::new(false));
        let ended = end.clone();
        promise.done(move |_, value| {
            assert_eq!(value, Ok(links / 2));
            end.set(true);
        });
        deferred.resolve(0).unwrap();
        let before = reactor.stats().calls(pelton::CallbackKind::Tick);
        let run = measure(|| {
            while !ended.get() {
                poll(&mut reactor);
            }
        });
        (run.count_total, reactor.stats().calls(pelton::CallbackKind::Tick) - before)
    };
    chain(1_000);
    assert_eq!(chain(1_000), (0, 1_001));
}

/// Runs on a stack that is too small for a recursion over the links.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 * 1024).spawn(test).unwrap().join().unwrap();
}

fn long_chain(promise: Number) -> Number {
    (0..LINKS).fold(promise, |chain, _| chain.then(|_, value| Ok(value + 1)))
}

#[test]
fn a_long_chain_is_settled_without_recursion() {
    on_a_small_stack(|| {
        let mut reactor = reactor();
        let (deferred, promise) = reactor.promise();
        let chain = outcome(long_chain(promise));
        deferred.resolve(0).unwrap();
        settle(&mut reactor);
        assert_eq!(chain.take(), Some(Ok(LINKS)));
        let turns = u64::from(LINKS) / 1024;
        assert!(reactor.stats().turns <= turns + 2, "each turn handles as many links as ticks");

        let (deferred, promise) = reactor.promise();
        let chain = outcome(long_chain(promise));
        deferred.reject("at once").unwrap();
        settle(&mut reactor);
        assert_eq!(chain.take(), Some(Err(Rejected::Failed("at once"))));
    });
}

#[test]
fn a_long_chain_is_dropped_without_recursion() {
    on_a_small_stack(|| {
        // Only the deferred holds it, and the loop is gone.
        let reactor = reactor();
        let (deferred, promise) = reactor.promise();
        drop(long_chain(promise));
        drop(reactor);
        drop(deferred);

        // Queued in the loop.
        let reactor = crate::reactor();
        let (deferred, promise) = reactor.promise();
        drop(long_chain(promise));
        deferred.resolve(0).unwrap();
        drop((deferred, reactor));

        // Linked by values that continuations own, not by their results.
        let reactor = crate::reactor();
        let (first, mut promise) = reactor.promise::<u32, &str>();
        for _ in 0..LINKS {
            let (next, following) = reactor.promise();
            promise.done(move |_, outcome| next.resolve(outcome.unwrap_or(0)).unwrap());
            promise = following;
        }
        drop((reactor, promise));
        drop(first);
    });
}

#[test]
fn promises_that_follow_each_other_are_settled_without_recursion() {
    on_a_small_stack(|| {
        let mut reactor = reactor();
        let (deferred, mut promise) = reactor.promise::<u32, &str>();
        for _ in 0..LINKS {
            promise = Promise::resolved(&reactor, ()).then(|_, ()| promise);
        }
        // Each continuation has returned the promise before it.
        settle(&mut reactor);
        let last = outcome(promise);
        deferred.resolve(5).unwrap();
        settle(&mut reactor);
        assert_eq!(last.take(), Some(Ok(5)));
    });
}

#[test]
fn promise_loop_uses_constant_memory() {
    fn count_down(reactor: &Reactor, left: u32) -> Number {
        Number::resolved(reactor, left).then(|reactor, left| match left {
            0 => Number::resolved(reactor, 0),
            _ => count_down(reactor, left - 1),
        })
    }
    let mut reactor = reactor();
    let mut rounds = |rounds| {
        let most = measure(|| {
            let counted = outcome(count_down(&reactor, rounds));
            while counted.borrow().is_none() {
                poll(&mut reactor);
            }
            assert_eq!(counted.take(), Some(Ok(0)));
        });
        most.bytes_max
    };
    rounds(10_000);
    assert_eq!(rounds(10), rounds(10_000));
}
