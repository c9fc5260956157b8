//! A failover by Sentinel, and Sentinels that lie.

use std::time::Duration;

use pelton::{Channel, Delivery, Missed, Reactor};
use pelton_redis::{Command, Error, Hub, Options};
use pelton_testing::{RedisNode as Node, eventually, run_until, run_with};

use super::{ask, open, ping, quick};

#[test]
fn failover_by_sentinel_is_an_outage_after_which_the_new_master_is_used() {
    let (mut master, replica, sentinel) = Node::start_sentinel("client");
    // The first Sentinel does not exist. The second one is asked next.
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/tests", sentinel.port);
    let options = quick(url.parse().unwrap());
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options.clone());
    let channel: Channel<u32> = Hub::open(&mut reactor, options).unwrap().channel("numbers");
    let heard = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let list = heard.clone();
    let subscribing = pelton::SubscribeOptions::default();
    let _subscription =
        channel.subscribe_with(&mut reactor, subscribing, move |_, delivery| list.borrow_mut().push(delivery));
    let incr = || Command::new("INCR").arg("n");
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(1));
    // The first attempt, at the Sentinel that does not exist, was an outage.
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Missed(Missed::Interrupted)));
    channel.publish(1).unwrap();
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Value(1)));
    // The replica has it, so that the failover loses nothing here. (It may: replication is asynchronous.)
    assert_eq!(ask::<i64>(&mut reactor, &redis, Command::new("WAIT").arg(1).arg(5000)), Ok(1));

    let failover = master.port;
    master.kill();
    let new = sentinel.port;
    run_with(&mut reactor, move || {
        eventually("another master is elected", || {
            let address = Node::tell_port(new, "SENTINEL get-master-addr-by-name tests")?;
            (!address.contains(&failover.to_string())).then_some(())
        });
    });
    run_until(&mut reactor, |_| redis.stats().connected);
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(2));
    assert!(redis.stats().connects >= 2);
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Missed(Missed::Interrupted)));
    channel.publish(2).unwrap();
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Value(2)));

    // The master is made a replica while the connection stays: a write notices.
    replica.tell("REPLICAOF 127.0.0.1 1");
    let outages = redis.stats().outages;
    let answer = ask::<i64>(&mut reactor, &redis, incr());
    assert!(matches!(&answer, Err(Error::Server(error)) if error.code() == "READONLY"), "{answer:?}");
    run_until(&mut reactor, |_| redis.stats().outages > outages);
    replica.tell("REPLICAOF NO ONE");
    run_until(&mut reactor, |_| redis.stats().connected);
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(3));
}

#[test]
fn sentinels_that_lie_or_know_nothing_make_commands_fail_in_time() {
    let lies: [&'static [u8]; 7] =
        [b"*-1\r\n", b"-ERR no\r\n", b"*1\r\n+x\r\n", b":7\r\n", b"nonsense\r\n", b"", b"*2\r\n+127.0.0.1\r\n+1\r\n"];
    for lie in lies {
        let mut reactor = Reactor::new().unwrap();
        let options = quick(Options::sentinels(super::liars::liar(lie), [], "name"));
        let redis = open(&mut reactor, options.time_limit(Duration::from_millis(200)));
        let answer = ask::<()>(&mut reactor, &redis, ping());
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{}: {answer:?}", lie.escape_ascii());
        assert!(redis.stats().outages > 0);
    }
}
