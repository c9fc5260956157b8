//! Channels.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pelton::{
    Channel, Delivery, EventLoop, Overflow, PublishError, Reactor, SubscribeOptions, Subscription, SubscriptionEnd,
};
use pelton_testing::{On, on_every_engine, run};
use proptest::prelude::*;

use super::{Alive, Counted, DropFlag, List, catching, count_faults, reactor, settle};

on_every_engine![values_from_several_threads_reach_several_loops_in_one_order];

fn values_from_several_threads_reach_several_loops_in_one_order(on: On) {
    const EACH: u32 = 1000;
    let channel = Channel::new();
    let (ready, readying) = mpsc::channel();
    let loops: Vec<_> = (0..2)
        .map(|_| {
            let (channel, ready) = (channel.clone(), ready.clone());
            std::thread::spawn(move || {
                let mut reactor = on.reactor();
                let got = List::default();
                let options = SubscribeOptions { capacity: 8, overflow: Overflow::Refuse };
                // Two on each loop.
                let subscriptions = [got.clone(), List::default()].map(|list| {
                    channel.subscribe_with(&mut reactor, options, move |_, delivery| {
                        if let Delivery::Value(value) = delivery {
                            list.borrow_mut().push(value);
                        }
                    })
                });
                let last = channel.subscribe_with(&mut reactor, options, |reactor, delivery| {
                    if delivery == Delivery::Ended(SubscriptionEnd::Closed) {
                        reactor.stop();
                    }
                });
                drop(channel);
                ready.send(()).unwrap();
                run(&mut reactor);
                drop((subscriptions, last));
                got.take()
            })
        })
        .collect();
    (0..2).for_each(|_| readying.recv().unwrap());
    let publishers: Vec<_> = (0..3)
        .map(|thread| {
            let channel = channel.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let mut value = (thread, number);
                    loop {
                        match channel.publish(value) {
                            Ok(reached) => break assert_eq!(reached, 6),
                            Err(refused) => value = refused.into_inner(),
                        }
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    publishers.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((channel.stats().published, channel.stats().dropped), (3000, 0));
    drop(channel);
    let got: Vec<Vec<(u32, u32)>> = loops.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(got[0], got[1], "all subscribers see one order");
    for thread in 0..3 {
        let numbers = got[0].iter().filter(|value| value.0 == thread).map(|value| value.1);
        assert!(numbers.eq(0..EACH), "in each thread's order");
    }
}

/// A subscriber that records its values.
fn listen<T: 'static>(
    reactor: &mut EventLoop,
    channel: &Channel<T>,
    capacity: usize,
    overflow: Overflow,
) -> (List<Delivery<T>>, Subscription<T>) {
    let list = List::default();
    let to = list.clone();
    let options = SubscribeOptions { capacity, overflow };
    let subscription = channel.subscribe_with(reactor, options, move |_, delivery| to.borrow_mut().push(delivery));
    (list, subscription)
}

fn values(values: impl IntoIterator<Item = u32>) -> Vec<Delivery<u32>> {
    values.into_iter().map(Delivery::Value).collect()
}

#[test]
fn publish_calls_nobody_and_delivery_is_in_order() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let calls = List::default();
    let _subscriptions = ["a", "b"].map(|name| {
        let calls = calls.clone();
        channel.subscribe(&mut reactor, move |_, value: u32| calls.borrow_mut().push((name, value)))
    });
    assert_eq!((channel.publish(1), channel.publish(2)), (Ok(2), Ok(2)));
    assert!(calls.borrow().is_empty());
    settle(&mut reactor);
    assert_eq!(calls.take(), [("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
}

#[test]
fn deliveries_are_ticks_among_others() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let calls = List::<&str>::default();
    let (before, inside, after) = (calls.clone(), calls.clone(), calls.clone());
    let _subscription = channel.subscribe(&mut reactor, move |_, value| inside.borrow_mut().push(value));
    reactor.next_tick(move |_| before.borrow_mut().push("before"));
    channel.publish("published").unwrap();
    reactor.next_tick(move |_| after.borrow_mut().push("after"));
    settle(&mut reactor);
    assert_eq!(calls.take(), ["before", "published", "after"]);
}

#[test]
fn a_subscriber_may_publish_and_is_not_called_inside_itself() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (own, depth, got) = (channel.clone(), Cell::new(0), List::default());
    let list = got.clone();
    let _subscription = channel.subscribe(&mut reactor, move |_, value: u32| {
        depth.set(depth.get() + 1);
        assert_eq!(depth.get(), 1);
        list.borrow_mut().push(value);
        if value < 5 {
            own.publish(value + 1).unwrap();
        }
        depth.set(depth.get() - 1);
    });
    channel.publish(1).unwrap();
    settle(&mut reactor);
    assert_eq!(got.take(), [1, 2, 3, 4, 5]);
}

#[test]
fn full_lossless_subscriber_refuses_the_value_for_everyone() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (all, _first) = listen(&mut reactor, &channel, 10, Overflow::DropOldest);
    let (strict, second) = listen(&mut reactor, &channel, 2, Overflow::Refuse);
    assert_eq!((channel.publish(1), channel.publish(2)), (Ok(2), Ok(2)));
    assert_eq!(channel.publish(3), Err(PublishError::Full(3)));
    assert_eq!((channel.stats().refused, second.waiting(), second.dropped()), (1, 2, 0));
    settle(&mut reactor);
    assert_eq!(channel.publish(3), Ok(2));
    settle(&mut reactor);
    assert_eq!((all.take(), strict.take()), (values(1..=3), values(1..=3)));
}

#[test]
fn dropping_the_oldest_keeps_the_latest_values() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (got, subscription) = listen(&mut reactor, &channel, 2, Overflow::DropOldest);
    (1..=5).for_each(|value| assert_eq!(channel.publish(value), Ok(1)));
    assert_eq!((subscription.dropped(), channel.stats().dropped), (3, 3));
    settle(&mut reactor);
    assert_eq!(got.take(), values(4..=5));
    channel.publish(6).unwrap();
    settle(&mut reactor);
    assert_eq!(got.take(), values([6]));
}

