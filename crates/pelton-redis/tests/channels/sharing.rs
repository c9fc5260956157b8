//! Values reach all processes, in order.

use std::cell::RefCell;
use std::rc::Rc;

use pelton::{Bytes, Channel, Delivery, Missed, PublishError, Reactor};
use pelton_redis::{Hub, Protocol};
use pelton_testing::{On, RedisServer, on_every_engine, run_until, run_with};
use serde::{Deserialize, Serialize};

use super::{gaps, hub, listen, options, values, wait_for_subscribers};

on_every_engine![values_reach_every_process_in_the_order_of_each_publisher];

fn values_reach_every_process_in_the_order_of_each_publisher(on: On) {
    const EACH: u32 = 300;
    let server = RedisServer::start(&[]);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut reactor = on.reactor();
        // Three processes that publish and subscribe.
        let channels: Vec<Channel<(u32, u32)>> = (0..3)
            .map(|_| Hub::open(&mut reactor, options(&server).protocol(protocol)).unwrap().channel("numbers"))
            .collect();
        let heard: Vec<_> = channels.iter().map(|channel| listen(&mut reactor, channel)).collect();
        run_with(&mut reactor, {
            let server = server.url();
            move || wait_for_topic(&server, 3)
        });
        let publishers = channels.clone();
        run_with(&mut reactor, move || {
            let threads = publishers.into_iter().enumerate().map(|(process, channel)| {
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        channel.publish((process as u32, number)).unwrap();
                    }
                })
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        });
        let all = 3 * EACH as usize;
        run_until(&mut reactor, |_| heard.iter().all(|(got, _)| got.borrow().len() >= all));
        let first = values(&heard[0].0);
        for (got, _) in &heard {
            assert_eq!(values(got), first, "all processes hear everything in one order");
        }
        for process in 0..3 {
            let own: Vec<u32> = first.iter().filter(|(from, _)| *from == process).map(|(_, number)| *number).collect();
            assert_eq!(own, (0..EACH).collect::<Vec<_>>());
        }
        assert_eq!((channels[0].stats().published, channels[0].stats().received), (300, 900));
    }
}

/// Waits until the topic `numbers` has this many subscribers.
fn wait_for_topic(url: &str, count: u32) {
    use std::io::{Read, Write};
    pelton_testing::eventually("the topic has its subscribers", || {
        let mut stream = std::os::unix::net::UnixStream::connect(url.strip_prefix("unix://")?).ok()?;
        stream.write_all(b"PUBSUB NUMSUB numbers\r\n").ok()?;
        let mut answer = [0; 100];
        let length = stream.read(&mut answer).ok()?;
        answer[..length].ends_with(format!(":{count}\r\n").as_bytes()).then_some(())
    });
}

