//! Pools of resources.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pelton::{AcquireError, Deferred, EventLoop, Lent, Promise, Rejected, ResourcePool};
use pelton_testing::run_until;
use proptest::prelude::*;

use super::{Alive, Counted, List, Outcome, catching, count_faults, outcome, outcome_now, reactor, settle};

type Pens = ResourcePool<u32, &'static str>;
type Loan = Outcome<Lent<u32, &'static str>, AcquireError<&'static str>>;

/// A pool whose resources are numbered in the order of creation.
fn numbered(reactor: &EventLoop, size: usize) -> Pens {
    let mut made = 0;
    ResourcePool::new(reactor, size, move |_| {
        made += 1;
        Ok(made)
    })
}

fn acquire(reactor: &mut EventLoop, pool: &Pens) -> Rc<RefCell<Option<Loan>>> {
    let loan = outcome(pool.acquire(reactor));
    settle(reactor);
    loan
}

fn taken(loan: &RefCell<Option<Loan>>) -> Lent<u32, &'static str> {
    loan.take().expect("pending").expect("refused")
}

#[test]
fn resources_are_created_on_demand_and_reused() {
    let mut reactor = reactor();
    let pool = numbered(&reactor, 2);
    assert_eq!(pool.stats().free, 0);
    let first = taken(&acquire(&mut reactor, &pool));
    assert_eq!((*first, pool.stats().lent), (1, 1));
    drop(first);
    assert_eq!((pool.stats().free, pool.stats().lent), (1, 0));
    let again = taken(&acquire(&mut reactor, &pool));
    let other = taken(&acquire(&mut reactor, &pool));
    assert_eq!((*again, *other), (1, 2));
}

#[test]
fn requests_are_served_in_order() {
    let mut reactor = reactor();
    let pool = numbered(&reactor, 1);
    let held = taken(&acquire(&mut reactor, &pool));
    let order = List::default();
    for number in 0..4 {
        let order = order.clone();
        pool.acquire(&mut reactor).done(move |_, lent| order.borrow_mut().push((number, *lent.unwrap())));
    }
    settle(&mut reactor);
    assert_eq!((order.borrow().len(), pool.stats().waiting), (0, 4));
    drop(held);
    // A later request does not get ahead of them.
    let order_too = order.clone();
    pool.acquire(&mut reactor).done(move |_, lent| order_too.borrow_mut().push((4, *lent.unwrap())));
    settle(&mut reactor);
    assert_eq!(order.take(), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]);
}

#[test]
fn slow_creation_respects_the_limit() {
    let mut reactor = reactor();
    let making = Rc::new(RefCell::new(Vec::<Deferred<u32, &'static str>>::new()));
    let begun = making.clone();
    let pool = ResourcePool::new(&reactor, 2, move |reactor| {
        let (deferred, promise) = reactor.promise();
        begun.borrow_mut().push(deferred);
        promise
    });
    let loans: Vec<_> = (0..4).map(|_| acquire(&mut reactor, &pool)).collect();
    assert_eq!((making.borrow().len(), pool.stats().making), (2, 2));
    making.borrow_mut().remove(1).resolve(7).unwrap();
    settle(&mut reactor);
    assert_eq!(*taken(&loans[0]), 7, "the longest waiting request gets the first resource");
    settle(&mut reactor);
    assert_eq!(*taken(&loans[1]), 7);
    assert_eq!((making.borrow().len(), pool.stats().making), (1, 1));
}

#[test]
fn failed_creation_rejects_the_longest_waiting_request_and_tries_the_next() {
    let mut reactor = reactor();
    let mut tries = 0;
    let pool: Pens = ResourcePool::new(&reactor, 1, move |_| {
        tries += 1;
        if tries == 1 { Err("not today") } else { Ok(tries) }
    });
    let loans = [outcome(pool.acquire(&mut reactor)), outcome(pool.acquire(&mut reactor))];
    settle(&mut reactor);
    let expected = Rejected::Failed(AcquireError::NotMade(Rejected::Failed("not today")));
    assert_eq!(loans[0].take().unwrap().unwrap_err(), expected);
    assert_eq!(*taken(&loans[1]), 2);
}

#[test]
fn panicking_creation_is_reported_and_tried_again() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let mut tries = 0;
    let pool: Pens = ResourcePool::new(&reactor, 1, move |_| {
        tries += 1;
        assert!(tries > 1, "broken");
        Ok(tries)
    });
    let loans = [outcome(pool.acquire(&mut reactor)), outcome(pool.acquire(&mut reactor))];
    settle(&mut reactor);
    let told = loans[0].take().unwrap().unwrap_err();
    assert!(matches!(told, Rejected::Failed(AcquireError::NotMade(Rejected::Panicked(_)))), "{told:?}");
    assert_eq!((*taken(&loans[1]), faults.get()), (2, 1));
}

#[test]
fn panicking_creation_continues_with_the_next_request() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let mut tries = 0;
    let pool: Pens = ResourcePool::new(&reactor, 1, move |_| {
        tries += 1;
        assert_ne!(tries, 2, "broken");
        Ok(tries)
    });
    let broken = taken(&acquire(&mut reactor, &pool));
    let waiting = [outcome(pool.acquire(&mut reactor)), outcome(pool.acquire(&mut reactor))];
    settle(&mut reactor);
    // Creation for the first request panics, and only that panic can trigger an attempt for the second.
    broken.discard();
    settle(&mut reactor);
    assert!(waiting[0].take().unwrap().is_err());
    assert_eq!((*taken(&waiting[1]), faults.get()), (3, 1));
}

