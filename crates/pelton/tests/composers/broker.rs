//! Channels through a broker, here one in memory that a test controls.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::reactor;
use pelton::{
    Broker, Channel, Delivery, Inlet, Missed, Overflow, PublishError, Reactor, SubscribeOptions, Subscription,
    SubscriptionEnd,
};
use pelton_testing::{Alive, Counted, poll};

/// What a test sees of its broker.
#[derive(Clone, Default)]
struct Wire {
    sent: Arc<Mutex<Vec<u32>>>,
    changes: Arc<AtomicUsize>,
}

struct Memory(Wire);

impl Broker<u32> for Memory {
    fn publish(&self, value: u32) -> Result<(), PublishError<u32>> {
        match value {
            13 => Err(PublishError::Unsuitable { value, reason: "it is unlucky".into() }),
            14 => Err(PublishError::Full(value)),
            _ => {
                self.0.sent.lock().unwrap().push(value);
                Ok(())
            }
        }
    }

    fn subscribers_changed(&self) {
        self.0.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn lost(&self) -> u64 {
        5
    }
}

fn channel() -> (Channel<u32>, Inlet<u32>, Wire) {
    let wire = Wire::default();
    let mut kept = None;
    let channel = Channel::through(|inlet| {
        kept = Some(inlet);
        Memory(wire.clone())
    });
    (channel, kept.unwrap(), wire)
}

type Got = Rc<RefCell<Vec<Delivery<u32>>>>;

fn listen(reactor: &mut Reactor, channel: &Channel<u32>, overflow: Overflow) -> (Got, Subscription<u32>) {
    let got = Got::default();
    let list = got.clone();
    let options = SubscribeOptions { capacity: 2, overflow };
    (got, channel.subscribe_with(reactor, options, move |_, delivery| list.borrow_mut().push(delivery)))
}

const VALUE: fn(u32) -> Delivery<u32> = Delivery::Value;

#[test]
fn values_go_to_the_broker_and_come_from_the_inlet() {
    let mut reactor = reactor();
    let (channel, inlet, wire) = channel();
    let (got, _subscription) = listen(&mut reactor, &channel, Overflow::Refuse);
    assert_eq!(channel.publish(1), Ok(1));
    poll(&mut reactor);
    assert_eq!((&*wire.sent.lock().unwrap(), got.borrow().len()), (&vec![1], 0));
    assert_eq!(inlet.deliver(2), 1);
    poll(&mut reactor);
    assert_eq!(got.take(), [VALUE(2)]);
    assert_eq!(channel.publish(14), Err(PublishError::Full(14)));
    let unlucky = channel.publish(13).unwrap_err();
    assert_eq!(unlucky.to_string(), "publish to a channel: it is unlucky");
    assert_eq!(unlucky.into_inner(), 13);
    let stats = channel.stats();
    assert_eq!((stats.published, stats.received, stats.refused, stats.lost), (1, 1, 2, 5));
    channel.close();
    assert_eq!(channel.publish(3), Err(PublishError::Closed(3)));
    assert_eq!(inlet.deliver(4), 0);
    poll(&mut reactor);
    assert_eq!(got.take(), [Delivery::Ended(SubscriptionEnd::Closed)]);
}

#[test]
fn gaps_are_in_the_order_of_values_and_merged_when_they_follow_each_other() {
    let mut reactor = reactor();
    let (channel, inlet, _) = channel();
    let (got, _subscription) = listen(&mut reactor, &channel, Overflow::DropOldest);
    inlet.deliver(1);
    inlet.missed(Missed::Unreadable);
    inlet.missed(Missed::Unreadable);
    inlet.deliver(2);
    poll(&mut reactor);
    // The inbox holds two, so the oldest value was dropped. The gap was not.
    assert_eq!(got.take(), [Delivery::Missed(Missed::Unreadable), VALUE(2)]);
    // Two different gaps without a value between them are one of any length.
    inlet.missed(Missed::Unreadable);
    inlet.deliver(3);
    inlet.missed(Missed::Overflowed(7));
    inlet.deliver(4);
    poll(&mut reactor);
    assert_eq!(got.take(), [Delivery::Missed(Missed::Interrupted), VALUE(4)]);
    assert_eq!(channel.stats().gaps, 4);
}

#[test]
fn full_inbox_that_refuses_publishers_tells_of_values_from_a_broker() {
    let mut reactor = reactor();
    let (channel, inlet, _) = channel();
    let (got, subscription) = listen(&mut reactor, &channel, Overflow::Refuse);
    for value in 0..10 {
        inlet.deliver(value);
    }
    assert_eq!(subscription.waiting(), 3, "two values and a gap");
    poll(&mut reactor);
    assert_eq!(got.take(), [VALUE(0), VALUE(1), Delivery::Missed(Missed::Overflowed(8))]);
    inlet.deliver(10);
    poll(&mut reactor);
    assert_eq!(got.take(), [VALUE(10)]);
    assert_eq!(subscription.dropped(), 8);
}

#[test]
fn gaps_of_all_kinds_take_a_bounded_room() {
    let mut reactor = reactor();
    let (channel, inlet, _) = channel();
    for overflow in [Overflow::Refuse, Overflow::DropOldest, Overflow::DropNewest] {
        let (got, subscription) = listen(&mut reactor, &channel, overflow);
        for value in 0..100 {
            inlet.deliver(value);
            inlet.missed(if value % 2 == 0 { Missed::Interrupted } else { Missed::Unreadable });
            // Two values, with gaps around them.
            assert!(subscription.waiting() <= 5, "{overflow:?}: {}", subscription.waiting());
        }
        poll(&mut reactor);
        let gaps = got.borrow().iter().filter(|delivery| matches!(delivery, Delivery::Missed(_))).count();
        assert!(gaps > 0, "{overflow:?}: {got:?}");
    }
}

#[test]
fn broker_learns_of_subscribers_that_come_and_go() {
    let mut reactor = reactor();
    let (channel, inlet, wire) = channel();
    let changes = || wire.changes.swap(0, Ordering::Relaxed);
    assert!(!inlet.is_wanted());
    let (_, first) = listen(&mut reactor, &channel, Overflow::Disconnect);
    assert!(inlet.is_wanted() && changes() == 1);
    let (_, second) = listen(&mut reactor, &channel, Overflow::Refuse);
    drop(second);
    assert!(inlet.is_wanted() && changes() == 2);
    // The first one overflows and is disconnected.
    for value in 0..3 {
        inlet.deliver(value);
    }
    assert!(!inlet.is_wanted() && changes() == 1);
    drop(first);
    let (_, third) = listen(&mut reactor, &channel, Overflow::Refuse);
    changes();
    channel.close();
    assert!(!inlet.is_wanted() && changes() == 1);
    drop(third);
    assert_eq!(changes(), 0);
}

#[test]
fn inlet_keeps_neither_channel_nor_broker_alive() {
    struct Nothing(#[expect(dead_code, reason = "dropped with the broker")] Counted);
    impl Broker<u32> for Nothing {
        fn publish(&self, _: u32) -> Result<(), PublishError<u32>> {
            Ok(())
        }
    }
    let alive = Alive::default();
    let mut kept = None;
    let channel = Channel::through(|inlet| {
        kept = Some(inlet);
        Nothing(Counted::new(&alive))
    });
    assert_eq!(channel.publish(1), Ok(0));
    drop(channel);
    assert_eq!(alive.count(), 0);
    assert!(!kept.unwrap().is_wanted());
}
