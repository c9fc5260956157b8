//! TCP connections on an engine whose poller reports changes once, on every engine for comparison: nothing is forgotten between two
//! reports, and nothing is left in the poller.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;

use pelton::{Chunk, Connection, ConnectionId, EventLoop, Io, Reason};
use pelton_testing::{Log, On, activity, on_every_engine, pattern, registered, run_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

on_every_engine![
    urgent_data_hides_nothing_that_follows,
    more_than_one_read_takes_arrives_without_another_report,
    end_behind_data_is_found,
    more_than_a_turn_may_send_is_sent_while_the_peer_reads,
    input_during_a_pause_wakes_the_loop_once,
    a_server_that_speaks_first_is_heard,
    connections_of_a_burst_are_all_accepted,
    closed_connections_leave_the_poller,
    connections_with_duplicates_leave_the_poller,
];

/// What the connections of a test have received, and their ids.
#[derive(Clone, Default)]
struct Received {
    bytes: Rc<RefCell<Vec<u8>>>,
    ids: Rc<RefCell<Vec<ConnectionId>>>,
    log: Log,
}

struct Collect {
    received: Received,
    pauses: bool,
}

impl Connection for Collect {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.received.ids.borrow_mut().push(io.id());
        if self.pauses {
            io.pause();
        }
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.received.bytes.borrow_mut().extend_from_slice(&chunk);
    }

    fn closed(&mut self, _: &mut pelton::Reactor, reason: Reason) {
        self.received.log.add(format!("closed: {reason}"));
    }
}

/// A listener, and a client of it whose connection is open. It pauses at first if `pauses`.
fn connected(reactor: &mut EventLoop, received: &Received, pauses: bool) -> TcpStream {
    let known = received.clone();
    let listener = reactor.listen("127.0.0.1:0", move |_| Collect { received: known.clone(), pauses }).unwrap();
    let client = TcpStream::connect(reactor.listening_on(listener).unwrap().to_string()).unwrap();
    run_until(reactor, |_| !received.ids.borrow().is_empty());
    client
}

fn only(received: &Received) -> ConnectionId {
    received.ids.borrow()[0]
}

fn urgent_data_hides_nothing_that_follows(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let mut client = connected(&mut reactor, &received, true);
    client.write_all(b"before").unwrap();
    SockRef::from(&client).send_out_of_band(b"!").unwrap();
    client.write_all(b"after").unwrap();
    reactor.connection(only(&received)).unwrap().resume();
    run_until(&mut reactor, |_| received.bytes.borrow().ends_with(b"after"));
    assert!(received.bytes.borrow().starts_with(b"before"));
}

fn more_than_one_read_takes_arrives_without_another_report(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let mut client = connected(&mut reactor, &received, true);
    let sent = pattern(300_000);
    client.set_nonblocking(true).unwrap();
    let mut count = 0;
    // Everything is here before the first read.
    while let Ok(more) = client.write(&sent[count..])
        && more > 0
    {
        count += more;
    }
    assert!(count > 100_000, "only {count} bytes fit");
    reactor.connection(only(&received)).unwrap().resume();
    run_until(&mut reactor, |_| !received.bytes.borrow().is_empty());
    // Another loop that waits for this one's descriptor would see no report.
    if let Some(fd) = reactor.as_fd() {
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let reported = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0;
        assert!(reported || reactor.next_deadline().is_some(), "nothing says that there is more to receive");
    }
    run_until(&mut reactor, |_| received.bytes.borrow().len() == count);
    assert_eq!(*received.bytes.borrow(), sent[..count]);
}

fn end_behind_data_is_found(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let mut client = connected(&mut reactor, &received, true);
    client.write_all(b"last words").unwrap();
    drop(client);
    reactor.connection(only(&received)).unwrap().resume();
    run_until(&mut reactor, |_| received.log.len() == 1);
    assert_eq!(*received.bytes.borrow(), b"last words");
    assert_eq!(received.log.take(), ["closed: finished by the other side"]);
}

fn more_than_a_turn_may_send_is_sent_while_the_peer_reads(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let mut client = connected(&mut reactor, &received, false);
    let sent = pattern(12_000_000);
    reactor.connection(only(&received)).unwrap().send_bytes(sent.clone()).unwrap();
    let handle = reactor.handle();
    let reader = std::thread::spawn(move || {
        let mut read = vec![0; 12_000_000];
        client.read_exact(&mut read).unwrap();
        handle.post(|reactor| *reactor.state::<bool>() = true).unwrap();
        read
    });
    run_until(&mut reactor, |reactor| *reactor.state::<bool>());
    assert!(reader.join().unwrap() == sent);
}

fn input_during_a_pause_wakes_the_loop_once(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let mut client = connected(&mut reactor, &received, false);
    client.set_nodelay(true).unwrap();
    client.write_all(b"0").unwrap();
    run_until(&mut reactor, |_| received.bytes.borrow().len() == 1);
    reactor.connection(only(&received)).unwrap().pause();
    client.write_all(b"1").unwrap();
    // At most the first byte is noticed.
    let (turns, _) = activity(&mut reactor, &received.log);
    assert!(turns <= 3, "{turns} turns");
    for _ in 2..10 {
        client.write_all(b"2").unwrap();
        let (turns, _) = activity(&mut reactor, &received.log);
        assert_eq!(turns, 1, "a byte that nobody wants wakes the loop");
    }
    reactor.connection(only(&received)).unwrap().resume();
    run_until(&mut reactor, |_| received.bytes.borrow().len() == 10);
}

fn a_server_that_speaks_first_is_heard(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let known = received.clone();
    reactor.connect(&address.into(), Collect { received: known, pauses: false }).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    // It is here when the connection is reported as established.
    server.write_all(b"welcome").unwrap();
    run_until(&mut reactor, |_| *received.bytes.borrow() == b"welcome");
}

fn connections_of_a_burst_are_all_accepted(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let known = received.clone();
    let listener = reactor.listen("127.0.0.1:0", move |_| Collect { received: known.clone(), pauses: false }).unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string();
    let alone = TcpStream::connect(&address).unwrap();
    run_until(&mut reactor, |_| received.ids.borrow().len() == 1);
    // As many as fit the backlog of any system.
    let burst: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let before = reactor.stats().turns;
    run_until(&mut reactor, |_| received.ids.borrow().len() == 101);
    let turns = reactor.stats().turns - before;
    assert!(turns < 40, "{turns} turns to accept a burst of 100");
    drop((alone, burst));
}

fn closed_connections_leave_the_poller(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let client = connected(&mut reactor, &received, false);
    let before = registered(&reactor);
    reactor.connection(only(&received)).unwrap().close();
    run_until(&mut reactor, |_| received.log.len() == 1);
    assert_eq!(registered(&reactor).map(|count| count + 1), before);
    drop(client);
}

fn connections_with_duplicates_leave_the_poller(on: On) {
    let (mut reactor, received) = (on.reactor(), Received::default());
    let client = connected(&mut reactor, &received, false);
    let before = registered(&reactor);
    let io = reactor.connection(only(&received)).unwrap();
    let duplicate = io.descriptor().unwrap().try_clone_to_owned().unwrap();
    reactor.connection(only(&received)).unwrap().close();
    run_until(&mut reactor, |_| received.log.len() == 1);
    assert_eq!(registered(&reactor).map(|count| count + 1), before);
    drop((client, duplicate));
}