#[test]
fn discarded_resource_is_replaced_for_a_waiting_request() {
    let mut reactor = reactor();
    let pool = numbered(&reactor, 1);
    let broken = taken(&acquire(&mut reactor, &pool));
    let waiting = acquire(&mut reactor, &pool);
    assert_eq!(broken.discard(), 1);
    assert!(waiting.borrow().is_none(), "discard creates nothing itself");
    settle(&mut reactor);
    assert_eq!((*taken(&waiting), pool.stats().discarded), (2, 1));
}

#[test]
fn discarded_resource_is_not_replaced_without_a_factory() {
    let mut reactor = reactor();
    let pool = ResourcePool::of(&reactor, [1, 2]);
    let first = outcome_now(pool.acquire(&mut reactor), &mut reactor).unwrap();
    let second = outcome_now(pool.acquire(&mut reactor), &mut reactor).unwrap();
    let waiting = [outcome(pool.acquire(&mut reactor)), outcome(pool.acquire(&mut reactor))];
    first.discard();
    settle(&mut reactor);
    assert!(waiting[0].borrow().is_none());
    second.discard();
    settle(&mut reactor);
    for waiting in waiting {
        assert_eq!(waiting.take().unwrap().unwrap_err(), Rejected::Failed(AcquireError::NoneLeft));
    }
    let none = outcome_now(pool.acquire(&mut reactor), &mut reactor);
    assert_eq!(none.unwrap_err(), Rejected::Failed(AcquireError::NoneLeft));
    pool.add(3);
    assert_eq!(*outcome_now(pool.acquire(&mut reactor), &mut reactor).unwrap(), 3);
}

#[test]
fn waiting_requests_are_bounded() {
    let mut reactor = reactor();
    let pool = numbered(&reactor, 1).max_waiting(1);
    let held = taken(&acquire(&mut reactor, &pool));
    let waiting = acquire(&mut reactor, &pool);
    let refused = acquire(&mut reactor, &pool).take().unwrap();
    assert_eq!(refused.unwrap_err(), Rejected::Failed(AcquireError::Crowded(1)));
    assert_eq!(pool.stats().refused, 1);
    drop(held);
    settle(&mut reactor);
    assert_eq!(*taken(&waiting), 1);
    // A request that is given up makes room for another.
    let _held = taken(&acquire(&mut reactor, &pool));
    drop(pool.acquire(&mut reactor));
    let next = acquire(&mut reactor, &pool);
    assert!(next.borrow().is_none());
}

#[test]
fn requests_time_out_without_losing_the_resource() {
    let mut reactor = reactor();
    let limit = Duration::from_millis(2);
    let pool = numbered(&reactor, 1).wait_limit(limit);
    let held = taken(&acquire(&mut reactor, &pool));
    let late = acquire(&mut reactor, &pool);
    run_until(&mut reactor, |_| late.borrow().is_some());
    assert_eq!(late.take().unwrap().unwrap_err(), Rejected::TimedOut(limit));
    drop(held);
    assert_eq!((pool.stats().free, pool.stats().waiting), (1, 0));
    assert_eq!(*taken(&acquire(&mut reactor, &pool)), 1);
    assert_eq!(reactor.timer_count(), 0);
}

#[test]
fn loan_of_a_dropped_promise_goes_to_the_next() {
    let mut reactor = reactor();
    let pool = numbered(&reactor, 1);
    let held = taken(&acquire(&mut reactor, &pool));
    let (given_up, next) = (pool.acquire(&mut reactor), acquire(&mut reactor, &pool));
    drop(held);
    // Handed over, but not picked up.
    drop(given_up);
    settle(&mut reactor);
    assert_eq!(*taken(&next), 1);
    let settled = pool.acquire(&mut reactor);
    settle(&mut reactor);
    assert!(settled.is_settled());
    drop(settled);
    assert_eq!((pool.stats().free, pool.stats().lent), (1, 0));
}

#[derive(Debug, PartialEq)]
enum Failure {
    NoPen(AcquireError<&'static str>),
    NoInk,
}

impl From<AcquireError<&'static str>> for Failure {
    fn from(error: AcquireError<&'static str>) -> Failure {
        Failure::NoPen(error)
    }
}

