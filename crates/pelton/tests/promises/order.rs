//! Continuations are ticks: everything runs in one order.

use std::rc::Rc;

use pelton::{EventLoop, Reactor};
use pelton_testing::{Log, poll};
use proptest::prelude::*;

use crate::{Number, catching, reactor, settle};

#[test]
fn a_continuation_never_runs_inside_the_call_that_settles() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let entry = log.clone();
    promise.done(move |_, _| entry.add("continuation"));
    deferred.resolve(1).unwrap();
    log.add("settled");
    let entry = log.clone();
    Number::resolved(&reactor, 1).observe(move |_, _| entry.add("late"));
    log.add("attached");
    poll(&mut reactor);
    assert_eq!(log.take(), ["settled", "attached", "continuation", "late"]);
}

#[test]
fn chains_take_turns() {
    let mut reactor = reactor();
    let log = Log::default();
    for chain in ["a", "b"] {
        let mut promise = Number::resolved(&reactor, 0);
        for link in 1..=3 {
            let entry = log.clone();
            promise = promise.finally(move |_| entry.add(format!("{chain}{link}")));
        }
    }
    settle(&mut reactor);
    assert_eq!(log.take(), ["a1", "b1", "a2", "b2", "a3", "b3"]);
}

#[test]
fn posts_run_before_continuations_settled_later() {
    let mut reactor = reactor();
    let log = Log::default();
    let handle = reactor.handle();
    let (entry, promise) = (log.clone(), Number::resolved(&reactor, 1));
    promise.done(move |_, _| {
        entry.add("one");
        let posted = handle.clone();
        std::thread::spawn(move || posted.post(|reactor| reactor.state::<Vec<&str>>().push("post")).is_ok())
            .join()
            .unwrap();
    });
    let entry = log.clone();
    // Its last link is settled when the post is already queued.
    Number::resolved(&reactor, 1).map(|value| value).done(move |reactor, _| {
        entry.add(format!("two, after {:?}", reactor.state::<Vec<&str>>()));
    });
    settle(&mut reactor);
    assert_eq!(log.take(), ["one", "two, after [\"post\"]"]);
}

#[test]
fn continuations_run_before_work_queued_after_settling() {
    for ticks in [true, false] {
        let mut reactor = reactor();
        let log = Log::default();
        let promise = Number::resolved(&reactor, 1);
        for name in ["first", "second"] {
            let entry = log.clone();
            promise.observe(move |_, _| entry.add(name));
        }
        let entry = log.clone();
        promise.done(move |_, _| entry.add("consumer"));
        let entry = log.clone();
        match ticks {
            true => reactor.next_tick(move |_| entry.add("after")),
            false => Number::resolved(&reactor, 1).done(move |_, _| entry.add("after")),
        }
        settle(&mut reactor);
        assert_eq!(log.take(), ["first", "second", "consumer", "after"]);
    }
}

#[test]
fn draining_waits_for_continuations() {
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let entry = log.clone();
    promise.map(|value| value + 1).map(|value| value + 1).done(move |_, value| entry.add(format!("{value:?}")));
    reactor.on_drain(move |_| deferred.resolve(1).unwrap());
    reactor.drain(std::time::Duration::from_secs(10));
    assert_eq!(pelton_testing::run(&mut reactor), pelton::Exit::Drained);
    assert_eq!(log.take(), ["Ok(3)"]);
}

/// Something that runs, and what it queues then.
#[derive(Debug, Clone)]
struct Act {
    kind: Kind,
    then: Vec<Act>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tick,
    /// A promise that gets a continuation and is then settled.
    Settle,
    /// A promise that is settled and then gets a continuation.
    Attach,
    Observe,
    Post,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let kind =
        prop_oneof![Just(Kind::Tick), Just(Kind::Settle), Just(Kind::Attach), Just(Kind::Observe), Just(Kind::Post)];
    let leaf = kind.clone().prop_map(|kind| Act { kind, then: Vec::new() });
    let act = leaf.prop_recursive(4, 40, 4, move |inner| {
        (kind.clone(), prop::collection::vec(inner, 0..4)).prop_map(|(kind, then)| Act { kind, then })
    });
    prop::collection::vec(act, 0..6)
}