#[test]
fn dropping_the_newest_keeps_the_first_values() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (got, subscription) = listen(&mut reactor, &channel, 2, Overflow::DropNewest);
    let reached: Vec<_> = (1..=5).map(|value| channel.publish(value).unwrap()).collect();
    assert_eq!((reached, subscription.dropped(), channel.stats().dropped), (vec![1, 1, 0, 0, 0], 3, 3));
    settle(&mut reactor);
    assert_eq!(got.take(), values(1..=2));
}

#[test]
fn disconnected_subscriber_gets_queued_values_and_the_reason() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (slow, subscription) = listen(&mut reactor, &channel, 2, Overflow::Disconnect);
    let (other, _other) = listen(&mut reactor, &channel, 9, Overflow::Refuse);
    (1..=4).for_each(|value| assert!(channel.publish(value).is_ok()));
    assert!(!subscription.is_active());
    assert_eq!((channel.stats().disconnected, channel.stats().subscribers), (1, 1));
    settle(&mut reactor);
    let mut expected = values(1..=2);
    expected.push(Delivery::Ended(SubscriptionEnd::Overflowed));
    assert_eq!((slow.take(), other.take()), (expected, values(1..=4)));
}

#[test]
fn unsubscribing_drops_queued_values_and_the_callback() {
    let alive = Alive::default();
    let mut reactor = reactor();
    let channel = Channel::new();
    let dropped = Rc::new(Cell::new(false));
    let flag = DropFlag(dropped.clone());
    let subscription = channel.subscribe(&mut reactor, move |_, _: Counted| {
        let _ = &flag;
        unreachable!("called after unsubscribing");
    });
    channel.publish(Counted::new(&alive)).unwrap();
    assert_eq!(alive.count(), 1);
    subscription.unsubscribe();
    assert_eq!(alive.count(), 0);
    settle(&mut reactor);
    assert!(dropped.get());
    assert_eq!(channel.publish(Counted::new(&alive)).unwrap(), 0);
    assert_eq!(alive.count(), 0);
}

