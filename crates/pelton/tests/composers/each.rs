//! Steps for each of many items, some at a time.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Deferred, Each, Interest, Promise, Reactor, Rejected};
use pelton_testing::{On, on_every_engine, run};
use proptest::prelude::*;

use super::{DropFlag, List, catching, count_faults, outcome, outcome_now, reactor, settle};

on_every_engine![a_hundred_thousand_immediate_steps_neither_recurse_nor_starve_events];

fn a_hundred_thousand_immediate_steps_neither_recurse_nor_starve_events(on: On) {
    for immediate in [true, false] {
        let mut reactor = on.reactor();
        let (mut writer, reader) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        let done = Rc::new(Cell::new(0));
        let (count, seen, at) = (done.clone(), done.clone(), Rc::new(Cell::new(None)));
        let event = at.clone();
        reactor.watch_once(&reader, Interest::READABLE, move |_, _| event.set(Some(seen.get()))).unwrap();
        let step = move |reactor: &mut Reactor, _| {
            count.set(count.get() + 1);
            let kept = Promise::<(), Infallible>::resolved(reactor, ());
            if immediate { kept } else { kept.map(|()| ()) }
        };
        Each::of(0..100_000).at_most(10).for_each(&mut reactor, step).done(|reactor, outcome| {
            assert_eq!(outcome, Ok(()));
            reactor.stop();
        });
        run(&mut reactor);
        assert_eq!(done.get(), 100_000);
        assert!(at.get().is_some_and(|steps| steps < 5_000), "the event came after {:?} steps", at.get());
    }
}

#[test]
fn immediate_results_neither_recurse_nor_starve_timers() {
    let mut reactor = reactor();
    let done = Rc::new(Cell::new(0));
    let (count, seen) = (done.clone(), done.clone());
    let early = Rc::new(Cell::new(0));
    let at = early.clone();
    reactor.after(Duration::ZERO, move |_| at.set(seen.get()));
    let sum = Each::of(0..100_000_u64).at_most(4).map(&mut reactor, move |_, number| {
        count.set(count.get() + 1);
        Ok::<_, Infallible>(number)
    });
    sum.done(|reactor, numbers| {
        assert!(numbers.unwrap().into_iter().eq(0..100_000));
        reactor.stop();
    });
    run(&mut reactor);
    assert!(early.get() < 100_000);
}

