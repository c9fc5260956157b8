//! Manual datagram sockets, and those that somebody else owns.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton::{
    Address, Datagram, DatagramIo, Datagrams, DatagramsId, EventLoop, Reactor, Reason, Sending, Socket, Space,
};
use pelton_testing::{Log, On, on_every_engine, poll, run_until};

use super::is_blocking;

on_every_engine![
    a_manual_socket_is_paused_at_first_and_given_back_open,
    a_datagram_is_reported_until_it_is_received,
    datagrams_come_with_their_sender,
    bytes_that_do_not_fit_are_lost,
    a_datagram_is_sent_at_once,
    the_error_of_a_send_is_the_callers,
    a_refusal_is_found_by_receiving,
    datagrams_without_room_are_queued_in_order,
    a_receiver_without_room_is_waited_for_without_spinning,
    a_queued_datagram_that_cannot_be_sent_is_reported_and_the_next_is_sent,
    a_dropped_queue_leaves_nothing_to_do,
    a_released_socket_is_gone_at_once,
    a_socket_released_in_its_own_callback_ends_after_it,
    the_queue_has_no_limits,
    a_borrowed_socket_echoes_like_any_other,
    closing_after_sending_sends_the_queue,
    a_stream_socket_is_refused,
];

#[derive(Clone, Default)]
struct Manual {
    log: Log,
    readable: Rc<Cell<usize>>,
    writable: Rc<Cell<usize>>,
}

impl Datagrams for Manual {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {
        panic!("the socket is manual");
    }

    fn readable(&mut self, _: &mut DatagramIo<'_>) {
        self.readable.set(self.readable.get() + 1);
    }

    fn writable(&mut self, io: &mut DatagramIo<'_>) {
        self.writable.set(self.writable.get() + 1);
        while let Some(error) = io.take_send_error() {
            self.log.add(format!("failed: {:?}", error.raw_os_error()));
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn lend(
    reactor: &mut EventLoop,
    socket: &Arc<impl std::os::fd::AsFd + Send + Sync + 'static>,
) -> (DatagramsId, Manual) {
    let manual = Manual::default();
    let id = reactor.adopt_manual_datagrams(Socket::borrowed(socket.clone()), manual.clone()).unwrap();
    (id, manual)
}

fn pair() -> (Arc<UnixDatagram>, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (Arc::new(ours), theirs)
}

fn udp() -> Arc<UdpSocket> {
    Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap())
}

fn receive(io: &mut DatagramIo<'_>) -> io::Result<(Vec<u8>, Option<Address>)> {
    let mut bytes = [0; 100];
    let (count, from) = io.receive_into(&mut Space::from(&mut bytes[..]))?;
    Ok((bytes[..count].to_vec(), from))
}

fn send(reactor: &mut EventLoop, id: DatagramsId, to: Option<&Address>, bytes: &[u8]) -> io::Result<Sending> {
    let mut io = reactor.datagrams(id).unwrap();
    io.send_or_keep(to, bytes, || Bytes::copy_from_slice(bytes))
}

/// Sends numbered datagrams until there is no room, and returns how many were sent or queued.
fn fill(reactor: &mut EventLoop, id: DatagramsId) -> u32 {
    for number in 0..100_000_u32 {
        if send(reactor, id, None, &number.to_be_bytes()).unwrap() == Sending::Busy {
            return number + 1;
        }
    }
    panic!("the socket is never full");
}

fn a_manual_socket_is_paused_at_first_and_given_back_open(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    assert!(is_blocking(&*ours), "its mode is the owner's");
    theirs.send(b"hello").unwrap();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.readable.get(), 0);
    assert_eq!(receive(&mut reactor.datagrams(id).unwrap()).unwrap().0, b"hello", "it can be received nevertheless");
    let error = receive(&mut reactor.datagrams(id).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "although the socket is in blocking mode");
    assert_eq!(Arc::strong_count(&ours), 2);
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!((Arc::strong_count(&ours), manual.log.take()), (1, vec!["closed: closed by this side".to_owned()]));
    ours.send(b"still open").unwrap();
    theirs.recv(&mut [0; 100]).unwrap();
}

fn a_datagram_is_reported_until_it_is_received(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    reactor.datagrams(id).unwrap().resume();
    theirs.send(b"one").unwrap();
    theirs.send(b"").unwrap();
    run_until(&mut reactor, |_| manual.readable.get() > 2);
    reactor.datagrams(id).unwrap().pause();
    let before = manual.readable.get();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.readable.get(), before);
    let mut io = reactor.datagrams(id).unwrap();
    assert_eq!(receive(&mut io).unwrap().0, b"one");
    assert_eq!(receive(&mut io).unwrap().0, b"", "an empty datagram is one");
    assert_eq!(receive(&mut io).unwrap_err().kind(), ErrorKind::WouldBlock);
    io.resume();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.readable.get(), before);
}

