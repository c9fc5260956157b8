//! Protocols that answer later: in order, from anywhere, so many at a time; on the loop of every engine, and on a pool.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use pelton::codec::Lines;
use pelton::{
    ActorRef, Address, Deferred, EventLoop, Lane, ListenerId, Peer, Pool, Protocol, Reactor, Reason, Replies,
    ReplySlot, Service, serve, task,
};
use pelton_testing::{Log, On, on_every_engine, run_until, run_with};

use socket2::SockRef;

on_every_engine![
    replies_go_out_in_order_whoever_answers_first,
    replies_go_out_in_order_whoever_answers_first_on_a_pool,
    a_message_is_answered_in_every_way_there_is,
    a_message_is_answered_by_workers_and_actors_from_a_pool,
    a_push_overtakes_replies_that_are_not_there_yet,
    so_many_replies_may_be_pending,
    so_many_replies_may_be_pending_on_a_pool,
    a_client_with_too_many_pending_is_not_read_from,
    a_client_with_too_many_pending_is_not_read_from_on_a_pool,
    a_protocol_pauses_and_is_resumed,
    a_protocol_pauses_and_is_resumed_on_a_pool,
    a_peer_pauses_and_resumes,
    a_slot_that_is_dropped_closes_after_the_replies_before_it,
    a_slot_that_is_dropped_closes_after_the_replies_before_it_on_a_pool,
    closing_waits_for_pending_replies,
    closing_waits_for_pending_replies_on_a_pool,
    a_frame_error_waits_for_pending_replies,
    draining_waits_for_pending_replies,
    draining_does_not_wait_for_what_is_paused,
    whoever_answers_learns_that_the_connection_is_over,
    a_rejected_promise_is_reported_and_closes,
];

/// What the test is told by its protocols.
#[derive(Clone)]
struct Reports {
    slots: Sender<(String, ReplySlot<String>)>,
    peers: Sender<Peer<String>>,
    closed: Sender<String>,
    processed: Arc<AtomicUsize>,
}

/// The test's side of it.
struct Desk {
    slots: Receiver<(String, ReplySlot<String>)>,
    peers: Receiver<Peer<String>>,
    closed: Receiver<String>,
    processed: Arc<AtomicUsize>,
}

fn reports() -> (Reports, Desk) {
    let ((slots, taken), (peers, opened), (closed, reasons)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let processed = Arc::new(AtomicUsize::new(0));
    (
        Reports { slots, peers, closed, processed: processed.clone() },
        Desk { slots: taken, peers: opened, closed: reasons, processed },
    )
}

/// `later ...` is left to the test, all else is answered with itself at once. `pause` pauses, `quit` closes.
struct Clerk {
    reports: Reports,
    limit: usize,
    quit: bool,
}

impl Protocol for Clerk {
    type Message = String;

    fn opened(&mut self, peer: &Peer<String>, _: &mut Replies<String>) {
        self.reports.peers.send(peer.clone()).unwrap();
    }

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        self.reports.processed.fetch_add(1, Ordering::SeqCst);
        if line.starts_with("later") {
            replies.send(format!("asked {line}"));
            let slot = replies.later();
            replies.send("next".to_owned());
            self.reports.slots.send((line, slot)).unwrap();
            return;
        }
        if line.starts_with("slot") {
            let slot = replies.later();
            return self.reports.slots.send((line, slot)).unwrap();
        }
        if line == "pause" {
            replies.pause();
        }
        self.quit = line == "quit";
        replies.send(line);
    }

    fn pending_limit(&self) -> usize {
        self.limit
    }

    fn should_close(&self) -> bool {
        self.quit
    }

    fn closed(&mut self, reason: &Reason) {
        // Not every test waits for it.
        let _ = self.reports.closed.send(reason.to_string());
    }
}

fn address_of(reactor: &EventLoop, listener: ListenerId) -> SocketAddr {
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    }
}

/// A loop with clerks, on it or on a pool.
fn clerks(on: On, pool: Option<&Pool>, limit: usize) -> (EventLoop, SocketAddr, Desk) {
    let mut reactor = on.reactor();
    let (reports, desk) = reports();
    let service = serve(|| Lines::new().limit(2 << 20), move || Clerk { reports: reports.clone(), limit, quit: false });
    let anywhere = "127.0.0.1:0";
    let listener = match pool {
        None => reactor.listen(anywhere, service),
        Some(pool) => reactor.listen(anywhere, service.on(pool)),
    };
    let address = address_of(&reactor, listener.unwrap());
    (reactor, address, desk)
}

fn pool() -> Pool {
    Pool::builder().workers(2).build().unwrap()
}

/// A client that has a deadline.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    fn reset(self) {
        SockRef::from(self.0.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Everything until the end.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

fn soon<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(20)).unwrap()
}

fn answers_come_in_order(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("now\nlater 1\nlater 2\nslot 3\nlast\n");
        let (_, first) = soon(&desk.slots);
        let (_, second) = soon(&desk.slots);
        let (_, third) = soon(&desk.slots);
        // What was said before the first is not held up.
        assert_eq!(client.lines(2), ["now", "asked later 1"]);
        third.send_all([]);
        second.send_all(["two".to_owned(), "too".to_owned()]);
        first.send("one".to_owned());
        assert_eq!(client.lines(7), ["one", "next", "asked later 2", "two", "too", "next", "last"]);
        client.send("again\n");
        assert_eq!(client.line(), "again");
    });
}

fn replies_go_out_in_order_whoever_answers_first(on: On) {
    answers_come_in_order(on, None);
}