/// Steps that the test completes.
#[derive(Clone, Default)]
struct Steps(List<(u32, Deferred<u32, &'static str>)>);

impl Steps {
    fn step(&self) -> impl FnMut(&mut Reactor, u32) -> Promise<u32, &'static str> + 'static {
        let steps = self.clone();
        move |reactor, item| {
            let (deferred, promise) = reactor.promise();
            steps.0.borrow_mut().push((item, deferred));
            promise
        }
    }

    fn running(&self) -> Vec<u32> {
        self.0.borrow().iter().map(|(item, _)| *item).collect()
    }

    fn finish(&self, reactor: &mut pelton::EventLoop, item: u32, result: Result<u32, &'static str>) {
        let index = self.0.borrow().iter().position(|(other, _)| *other == item).expect("the step is in progress");
        let (_, deferred) = self.0.borrow_mut().remove(index);
        deferred.settle(result).unwrap();
        settle(reactor);
    }
}

#[test]
fn no_step_runs_before_the_call_has_returned() {
    let mut reactor = reactor();
    let steps = Steps::default();
    let _all = Each::of(0..3).at_most(3).for_each(&mut reactor, steps.step());
    assert!(steps.running().is_empty());
    settle(&mut reactor);
    assert_eq!(steps.running(), [0, 1, 2]);
}

#[test]
fn concurrency_is_bounded_and_values_are_in_order() {
    let mut reactor = reactor();
    let steps = Steps::default();
    let all = outcome(Each::of(0..5).at_most(2).map(&mut reactor, steps.step()));
    settle(&mut reactor);
    assert_eq!(steps.running(), [0, 1]);
    steps.finish(&mut reactor, 1, Ok(10));
    assert_eq!(steps.running(), [0, 2]);
    steps.finish(&mut reactor, 2, Ok(20));
    steps.finish(&mut reactor, 3, Ok(30));
    steps.finish(&mut reactor, 4, Ok(40));
    assert_eq!((steps.running(), all.take()), (vec![0], None));
    steps.finish(&mut reactor, 0, Ok(0));
    assert_eq!(all.take(), Some(Ok(vec![0, 10, 20, 30, 40])));
}

#[test]
fn first_error_rejects_at_once_and_starts_nothing_else() {
    let mut reactor = reactor();
    let steps = Steps::default();
    let dropped = Rc::new(Cell::new(false));
    let (mut step, flag) = (steps.step(), DropFlag(dropped.clone()));
    let all = outcome(Each::of(0..9).at_most(3).map(&mut reactor, move |reactor, item| {
        let _ = &flag;
        step(reactor, item)
    }));
    settle(&mut reactor);
    steps.finish(&mut reactor, 1, Err("no"));
    assert_eq!(all.take(), Some(Err(Rejected::Failed("no"))));
    assert!(dropped.get(), "the items and the step are dropped");
    assert_eq!(steps.running(), [0, 2], "started steps continue");
    steps.finish(&mut reactor, 0, Ok(1));
    steps.finish(&mut reactor, 2, Err("nor here"));
    assert_eq!(steps.running(), []);
}

#[test]
fn outcomes_continues_after_errors() {
    let mut reactor = reactor();
    let steps = Steps::default();
    let all = outcome(Each::of(0..3).outcomes(&mut reactor, steps.step()));
    settle(&mut reactor);
    steps.finish(&mut reactor, 0, Err("no"));
    steps.finish(&mut reactor, 1, Ok(1));
    let (_, forgotten) = steps.0.borrow_mut().remove(0);
    drop(forgotten);
    settle(&mut reactor);
    let expected = vec![Err(Rejected::Failed("no")), Ok(1), Err(Rejected::Abandoned)];
    assert_eq!(all.take(), Some(Ok(expected)));
}

#[test]
fn no_items_resolve_at_once() {
    let mut reactor = reactor();
    let nothing = Each::of([]).map(&mut reactor, |_, item: u32| Ok::<u32, ()>(item));
    assert_eq!(outcome_now(nothing, &mut reactor), Ok(vec![]));
}

#[test]
fn a_step_that_panics_is_reported_once_and_rejects_the_whole() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let started = Rc::new(Cell::new(0));
    let count = started.clone();
    let all = Each::of(0..9).at_most(3).outcomes(&mut reactor, move |_, item| {
        count.set(count.get() + 1);
        assert!(item != 4, "four");
        Ok::<u32, ()>(item)
    });
    let outcome = outcome_now(all, &mut reactor);
    assert!(matches!(&outcome, Err(Rejected::Panicked(message)) if message.contains("four")), "{outcome:?}");
    assert_eq!((faults.get(), started.get()), (1, 5));
}

#[test]
fn endless_items_are_taken_one_by_one() {
    let mut reactor = reactor();
    let taken = Rc::new(Cell::new(0));
    let count = taken.clone();
    let items = (0..).inspect(move |_| count.set(count.get() + 1));
    let steps = Steps::default();
    let all = outcome(Each::of(items).at_most(2).for_each(&mut reactor, steps.step()));
    settle(&mut reactor);
    assert_eq!(taken.get(), 2);
    steps.finish(&mut reactor, 0, Ok(0));
    assert_eq!(taken.get(), 3);
    steps.finish(&mut reactor, 2, Err("enough"));
    assert_eq!((taken.get(), all.take()), (3, Some(Err(Rejected::Failed("enough")))));
}

#[test]
fn limit_larger_than_one_tick_starts_is_reached() {
    let mut reactor = reactor();
    let steps = Steps::default();
    let _all = Each::of(0..1000).at_most(500).for_each(&mut reactor, steps.step());
    settle(&mut reactor);
    assert_eq!(steps.running().len(), 500);
    steps.finish(&mut reactor, 7, Ok(7));
    assert_eq!(steps.running().len(), 500);
}

#[test]
fn dropped_reactor_drops_remaining_items() {
    let mut gone = reactor();
    let dropped = Rc::new(Cell::new(false));
    let (steps, flag) = (Steps::default(), DropFlag(dropped.clone()));
    let mut step = steps.step();
    let _all = Each::of(0..9).at_most(3).for_each(&mut gone, move |reactor, item| {
        let _ = &flag;
        step(reactor, item)
    });
    settle(&mut gone);
    drop(gone);
    steps.0.take();
    assert!(dropped.get());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    /// Steps complete in any order, and some complete immediately.
    #[test]
    fn map_equals_that_of_an_iterator(
        delays in prop::collection::vec(0..4_u32, 0..40),
        limit in 0..6_usize,
    ) {
        let mut reactor = reactor();
        let expected: Vec<u32> = delays.iter().map(|delay| delay + 1).collect();
        let (running, most) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(0)));
        let (now, high) = (running.clone(), most.clone());
        let count = delays.len();
        let all = Each::of(delays).at_most(limit).map(&mut reactor, move |reactor, delay| {
            now.set(now.get() + 1);
            high.set(high.get().max(now.get()));
            let mut promise = Promise::<u32, ()>::resolved(reactor, delay + 1);
            for _ in 0..delay {
                promise = promise.then(|reactor, value| {
                    // Avoids the fast path of promises, so that other steps get ahead.
                    let (deferred, later) = reactor.promise();
                    reactor.next_tick(move |_| deferred.resolve(value).unwrap());
                    later
                });
            }
            let now = now.clone();
            promise.finally(move |_| now.set(now.get() - 1))
        });
        prop_assert_eq!(outcome_now(all, &mut reactor), Ok(expected));
        prop_assert!(most.get() <= limit.max(1));
        prop_assert!(count == 0 || most.get() >= 1);
        prop_assert_eq!(running.get(), 0);
    }
}