#[test]
fn a_subscriber_may_unsubscribe_itself_and_others() {
    let mut reactor = reactor();
    let channel = Channel::<u32>::new();
    let both = Rc::new(RefCell::new(Vec::new()));
    let (inside, calls) = (both.clone(), Rc::new(Cell::new(0)));
    let count = calls.clone();
    let first = channel.subscribe(&mut reactor, move |_, _| {
        count.set(count.get() + 1);
        inside.borrow_mut().clear();
    });
    let second = channel.subscribe(&mut reactor, |_, _| unreachable!("called after the first unsubscribed it"));
    both.borrow_mut().extend([first, second]);
    channel.publish(1).unwrap();
    channel.publish(2).unwrap();
    settle(&mut reactor);
    assert_eq!((calls.get(), channel.stats().subscribers), (1, 0));
}

#[test]
fn kept_subscription_stays_when_dropped() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let got = List::default();
    let list = got.clone();
    channel.subscribe(&mut reactor, move |_, value: u32| list.borrow_mut().push(value)).keep();
    channel.publish(1).unwrap();
    settle(&mut reactor);
    assert_eq!(got.take(), [1]);
}

#[test]
fn closing_delivers_queued_values_first() {
    let mut reactor = reactor();
    let channel = Channel::new();
    let (got, subscription) = listen(&mut reactor, &channel, 9, Overflow::Refuse);
    channel.publish(1).unwrap();
    assert!(channel.close() && !channel.close());
    assert_eq!(channel.publish(2), Err(PublishError::Closed(2)));
    assert!(!subscription.is_active());
    let (late, _late) = listen(&mut reactor, &channel, 9, Overflow::Refuse);
    settle(&mut reactor);
    let end = Delivery::Ended(SubscriptionEnd::Closed);
    assert_eq!((got.take(), late.take()), (vec![Delivery::Value(1), end], vec![end]));
}

#[test]
fn subscribers_are_notified_when_the_last_publisher_is_dropped() {
    let mut reactor = reactor();
    let channel = Channel::<u32>::new();
    let other = channel.clone();
    let (got, _subscription) = listen(&mut reactor, &channel, 9, Overflow::Refuse);
    drop(channel);
    settle(&mut reactor);
    assert_eq!(got.take(), []);
    drop(other);
    settle(&mut reactor);
    assert_eq!(got.take(), [Delivery::Ended(SubscriptionEnd::Closed)]);
}

#[test]
fn panicking_subscriber_is_reported_and_removed() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let channel = Channel::new();
    let bad = channel.subscribe(&mut reactor, |_, _: u32| panic!("on purpose"));
    let (got, _good) = listen(&mut reactor, &channel, 9, Overflow::Refuse);
    (1..=3).for_each(|value| assert_eq!(channel.publish(value), Ok(2)));
    settle(&mut reactor);
    assert_eq!((faults.get(), got.take()), (1, values(1..=3)));
    assert!(!bad.is_active());
    assert_eq!(channel.publish(4), Ok(1));
}

#[test]
fn dropped_reactor_drops_its_subscribers_and_their_values() {
    let alive = Alive::default();
    let channel = Channel::new();
    let mut gone = reactor();
    let dropped = Rc::new(Cell::new(false));
    let flag = DropFlag(dropped.clone());
    let subscription = channel.subscribe(&mut gone, move |_, _: Counted| {
        let _ = &flag;
    });
    channel.publish(Counted::new(&alive)).unwrap();
    drop(gone);
    assert!(dropped.get());
    assert_eq!((channel.stats().subscribers, alive.count()), (0, 0));
    assert_eq!(channel.publish(Counted::new(&alive)).unwrap(), 0);
    drop(subscription);
}