#[test]
fn program_hears_what_it_publishes_right_after_it_has_subscribed() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let hub = hub(&mut reactor, &server);
    for round in 0..20 {
        let channel: Channel<u32> = hub.channel(format!("topic{round}"));
        let (got, _subscription) = listen(&mut reactor, &channel);
        for number in 0..5 {
            assert_eq!(channel.publish(number), Ok(1));
        }
        run_until(&mut reactor, |_| got.borrow().len() == 5);
        assert_eq!(values(&got), [0, 1, 2, 3, 4]);
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Order {
    name: String,
    amount: Option<u32>,
}

#[test]
fn types_and_bytes_are_shared_with_other_programs() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let hub = hub(&mut reactor, &server);
    let (orders, raw): (Channel<Order>, _) = (hub.channel("orders"), hub.bytes_channel("orders"));
    let (typed, _first) = listen(&mut reactor, &orders);
    let (bytes, _second) = listen(&mut reactor, &raw);
    let order = Order { name: "tea\r\n".into(), amount: Some(3) };
    orders.publish(order.clone()).unwrap();
    raw.publish(Bytes::from_static(br#"{"name":"milk"}"#)).unwrap();
    raw.publish(Bytes::from_static(b"\0\xff not JSON")).unwrap();
    run_until(&mut reactor, |_| bytes.borrow().len() == 3);
    // Another program, that has no idea of this library.
    assert!(server.tell(r#"PUBLISH orders '{"name":"rice","amount":null}'"#).starts_with(":1"));
    run_until(&mut reactor, |_| bytes.borrow().len() == 4 && typed.borrow().len() == 4);
    let milk = Order { name: "milk".into(), amount: None };
    let rice = Order { name: "rice".into(), amount: None };
    let unreadable = Delivery::Missed(Missed::Unreadable);
    assert_eq!(*typed.borrow(), [Delivery::Value(order), Delivery::Value(milk), unreadable, Delivery::Value(rice)]);
    assert_eq!(values(&bytes)[0], br#"{"name":"tea\r\n","amount":3}"#[..]);
    assert_eq!(gaps(&bytes), []);
}

#[test]
fn value_that_cannot_be_encoded_is_returned() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    // Keys of JSON objects are strings.
    let channel: Channel<std::collections::BTreeMap<Vec<u8>, u8>> = hub(&mut reactor, &server).channel("maps");
    let value = std::collections::BTreeMap::from([(vec![1], 1)]);
    let Err(PublishError::Unsuitable { value: back, reason }) = channel.publish(value.clone()) else { panic!() };
    assert_eq!(back, value);
    assert!(reason.contains("key"), "{reason}");
    assert_eq!(channel.stats().refused, 1);
}

#[test]
fn last_subscriber_to_leave_unsubscribes_and_the_next_one_subscribes_again() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let hub = hub(&mut reactor, &server);
    let (one, other): (Channel<u32>, Channel<u32>) = (hub.channel("topic"), hub.channel("topic"));
    let (_, first) = listen(&mut reactor, &one);
    let (_, second) = listen(&mut reactor, &other);
    let wait = |reactor: &mut pelton::EventLoop, count| {
        let server = server.url();
        run_with(reactor, move || {
            pelton_testing::eventually("the count", || {
                use std::io::{Read, Write};
                let path = server.strip_prefix("unix://")?;
                let mut stream = std::os::unix::net::UnixStream::connect(path).ok()?;
                stream.write_all(b"PUBSUB NUMSUB topic\r\n").ok()?;
                let mut answer = [0; 100];
                let length = stream.read(&mut answer).ok()?;
                answer[..length].ends_with(format!(":{count}\r\n").as_bytes()).then_some(())
            });
        });
    };
    wait(&mut reactor, 1);
    drop(first);
    one.publish(1).unwrap();
    run_until(&mut reactor, |_| second.waiting() == 0 && other.stats().received == 1);
    drop(second);
    wait(&mut reactor, 0);
    // Off and on again, faster than the server answers.
    for _ in 0..10 {
        drop(listen(&mut reactor, &one));
    }
    let (got, third) = listen(&mut reactor, &one);
    one.publish(2).unwrap();
    run_until(&mut reactor, |_| values(&got) == [2]);
    // Closing ends the subscription here, and unsubscribes.
    one.close();
    run_until(&mut reactor, |_| got.borrow().len() == 2);
    assert!(!third.is_active());
    assert_eq!(one.publish(3), Err(PublishError::Closed(3)));
    wait(&mut reactor, 0);
}

#[test]
fn dropping_everything_closes_the_connections() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let hub = hub(&mut reactor, &server);
    let channel: Channel<u32> = hub.channel("topic");
    let (got, subscription) = listen(&mut reactor, &channel);
    drop(hub);
    channel.publish(1).unwrap();
    run_until(&mut reactor, |_| values(&got) == [1]);
    drop((channel, subscription));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

#[test]
fn channels_without_a_loop_share_one_in_the_background() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let one = pelton_redis::channel::<String>(&server.url(), "words").unwrap();
    let other = pelton_redis::channel::<String>(&server.url(), "words").unwrap();
    let (got, _subscription) = listen(&mut reactor, &one);
    // A second subscriber, on another thread and loop.
    let remote = other.clone();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut reactor = Reactor::new().unwrap();
        let heard = Rc::new(RefCell::new(None));
        let word = heard.clone();
        let _subscription = remote.subscribe(&mut reactor, move |reactor, text| {
            *word.borrow_mut() = Some(text);
            reactor.stop();
        });
        ready.send(()).unwrap();
        pelton_testing::run(&mut reactor);
        heard.take()
    });
    is_ready.recv().unwrap();
    wait_for_subscribers(&server, "words", 1);
    other.publish("hello".to_owned()).unwrap();
    run_until(&mut reactor, |_| values(&got) == ["hello"]);
    assert_eq!(thread.join().unwrap().as_deref(), Some("hello"));
    // One connection that publishes, one that is subscribed, and the one that asks.
    assert_eq!(server.tell("CLIENT LIST").matches("id=").count(), 3);
    assert!(pelton_redis::channel::<String>("nonsense", "words").is_err());
}

#[test]
fn hub_on_a_stopped_loop_refuses_values() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let channel: Channel<u32> = hub(&mut reactor, &server).channel("topic");
    reactor.stop();
    pelton_testing::run(&mut reactor);
    assert_eq!(channel.publish(1), Err(PublishError::Closed(1)));
    drop(reactor);
    assert_eq!(channel.publish(2), Err(PublishError::Closed(2)));
}
