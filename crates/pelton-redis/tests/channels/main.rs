//! Channels over a real server: several processes are played by several hubs, on loops of their own.

mod faults;
mod sharing;
mod slow;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, Channel, Delivery, EventLoop, Missed, Reactor, SubscribeOptions, Subscription};
use pelton_redis::{Hub, Options};
use pelton_testing::{RedisServer, eventually, run_until};

/// What a subscriber has got.
type Got<T> = Rc<RefCell<Vec<Delivery<T>>>>;

fn options(server: &RedisServer) -> Options {
    let backoff = Backoff::default().start(Duration::from_millis(1)).most(Duration::from_millis(20));
    let options: Options = server.url().parse().unwrap();
    options.backoff(backoff).time_limit(Duration::from_secs(15)).connect_limit(Duration::from_secs(15))
}

fn hub(reactor: &mut Reactor, server: &RedisServer) -> Hub {
    Hub::open(reactor, options(server)).unwrap()
}

fn listen<T: 'static>(reactor: &mut Reactor, channel: &Channel<T>) -> (Got<T>, Subscription<T>) {
    listen_with(reactor, channel, SubscribeOptions::default())
}

fn listen_with<T: 'static>(
    reactor: &mut Reactor,
    channel: &Channel<T>,
    options: SubscribeOptions,
) -> (Got<T>, Subscription<T>) {
    let got = Got::default();
    let list = got.clone();
    let subscription = channel.subscribe_with(reactor, options, move |_, delivery| list.borrow_mut().push(delivery));
    (got, subscription)
}

fn values<T: Clone>(got: &Got<T>) -> Vec<T> {
    let value = |delivery: &Delivery<T>| match delivery {
        Delivery::Value(value) => Some(value.clone()),
        _ => None,
    };
    got.borrow().iter().filter_map(value).collect()
}

fn gaps<T>(got: &Got<T>) -> Vec<Missed> {
    let gap = |delivery: &Delivery<T>| match delivery {
        Delivery::Missed(missed) => Some(*missed),
        _ => None,
    };
    got.borrow().iter().filter_map(gap).collect()
}

/// Waits until the server has this many subscribers of a topic.
fn wait_for_subscribers(server: &RedisServer, topic: &str, count: u32) {
    eventually("the server has the subscribers", || {
        server.tell(&format!("PUBSUB NUMSUB {topic}")).ends_with(&format!(":{count}\r\n")).then_some(())
    });
}

/// Runs the loop for this long, for things that must not happen, or that need time.
fn pass_time(reactor: &mut EventLoop, time: Duration) {
    let over = Rc::new(std::cell::Cell::new(false));
    let flag = over.clone();
    reactor.after(time, move |_| flag.set(true));
    run_until(reactor, |_| over.get());
}
