//! Nothing leaks, and everything is dropped once, in any order of dropping.

use std::time::Duration;

use pelton::{Deferred, EventLoop, Promise, Rejected};
use pelton_testing::{Alive, Counted, Log, poll};
use proptest::prelude::*;

use crate::{Number, catching, reactor, settle};

#[test]
fn unwanted_value_is_dropped_at_once() {
    let reactor = reactor();
    let live = Alive::default();
    let (deferred, promise) = reactor.promise::<Counted, &str>();
    deferred.resolve(Counted::new(&live)).unwrap();
    assert_eq!(live.count(), 1);
    drop(promise);
    assert_eq!(live.count(), 0);
    let (deferred, promise) = reactor.promise::<Counted, &str>();
    drop(promise);
    deferred.resolve(Counted::new(&live)).unwrap();
    assert_eq!(live.count(), 0);
}

#[test]
fn unneeded_continuation_is_dropped() {
    let mut reactor = reactor();
    let live = Alive::default();
    let kept = Counted::new(&live);
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let chain = promise.map(move |_| drop(kept));
    deferred.reject("no").unwrap();
    settle(&mut reactor);
    assert_eq!(live.count(), 0);
    chain.done(|_, _| {});
}

#[test]
fn dropped_loop_drops_pending_continuations() {
    let log = Log::default();
    let live = Alive::default();
    let mut reactor = reactor();
    // Settled without a following turn; pending, with the deferred in a timer; pending, with the deferred held here.
    let entry = log.clone();
    let chain = Promise::<_, &str>::resolved(&reactor, Counted::new(&live)).map(move |_| entry.add("called"));
    let (in_timer, promise) = reactor.promise::<u32, &str>();
    let (entry, kept) = (log.clone(), Counted::new(&live));
    promise.done(move |_, _| entry.add(format!("called {kept:?}")));
    reactor.after(Duration::from_secs(3600), move |_| drop(in_timer));
    let (deferred, promise) = reactor.promise::<Counted, &str>();
    let (entry, kept) = (log.clone(), Counted::new(&live));
    promise.observe(move |_, _| entry.add("observed"));
    let end = promise.map(move |_| drop(kept)).timeout(&mut reactor, Duration::from_secs(3600)).shared();
    drop(reactor);
    assert_eq!(live.count(), 1, "only the chain of the held deferred is left");
    deferred.resolve(Counted::new(&live)).unwrap();
    drop((deferred, chain, end));
    assert_eq!(live.count(), 0);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn stopped_loop_calls_no_continuations() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let entry = log.clone();
    promise.done(move |_, _| entry.add("called"));
    reactor.next_tick(|reactor| reactor.stop());
    reactor.run().unwrap();
    deferred.resolve(1).unwrap();
    let entry = log.clone();
    Number::resolved(&reactor, 1).done(move |_, _| entry.add("called"));
    assert_eq!(reactor.stats().pending_ticks, 0);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn panicking_destructor_is_only_a_fault() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let mut reactor = catching();
    reactor.on_fault(|_, _| {});
    let bad = Bad;
    let (deferred, promise) = reactor.promise::<(), &str>();
    let chain = crate::outcome(promise.map(move |()| drop(bad)));
    deferred.resolve(()).unwrap();
    settle(&mut reactor);
    assert_eq!(chain.take(), Some(Err(Rejected::Panicked("in a destructor".into()))));
    assert_eq!(reactor.stats().panics, 1);
}

#[derive(Debug, Clone)]
enum Step {
    Then,
    Fail,
    Follow,
    FollowPending,
    Panic,
    Map,
    OrElse,
    Finally,
    Observe,
    Share,
    Timeout,
    All,
    Any,
    Race,
    Turn,
    Settle,
    Reject,
    DropDeferred,
    DropPromise,
    Done,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::*;
    let step = prop::sample::select(vec![
        Then,
        Fail,
        Follow,
        FollowPending,
        Panic,
        Map,
        OrElse,
        Finally,
        Observe,
        Share,
        Timeout,
        All,
        Any,
        Race,
        Turn,
        Settle,
        Reject,
        DropDeferred,
        DropPromise,
        Done,
    ]);
    prop::collection::vec(step, 0..25)
}

type Kept = Promise<Counted, Counted>;

/// Applies a step to a chain; `None` if that ends it.
fn take(
    step: &Step,
    reactor: &mut EventLoop,
    live: &Alive,
    deferreds: &mut Vec<Deferred<Counted, Counted>>,
    chain: Kept,
) -> Option<Kept> {
    let captured = Counted::new(live);
    let value = live.clone();
    let mut pending = || {
        let (deferred, promise) = reactor.promise();
        deferreds.push(deferred);
        promise
    };
    Some(match step {
        Step::Then => chain.then(move |_, _| Ok(captured)),
        Step::Fail => chain.then(move |_, _| Err(captured)),
        Step::Follow => chain.then(move |reactor, kept| Kept::resolved(reactor, kept).map(move |_| captured)),
        Step::FollowPending => {
            let inner = pending();
            chain.then(move |_, _| inner)
        }
        Step::Panic => chain.map(move |_| panic!("{captured:?}")),
        Step::Map => chain.map(move |_| captured),
        Step::OrElse => chain.or_else(move |_, _| Ok(captured)),
        Step::Finally => chain.finally(move |_| drop(captured)),
        Step::Observe => {
            chain.observe(move |_, outcome| drop((captured, outcome.clone())));
            chain
        }
        Step::Share => {
            let shared = chain.shared();
            drop(shared.promise().map(move |_| captured));
            shared.promise()
        }
        Step::Timeout => chain.timeout(reactor, Duration::from_micros(50)),
        Step::All => {
            let other = pending();
            Kept::all(reactor, [other, chain, Kept::resolved(reactor, captured)]).map(move |_| Counted::new(&value))
        }
        Step::Any => {
            let other = pending();
            Kept::any(reactor, [chain, other]).map_err(move |_| captured)
        }
        Step::Race => {
            let other = pending();
            Kept::race(reactor, [other, chain])
        }
        Step::DropPromise => return None,
        Step::Done => {
            chain.done(move |_, outcome| drop((captured, outcome)));
            return None;
        }
        Step::Turn | Step::Settle | Step::Reject | Step::DropDeferred => chain,
    })
}

proptest! {
    /// Whatever is chained, settled, dropped and turned in any order, and whichever of loop, promise and deferred is dropped
    /// first: nothing leaks.
    #[test]
    fn nothing_leaks(steps in steps(), goes_first in 0..3) {
        let live = Alive::default();
        let mut reactor = catching();
        reactor.on_fault(|_, _| {});
        let (deferred, promise) = reactor.promise();
        let mut deferreds: Vec<Deferred<Counted, Counted>> = vec![deferred];
        let mut chain: Option<Kept> = Some(promise);
        for step in &steps {
            match step {
                Step::Turn => poll(&mut reactor),
                Step::Settle => drop(deferreds.last().map(|deferred| deferred.resolve(Counted::new(&live)))),
                Step::Reject => drop(deferreds.last().map(|deferred| deferred.reject(Counted::new(&live)))),
                Step::DropDeferred => drop(deferreds.pop()),
                _ => {}
            }
            chain = chain.and_then(|chain| take(step, &mut reactor, &live, &mut deferreds, chain));
        }
        match goes_first {
            0 => drop((reactor, chain, deferreds)),
            1 => drop((chain, deferreds, reactor)),
            _ => drop((deferreds, chain, reactor)),
        }
        prop_assert_eq!(live.count(), 0);
    }
}
