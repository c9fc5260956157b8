//! Queues.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pelton::{Promise, Queue, QueueClosed, QueueRefusal, Reactor, Rejected};
use pelton_testing::{On, on_every_engine, run, run_until};
use proptest::prelude::*;

use super::{Alive, Counted, DropFlag, List, catching, count_faults, outcome, outcome_now, reactor, settle};

on_every_engine![items_from_several_threads_arrive_in_each_threads_order];

fn items_from_several_threads_arrive_in_each_threads_order(on: On) {
    const EACH: u32 = 2000;
    let mut reactor = on.reactor();
    let queue = Queue::bounded(16);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let mut item = (thread, number);
                    while let Err(refusal) = queue.push(item) {
                        item = refusal.into_inner();
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let popped = List::<(usize, u32)>::default();
    fn pop_all(reactor: &mut Reactor, queue: Queue<(usize, u32)>, popped: List<(usize, u32)>) {
        queue.clone().pop_then(reactor, move |reactor, item| {
            popped.borrow_mut().push(item.unwrap());
            if popped.borrow().len() == 4 * EACH as usize { reactor.stop() } else { pop_all(reactor, queue, popped) }
        });
    }
    pop_all(&mut reactor, queue.clone(), popped.clone());
    run(&mut reactor);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for thread in 0..4 {
        let numbers: Vec<u32> = popped.borrow().iter().filter(|item| item.0 == thread).map(|item| item.1).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>());
    }
    assert_eq!((queue.stats().pushed, queue.stats().popped, queue.len()), (8000, 8000, 0));
}

#[test]
fn several_loops_share_one_queue_without_losing_items() {
    const ITEMS: u64 = 4000;
    let queue = Queue::<u64>::bounded(64);
    let loops: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let mut reactor = reactor();
                let sum = Rc::new(Cell::new(0));
                fn pop_all(reactor: &mut Reactor, queue: Queue<u64>, sum: Rc<Cell<u64>>) {
                    queue.clone().pop_then(reactor, move |reactor, item| match item {
                        Ok(item) => {
                            sum.set(sum.get() + item);
                            pop_all(reactor, queue, sum);
                        }
                        Err(end) => {
                            assert_eq!(end, Rejected::Failed(QueueClosed));
                            reactor.stop();
                        }
                    });
                }
                pop_all(&mut reactor, queue, sum.clone());
                run(&mut reactor);
                sum.get()
            })
        })
        .collect();
    for item in 1..=ITEMS {
        while queue.push(item).is_err() {
            std::thread::yield_now();
        }
    }
    queue.close();
    let sum: u64 = loops.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(sum, ITEMS * (ITEMS + 1) / 2);
    assert_eq!(queue.stats().popped, ITEMS);
}

#[test]
fn nothing_is_called_before_push_or_pop_has_returned() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    let popped = List::<u32>::default();
    for item in [1, 2] {
        let popped = popped.clone();
        let pop = move |_: &mut Reactor, item: Result<u32, _>| popped.borrow_mut().push(item.unwrap());
        if item == 1 {
            queue.pop_then(&mut reactor, pop);
            queue.push(item).unwrap();
        } else {
            queue.push(item).unwrap();
            queue.pop_then(&mut reactor, pop);
        }
    }
    assert!(popped.borrow().is_empty());
    settle(&mut reactor);
    assert_eq!(popped.take(), [1, 2]);
}

#[test]
fn poppers_are_served_in_order() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    let served = List::default();
    for popper in 0..5 {
        let served = served.clone();
        queue.pop_then(&mut reactor, move |_, item| served.borrow_mut().push((popper, item.unwrap())));
    }
    assert_eq!(queue.stats().waiting, 5);
    for item in 0..7 {
        queue.push(item).unwrap();
    }
    settle(&mut reactor);
    assert_eq!(served.take(), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    assert_eq!([queue.try_pop(), queue.try_pop(), queue.try_pop()], [Some(5), Some(6), None]);
}

#[test]
fn full_queue_returns_the_item_and_counts_it() {
    let queue = Queue::bounded(2);
    assert_eq!((queue.push(1), queue.push(2)), (Ok(()), Ok(())));
    assert_eq!(queue.push(3), Err(QueueRefusal::Full(3)));
    assert_eq!(queue.stats().refused, 1);
    assert_eq!(queue.try_pop(), Some(1));
    assert_eq!(queue.push(4), Ok(()));
}

#[test]
fn queue_without_capacity_accepts_items_for_waiting_poppers() {
    let mut reactor = reactor();
    let queue = Queue::bounded(0);
    assert_eq!(queue.push(1), Err(QueueRefusal::Full(1)));
    let popped = outcome(queue.pop(&mut reactor));
    assert_eq!(queue.push(2), Ok(()));
    assert_eq!(queue.push(3), Err(QueueRefusal::Full(3)));
    settle(&mut reactor);
    assert_eq!(popped.take(), Some(Ok(2)));
}