/// Numbers everything that is queued, and logs it when it runs.
fn queue(reactor: &mut Reactor, act: Act) {
    let number = *reactor.state::<u32>();
    *reactor.state::<u32>() += 1;
    let run = move |reactor: &mut Reactor| {
        reactor.state::<Vec<u32>>().push(number);
        act.then.into_iter().for_each(|act| queue(reactor, act));
    };
    match act.kind {
        Kind::Tick => reactor.next_tick(run),
        Kind::Settle => {
            let (deferred, promise) = reactor.promise::<(), &str>();
            promise.done(move |reactor, _| run(reactor));
            deferred.resolve(()).unwrap();
        }
        Kind::Attach => {
            let (deferred, promise) = reactor.promise::<(), &str>();
            deferred.resolve(()).unwrap();
            promise.map(|()| ()).finally(|_| {});
            Number::resolved(reactor, 0).done(move |reactor, _| run(reactor));
        }
        Kind::Observe => Number::resolved(reactor, 0).observe(move |reactor, _| run(reactor)),
        // The work is not `Send`, so it is stored here.
        Kind::Post => {
            let waiting = Waiting(Box::new(run));
            let key = reactor.state::<Vec<Option<Waiting>>>().len();
            reactor.state::<Vec<Option<Waiting>>>().push(Some(waiting));
            let posted = reactor.handle().post(move |reactor| {
                if let Some(waiting) = reactor.state::<Vec<Option<Waiting>>>()[key].take() {
                    (waiting.0)(reactor);
                }
            });
            assert!(posted.is_ok());
        }
    }
}

struct Waiting(Box<dyn FnOnce(&mut Reactor)>);

fn first_in_first_out(mut reactor: EventLoop, acts: Vec<Act>) -> (Vec<u32>, u32) {
    acts.into_iter().for_each(|act| queue(&mut reactor, act));
    while reactor.stats().pending_ticks > 0 || reactor.handle().pending_posts() > 0 {
        poll(&mut reactor);
    }
    let count = *reactor.state::<u32>();
    (reactor.take_state::<Vec<u32>>().unwrap_or_default(), count)
}

proptest! {
    /// Everything runs in the order in which it was queued, with any number of ticks per turn.
    #[test]
    fn ticks_posts_and_continuations_are_one_queue(acts in acts(), per_turn in 1usize..20) {
        let reactor = crate::builder().ticks_per_turn(per_turn).build().unwrap();
        let (ran, count) = first_in_first_out(reactor, acts);
        prop_assert_eq!(ran, (0..count).collect::<Vec<_>>());
    }

    /// Observers run in the order of registration, then the consumer, whenever the promise is settled and whichever panic.
    #[test]
    fn observers_run_in_order_of_registration(
        count in 0usize..8, settled_before in 0usize..10, turned_before in 0usize..10, panics in any::<u8>(),
    ) {
        let mut reactor = catching();
        reactor.on_fault(|_, _| {});
        let log = Rc::new(std::cell::RefCell::new(Vec::new()));
        let (deferred, promise) = reactor.promise::<u32, &str>();
        for index in 0..count {
            if index == settled_before {
                deferred.resolve(1).unwrap();
            }
            if index == turned_before {
                poll(&mut reactor);
            }
            let log = log.clone();
            promise.observe(move |_, outcome| {
                assert_eq!(*outcome, Ok(1));
                log.borrow_mut().push(index);
                assert_eq!(panics & (1 << index), 0, "on purpose");
            });
        }
        let last = log.clone();
        promise.done(move |_, _| last.borrow_mut().push(count));
        let _ = deferred.resolve(1);
        settle(&mut reactor);
        prop_assert_eq!(&*log.borrow(), &(0..=count).collect::<Vec<_>>());
    }
}