fn datagrams_come_with_their_sender(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = (udp(), udp());
    let (id, manual) = lend(&mut reactor, &ours);
    reactor.datagrams(id).unwrap().resume();
    theirs.send_to(b"hello", ours.local_addr().unwrap()).unwrap();
    run_until(&mut reactor, |_| manual.readable.get() > 0);
    let (bytes, from) = receive(&mut reactor.datagrams(id).unwrap()).unwrap();
    assert_eq!((&bytes[..], from), (&b"hello"[..], Some(Address::Tcp(theirs.local_addr().unwrap()))));
    let (ours, theirs) = (Scratch::bind(on, "ours"), Scratch::bind(on, "theirs"));
    let (id, _) = lend(&mut reactor, &ours.socket);
    theirs.socket.send_to(b"hi", &ours.path).unwrap();
    let (_, from) = receive(&mut reactor.datagrams(id).unwrap()).unwrap();
    assert_eq!(from, Some(Address::Unix(theirs.path.clone())));
    UnixDatagram::unbound().unwrap().send_to(b"?", &ours.path).unwrap();
    assert_eq!(receive(&mut reactor.datagrams(id).unwrap()).unwrap().1, None, "the sender has no name");
}

struct Scratch {
    socket: Arc<UnixDatagram>,
    path: PathBuf,
}

