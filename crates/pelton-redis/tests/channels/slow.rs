//! Slow subscribers and slow servers: everything is bounded.

use std::time::Duration;

use pelton::{Channel, Delivery, Missed, Overflow, PublishError, Reactor, SubscribeOptions, SubscriptionEnd};
use pelton_redis::Hub;
use pelton_testing::{RedisServer, run_until};

use super::{hub, listen, listen_with, options, pass_time, values};

#[test]
fn each_policy_bounds_the_inbox_and_refuse_tells_of_the_gap() {
    let server = RedisServer::start(&[]);
    let mut publishing = Reactor::new().unwrap();
    let mut slow = Reactor::new().unwrap();
    let channel: Channel<u32> = hub(&mut publishing, &server).channel("numbers");
    let policies = [Overflow::Refuse, Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect];
    // Their loop does not turn.
    let subscribers = policies.map(|overflow| {
        let options = SubscribeOptions { capacity: 3, overflow };
        listen_with(&mut slow, &channel, options)
    });
    for number in 0..10 {
        channel.publish(number).unwrap();
    }
    run_until(&mut publishing, |_| channel.stats().received == 10);
    assert!(subscribers.iter().all(|(_, subscription)| subscription.waiting() <= 4));
    run_until(&mut slow, |_| subscribers.iter().all(|(got, _)| got.borrow().len() >= 3));
    pelton_testing::poll(&mut slow);
    let value = Delivery::Value;
    let got = subscribers.each_ref().map(|(got, _)| got.take());
    assert_eq!(got[0], [value(0), value(1), value(2), Delivery::Missed(Missed::Overflowed(7))]);
    assert_eq!(got[1], [value(7), value(8), value(9)]);
    assert_eq!(got[2], [value(0), value(1), value(2)]);
    assert_eq!(got[3], [value(0), value(1), value(2), Delivery::Ended(SubscriptionEnd::Overflowed)]);
    assert_eq!(subscribers.each_ref().map(|(_, subscription)| subscription.dropped()), [7, 7, 7, 1]);
    // The gap is over.
    channel.publish(10).unwrap();
    run_until(&mut publishing, |_| channel.stats().received == 11);
    run_until(&mut slow, |_| *subscribers[0].0.borrow() == [value(10)]);
}

#[test]
fn publishers_are_refused_when_too_much_waits_for_the_server() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let hub = Hub::open(&mut reactor, options(&server).in_flight(10).queued_bytes(1000)).unwrap();
    let channel: Channel<String> = hub.channel("words");
    let (got, _subscription) = listen(&mut reactor, &channel);
    for number in 0..10 {
        channel.publish(number.to_string()).unwrap();
    }
    assert_eq!(channel.publish("more".into()), Err(PublishError::Full("more".into())));
    assert_eq!(hub.stats().waiting, 10);
    run_until(&mut reactor, |_| got.borrow().len() == 10 && hub.stats().waiting == 0);
    assert!(matches!(channel.publish("x".repeat(2000)), Err(PublishError::Full(_))));
    channel.publish("again".into()).unwrap();
    run_until(&mut reactor, |_| got.borrow().len() == 11);
    assert_eq!(values(&got)[10], "again");
    let stats = channel.stats();
    assert_eq!((stats.published, stats.refused, stats.lost), (11, 2, 0));
}

#[test]
fn frozen_server_bounds_the_queue_and_tells_of_the_loss() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let limit = Duration::from_millis(300);
    let options = options(&server).in_flight(100).time_limit(limit).heartbeat(limit).connect_limit(limit);
    let channel: Channel<u32> = Hub::open(&mut reactor, options).unwrap().channel("numbers");
    let (got, _subscription) = listen(&mut reactor, &channel);
    channel.publish(0).unwrap();
    run_until(&mut reactor, |_| values(&got) == [0]);
    server.freeze();
    let accepted = (0..1000).filter(|number| channel.publish(*number).is_ok()).count();
    assert_eq!(accepted, 100);
    run_until(&mut reactor, |_| channel.stats().lost == 100);
    // A ping is due after one heartbeat and its answer after another.
    pass_time(&mut reactor, 4 * limit);
    server.thaw();
    // The subscriber's connection was given up, so there is a gap. Afterwards everything works.
    run_until(&mut reactor, |_| got.borrow().contains(&Delivery::Missed(Missed::Interrupted)));
    channel.publish(7777).unwrap();
    run_until(&mut reactor, |_| values(&got).last() == Some(&7777));
}
