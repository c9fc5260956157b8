//! Algebraic laws of chains.

use pelton::{EventLoop, Promise, Reactor};
use proptest::prelude::*;

use crate::{Outcome, catching, outcome, settle};

type Short = Promise<u32, u32>;

/// What a continuation does.
#[derive(Debug, Clone, Copy)]
enum Function {
    Add(u32),
    Fail(u32),
    /// Returns a settled promise.
    Now(u32),
    /// Returns a promise that is settled a tick later.
    Later(u32),
    FailLater(u32),
    /// Returns a promise that is abandoned.
    Abandon,
    Panic,
}

impl Function {
    fn call(self, reactor: &mut Reactor, value: u32) -> Short {
        let (deferred, promise) = reactor.promise();
        match self {
            Function::Add(more) | Function::Now(more) => deferred.resolve(value.wrapping_add(more)).unwrap(),
            Function::Fail(error) => deferred.reject(error).unwrap(),
            Function::Later(more) => {
                reactor.next_tick(move |_| deferred.resolve(value.wrapping_add(more)).unwrap());
            }
            Function::FailLater(error) => reactor.next_tick(move |_| deferred.reject(error).unwrap()),
            Function::Abandon => drop(deferred),
            Function::Panic => panic!("on purpose"),
        }
        promise
    }

    fn after(self, promise: Short) -> Short {
        match self {
            Function::Add(more) => promise.then(move |_, value| Ok(value.wrapping_add(more))),
            Function::Fail(error) => promise.then(move |_, _| Err(error)),
            _ => promise.then(move |reactor, value| self.call(reactor, value)),
        }
    }
}

fn function() -> impl Strategy<Value = Function> {
    prop_oneof![
        any::<u32>().prop_map(Function::Add),
        any::<u32>().prop_map(Function::Fail),
        any::<u32>().prop_map(Function::Now),
        any::<u32>().prop_map(Function::Later),
        any::<u32>().prop_map(Function::FailLater),
        Just(Function::Abandon),
        Just(Function::Panic),
    ]
}

/// The outcome of a chain that begins with `start`, which is settled before or after the rest is attached.
fn run(
    start: Result<u32, u32>,
    settled_first: bool,
    chain: impl FnOnce(&mut EventLoop, Short) -> Short,
) -> Option<Outcome<u32, u32>> {
    let mut reactor = catching();
    reactor.on_fault(|_, _| {});
    let (deferred, promise) = reactor.promise();
    if settled_first {
        deferred.settle(start).unwrap();
    }
    let chain = chain(&mut reactor, promise);
    let outcome = outcome(chain);
    let _ = deferred.settle(start);
    settle(&mut reactor);
    outcome.take()
}

fn start() -> impl Strategy<Value = Result<u32, u32>> {
    prop_oneof![any::<u32>().prop_map(Ok), any::<u32>().prop_map(Err)]
}

proptest! {
    #[test]
    fn mapping_with_the_identity_changes_nothing(start in start(), first in any::<bool>()) {
        let mapped = run(start, first, |_, promise| promise.map(|value| value));
        prop_assert_eq!(&mapped, &run(start, first, |_, promise| promise));
        prop_assert_eq!(mapped, run(start, first, |_, promise| promise.map_err(|error| error)));
    }

    #[test]
    fn mapping_twice_is_mapping_with_the_composition(start in start(), first in any::<bool>(), a in any::<u32>(), b in any::<u32>()) {
        let (f, g) = (move |value: u32| value.wrapping_mul(a), move |value: u32| value.wrapping_add(b));
        let twice = run(start, first, move |_, promise| promise.map(f).map(g));
        prop_assert_eq!(twice, run(start, first, move |_, promise| promise.map(move |value| g(f(value)))));
    }

    #[test]
    fn then_on_a_resolved_promise_calls_the_function(value in any::<u32>(), f in function()) {
        prop_assume!(!matches!(f, Function::Panic));
        let then = run(Ok(value), true, move |_, promise| f.after(promise));
        prop_assert_eq!(then, run(Ok(value), true, move |reactor, _| f.call(reactor, value)));
    }

    #[test]
    fn then_with_a_resolved_promise_changes_nothing(start in start(), first in any::<bool>()) {
        let unit = run(start, first, |_, promise| promise.then(|reactor, value| Short::resolved(reactor, value)));
        prop_assert_eq!(unit, run(start, first, |_, promise| promise));
    }

    #[test]
    fn then_is_associative(
        start in start(), first in any::<bool>(), f in function(), g in function(), h in function(),
    ) {
        let flat = run(start, first, move |_, promise| h.after(g.after(f.after(promise))));
        let inner = move |reactor: &mut Reactor, value| g.after(f.after(Short::resolved(reactor, value)));
        let left = run(start, first, move |_, promise| h.after(promise.then(inner)));
        let outer = move |reactor: &mut Reactor, value| h.after(g.after(Short::resolved(reactor, value)));
        let right = run(start, first, move |_, promise| f.after(promise).then(outer));
        prop_assert_eq!(&flat, &left);
        prop_assert_eq!(&flat, &right);
        prop_assert!(flat.is_some());
    }
}