impl Scratch {
    fn bind(on: On, name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("pelton-manual-{}-{}-{name}", std::process::id(), on.0));
        let _ = std::fs::remove_file(&path);
        Scratch { socket: Arc::new(UnixDatagram::bind(&path).unwrap()), path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bytes_that_do_not_fit_are_lost(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, _) = lend(&mut reactor, &ours);
    theirs.send(b"longer").unwrap();
    theirs.send(b"next").unwrap();
    let mut io = reactor.datagrams(id).unwrap();
    let mut bytes = [0; 4];
    assert_eq!(io.receive_into(&mut Space::from(&mut bytes[..])).unwrap().0, 4);
    assert_eq!(&bytes, b"long");
    assert_eq!(receive(&mut io).unwrap().0, b"next");
}

fn a_datagram_is_sent_at_once(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = (udp(), udp());
    let (id, manual) = lend(&mut reactor, &ours);
    let to = Address::Tcp(theirs.local_addr().unwrap());
    for _ in 0..3 {
        let mut io = reactor.datagrams(id).unwrap();
        let sent = io.send_or_keep(Some(&to), b"now", || panic!("nothing is left")).unwrap();
        assert_eq!(sent, Sending::Idle);
    }
    let mut bytes = [0; 100];
    assert_eq!(theirs.recv_from(&mut bytes).unwrap(), (3, ours.local_addr().unwrap()));
    poll(&mut reactor);
    assert_eq!(manual.writable.get(), 0);
}

fn the_error_of_a_send_is_the_callers(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = (udp(), udp());
    let (id, manual) = lend(&mut reactor, &ours);
    let to = Address::Tcp(theirs.local_addr().unwrap());
    let error = send(&mut reactor, id, Some(&to), &[0; 70_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error()));
    assert!(send(&mut reactor, id, None, b"to nobody").is_err());
    assert_eq!(reactor.datagrams(id).unwrap().queued(), 0);
    assert_eq!(send(&mut reactor, id, Some(&to), b"fine").unwrap(), Sending::Idle);
    poll(&mut reactor);
    assert!(manual.log.is_empty() && manual.writable.get() == 0);
}

fn a_refusal_is_found_by_receiving(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = (udp(), udp());
    ours.connect(theirs.local_addr().unwrap()).unwrap();
    drop(theirs);
    let (id, manual) = lend(&mut reactor, &ours);
    reactor.datagrams(id).unwrap().resume();
    send(&mut reactor, id, None, b"anybody?").unwrap();
    run_until(&mut reactor, |_| manual.readable.get() > 0);
    let mut io = reactor.datagrams(id).unwrap();
    assert_eq!(receive(&mut io).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(receive(&mut io).unwrap_err().kind(), ErrorKind::WouldBlock, "it is reported once");
    assert!(io.is_open());
}

fn datagrams_without_room_are_queued_in_order(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    let mut count = fill(&mut reactor, id);
    for _ in 0..100 {
        assert_eq!(send(&mut reactor, id, None, &count.to_be_bytes()).unwrap(), Sending::Busy);
        count += 1;
    }
    let mut io = reactor.datagrams(id).unwrap();
    assert_eq!((io.queued_datagrams(), io.queued()), (101, 404));
    poll(&mut reactor);
    assert_eq!((manual.writable.get(), reactor.datagrams(id).unwrap().queued()), (0, 404));
    let mut bytes = [0; 4];
    for number in 0..count {
        while theirs.set_nonblocking(true).is_ok() && theirs.recv(&mut bytes).is_err() {
            reactor.turn(Some(Duration::from_millis(100))).unwrap();
        }
        assert_eq!(u32::from_be_bytes(bytes), number);
    }
    run_until(&mut reactor, |reactor| reactor.datagrams(id).unwrap().queued_datagrams() == 0);
    assert!(manual.writable.get() > 0);
    assert_eq!(reactor.queued(), 0);
    let before = manual.writable.get();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.writable.get(), before, "an empty queue needs no room");
    assert_eq!(send(&mut reactor, id, None, b"more").unwrap(), Sending::Idle);
}

/// The socket has room, but its receiver does not, and no poller can wait for that.
fn a_receiver_without_room_is_waited_for_without_spinning(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = (Arc::new(UnixDatagram::unbound().unwrap()), Scratch::bind(on, "full"));
    let (id, manual) = lend(&mut reactor, &ours);
    let to = Address::Unix(theirs.path.clone());
    let mut count = 0_u32;
    while send(&mut reactor, id, Some(&to), &count.to_be_bytes()).unwrap() == Sending::Idle {
        count += 1;
    }
    let turns = Rc::new(Cell::new(0));
    let over = Rc::new(Cell::new(false));
    let flag = over.clone();
    reactor.after(Duration::from_millis(50), move |_| flag.set(true));
    let counted = turns.clone();
    run_until(&mut reactor, move |_| {
        counted.set(counted.get() + 1);
        over.get()
    });
    assert!(turns.get() < 300, "{} looks in 50 ms", turns.get());
    assert_eq!(reactor.datagrams(id).unwrap().queued_datagrams(), 1, "it is not dropped");
    let mut bytes = [0; 4];
    for number in 0..=count {
        theirs.socket.set_nonblocking(true).unwrap();
        while theirs.socket.recv(&mut bytes).is_err() {
            reactor.turn(Some(Duration::from_millis(10))).unwrap();
        }
        assert_eq!(u32::from_be_bytes(bytes), number);
    }
    run_until(&mut reactor, |_| manual.writable.get() > 0);
    assert!(manual.log.is_empty());
}

fn a_queued_datagram_that_cannot_be_sent_is_reported_and_the_next_is_sent(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    let count = fill(&mut reactor, id);
    send(&mut reactor, id, None, &vec![0; 100_000_000]).unwrap();
    send(&mut reactor, id, None, b"last").unwrap();
    let mut bytes = [0; 4];
    for _ in 0..count {
        while theirs.set_nonblocking(true).is_ok() && theirs.recv(&mut bytes).is_err() {
            reactor.turn(Some(Duration::from_millis(100))).unwrap();
        }
    }
    run_until(&mut reactor, |_| !manual.log.is_empty());
    let expected = format!("failed: {:?}", Some(rustix::io::Errno::MSGSIZE.raw_os_error()));
    run_until(&mut reactor, |reactor| reactor.datagrams(id).unwrap().queued_datagrams() == 0);
    assert!(manual.log.entries().contains(&expected), "{:?}", manual.log);
    assert_eq!(theirs.recv(&mut bytes).unwrap(), 4);
    assert_eq!((&bytes, reactor.queued()), (b"last", 0));
}

fn a_dropped_queue_leaves_nothing_to_do(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    let count = fill(&mut reactor, id);
    let mut io = reactor.datagrams(id).unwrap();
    io.drop_queued().unwrap();
    assert_eq!((io.queued_datagrams(), reactor.queued()), (0, 0));
    for _ in 0..count - 1 {
        theirs.recv(&mut [0; 4]).unwrap();
    }
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.writable.get(), 0);
    assert_eq!(send(&mut reactor, id, None, b"anew").unwrap(), Sending::Idle);
}