#[test]
fn closing_notifies_waiting_poppers_and_lets_items_drain() {
    let mut reactor = reactor();
    let queue = Queue::<u32>::bounded(8);
    let waiting = outcome(queue.pop(&mut reactor));
    assert!(queue.close() && !queue.close() && queue.is_closed());
    settle(&mut reactor);
    assert_eq!(waiting.take(), Some(Err(Rejected::Failed(QueueClosed))));

    let queue = Queue::bounded(8);
    queue.push(1).unwrap();
    queue.push(2).unwrap();
    queue.close();
    assert_eq!(queue.push(3), Err(QueueRefusal::Closed(3)));
    let rest = [queue.pop(&mut reactor), queue.pop(&mut reactor), queue.pop(&mut reactor)];
    let rest = rest.map(|promise| outcome_now(promise, &mut reactor));
    assert_eq!(rest, [Ok(1), Ok(2), Err(Rejected::Failed(QueueClosed))]);
}

#[test]
fn dropping_the_last_clone_notifies_waiting_poppers() {
    let mut reactor = reactor();
    let queue = Queue::<u32>::bounded(8);
    let other = queue.clone();
    let waiting = outcome(queue.pop(&mut reactor));
    drop(queue);
    settle(&mut reactor);
    assert_eq!(waiting.take(), None);
    drop(other);
    settle(&mut reactor);
    assert_eq!(waiting.take(), Some(Err(Rejected::Failed(QueueClosed))));
}

#[test]
fn a_cancelled_pop_is_not_called_and_its_item_goes_to_the_next() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    let dropped = Rc::new(Cell::new(false));
    let flag = DropFlag(dropped.clone());
    let first = queue.pop_then(&mut reactor, move |_, _| {
        drop(flag);
        unreachable!("called after it was cancelled");
    });
    let second = outcome(queue.pop(&mut reactor));
    // Handed over, but not picked up.
    queue.push(1).unwrap();
    assert!(queue.cancel_pop(first) && !queue.cancel_pop(first));
    settle(&mut reactor);
    assert!(dropped.get());
    assert_eq!(second.take(), Some(Ok(1)));
    let third = queue.pop_then(&mut reactor, |_, item| assert_eq!(item, Ok(2)));
    queue.push(2).unwrap();
    settle(&mut reactor);
    assert!(!queue.cancel_pop(third), "it already has its item");
}

#[test]
fn dropped_promise_leaves_the_queue_at_once() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    for _ in 0..1000 {
        drop(queue.pop(&mut reactor));
        assert_eq!(queue.stats().waiting, 0);
    }
    settle(&mut reactor);
    queue.push(1).unwrap();
    assert_eq!(outcome_now(queue.pop(&mut reactor), &mut reactor), Ok(1));
}

#[test]
fn dropped_settled_promise_puts_the_item_back_in_place() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    (1..=3).for_each(|item| queue.push(item).unwrap());
    let (first, second) = (queue.pop(&mut reactor), queue.pop(&mut reactor));
    assert!(first.is_settled() && second.is_settled());
    drop(first);
    drop(second);
    assert_eq!(queue.stats().popped, 0);
    let rest: Vec<_> = std::iter::from_fn(|| queue.try_pop()).collect();
    assert_eq!(rest, [1, 2, 3]);
}

#[test]
fn pop_future_can_be_dropped_between_wake_up_and_poll() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut abandoned = pin!(queue.pop(&mut reactor));
        assert!(abandoned.as_mut().poll(&mut context).is_pending());
        queue.push(1).unwrap();
        settle(&mut reactor);
        assert_eq!(queue.len(), 0);
    }
    let mut taken = pin!(queue.pop(&mut reactor));
    assert_eq!(taken.as_mut().poll(&mut context), Poll::Ready(Ok(1)));
}

#[test]
fn timed_out_pop_takes_no_item() {
    let mut reactor = reactor();
    let queue = Queue::bounded(8);
    let limit = Duration::from_millis(2);
    let late = outcome(queue.pop_within(&mut reactor, limit));
    run_until(&mut reactor, |_| late.borrow().is_some());
    assert_eq!(late.take(), Some(Err(Rejected::TimedOut(limit))));
    queue.push(1).unwrap();
    settle(&mut reactor);
    assert_eq!(queue.len(), 1);
    // If the item is in time or the promise is dropped, the timer is cancelled.
    assert_eq!(outcome_now(queue.pop_within(&mut reactor, limit), &mut reactor), Ok(1));
    let waiting = outcome(queue.pop_within(&mut reactor, Duration::from_secs(3600)));
    drop(queue.pop_within(&mut reactor, Duration::from_secs(3600)));
    queue.push(2).unwrap();
    settle(&mut reactor);
    assert_eq!((waiting.take(), reactor.timer_count()), (Some(Ok(2)), 0));
}