fn replies_go_out_in_order_whoever_answers_first_on_a_pool(on: On) {
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

fn a_message_is_answered_in_every_way_there_is(on: On) {
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

fn a_message_is_answered_by_workers_and_actors_from_a_pool(on: On) {
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

fn a_push_overtakes_replies_that_are_not_there_yet(on: On) {
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

fn pending_is_bounded(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 3);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send(&"slot\n".repeat(10));
        let mut pending: Vec<_> = (0..3).map(|_| soon(&desk.slots).1).collect();
        // Answers out of turn make no room: they wait too.
        pending.remove(1).send("second".to_owned());
        assert_eq!(desk.slots.recv_timeout(Duration::from_millis(50)).map(drop), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(desk.processed.load(Ordering::SeqCst), 3);
        pending.remove(0).send("first".to_owned());
        assert_eq!(client.lines(2), ["first", "second"]);
        pending.extend((0..2).map(|_| soon(&desk.slots).1));
        assert_eq!(desk.processed.load(Ordering::SeqCst), 5);
        for slot in pending {
            slot.send("more".to_owned());
        }
        for _ in 5..10 {
            soon(&desk.slots).1.send("last".to_owned());
        }
        assert_eq!(client.lines(3 + 5)[7], "last");
    });
}

fn so_many_replies_may_be_pending(on: On) {
    pending_is_bounded(on, None);
}

fn so_many_replies_may_be_pending_on_a_pool(on: On) {
    pending_is_bounded(on, Some(&pool()));
}

/// As much as kernel buffers do not take.
const FLOOD: usize = 64 << 20;

fn reading_stops(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 1);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("slot\n");
        let (_, slot) = soon(&desk.slots);
        let stream = client.0.get_mut();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let line = [vec![b'x'; (1 << 20) - 1], vec![b'\n']].concat();
        let mut taken = 0;
        // Ends when no byte was taken for a while.
        let stuck = loop {
            match stream.write(&line[taken % line.len()..]) {
                Ok(count) if taken + count < FLOOD => taken += count,
                other => break other.map_err(|error| error.kind()),
            }
        };
        assert!(matches!(stuck, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{taken} bytes were taken");
        slot.send("go on".to_owned());
        assert_eq!(client.line(), "go on");
        client.0.get_mut().set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        // What is echoed has to be read, or the server waits for that.
        let mut writer = client.0.get_ref().try_clone().unwrap();
        let rest = line[taken % line.len()..].to_vec();
        let writing = thread::spawn(move || {
            writer.write_all(&rest).unwrap();
            writer.write_all(b"end\n").unwrap();
        });
        while client.line() != "end" {}
        writing.join().unwrap();
    });
}

fn a_client_with_too_many_pending_is_not_read_from(on: On) {
    reading_stops(on, None);
}

fn a_client_with_too_many_pending_is_not_read_from_on_a_pool(on: On) {
    reading_stops(on, Some(&pool()));
}

fn pausing(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        let peer = soon(&desk.peers);
        for _ in 0..3 {
            client.send("pause\nafter\nand so on\n");
            assert_eq!(client.line(), "pause");
            client.send("more\n");
            // The loop has handled this push, so it would have processed the rest.
            peer.push("still there".to_owned()).unwrap();
            assert_eq!(client.line(), "still there");
            assert_eq!(desk.processed.swap(0, Ordering::SeqCst), 1);
            peer.resume();
            assert_eq!(client.lines(3), ["after", "and so on", "more"]);
            desk.processed.store(0, Ordering::SeqCst);
        }
    });
}

fn a_protocol_pauses_and_is_resumed(on: On) {
    pausing(on, None);
}

fn a_protocol_pauses_and_is_resumed_on_a_pool(on: On) {
    pausing(on, Some(&pool()));
}

fn a_peer_pauses_and_resumes(on: On) {
    let (mut reactor, address, desk) = clerks(on, None, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        let peer = soon(&desk.peers);
        peer.pause();
        peer.push("paused".to_owned()).unwrap();
        assert_eq!(client.line(), "paused");
        client.send("held\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        peer.push("held".to_owned()).unwrap();
        assert_eq!(client.line(), "held");
        assert_eq!(desk.processed.load(Ordering::SeqCst), 0);
        peer.resume();
        assert_eq!(client.rest(), "held\n");
        assert_eq!(soon(&desk.closed), "finished by the other side");
    });
}

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

fn a_slot_that_is_dropped_closes_after_the_replies_before_it(on: On) {
    dropping_closes(on, None);
}

fn a_slot_that_is_dropped_closes_after_the_replies_before_it_on_a_pool(on: On) {
    dropping_closes(on, Some(&pool()));
}

fn closing_waits(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        // The protocol has said all.
        let mut client = Client::new(address);
        client.send("slot\nquit\nnever\n");
        let (_, slot) = soon(&desk.slots);
        client.send("never\n");
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nquit\n");
        assert_eq!(desk.processed.swap(0, Ordering::SeqCst), 2);
        soon(&desk.closed);

        // The other side has.
        let mut client = Client::new(address);
        client.send("slot\nsecond\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        let (_, slot) = soon(&desk.slots);
        slot.send("first".to_owned());
        assert_eq!(client.rest(), "first\nsecond\n");
        assert_eq!(soon(&desk.closed), "finished by the other side");

        // Somebody else wants it closed.
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

fn draining_does_not_wait_for_what_is_paused(on: On) {
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

/// Answers with what is never there.
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

fn whoever_answers_learns_that_the_connection_is_over(on: On) {
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
