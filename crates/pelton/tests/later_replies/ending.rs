//! Dropped slots, closing, draining and connections that end before their replies.

use std::cell::RefCell;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use pelton::codec::Lines;
use pelton::{Deferred, Pool, Protocol, Reactor, Replies, ReplySlot, serve};
use pelton_testing::{Log, On, on_every_engine, run_until, run_with};

use super::{Client, address_of, clerks, pool, soon};

on_every_engine![
    dropped_slot_closes_after_earlier_replies,
    dropped_slot_closes_after_earlier_replies_on_a_pool,
    closing_waits_for_pending_replies,
    closing_waits_for_pending_replies_on_a_pool,
    a_frame_error_waits_for_pending_replies,
    draining_waits_for_pending_replies,
    draining_does_not_wait_for_a_paused_protocol,
    end_of_the_connection_is_visible_to_pending_answers,
    a_rejected_promise_is_reported_and_closes,
];

fn dropping_closes(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("slot 1\nslot 2\nafter\n");
        let (_, first) = soon(&desk.slots);
        drop(soon(&desk.slots));
        first.send("first".to_owned());
        assert_eq!(client.rest(), "first\n");
        assert_eq!(soon(&desk.closed), "a message was not answered");
    });
}

fn dropped_slot_closes_after_earlier_replies(on: On) {
    dropping_closes(on, None);
}

fn dropped_slot_closes_after_earlier_replies_on_a_pool(on: On) {
    dropping_closes(on, Some(&pool()));
}

fn closing_waits(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        // The protocol closes.
        let mut client = Client::new(address);
        client.send("slot\nquit\nnever\n");
        let (_, slot) = soon(&desk.slots);
        client.send("never\n");
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nquit\n");
        assert_eq!(desk.processed.swap(0, Ordering::SeqCst), 2);
        soon(&desk.closed);

        // The other side finishes.
        let mut client = Client::new(address);
        client.send("slot\nsecond\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        let (_, slot) = soon(&desk.slots);
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nsecond\n");
        assert_eq!(soon(&desk.closed), "finished by the other side");

        // A peer handle closes the connection.
        let _ = (soon(&desk.peers), soon(&desk.peers));
        let mut client = Client::new(address);
        client.send("slot\nsecond\n");
        let (_, slot) = soon(&desk.slots);
        soon(&desk.peers).close_after_writing();
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nsecond\n");
    });
}

fn closing_waits_for_pending_replies(on: On) {
    closing_waits(on, None);
}

fn closing_waits_for_pending_replies_on_a_pool(on: On) {
    closing_waits(on, Some(&pool()));
}

fn a_frame_error_waits_for_pending_replies(on: On) {
    let (mut reactor, address, desk) = clerks(on, None, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("slot\nsecond\nunfinished");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        let (_, slot) = soon(&desk.slots);
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nsecond\n");
        assert_eq!(soon(&desk.closed), "the input ended 10 bytes into a frame");
    });
}

fn draining_waits_for_pending_replies(on: On) {
    let (mut reactor, address, desk) = clerks(on, None, 16);
    let handle = reactor.handle();
    let other = thread::spawn(move || {
        let mut client = Client::new(address);
        client.send("slot\nsecond\n");
        let (_, slot) = soon(&desk.slots);
        handle.post_with_reply(|reactor| reactor.drain(Duration::from_secs(20))).wait().unwrap();
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nsecond\n");
    });
    let exit = reactor.run().unwrap();
    other.join().unwrap();
    assert_eq!(exit, pelton::Exit::Drained);
}

fn draining_does_not_wait_for_a_paused_protocol(on: On) {
    let (mut reactor, address, _desk) = clerks(on, None, 16);
    let handle = reactor.handle();
    let other = thread::spawn(move || {
        let mut client = Client::new(address);
        client.send("pause\nheld\n");
        assert_eq!(client.line(), "pause");
        handle.post_with_reply(|reactor| reactor.drain(Duration::from_secs(20))).wait().unwrap();
        assert_eq!(client.rest(), "");
    });
    let exit = reactor.run().unwrap();
    other.join().unwrap();
    assert_eq!(exit, pelton::Exit::Drained);
}

type Kept = Rc<RefCell<Vec<Deferred<String, String>>>>;

/// Answers with a promise that is never settled.
struct Hopeless {
    kept: Kept,
    dropped: Log,
    slots: Sender<ReplySlot<String>>,
}

struct Dropped(Log);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add("task dropped");
    }
}

impl Protocol for Hopeless {
    type Message = String;

    fn process(&mut self, _: String, replies: &mut Replies<String>) {
        let (promised, spawned) = (replies.later(), replies.later());
        self.slots.send(replies.later()).unwrap();
        let Some(reactor) = replies.reactor() else { return };
        let (deferred, promise) = reactor.promise();
        promised.resolve_with(reactor, promise);
        self.kept.borrow_mut().push(deferred);
        let guard = Dropped(self.dropped.clone());
        spawned.spawn(reactor, async move {
            let _guard = guard;
            std::future::pending().await
        });
    }
}

fn end_of_the_connection_is_visible_to_pending_answers(on: On) {
    let mut reactor = on.reactor();
    let (kept, dropped) = (Kept::default(), Log::default());
    let (slots, remote) = mpsc::channel();
    let protocol = {
        let (kept, dropped) = (kept.clone(), dropped.clone());
        move || Hopeless { kept: kept.clone(), dropped: dropped.clone(), slots: slots.clone() }
    };
    let listener = reactor.listen("127.0.0.1:0", serve(Lines::new, protocol)).unwrap();
    let address = address_of(&reactor, listener);
    let slot = run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("hello\n");
        let slot = soon(&remote);
        assert!(!slot.is_gone());
        client.reset();
        slot
    });
    run_until(&mut reactor, |_| slot.is_gone() && dropped.len() == 1);
    run_until(&mut reactor, |_| !kept.borrow()[0].is_wanted());
    slot.send("too late".to_owned());
}

fn a_rejected_promise_is_reported_and_closes(on: On) {
    struct Rejects;

    impl Protocol for Rejects {
        type Message = String;

        fn process(&mut self, line: String, replies: &mut Replies<String>) {
            let slot = replies.later();
            let Some(reactor) = replies.reactor() else { return };
            let (deferred, promise) = reactor.promise::<String, String>();
            slot.resolve_with(reactor, promise);
            drop(deferred.reject(line));
        }
    }

    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    reactor.on_unhandled_rejection(move |_: &mut Reactor, unhandled| entries.add(unhandled.message.clone()));
    let listener = reactor.listen("127.0.0.1:0", serve(Lines::new, || Rejects)).unwrap();
    let address = address_of(&reactor, listener);
    let heard = run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("no\n");
        client.rest()
    });
    assert_eq!(heard, "");
    assert_eq!(log.entries(), ["\"no\""]);
}
