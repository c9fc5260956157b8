//! Replies are sent in order, regardless of which thread answers, and how.

use std::thread;
use std::time::Duration;

use pelton::codec::Lines;
use pelton::{ActorRef, Lane, Pool, Protocol, Reason, Replies, ReplySlot, Service, serve, task};
use pelton_testing::{On, on_every_engine, run_with};

use super::{Client, address_of, clerks, pool, soon};

on_every_engine![
    replies_are_sent_in_order_regardless_of_who_answers_first,
    replies_are_sent_in_order_regardless_of_who_answers_first_on_a_pool,
    messages_can_be_answered_in_every_way,
    messages_can_be_answered_by_workers_and_actors,
    push_overtakes_pending_replies,
];

fn answers_come_in_order(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("now\nlater 1\nlater 2\nslot 3\nlast\n");
        let (_, first) = soon(&desk.slots);
        let (_, second) = soon(&desk.slots);
        let (_, third) = soon(&desk.slots);
        // Earlier replies are not delayed.
        assert_eq!(client.lines(2), ["now", "asked later 1"]);
        third.send_all([]);
        second.send_all(["two".to_owned(), "too".to_owned()]);
        first.send("one".to_owned());
        assert_eq!(client.lines(7), ["one", "next", "asked later 2", "two", "too", "next", "last"]);
        client.send("again\n");
        assert_eq!(client.line(), "again");
    });
}

fn replies_are_sent_in_order_regardless_of_who_answers_first(on: On) {
    answers_come_in_order(on, None);
}

fn replies_are_sent_in_order_regardless_of_who_answers_first_on_a_pool(on: On) {
    answers_come_in_order(on, Some(&pool()));
}

/// Each message names the way it is answered.
struct Ways {
    pool: Pool,
    actor: ActorRef<ReplySlot<String>>,
}

impl Ways {
    fn new() -> Ways {
        let pool = pool();
        let mut count = 0;
        let actor = pool.spawn_fn(move |slot: ReplySlot<String>, _| {
            count += 1;
            slot.send(format!("actor {count}"));
        });
        Ways { pool, actor }
    }
}

impl Protocol for Ways {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        if line == "now" {
            return replies.send(line);
        }
        let slot = replies.later();
        if line == "actor" {
            return drop(self.actor.send(slot));
        }
        if line == "thread" {
            return drop(thread::spawn(move || slot.send(line)));
        }
        let Some(reactor) = replies.reactor() else { return slot.send(format!("{line}: not on a loop")) };
        match line.as_str() {
            "timer" => drop(reactor.after(Duration::from_millis(3), move |_| slot.send(line))),
            "tick" => reactor.next_tick(move |_| slot.send(line)),
            "deferred" => drop(reactor.defer(Lane::Cpu, move || slot.send(line), |_, _| {})),
            "promise" => {
                let (deferred, promise) = reactor.promise::<String, String>();
                reactor.after(Duration::from_millis(2), move |_| drop(deferred.resolve(line)));
                slot.resolve_with(reactor, promise.map(|line| line + " kept"));
            }
            "task" => slot.spawn(reactor, async move {
                task::sleep(Duration::from_millis(1)).await;
                line
            }),
            other => slot.send(format!("{other}?")),
        }
    }

    fn closed(&mut self, _: &Reason) {
        let _ = &self.pool;
    }
}

fn messages_can_be_answered_in_every_way(on: On) {
    let mut reactor = on.reactor();
    let listener = reactor.listen("127.0.0.1:0", serve(Lines::new, Ways::new)).unwrap();
    let address = address_of(&reactor, listener);
    let answers = run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("timer\nthread\nnow\npromise\nactor\ntick\ntask\nactor\ndeferred\nnow\n");
        client.lines(10)
    });
    let expected = ["timer", "thread", "now", "promise kept", "actor 1", "tick", "task", "actor 2", "deferred", "now"];
    assert_eq!(answers, expected);
}

fn messages_can_be_answered_by_workers_and_actors(on: On) {
    let mut reactor = on.reactor();
    let pool = pool();
    let service = serve(Lines::new, Ways::new).on(&pool);
    let listener = reactor.listen("127.0.0.1:0", service).unwrap();
    let address = address_of(&reactor, listener);
    let answers = run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("thread\nnow\nactor\ntimer\nactor\nnow\n");
        client.lines(6)
    });
    assert_eq!(answers, ["thread", "now", "actor 1", "timer: not on a loop", "actor 2", "now"]);
}

fn push_overtakes_pending_replies(on: On) {
    let (mut reactor, address, desk) = clerks(on, None, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("slot\nsecond\n");
        let (_, slot) = soon(&desk.slots);
        soon(&desk.peers).push("news".to_owned()).unwrap();
        assert_eq!(client.line(), "news");
        slot.send("first".to_owned());
        assert_eq!(client.lines(2), ["first", "second"]);
    });
}