#[test]
fn dropped_reactor_leaves_its_items_to_others() {
    let alive = Alive::default();
    let queue = Queue::bounded(8);
    let mut gone = reactor();
    let (first, second) = (outcome(queue.pop(&mut gone)), outcome(queue.pop(&mut gone)));
    let third = outcome(queue.pop(&mut gone));
    queue.push((1, Counted::new(&alive))).unwrap();
    queue.push((2, Counted::new(&alive))).unwrap();
    drop(gone);
    assert!(first.take().is_none() && second.take().is_none() && third.take().is_none());
    assert_eq!((queue.stats().waiting, queue.len()), (0, 2));
    let mut reactor = reactor();
    let item = outcome_now(queue.pop(&mut reactor), &mut reactor).unwrap();
    assert_eq!((item.0, alive.count()), (1, 2));
    drop((item, queue));
    assert_eq!(alive.count(), 0);
}

#[test]
fn items_need_not_be_sendable_if_the_queue_stays_on_its_loop() {
    let mut reactor = reactor();
    let queue = Queue::unbounded();
    let popped = outcome(queue.pop(&mut reactor));
    queue.push(Rc::new(7)).unwrap();
    settle(&mut reactor);
    assert_eq!(*popped.take().unwrap().unwrap(), 7);
}

#[test]
fn panicking_popper_loses_only_its_item() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let queue = Queue::bounded(8);
    queue.pop_then(&mut reactor, |_, _| panic!("on purpose"));
    let next = outcome(queue.pop(&mut reactor));
    queue.push(1).unwrap();
    queue.push(2).unwrap();
    settle(&mut reactor);
    assert_eq!((faults.get(), next.take()), (1, Some(Ok(2))));
}

/// Operations on a queue and its model.
#[derive(Clone, Copy, Debug)]
enum Act {
    Push,
    Pop,
    TryPop,
    /// Cancels this one of the waiting poppers.
    Cancel(usize),
    /// Drops this one of the promises that are held.
    DropPromise(usize),
    Turn,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => Just(Act::Push),
        2 => Just(Act::Pop),
        1 => Just(Act::TryPop),
        1 => (0..8_usize).prop_map(Act::Cancel),
        1 => (0..8_usize).prop_map(Act::DropPromise),
        2 => Just(Act::Turn),
    ];
    prop::collection::vec(act, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 256, ..ProptestConfig::default() })]

    /// Without cancelling, item n goes to popper n, whatever the order of operations.
    #[test]
    fn the_nth_popper_gets_the_nth_item(acts in prop::collection::vec(0..3_u8, 0..80)) {
        let mut reactor = catching();
        let queue = Queue::unbounded();
        let served = List::default();
        let (mut items, mut poppers) = (0, 0);
        for act in acts {
            match act {
                0 => {
                    queue.push(items).unwrap();
                    items += 1;
                }
                1 => {
                    let (number, served) = (poppers, served.clone());
                    queue.pop_then(&mut reactor, move |_, item| served.borrow_mut().push((number, item.unwrap())));
                    poppers += 1;
                }
                _ => reactor.turn(Some(Duration::ZERO)).unwrap(),
            }
        }
        settle(&mut reactor);
        prop_assert_eq!(served.take(), (0..items.min(poppers)).map(|number| (number, number)).collect::<Vec<_>>());
        prop_assert_eq!(queue.len(), (items - items.min(poppers)) as usize);
    }

    /// Whatever is cancelled or dropped, every item is popped exactly once or remains, in order; and no popper waits while
    /// there is an item.
    #[test]
    fn no_item_is_lost_or_doubled(acts in acts()) {
        let mut reactor = catching();
        let queue = Queue::unbounded();
        let got = List::default();
        let mut pops = VecDeque::new();
        let mut promises: VecDeque<Promise<u32, QueueClosed>> = VecDeque::new();
        let mut pushed = 0;
        for act in acts {
            match act {
                Act::Push => {
                    queue.push(pushed).unwrap();
                    pushed += 1;
                }
                Act::Pop if pushed % 2 == 0 => {
                    let got = got.clone();
                    let pop = queue.pop_then(&mut reactor, move |_, item| got.borrow_mut().push(item.unwrap()));
                    pops.push_back(pop);
                }
                Act::Pop => promises.push_back(queue.pop(&mut reactor)),
                Act::TryPop => got.borrow_mut().extend(queue.try_pop()),
                Act::Cancel(which) => {
                    if let Some(pop) = pops.remove(which) {
                        queue.cancel_pop(pop);
                    }
                }
                Act::DropPromise(which) => drop(promises.remove(which)),
                Act::Turn => reactor.turn(Some(Duration::ZERO)).unwrap(),
            }
            let stats = queue.stats();
            prop_assert!(stats.len == 0 || stats.waiting == 0);
        }
        settle(&mut reactor);
        drop(promises);
        settle(&mut reactor);
        let rest: Vec<u32> = std::iter::from_fn(|| queue.try_pop()).collect();
        prop_assert!(rest.is_sorted());
        let mut all = got.take();
        all.extend(rest);
        all.sort_unstable();
        prop_assert_eq!(all, (0..pushed).collect::<Vec<_>>());
        prop_assert_eq!(queue.stats().popped, u64::from(pushed));
    }
}

#[allow(dead_code, reason = "it only has to compile")]
fn queue_of_sendable_items_is_send_and_sync(queue: Queue<RefCell<u32>>) -> impl Send + Sync {
    queue
}