#[test]
fn cloning_a_value_may_use_the_channel() {
    struct Nosy(Channel<Nosy>);
    impl Clone for Nosy {
        fn clone(&self) -> Self {
            // This would deadlock if the channel were locked.
            assert_eq!(self.0.stats().subscribers, 2);
            Nosy(self.0.clone())
        }
    }
    let mut reactor = reactor();
    let channel = Channel::new();
    let calls = Rc::new(Cell::new(0));
    let _subscriptions = [calls.clone(), calls.clone()]
        .map(|calls| channel.subscribe(&mut reactor, move |_, _: Nosy| calls.set(calls.get() + 1)));
    assert_eq!(channel.publish(Nosy(channel.clone())).map_err(|_| ()), Ok(2));
    settle(&mut reactor);
    assert_eq!(calls.get(), 2);
    assert!(channel.close());
}

#[test]
fn remaining_subscribers_miss_nothing_while_others_come_and_go() {
    let mut reactor = reactor();
    let channel = Channel::<u64>::new();
    let sum = Rc::new(Cell::new(0));
    let total = sum.clone();
    let _steady = channel.subscribe(&mut reactor, move |_, value| total.set(total.get() + value));
    let over = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..2)
        .map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || {
                for value in 1..=2000 {
                    while channel.publish(value).is_err() {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let (done, waiting) = (over.clone(), reactor.handle());
    let joiner = std::thread::spawn(move || {
        publishers.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::SeqCst);
        let _ = waiting.post(|_| {});
    });
    while !over.load(Ordering::SeqCst) {
        let visitor = channel.subscribe(&mut reactor, |_, _| {});
        reactor.turn(Some(Duration::from_millis(1))).unwrap();
        drop(visitor);
    }
    joiner.join().unwrap();
    settle(&mut reactor);
    assert_eq!(sum.get(), 2 * 2000 * 2001 / 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    /// Whatever the policy, a subscriber gets values in order and at most once, and missed ones are counted.
    #[test]
    fn values_arrive_in_order_or_are_counted(
        capacities in prop::collection::vec((1..5_usize, 0..3_u8), 1..4),
        turns in prop::collection::vec(prop::bool::ANY, 0..60),
    ) {
        let mut reactor = reactor();
        let channel = Channel::new();
        let subscribers: Vec<_> = capacities
            .into_iter()
            .map(|(capacity, policy)| {
                let overflow = [Overflow::Refuse, Overflow::DropOldest, Overflow::DropNewest][usize::from(policy)];
                (overflow, listen(&mut reactor, &channel, capacity, overflow))
            })
            .collect();
        let mut published = Vec::new();
        for (value, turn) in (0_u32..).zip(turns) {
            if turn {
                reactor.turn(Some(Duration::ZERO)).unwrap();
            } else if channel.publish(value).is_ok() {
                published.push(value);
            }
        }
        settle(&mut reactor);
        for (overflow, (got, subscription)) in subscribers {
            let got: Vec<u32> = got
                .take()
                .into_iter()
                .filter_map(|delivery| match delivery {
                    Delivery::Value(value) => Some(value),
                    Delivery::Missed(_) | Delivery::Ended(_) => None,
                })
                .collect();
            prop_assert!(got.is_sorted_by(|one, other| one < other));
            prop_assert_eq!(got.len() as u64 + subscription.dropped(), published.len() as u64);
            prop_assert!(overflow != Overflow::Refuse || got == published);
            prop_assert!(overflow != Overflow::DropOldest || got.last() == published.last());
            prop_assert!(overflow != Overflow::DropNewest || got.first() == published.first());
        }
    }
}

#[allow(dead_code, reason = "it only has to compile")]
fn both_ends_may_be_sent_and_shared(ends: (Channel<Cell<u32>>, Subscription<Cell<u32>>)) -> impl Send + Sync {
    ends
}

#[test]
fn fault_names_the_place_of_the_subscription() {
    let mut reactor = catching();
    let place = Rc::new(Cell::new(0));
    let line = place.clone();
    reactor.on_fault(move |_: &mut Reactor, fault| line.set(fault.place.line()));
    let channel = Channel::new();
    let (_subscription, here) = (channel.subscribe(&mut reactor, |_, _: u32| panic!("on purpose")), line!());
    channel.publish(1).unwrap();
    settle(&mut reactor);
    assert_eq!(place.get(), here);
}
