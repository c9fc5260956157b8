//! Time limits.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pelton::{Chunk, Connection, ConnectionId, EventLoop, Io, Limit, Reactor, Reason, Time};
use pelton_testing::{On, Peer, on_every_network, run_until};

use super::{Network, listen, run_with};

on_every_network![
    connecting_is_limited,
    stall_is_limited,
    idle_connection_is_closed,
    handler_may_continue_after_a_limit,
    slow_reader_does_not_stall_until_it_stops;
    with_a_kernel:
    reading_a_file_without_making_room_is_not_a_stall,
    reading_a_unix_socket_without_making_room_is_not_a_stall,
    reading_from_the_system_buffer_is_activity,
];

const SHORT: Duration = Duration::from_millis(40);
/// A time in which something can happen several times, even on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Sends this much when opened, and records the limits that were reached and the reason it ended.
#[derive(Default)]
struct Limited {
    to_send: usize,
    /// Its own limit.
    limit: Option<Limit>,
    /// How often it continues after a limit was reached.
    patience: usize,
}

/// The outcome, in the reactor's state.
#[derive(Default)]
struct Fate {
    limits: Vec<Limit>,
    received_at: Time,
    reason: Option<Reason>,
}

impl Connection for Limited {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send_bytes(vec![b'x'; self.to_send]).unwrap();
        if let Some(limit) = self.limit {
            io.set_limit(limit, Some(SHORT));
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        let now = io.reactor().now();
        io.reactor().state::<Fate>().received_at = now;
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        io.reactor().state::<Fate>().limits.push(limit);
        match self.patience.checked_sub(1) {
            Some(left) => self.patience = left,
            None => {
                let after = io.limit(limit).unwrap();
                io.close_with(Reason::TimedOut { limit, after });
            }
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        reactor.state::<Fate>().reason = Some(reason);
    }
}

fn is_over(reactor: &mut Reactor) -> bool {
    reactor.state::<Fate>().reason.is_some()
}

/// Fails unless the connection ended because of this limit.
fn assert_timed_out(reactor: &mut Reactor, wanted: Limit) {
    let fate = reactor.take_state::<Fate>().unwrap();
    match fate.reason {
        Some(Reason::TimedOut { limit, after: SHORT }) if limit == wanted => {}
        other => panic!("{other:?}, after {:?}", fate.limits),
    }
}

fn connecting_is_limited(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::Connect, Some(SHORT)));
    let silent = on.silent_listener();
    let start = reactor.clock();
    reactor.connect(&silent.address(), Limited::default()).unwrap();
    run_until(&mut reactor, is_over);
    assert!(reactor.clock() - start >= SHORT);
    assert_timed_out(&mut reactor, Limit::Connect);
    assert_eq!(reactor.connection_count(), 0);
}

fn stall_is_limited(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::WriteStall, Some(SHORT)).limit(Limit::Inactivity, Some(LONG)));
    let to_send = on.more_than_fits();
    let address = listen(&mut reactor, move |_| Limited { to_send, ..Limited::default() });
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, is_over);
    assert_timed_out(&mut reactor, Limit::WriteStall);
    assert_eq!(reactor.queued(), 0);
}

fn idle_connection_is_closed(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::Inactivity, Some(SHORT)));
    let address = listen(&mut reactor, |_| Limited::default());
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"something").unwrap();
    run_until(&mut reactor, is_over);
    // Received data restarts the time.
    let active_at = reactor.state::<Fate>().received_at;
    assert!(active_at > Time::ZERO && reactor.now() - active_at >= SHORT);
    assert_timed_out(&mut reactor, Limit::Inactivity);
}

fn handler_may_continue_after_a_limit(on: impl Network) {
    let mut reactor = on.reactor();
    let start = reactor.clock();
    let limit = Some(Limit::Inactivity);
    let address = listen(&mut reactor, move |_| Limited { patience: 3, limit, ..Limited::default() });
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, is_over);
    assert!(reactor.clock() - start >= 4 * SHORT);
    assert_eq!(reactor.state::<Fate>().limits, [Limit::Inactivity; 4]);
    assert_timed_out(&mut reactor, Limit::Inactivity);
}

/// A limit that a peer does not reach merely because it is scheduled late.
const STALL: Duration = Duration::from_millis(500);
/// A steady peer reads this often: for longer than the limit, but without making room.
const READS: u32 = 10;
/// How much it reads each time: on loopback, the system acknowledges about 64 KiB at once.
const AT_ONCE: usize = 40 * 1024;

/// Reads some data at intervals, for twice as long as the limit.
fn read_slowly(mut peer: Peer, at_once: usize) -> Peer {
    for _ in 0..READS {
        thread::sleep(2 * STALL / READS);
        peer.read_some(at_once);
    }
    peer
}

/// Acts when it is opened, and records its connection.
struct Sender<F>(F);

#[derive(Default)]
struct Opened(Option<ConnectionId>);

