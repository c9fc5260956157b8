//! Interruptions are told, and nothing is doubled or reordered.

use std::time::Duration;

use pelton::{Channel, Delivery, Missed, Reactor};
use pelton_redis::{Hub, Protocol};
use pelton_testing::{RedisServer, run_until};

use super::{gaps, hub, listen, options, pass_time, values};

#[test]
fn killed_server_is_a_gap_in_the_order_of_values() {
    let mut server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let channel: Channel<u32> = hub(&mut reactor, &server).channel("numbers");
    let (got, _subscription) = listen(&mut reactor, &channel);
    channel.publish(1).unwrap();
    run_until(&mut reactor, |_| values(&got) == [1]);
    server.kill();
    server.restart();
    run_until(&mut reactor, |_| got.borrow().len() == 2);
    channel.publish(2).unwrap();
    run_until(&mut reactor, |_| got.borrow().len() == 3);
    let interrupted = Delivery::Missed(Missed::Interrupted);
    assert_eq!(*got.borrow(), [Delivery::Value(1), interrupted, Delivery::Value(2)]);
    assert_eq!(channel.stats().gaps, 1);
}

#[test]
fn server_that_is_not_there_yet_is_a_gap_too() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let mut reactor = Reactor::new().unwrap();
    let channel: Channel<u32> = hub(&mut reactor, &server).channel("numbers");
    let (got, _subscription) = listen(&mut reactor, &channel);
    // It waits for the server, like every command. Which connection is made first decides whether it is heard.
    channel.publish(1).unwrap();
    pelton_testing::poll(&mut reactor);
    server.restart();
    run_until(&mut reactor, |_| gaps(&got) == [Missed::Interrupted]);
    channel.publish(2).unwrap();
    run_until(&mut reactor, |_| values(&got).last() == Some(&2));
}

#[test]
fn connections_that_are_killed_at_random_lose_values_and_never_double_or_reorder_them() {
    const VALUES: u32 = 3000;
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    // One process publishes, two listen.
    let publisher: Channel<u32> = hub(&mut reactor, &server).channel("numbers");
    let listeners: Vec<Channel<u32>> = (0..2).map(|_| hub(&mut reactor, &server).channel("numbers")).collect();
    let heard: Vec<_> = listeners.iter().map(|channel| listen(&mut reactor, channel)).collect();
    // Each hears its own value when it is subscribed.
    for (channel, (got, _)) in listeners.iter().zip(&heard) {
        channel.publish(0).unwrap();
        run_until(&mut reactor, |_| !got.borrow().is_empty());
    }
    let mut random = fastrand::Rng::with_seed(7);
    for number in 1..=VALUES {
        publisher.publish(number).unwrap();
        if number % 500 == 250 {
            let kind = if random.bool() { "normal" } else { "pubsub" };
            server.tell(&format!("CLIENT KILL TYPE {kind}"));
        }
        pelton_testing::poll(&mut reactor);
    }
    // Until everybody is connected again and hears the last values.
    let last = std::cell::Cell::new(VALUES);
    run_until(&mut reactor, |_| {
        let done = heard.iter().all(|(got, _)| values(got).last().is_some_and(|value| *value > VALUES));
        if !done {
            last.set(last.get() + 1);
            let _ = publisher.publish(last.get());
        }
        done
    });
    for (got, _) in &heard {
        let values = values(got);
        let numbers: Vec<u32> = values.iter().copied().filter(|value| *value > 0).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "doubled or reordered");
        // What is missing without a gap that was told is what the publisher knows to be lost.
        let missing = (VALUES as usize).saturating_sub(numbers.iter().filter(|value| **value <= VALUES).count());
        let lost = publisher.stats().lost as usize;
        assert!(
            missing <= lost || !gaps(got).is_empty(),
            "{missing} are missing, and only {lost} are known to be lost"
        );
    }
}

#[test]
fn silent_connection_is_noticed_by_the_heartbeat() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let options = options(&server).heartbeat(Duration::from_millis(50));
    let channel: Channel<u32> = Hub::open(&mut reactor, &options).unwrap().channel("numbers");
    let (got, _subscription) = listen(&mut reactor, &channel);
    let old: Channel<u32> = Hub::open(&mut reactor, options.protocol(Protocol::Resp2)).unwrap().channel("numbers");
    let (also, _old_subscription) = listen(&mut reactor, &old);
    old.publish(1).unwrap();
    run_until(&mut reactor, |_| values(&got) == [1] && values(&also) == [1]);
    // Pings are answered, in both versions of the protocol, so nothing happens to an idle connection.
    pass_time(&mut reactor, Duration::from_millis(500));
    assert_eq!((gaps(&got), gaps(&also)), (vec![], vec![]));
    server.freeze();
    pass_time(&mut reactor, Duration::from_millis(300));
    server.thaw();
    run_until(&mut reactor, |_| [&got, &also].iter().all(|got| gaps(got) == [Missed::Interrupted]));
}

#[test]
fn subscription_that_the_server_denies_is_told() {
    let user = ["--user", "ana", "on", ">secret", "~*", "&public", "+@all"];
    let server = RedisServer::start(&user);
    let mut reactor = Reactor::new().unwrap();
    let hub = Hub::open(&mut reactor, options(&server).user("ana", "secret")).unwrap();
    let (public, private): (Channel<u32>, Channel<u32>) = (hub.channel("public"), hub.channel("private"));
    let (denied, _first) = listen(&mut reactor, &private);
    let (allowed, _second) = listen(&mut reactor, &public);
    public.publish(1).unwrap();
    private.publish(1).unwrap();
    run_until(&mut reactor, |_| values(&allowed) == [1] && private.stats().lost == 1);
    assert_eq!(*denied.borrow(), [Delivery::Missed(Missed::Denied)]);
}