fn a_released_socket_is_gone_at_once(on: On) {
    let mut reactor = on.reactor();
    let (ours, _theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    fill(&mut reactor, id);
    assert!(reactor.release_datagrams(id));
    assert_eq!(manual.log.take(), ["closed: closed by this side"]);
    assert_eq!((Arc::strong_count(&ours), reactor.queued(), reactor.datagram_socket_count()), (1, 0, 0));
    assert!(!reactor.release_datagrams(id));
    let (id, again) = lend(&mut reactor, &ours);
    reactor.datagrams(id).unwrap().close();
    assert!(reactor.release_datagrams(id), "it was closed, but not reaped yet");
    poll(&mut reactor);
    assert_eq!(again.log.take().len(), 1);
}

fn a_socket_released_in_its_own_callback_ends_after_it(on: On) {
    struct Releases(Log);

    impl Datagrams for Releases {
        fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}

        fn readable(&mut self, io: &mut DatagramIo<'_>) {
            let id = io.id();
            assert!(io.reactor().release_datagrams(id));
            self.0.add("readable");
        }

        fn closed(&mut self, _: &mut Reactor, _: Reason) {
            self.0.add("closed");
        }
    }

    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = pair();
    let id = reactor.adopt_manual_datagrams(Socket::borrowed(ours.clone()), Releases(log.clone())).unwrap();
    reactor.datagrams(id).unwrap().resume();
    theirs.send(b"x").unwrap();
    run_until(&mut reactor, |reactor| reactor.datagram_socket_count() == 0);
    assert_eq!(log.take(), ["readable", "closed"]);
}

fn the_queue_has_no_limits(on: On) {
    let mut reactor = on.reactor();
    let (ours, _theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    fill(&mut reactor, id);
    let mut io = reactor.datagrams(id).unwrap();
    let most = io.water_marks().most;
    for _ in 0..=most / 60_000 {
        io.send_or_keep(None, &[0; 60_000], || Bytes::from_static(&[0; 60_000])).unwrap();
    }
    assert!(io.queued() > most);
    poll(&mut reactor);
    assert_eq!(manual.writable.get(), 0);
    drop(reactor);
    assert_eq!(Arc::strong_count(&ours), 1);
}

fn a_borrowed_socket_echoes_like_any_other(on: On) {
    struct Echo;

    impl Datagrams for Echo {
        fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
            io.send_chunk(datagram.bytes).unwrap();
        }
    }

    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let id = reactor.adopt_datagrams(Socket::borrowed(ours.clone()), Echo).unwrap();
    theirs.send(b"hello").unwrap();
    let mut echoed = [0; 10];
    theirs.set_nonblocking(true).unwrap();
    run_until(&mut reactor, |_| theirs.recv(&mut echoed).is_ok());
    assert_eq!(&echoed[..5], b"hello");
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(Arc::strong_count(&ours), 1);
    assert!(is_blocking(&*ours));
}

fn closing_after_sending_sends_the_queue(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = pair();
    let (id, manual) = lend(&mut reactor, &ours);
    let count = fill(&mut reactor, id);
    reactor.datagrams(id).unwrap().close_after_sending();
    assert_eq!(send(&mut reactor, id, None, b"late").unwrap_err().kind(), ErrorKind::NotConnected);
    for _ in 0..count {
        theirs.set_nonblocking(true).unwrap();
        run_until_received(&mut reactor, &theirs);
    }
    run_until(&mut reactor, |reactor| reactor.datagram_socket_count() == 0);
    assert_eq!(manual.log.take(), ["closed: closed by this side"]);
}

fn run_until_received(reactor: &mut EventLoop, theirs: &UnixDatagram) {
    while theirs.recv(&mut [0; 4]).is_err() {
        reactor.turn(Some(Duration::from_millis(100))).unwrap();
    }
}

fn a_stream_socket_is_refused(on: On) {
    let mut reactor = on.reactor();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = reactor.adopt_manual_datagrams(Socket::borrowed(ours), Manual::default()).unwrap_err().to_string();
    assert!(error.contains("not a datagram socket"), "{error}");
    assert_eq!(reactor.datagram_socket_count(), 0);
}