#[test]
fn perform_returns_the_resource_however_its_work_ends() {
    let mut reactor = catching();
    let pool = numbered(&reactor, 1);
    let (deferred, slow) = reactor.promise::<u32, Failure>();
    let first = outcome(pool.perform(&mut reactor, move |_, pen| {
        **pen += 10;
        slow
    }));
    let second = outcome(pool.perform(&mut reactor, |reactor, pen| Promise::<u32, Failure>::resolved(reactor, **pen)));
    settle(&mut reactor);
    assert_eq!((first.take(), second.take(), pool.stats().lent), (None, None, 1));
    deferred.reject(Failure::NoInk).unwrap();
    settle(&mut reactor);
    assert_eq!((first.take(), second.take()), (Some(Err(Rejected::Failed(Failure::NoInk))), Some(Ok(11))));
    assert_eq!(pool.stats().free, 1);
    count_faults(&mut reactor);
    let third = outcome(pool.perform(&mut reactor, |_, _| -> Promise<u32, Failure> { panic!("on purpose") }));
    settle(&mut reactor);
    assert!(matches!(third.take(), Some(Err(Rejected::Panicked(_)))));
    assert_eq!(pool.stats().free, 1);
    pool.close();
    let last = pool.perform(&mut reactor, |reactor, _| Promise::<u32, Failure>::resolved(reactor, 1));
    let closed = Failure::NoPen(AcquireError::Closed);
    assert_eq!(outcome_now(last, &mut reactor), Err(Rejected::Failed(closed)));
}

#[test]
fn closing_rejects_waiting_requests_and_drops_returned_resources() {
    let alive = Alive::default();
    let mut reactor = reactor();
    let pool = ResourcePool::of(&reactor, [Counted::new(&alive), Counted::new(&alive)]);
    let held = outcome_now(pool.acquire(&mut reactor), &mut reactor).unwrap();
    let other = outcome_now(pool.acquire(&mut reactor), &mut reactor).unwrap();
    let waiting = outcome(pool.acquire(&mut reactor));
    pool.close();
    settle(&mut reactor);
    assert_eq!(waiting.take().unwrap().unwrap_err(), Rejected::Failed(AcquireError::Closed));
    assert_eq!(alive.count(), 2);
    drop((held, other));
    assert_eq!((alive.count(), pool.stats().lent), (0, 0));
}

#[test]
fn dropped_reactor_leaks_neither_resources_nor_requests() {
    let alive = Alive::default();
    let mut gone = reactor();
    let pool = ResourcePool::of(&gone, [Counted::new(&alive)]).wait_limit(Duration::from_secs(3600));
    let held = outcome_now(pool.acquire(&mut gone), &mut gone).unwrap();
    let called = Rc::new(Cell::new(false));
    let (call, also) = (called.clone(), pool.clone());
    pool.acquire(&mut gone).done(move |_, _| {
        let _ = &also;
        call.set(true);
    });
    assert_eq!(Rc::strong_count(&called), 2);
    drop(held);
    drop(gone);
    assert_eq!((Rc::strong_count(&called), called.get()), (1, false));
    assert_eq!((pool.stats().free, pool.stats().waiting), (1, 0));
    drop(pool);
    assert_eq!(alive.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    /// Whatever is acquired, returned, discarded and given up: there are never more resources than allowed, requests are served
    /// in order, and in the end every remaining request has been served.
    #[test]
    fn every_request_is_served_and_no_resource_is_lent_twice(
        size in 1..4_usize,
        acts in prop::collection::vec((0..5_u8, 0..6_usize), 0..60),
    ) {
        let mut reactor = reactor();
        let alive = Alive::default();
        let count = alive.clone();
        let pool: ResourcePool<Counted, ()> = ResourcePool::new(&reactor, size, move |_| Ok(Counted::new(&count)));
        let got = List::default();
        let held = Rc::new(RefCell::new(Vec::new()));
        let mut given_up = Vec::new();
        let mut asked = 0;
        for (act, which) in acts {
            match act {
                0 | 1 => {
                    let (number, got, held) = (asked, got.clone(), held.clone());
                    pool.acquire(&mut reactor).done(move |_, lent| {
                        got.borrow_mut().push(number);
                        held.borrow_mut().push(lent.unwrap());
                    });
                    asked += 1;
                }
                2 => given_up.push(pool.acquire(&mut reactor)),
                3 => {
                    if which % 2 == 0 && !given_up.is_empty() {
                        drop(given_up.remove(which % given_up.len()));
                    }
                    let count = held.borrow().len();
                    let lent = (which < count).then(|| held.borrow_mut().remove(which));
                    if which % 3 == 0 {
                        drop(lent.map(Lent::discard));
                    }
                }
                _ => reactor.turn(Some(Duration::ZERO)).unwrap(),
            }
            prop_assert!(alive.count() <= size);
        }
        drop(given_up);
        settle(&mut reactor);
        while !held.borrow().is_empty() {
            drop(held.take());
            settle(&mut reactor);
        }
        prop_assert_eq!(got.take(), (0..asked).collect::<Vec<_>>());
        let stats = pool.stats();
        prop_assert_eq!((stats.lent, stats.waiting, stats.making), (0, 0, 0));
        prop_assert_eq!(stats.free, alive.count());
        drop((pool, reactor));
        prop_assert_eq!(alive.count(), 0);
    }
}