impl<F: FnMut(&mut Io<'_>) + 'static> Connection for Sender<F> {
    fn opened(&mut self, io: &mut Io<'_>) {
        let id = io.id();
        io.reactor().state::<Opened>().0 = Some(id);
        (self.0)(io);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        reactor.state::<Fate>().reason = Some(reason);
    }
}

/// The number of queued bytes, once that has become constant.
fn settled(reactor: &mut EventLoop) -> u64 {
    run_until(reactor, |reactor| reactor.state::<Opened>().0.is_some());
    let id = reactor.state::<Opened>().0.unwrap();
    let (mut before, mut times) = (None, 0);
    while times < 5 {
        reactor.turn(Some(Duration::from_millis(5))).unwrap();
        let now = waiting(reactor, id);
        times = if now == before { times + 1 } else { 0 };
        before = now;
    }
    before.expect("the connection has ended")
}

/// The number of queued bytes of a connection, if it is open.
fn waiting(reactor: &mut EventLoop, id: ConnectionId) -> Option<u64> {
    reactor.connection(id).map(|mut io| io.queued() as u64 + io.queued_in_files())
}

/// Fails unless the connection stays open while the peer reads. Returns the number of queued bytes afterwards.
fn goes_on(reactor: &mut EventLoop, peer: Peer, at_once: usize) -> (Peer, u64) {
    let id = reactor.state::<Opened>().0.unwrap();
    let peer = run_with(reactor, move || read_slowly(peer, at_once));
    match waiting(reactor, id) {
        Some(waiting) => (peer, waiting),
        None => panic!("{:?}", reactor.state::<Fate>().reason),
    }
}

/// Fails unless the connection reaches this limit.
fn reaches(reactor: &mut EventLoop, limit: Limit) {
    run_until(reactor, is_over);
    match reactor.take_state::<Fate>().unwrap().reason {
        Some(Reason::TimedOut { limit: reached, after: STALL }) if reached == limit => {}
        other => panic!("{other:?}"),
    }
}

fn slow_reader_does_not_stall_until_it_stops<N: Network>(on: N) {
    let mut reactor = on.build(on.builder().limit(Limit::WriteStall, Some(STALL)));
    let to_send = on.more_than_fits();
    let address =
        listen(&mut reactor, move |_| Sender(move |io: &mut Io<'_>| io.send_bytes(vec![0; to_send]).unwrap()));
    let peer = on.connect_peer(&address);
    let before = settled(&mut reactor);
    let (_peer, after) = goes_on(&mut reactor, peer, if N::HIDES_READING { AT_ONCE } else { 5_000 });
    // The system's buffer must hide the reading, or this would test nothing.
    assert!(before > 0 && (after == before || !N::HIDES_READING));
    reaches(&mut reactor, Limit::WriteStall);
}

fn reading_a_file_without_making_room_is_not_a_stall(on: On) {
    let mut reactor = on.build(on.builder().limit(Limit::WriteStall, Some(STALL)));
    let to_send = on.more_than_fits() as u64;
    let file = Arc::new(tempfile(to_send));
    let address = listen(&mut reactor, move |_| {
        let file = file.clone();
        Sender(move |io: &mut Io<'_>| io.send_file(file.clone(), 0..to_send).unwrap())
    });
    let mut peer = on.connect_peer(&address);
    let mut before = settled(&mut reactor);
    // A file is sent in larger portions, so it may take several before the system's buffer hides twice the limit.
    for _ in 0..8 {
        let after;
        (peer, after) = goes_on(&mut reactor, peer, AT_ONCE);
        if after == before {
            return;
        }
        before = after;
    }
    panic!("every read made room");
}

/// An unnamed file of this many zeros.
fn tempfile(length: u64) -> File {
    let path = std::env::temp_dir().join(format!("pelton-limits-{}-{:?}", std::process::id(), thread::current().id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(length).unwrap();
    file
}

fn reading_a_unix_socket_without_making_room_is_not_a_stall(on: On) {
    let mut reactor = on.build(on.builder().limit(Limit::WriteStall, Some(STALL)));
    let (ours, theirs) = UnixStream::pair().unwrap();
    // Room is made when three quarters of the buffer have been read, and it holds twice as much.
    socket2::SockRef::from(&ours).set_send_buffer_size(200_000).unwrap();
    reactor.adopt(ours, Sender(|io: &mut Io<'_>| io.send_bytes(vec![0; 4_000_000]).unwrap())).unwrap();
    let before = settled(&mut reactor);
    let (_peer, after) = goes_on(&mut reactor, Peer::new(theirs), 20_000);
    assert!(before > 0 && after == before, "{before}, {after}");
    reaches(&mut reactor, Limit::WriteStall);
}

fn reading_from_the_system_buffer_is_activity(on: On) {
    let mut reactor = on.build(on.builder().limit(Limit::Inactivity, Some(STALL)));
    let address = listen(&mut reactor, |_| Sender(|io: &mut Io<'_>| io.send_bytes(vec![0; 1_000_000]).unwrap()));
    let peer = on.connect_peer(&address);
    assert_eq!(settled(&mut reactor), 0, "the system accepts everything at once");
    let (_peer, _) = goes_on(&mut reactor, peer, AT_ONCE);
    reaches(&mut reactor, Limit::Inactivity);
}

#[test]
fn a_peer_that_reads_slowly_while_it_sends_loses_nothing_at_the_end() {
    let on = On(pelton::EngineKind::Poll);
    let mut reactor = on.reactor();
    let to_send = 1_500_000;
    let address = listen(&mut reactor, move |_| {
        Sender(move |io: &mut Io<'_>| {
            io.send_bytes(vec![0; to_send]).unwrap();
            io.close_after_writing();
        })
    });
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"something").unwrap();
    // Longer than the five seconds for which a connection lingers that is closed while its peer sends.
    let received = run_with(&mut reactor, move || {
        let begun = Instant::now();
        let mut received = 0;
        while begun.elapsed() < Duration::from_millis(6500) {
            peer.write_all(b"more").unwrap();
            received += peer.read_some(AT_ONCE).len();
            thread::sleep(Duration::from_millis(400));
        }
        received + peer.read_all().unwrap().len()
    });
    assert_eq!(received, to_send);
    run_until(&mut reactor, is_over);
    assert!(matches!(reactor.state::<Fate>().reason, Some(Reason::Local)), "{:?}", reactor.state::<Fate>().reason);
}
