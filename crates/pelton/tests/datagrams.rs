//! Datagrams, on every engine, with peers that are plain blocking sockets in other threads, or other programs.

mod common;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use pelton::{
    Address, Datagram, DatagramIo, DatagramOptions, Datagrams, DatagramsId, EventLoop, Exit, MulticastInterface,
    PanicPolicy, Reactor, Reason, SendError, SocketOptions, WaterMarks,
};

use common::{Log, On, activity, on_every_engine, poll, run, run_until};

on_every_engine![
    what_is_sent_over_udp_comes_back_from_where_it_went,
    a_unix_socket_with_a_path_works_replaces_a_stale_file_and_removes_its_own,
    a_file_that_is_not_its_own_is_neither_replaced_nor_removed,
    an_abstract_unix_socket_works_and_a_nameless_one_can_only_ask,
    a_connected_socket_hears_its_peer_alone,
    a_refused_datagram_is_told_and_the_socket_goes_on,
    every_refusal_while_sending_leaves_the_rest_to_be_sent,
    empty_datagrams_are_sent_and_delivered,
    the_largest_datagram_fits_and_a_larger_one_is_told_and_holds_up_nothing,
    a_unix_datagram_that_does_not_fit_is_dropped_and_the_next_one_arrives,
    a_thousand_each_way_arrive,
    a_busy_socket_does_not_keep_others_waiting,
    multicast_reaches_its_members_until_they_leave,
    multicast_over_v6_reaches_its_members,
    broadcast_has_to_be_allowed,
    a_paused_socket_delivers_nothing_and_costs_nothing_and_loses_nothing,
    a_full_receiver_is_waited_for_when_connected_and_told_of_when_not,
    what_waits_is_bounded_and_drained_is_told,
    a_socket_can_be_closed_from_inside_and_from_elsewhere,
    close_after_sending_sends_everything_and_tells_what_failed_before_closed,
    a_panicking_handler_closes_its_socket_only,
    a_handler_that_answers_failures_with_failures_does_not_stop_the_loop,
    stopping_closes_and_draining_lets_everything_out,
    sockets_from_elsewhere_can_be_taken_over,
    errors_name_the_address,
    socat_is_answered,
    python_is_answered_and_asked,
];

type Receive = Box<dyn FnMut(&mut DatagramIo<'_>, Datagram)>;

/// Does what it is told to by a closure, and logs the rest.
#[derive(Default)]
struct Scripted {
    log: Log,
    received: Option<Receive>,
}

impl Datagrams for Scripted {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        match &mut self.received {
            Some(act) => act(io, datagram),
            None => self.log.add(format!("received {}", String::from_utf8_lossy(&datagram.bytes))),
        }
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, to: Option<&Address>, error: io::Error) {
        let to = to.map_or("whom it is connected to".to_owned(), ToString::to_string);
        self.log.add(format!("failed, to {to}: {:?}", error.kind()));
    }

    fn drained(&mut self, _: &mut DatagramIo<'_>) {
        self.log.add("drained");
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn scripted(log: &Log, received: impl FnMut(&mut DatagramIo<'_>, Datagram) + 'static) -> Scripted {
    Scripted { log: log.clone(), received: Some(Box::new(received)) }
}

fn logging(log: &Log) -> Scripted {
    Scripted { log: log.clone(), received: None }
}

struct Echo;

impl Datagrams for Echo {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        io.send_chunk_to(&datagram.from, datagram.bytes).unwrap();
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, to: Option<&Address>, error: io::Error) {
        panic!("send to {to:?}: {error}");
    }
}

fn localhost() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn local(reactor: &mut EventLoop, id: DatagramsId) -> Address {
    reactor.datagrams(id).unwrap().local_address().unwrap()
}

fn internet(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        other => panic!("{other}"),
    }
}

/// Binds to a port of this machine, and says which.
fn bind(reactor: &mut EventLoop, handler: impl Datagrams) -> (DatagramsId, SocketAddr) {
    let id = reactor.bind_datagrams(&localhost(), handler).unwrap();
    let address = local(reactor, id);
    (id, internet(&address))
}

/// A blocking socket that does not wait for ever.
fn peer(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn unix_peer(socket: UnixDatagram) -> UnixDatagram {
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn scratch(on: On, name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pelton-{}-{}-{name}", std::process::id(), on.0))
}

/// Turns the loop until the other thread is done.
fn run_with<T: Send + 'static>(reactor: &mut EventLoop, act: impl FnOnce() -> T + Send + 'static) -> T {
    let other = thread::spawn(act);
    // A loop that sleeps has to notice that the thread is done.
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(reactor, |_| other.is_finished());
    reactor.cancel(waiting);
    other.join().unwrap()
}

fn what_is_sent_over_udp_comes_back_from_where_it_went(on: On) {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut reactor = on.reactor();
        let id = reactor.bind_datagrams(&address.parse().unwrap(), Echo).unwrap();
        let server = internet(&local(&mut reactor, id));
        assert!(reactor.datagrams(id).unwrap().peer_address().is_err(), "it is not connected");
        run_with(&mut reactor, move || {
            let client = peer(address);
            for length in [1, 100, 1_400, 9_000] {
                let sent: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
                client.send_to(&sent, server).unwrap();
                let mut back = vec![0; 10_000];
                let (count, from) = client.recv_from(&mut back).unwrap();
                assert_eq!((&back[..count], from), (&sent[..], server));
            }
        });
    }
}

fn a_unix_socket_with_a_path_works_replaces_a_stale_file_and_removes_its_own(on: On) {
    let (path, asking) = (scratch(on, "echo.sock"), scratch(on, "asking.sock"));
    let address = Address::Unix(path.clone());
    // Left behind by one that did not clean up.
    drop(UnixDatagram::bind(&path).unwrap());
    let mut reactor = on.reactor();
    let options = DatagramOptions::default().permissions(0o600);
    let id = reactor.bind_datagrams_with(&address, &options, Echo).unwrap();
    assert_eq!(local(&mut reactor, id), address);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let error = on.reactor().bind_datagrams(&address, Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("receive datagrams on {address}: ")), "somebody has it: {error}");
    let (server, client) = (path.clone(), asking.clone());
    run_with(&mut reactor, move || {
        let socket = unix_peer(UnixDatagram::bind(&client).unwrap());
        socket.send_to(b"over unix", &server).unwrap();
        let mut back = [0; 100];
        let (count, from) = socket.recv_from(&mut back).unwrap();
        assert_eq!((&back[..count], from.as_pathname()), (&b"over unix"[..], Some(&*server)));
        std::fs::remove_file(client).unwrap();
    });
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    assert!(!path.exists());

    // A connected one has a file of its own, if it is to be answered.
    let log = Log::default();
    let id = reactor.bind_datagrams(&address, Echo).unwrap();
    let options = DatagramOptions::default().bind(Address::Unix(asking.clone()));
    let client = reactor.connect_datagrams_with(&address, &options, logging(&log)).unwrap();
    reactor.datagrams(client).unwrap().send(b"hello").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received hello"]);
    for id in [client, id] {
        reactor.datagrams(id).unwrap().close();
    }
    poll(&mut reactor);
    assert!(!path.exists() && !asking.exists());
    assert!(reactor.connect_datagrams_with(&address, &options, logging(&log)).is_err());
    assert!(!asking.exists(), "nor does one stay that was of no use");
}

fn a_file_that_is_not_its_own_is_neither_replaced_nor_removed(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-datagrams-{}-{}-file", std::process::id(), on.0));
    let address = Address::Unix(path.clone());
    let mut reactor = on.reactor();
    // To connect to it is refused as it is by a socket that nobody has.
    std::fs::write(&path, "a file").unwrap();
    assert!(reactor.bind_datagrams(&address, Echo).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    std::fs::remove_file(&path).unwrap();
    let id = reactor.bind_datagrams(&address, Echo).unwrap();
    std::fs::remove_file(&path).unwrap();
    let other = UnixDatagram::bind(&path).unwrap();
    reactor.datagrams(id).unwrap().close();
    run_until(&mut reactor, |reactor| reactor.datagrams(id).is_none());
    assert!(UnixDatagram::unbound().unwrap().connect(&path).is_ok());
    drop(other);
    std::fs::remove_file(&path).unwrap();
}

fn an_abstract_unix_socket_works_and_a_nameless_one_can_only_ask(on: On) {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    let name = |what: &str| Address::Abstract(format!("pelton-{}-{}-{what}", std::process::id(), on.0).into_bytes());
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    let server = scripted(&log, move |io, datagram| {
        seen.add(format!("{} asks {}", datagram.from, String::from_utf8_lossy(&datagram.bytes)));
        if datagram.from != Address::Unnamed {
            io.send_to(&datagram.from, b"the answer").unwrap();
        }
    });
    reactor.bind_datagrams(&name("server"), server).unwrap();
    let asking = reactor.bind_datagrams(&name("client"), logging(&log)).unwrap();
    let nameless = reactor.bind_datagrams(&Address::Unnamed, logging(&log)).unwrap();
    reactor.datagrams(asking).unwrap().send_to(&name("server"), b"this").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), [format!("{} asks this", name("client")), "received the answer".to_owned()]);
    reactor.datagrams(nameless).unwrap().send_to(&name("server"), b"that").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["unix: asks that"]);
    assert_eq!(local(&mut reactor, nameless), Address::Unnamed);
}

fn a_connected_socket_hears_its_peer_alone(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, server) = bind(&mut reactor, Echo);
    let client = reactor.connect_datagrams(&server.into(), logging(&log)).unwrap();
    let address = internet(&local(&mut reactor, client));
    assert_eq!(reactor.datagrams(client).unwrap().peer_address().unwrap(), server.into());
    peer("127.0.0.1:0").send_to(b"from a stranger", address).unwrap();
    reactor.datagrams(client).unwrap().send(b"one").unwrap();
    reactor.datagrams(client).unwrap().send_bytes("two").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["received one", "received two"]);
}

/// A port that nobody receives on. It is held, connected to itself, so that no other test can get it.
fn nobody() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    socket.connect(address).unwrap();
    (socket, address)
}

fn a_refused_datagram_is_told_and_the_socket_goes_on(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (held, address) = nobody();
    let client = reactor.connect_datagrams(&address.into(), logging(&log)).unwrap();
    let from = internet(&local(&mut reactor, client));
    for _ in 0..3 {
        reactor.datagrams(client).unwrap().send(b"anybody there?").unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), ["failed, to whom it is connected to: ConnectionRefused"]);
    }
    // Somebody is, now.
    held.connect(from).unwrap();
    reactor.datagrams(client).unwrap().send(b"and now?").unwrap();
    poll(&mut reactor);
    let mut bytes = [0; 20];
    held.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let count = held.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"and now?");
    held.send(b"yes").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received yes"]);
}

/// On a connected socket, any call may be answered with what has become of an earlier datagram. The one at hand has not been
/// sent then, and has to be sent again.
fn every_refusal_while_sending_leaves_the_rest_to_be_sent(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (held, address) = nobody();
    let client = reactor.connect_datagrams(&address.into(), logging(&log)).unwrap();
    let from = internet(&local(&mut reactor, client));
    let mut io = reactor.datagrams(client).unwrap();
    // So that the refusal is met by sending, not by receiving.
    io.pause();
    io.send(b"refused").unwrap();
    poll(&mut reactor);
    held.connect(from).unwrap();
    for number in 0..10 {
        reactor.datagrams(client).unwrap().send(&[number]).unwrap();
    }
    poll(&mut reactor);
    held.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for number in 0..10 {
        let mut bytes = [0; 20];
        assert_eq!((held.recv(&mut bytes).unwrap(), bytes[0]), (1, number));
    }
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["failed, to whom it is connected to: ConnectionRefused"]);
}

fn empty_datagrams_are_sent_and_delivered(on: On) {
    let mut reactor = on.reactor();
    let (_, server) = bind(&mut reactor, Echo);
    run_with(&mut reactor, move || {
        let client = peer("127.0.0.1:0");
        for sent in [&b""[..], b"x", b"", b""] {
            client.send_to(sent, server).unwrap();
            let mut back = [7; 10];
            assert_eq!(client.recv_from(&mut back).unwrap(), (sent.len(), server));
        }
    });
    // Nothing but an empty one waits: it goes out all the same, before the socket is closed.
    let client = peer("127.0.0.1:0");
    let log = Log::default();
    let (id, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(id).unwrap();
    io.send_to(&client.local_addr().unwrap().into(), b"").unwrap();
    assert_eq!(io.queued(), 0);
    io.close_after_sending();
    poll(&mut reactor);
    assert_eq!(client.recv(&mut [0; 10]).unwrap(), 0);
    assert_eq!(log.take(), ["closed: closed by this side"]);
}

fn the_largest_datagram_fits_and_a_larger_one_is_told_and_holds_up_nothing(on: On) {
    const LARGEST: usize = 65_507;
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, server) = bind(&mut reactor, Echo);
    let seen = log.clone();
    let client = scripted(&log, move |_, datagram| {
        let intact = datagram.bytes.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8);
        seen.add(format!("{} bytes, {intact}", datagram.bytes.len()));
    });
    let (client, _) = bind(&mut reactor, client);
    let bytes: Vec<u8> = (0..=LARGEST).map(|index| (index % 251) as u8).collect();
    for length in [1, LARGEST + 1, 2, LARGEST + 1, LARGEST] {
        reactor.datagrams(client).unwrap().send_to(&server.into(), &bytes[..length]).unwrap();
    }
    assert_eq!(reactor.datagrams(client).unwrap().queued(), 3 + 3 * LARGEST + 2);
    run_until(&mut reactor, |_| log.len() == 5);
    let mut told = log.take();
    told.sort();
    let failed = told.split_off(3);
    assert_eq!(told, ["1 bytes, true", "2 bytes, true", "65507 bytes, true"]);
    for failed in failed {
        assert!(failed.starts_with(&format!("failed, to {server}: ")), "{failed}");
    }
    assert_eq!((reactor.datagrams(client).unwrap().queued(), reactor.queued()), (0, 0));
}

fn a_unix_datagram_that_does_not_fit_is_dropped_and_the_next_one_arrives(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    reactor.adopt_datagrams(ours, logging(&log)).unwrap();
    // The system may not take in such a large one in the first place.
    match theirs.send(&[b'x'; 100_000]) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error())),
    }
    theirs.send(b"fits").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received fits"]);
}

fn a_thousand_each_way_arrive(on: On) {
    const COUNT: u32 = 1_000;
    let mut reactor = on.reactor();
    let log = Log::default();
    let (server, address) = bind(&mut reactor, Echo);
    let mut expected = 0..COUNT;
    let client = scripted(&log, move |io, datagram| {
        assert_eq!(datagram.bytes[..], expected.next().unwrap().to_be_bytes());
        if expected.is_empty() {
            io.close();
        }
    });
    let client = reactor.connect_datagrams(&address.into(), client).unwrap();
    // Room for all of them at both ends: what is tested is that none is lost or turned round here.
    for id in [server, client] {
        let io = reactor.datagrams(id).unwrap();
        SocketOptions::of(&io.descriptor().unwrap()).set_receive_buffer(4_000_000).unwrap();
    }
    let mut next = 0..COUNT;
    // A hundred at a time, since the system may allow less room than was asked for.
    reactor.every(Duration::from_micros(100), move |reactor, _| {
        for number in next.by_ref().take(100) {
            reactor.datagrams(client).unwrap().send(&number.to_be_bytes()).unwrap();
        }
    });
    run_until(&mut reactor, |_| log.len() > 0);
    assert_eq!(log.take(), ["closed: closed by this side"]);
}

fn a_busy_socket_does_not_keep_others_waiting(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (busy, busy_address) = bind(&mut reactor, logging(&log));
    let (_, address) = bind(&mut reactor, logging(&log));
    let io = reactor.datagrams(busy).unwrap();
    SocketOptions::of(&io.descriptor().unwrap()).set_receive_buffer(4_000_000).unwrap();
    let sender = peer("127.0.0.1:0");
    for round in 0..10 {
        for _ in 0..100 {
            sender.send_to(b"busy", busy_address).unwrap();
        }
        sender.send_to(b"quiet", address).unwrap();
        poll(&mut reactor);
        let told = log.take();
        assert!(told.contains(&"received quiet".to_owned()), "in round {round}: {told:?}");
        assert!(told.len() <= 33, "{} of one socket in one turn", told.len() - 1);
    }
}

/// A group that is this test's own: tests run side by side, and hear each other's multicast.
fn group(on: On) -> Ipv4Addr {
    let engine = pelton::EngineKind::ALL.iter().position(|kind| *kind == on.0).unwrap() as u8;
    let process = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, 192 + engine, process[2], process[3])
}

fn multicast_reaches_its_members_until_they_leave(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let group = group(on);
    let lo = MulticastInterface::Address(Ipv4Addr::LOCALHOST);
    let options = DatagramOptions::default().reuse_address(true);
    let mut address: Address = "0.0.0.0:0".parse().unwrap();
    let mut members = Vec::new();
    for _ in 0..2 {
        let id = reactor.bind_datagrams_with(&address, &options, logging(&log)).unwrap();
        // The second one has the first one's port.
        address = local(&mut reactor, id);
        reactor.datagrams(id).unwrap().join_multicast(group.into(), lo).unwrap();
        members.push(id);
    }
    let to = Address::from(SocketAddr::new(group.into(), internet(&address).port()));
    let (sender, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(sender).unwrap();
    io.set_multicast_interface(lo).unwrap();
    io.set_multicast_ttl(1).unwrap();
    io.send_to(&to, b"to both").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["received to both", "received to both"]);

    reactor.datagrams(members[0]).unwrap().leave_multicast(group.into(), lo).unwrap();
    reactor.datagrams(members[0]).unwrap().close();
    reactor.datagrams(sender).unwrap().send_to(&to, b"to one").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["closed: closed by this side", "received to one"]);

    // Loopback brings everything back, so that it is not heard on this machine cannot be seen there.
    let mut io = reactor.datagrams(sender).unwrap();
    for on in [false, true] {
        io.set_multicast_loop(on).unwrap();
        assert_eq!(socket2::SockRef::from(&io.descriptor().unwrap()).multicast_loop_v4().unwrap(), on);
    }
    let error = reactor.datagrams(sender).unwrap().join_multicast(Ipv4Addr::LOCALHOST.into(), lo).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "that is no group: {error}");
}

/// The number of an interface that multicast over IPv6 can go by, which loopback often cannot.
fn interface_for_v6() -> Option<u32> {
    if cfg!(not(target_os = "linux")) {
        return Some(1);
    }
    let routes = std::fs::read_to_string("/proc/net/ipv6_route").ok()?;
    let multicast = routes.lines().find(|route| route.starts_with("ff000000000000000000000000000000 08"))?;
    let name = multicast.split_whitespace().last()?;
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

fn multicast_over_v6_reaches_its_members(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let Some(interface) = interface_for_v6() else {
        return eprintln!("SKIPPED: no interface of this machine has a route for multicast over IPv6");
    };
    let [.., a, b, c] = group(on).octets();
    let group = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, a.into(), u16::from_be_bytes([b, c]));
    let interface = MulticastInterface::Index(interface);
    let member = reactor.bind_datagrams(&"[::]:0".parse().unwrap(), logging(&log)).unwrap();
    let port = internet(&local(&mut reactor, member)).port();
    reactor.datagrams(member).unwrap().join_multicast(group.into(), interface).unwrap();
    let sender = reactor.bind_datagrams(&"[::]:0".parse().unwrap(), logging(&log)).unwrap();
    let mut io = reactor.datagrams(sender).unwrap();
    io.set_multicast_interface(interface).unwrap();
    // It stays on this machine, whatever interface it is.
    io.set_multicast_loop(true).unwrap();
    io.set_multicast_ttl(0).unwrap();
    io.send_to(&SocketAddr::new(IpAddr::V6(group), port).into(), b"to the group").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received to the group"]);
    let named_by_address = MulticastInterface::Address(Ipv4Addr::LOCALHOST);
    assert!(reactor.datagrams(member).unwrap().join_multicast(group.into(), named_by_address).is_err());
}

fn broadcast_has_to_be_allowed(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    // Loopback has a broadcast address too.
    let receiver = reactor.bind_datagrams(&"0.0.0.0:0".parse().unwrap(), logging(&log)).unwrap();
    let port = internet(&local(&mut reactor, receiver)).port();
    let everybody = Address::from(SocketAddr::new([127, 255, 255, 255].into(), port));
    let (sender, _) = bind(&mut reactor, logging(&log));
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"not allowed").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("failed, to {everybody}: PermissionDenied")]);
    reactor.datagrams(sender).unwrap().set_broadcast(true).unwrap();
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"allowed").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received allowed"]);
    let options = DatagramOptions::default().broadcast(true);
    let sender = reactor.bind_datagrams_with(&localhost(), &options, logging(&log)).unwrap();
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"from the start").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received from the start"]);
}

fn a_paused_socket_delivers_nothing_and_costs_nothing_and_loses_nothing(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    // Pauses after each: the rest of what was received at once has to wait.
    let handler = scripted(&log, move |io, datagram| {
        seen.add(String::from_utf8_lossy(&datagram.bytes));
        io.pause();
        assert!(io.is_paused());
    });
    let (id, address) = bind(&mut reactor, handler);
    let sender = peer("127.0.0.1:0");
    for number in 0..20 {
        sender.send_to(number.to_string().as_bytes(), address).unwrap();
    }
    for number in 0..20 {
        run_until(&mut reactor, |_| log.len() > 0);
        assert_eq!(log.take(), [number.to_string()]);
        if number == 10 {
            let (turns, calls) = activity(&mut reactor, &log);
            assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
        }
        reactor.datagrams(id).unwrap().resume();
    }
}

fn a_full_receiver_is_waited_for_when_connected_and_told_of_when_not(on: On) {
    const COUNT: usize = 1_000;
    let path = scratch(on, "full.sock");
    let mut reactor = on.reactor();
    let log = Log::default();
    // Nobody reads yet, and the kernel keeps a few for it.
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let connected = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    for number in 0..COUNT {
        reactor.datagrams(connected).unwrap().send(number.to_string().as_bytes()).unwrap();
    }
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls: {:?}", log.take());
    assert!(reactor.datagrams(connected).unwrap().queued() > 0);

    // One that is not connected may have others to send to, who should not wait.
    let other = scratch(on, "other.sock");
    let other_receiver = unix_peer(UnixDatagram::bind(&other).unwrap());
    let free = reactor.bind_datagrams(&Address::Unnamed, logging(&log)).unwrap();
    let mut io = reactor.datagrams(free).unwrap();
    io.send_to(&Address::Unix(path.clone()), b"no room").unwrap();
    io.send_to(&Address::Unix(other.clone()), b"room").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("failed, to unix:{}: WouldBlock", path.display())]);
    let mut bytes = [0; 10];
    assert_eq!(other_receiver.recv(&mut bytes).unwrap(), 4);

    run_with(&mut reactor, move || {
        for number in 0..COUNT {
            let count = receiver.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..count], *number.to_string().as_bytes());
        }
    });
    assert_eq!(reactor.datagrams(connected).unwrap().queued(), 0);
    assert_eq!(log.take(), ["drained"], "it was a lot");
    for path in [path, other] {
        std::fs::remove_file(path).unwrap();
    }
}

fn what_waits_is_bounded_and_drained_is_told(on: On) {
    let path = scratch(on, "bounded.sock");
    let mut reactor = on.reactor();
    let log = Log::default();
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let id = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    let mut io = reactor.datagrams(id).unwrap();
    io.set_water_marks(WaterMarks { low: 10_000, high: 100_000, most: 1_000_000 });
    let mut sent = 0;
    let error = loop {
        match io.send(&[0; 1_000]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::Full { bytes: 1_000, queued: 900_000.., most: 1_000_000 }), "{error}");
    assert!((500..1_000).contains(&sent), "{sent}");
    // Empty ones take up memory too.
    let empty = (0..1_000_000).take_while(|_| io.send(b"").is_ok()).count();
    assert!(empty < 100, "{empty}");
    assert!(reactor.queued() > 900_000);
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
    let path_again = path.clone();
    run_with(&mut reactor, move || {
        for _ in 0..sent + empty {
            receiver.recv(&mut [0; 1_000]).unwrap();
        }
        std::fs::remove_file(path_again).unwrap();
    });
    assert_eq!(log.take(), ["drained"]);
    assert_eq!((reactor.queued(), reactor.datagrams(id).unwrap().queued()), (0, 0));
}

fn a_socket_can_be_closed_from_inside_and_from_elsewhere(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    let handler = scripted(&log, move |io, datagram| {
        seen.add("received");
        io.send_to(&datagram.from, b"dropped").unwrap();
        io.close();
        io.close();
        assert!(!io.is_open());
        assert_eq!(io.send_to(&datagram.from, b"too late"), Err(SendError::Closed));
        let id = io.id();
        assert!(io.reactor().datagrams(id).is_none());
    });
    let (_, address) = bind(&mut reactor, handler);
    let sender = peer("127.0.0.1:0");
    for _ in 0..10 {
        sender.send_to(b"x", address).unwrap();
    }
    run_until(&mut reactor, |_| log.len() >= 2);
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["received", "closed: closed by this side"]);
    assert_eq!((reactor.datagram_socket_count(), reactor.queued()), (0, 0));
    sender.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    assert!(sender.recv(&mut [0; 10]).is_err(), "nothing was sent");

    let (id, _) = bind(&mut reactor, logging(&log));
    reactor.next_tick(move |reactor| reactor.datagrams(id).unwrap().close_with(Reason::Overflow));
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: the send queue is full"]);
}

fn close_after_sending_sends_everything_and_tells_what_failed_before_closed(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (id, own) = bind(&mut reactor, logging(&log));
    let receiver = peer("127.0.0.1:0");
    let to = Address::from(receiver.local_addr().unwrap());
    let mut io = reactor.datagrams(id).unwrap();
    for _ in 0..50 {
        io.send_to(&to, b"fits").unwrap();
    }
    io.send_to(&to, &[0; 70_000]).unwrap();
    io.close_after_sending();
    assert_eq!(io.send_to(&to, b"too late"), Err(SendError::Closed));
    receiver.send_to(b"not wanted any more", own).unwrap();
    run_until(&mut reactor, |_| log.len() >= 2);
    let told = log.take();
    assert!(told[0].starts_with(&format!("failed, to {to}: ")), "{told:?}");
    assert_eq!(told[1..], ["closed: closed by this side"]);
    for _ in 0..50 {
        receiver.recv(&mut [0; 10]).unwrap();
    }
}

fn a_panicking_handler_closes_its_socket_only(on: On) {
    let mut reactor = on.catching();
    reactor.on_fault(|reactor, fault| *reactor.state::<String>() = fault.to_string());
    let log = Log::default();
    let (bad, bad_address) = bind(&mut reactor, scripted(&log, |_, _| panic!("on purpose")));
    reactor.datagrams(bad).unwrap().set_label("bad");
    let (_, good_address) = bind(&mut reactor, Echo);
    let sender = peer("127.0.0.1:0");
    for _ in 0..3 {
        sender.send_to(b"x", bad_address).unwrap();
    }
    sender.send_to(b"x", good_address).unwrap();
    run_until(&mut reactor, |_| log.len() > 0);
    assert_eq!(log.take(), ["closed: its handler panicked"]);
    assert!(reactor.state::<String>().starts_with("datagrams \"bad\" ("), "{}", reactor.state::<String>());
    run_with(&mut reactor, move || sender.recv(&mut [0; 10]).unwrap());
    assert_eq!((reactor.datagram_socket_count(), reactor.stats().panics), (1, 1));
}

fn a_handler_that_answers_failures_with_failures_does_not_stop_the_loop(on: On) {
    struct Stubborn(Rc<Cell<u32>>);
    impl Datagrams for Stubborn {
        fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
        fn send_failed(&mut self, io: &mut DatagramIo<'_>, to: Option<&Address>, _: io::Error) {
            self.0.set(self.0.get() + 1);
            io.send_to(to.unwrap(), &[0; 70_000]).unwrap();
        }
    }
    let mut reactor = on.reactor();
    let failures = Rc::new(Cell::new(0));
    let (id, address) = bind(&mut reactor, Stubborn(failures.clone()));
    reactor.datagrams(id).unwrap().send_to(&address.into(), &[0; 70_000]).unwrap();
    for _ in 0..10 {
        poll(&mut reactor);
    }
    assert!((5..=10).contains(&failures.get()), "once per turn: {}", failures.get());
}

fn stopping_closes_and_draining_lets_everything_out(on: On) {
    let log = Log::default();
    let mut reactor = on.reactor();
    bind(&mut reactor, logging(&log));
    reactor.stop();
    assert_eq!(run(&mut reactor), Exit::Stopped);
    assert_eq!(log.take(), ["closed: closed by this side"]);

    let path = scratch(on, "drain.sock");
    let mut reactor = on.reactor();
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let id = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    // More than the kernel takes in before somebody reads.
    for _ in 0..1_000 {
        reactor.datagrams(id).unwrap().send(b"on its way").unwrap();
    }
    reactor.drain(Duration::from_secs(20));
    poll(&mut reactor);
    assert_eq!(log.len(), 0, "it waits");
    let reading = thread::spawn(move || (0..1_000).map(|_| receiver.recv(&mut [0; 20]).unwrap()).sum::<usize>());
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(reading.join().unwrap(), 10_000);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    std::fs::remove_file(path).unwrap();

    // One that does not close is named at the end.
    struct Stays;
    impl Datagrams for Stays {
        fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
        fn draining(&mut self, _: &mut DatagramIo<'_>) {}
    }
    let mut reactor = on.reactor();
    bind(&mut reactor, Stays);
    reactor.drain(Duration::from_millis(10));
    assert_eq!(run(&mut reactor), Exit::DrainTimedOut { holds: 0, connections: 1 });
}

fn sockets_from_elsewhere_can_be_taken_over(on: On) {
    let path = scratch(on, "adopted.sock");
    let mut reactor = on.reactor();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap();
    reactor.adopt_datagrams(udp, Echo).unwrap();
    run_with(&mut reactor, move || {
        let client = peer("127.0.0.1:0");
        client.send_to(b"hello", address).unwrap();
        assert_eq!(client.recv(&mut [0; 10]).unwrap(), 5);
    });
    let unix = reactor.adopt_datagrams(UnixDatagram::bind(&path).unwrap(), Echo).unwrap();
    assert_eq!(local(&mut reactor, unix), Address::Unix(path.clone()));
    reactor.datagrams(unix).unwrap().close();
    poll(&mut reactor);
    std::fs::remove_file(path).expect("its file is not ours to remove");

    let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = reactor.adopt_datagrams(stream, Echo).unwrap_err().to_string();
    assert_eq!(error, "adopt a datagram socket: this is not a datagram socket");
    assert_eq!(reactor.datagram_socket_count(), 1);
}

fn errors_name_the_address(on: On) {
    let mut reactor = on.reactor();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::from(taken.local_addr().unwrap());
    let error = reactor.bind_datagrams(&address, Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("receive datagrams on {address}: ")), "{error}");
    let nowhere = Address::Unix("/nonexistent/some.sock".into());
    let error = reactor.connect_datagrams(&nowhere, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect datagrams to unix:/nonexistent/some.sock: "), "{error}");
    assert_eq!(reactor.datagram_socket_count(), 0);
    // What only shows when it is sent is told like everything else that does.
    let log = Log::default();
    let (id, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(id).unwrap();
    io.send(b"to nobody").unwrap();
    io.send_to(&Address::Unix("x".repeat(200).into()), b"too long").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    let told = log.take();
    assert!(told[0].starts_with("failed, to whom it is connected to: "), "{told:?}");
    assert_eq!(told[1], format!("failed, to unix:{}: InvalidInput", "x".repeat(200)));
}

fn socat_is_answered(on: On) {
    let mut reactor = on.reactor();
    let (_, address) = bind(&mut reactor, Echo);
    let path = scratch(on, "socat.sock");
    let unix = reactor.bind_datagrams(&Address::Unix(path.clone()), Echo).unwrap();
    let client = scratch(on, "socat-client.sock");
    let peers = [format!("UDP4:{address}"), format!("UNIX-SENDTO:{},bind={}", path.display(), client.display())];
    for peer in peers {
        let back = run_with(&mut reactor, move || {
            let mut socat = Command::new("socat")
                .args(["-t", "0.3", "-", &peer])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("socat is needed for this test");
            io::Write::write_all(socat.stdin.as_mut().unwrap(), b"hello, socat").unwrap();
            socat.wait_with_output().unwrap()
        });
        assert!(back.status.success(), "{back:?}");
        assert_eq!(String::from_utf8(back.stdout).unwrap(), "hello, socat");
    }
    reactor.datagrams(unix).unwrap().close();
    let _ = std::fs::remove_file(client);
    poll(&mut reactor);
}

/// Asks 200 times with all sizes up to the largest, then answers once.
const PYTHON: &str = r#"
import socket, sys
port = int(sys.argv[1])
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(10)
asking.connect(("127.0.0.1", port))
for size in [0, 1, 65507] + list(range(2, 60000, 307)):
    sent = bytes(n % 256 for n in range(size))
    asking.send(sent)
    assert asking.recv(70000) == sent, size
answering = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answering.settimeout(10)
answering.bind(("127.0.0.1", 0))
asking.send(b"port %d" % answering.getsockname()[1])
question, address = answering.recvfrom(100)
answering.sendto(b"a parrot, to " + question, address)
"#;

fn python_is_answered_and_asked(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    let server = scripted(&log, move |io, datagram| match datagram.bytes.strip_prefix(b"port ") {
        None => io.send_chunk_to(&datagram.from, datagram.bytes).unwrap(),
        Some(port) => {
            let port = String::from_utf8_lossy(port).parse().unwrap();
            let there = Address::from(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
            let asking = io.reactor().connect_datagrams(&there, logging(&seen)).unwrap();
            io.reactor().datagrams(asking).unwrap().send(b"what is it?").unwrap();
        }
    });
    let (_, address) = bind(&mut reactor, server);
    let output = run_with(&mut reactor, move || {
        let port = address.port().to_string();
        Command::new("python3").args(["-c", PYTHON, &port]).output().expect("python3 is needed for this test")
    });
    assert!(output.status.success(), "{output:?}");
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received a parrot, to what is it?"]);
}

#[test]
fn echoed_datagrams_allocate_nothing() {
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let copying = scripted(&Log::default(), |io, datagram| io.send_to(&datagram.from, &datagram.bytes).unwrap());
    let mut servers = vec![bind(&mut reactor, copying).1];
    // Several that hold on to what came in until it is sent on.
    servers.extend((0..6).map(|_| bind(&mut reactor, Echo).1));
    let client = peer("127.0.0.1:0");
    client.set_nonblocking(true).unwrap();
    let mut turns = |count| {
        for _ in 0..count {
            for server in servers.iter().cycle().take(20 * servers.len()) {
                client.send_to(b"ping", server).unwrap();
            }
            for _ in 0..20 * servers.len() {
                while client.recv(&mut [0; 10]).is_err() {
                    poll(&mut reactor);
                }
            }
        }
    };
    turns(100);
    assert_eq!(allocation_counter::measure(|| turns(300)).count_total, 0);
}

#[test]
fn a_reactor_that_has_no_datagram_socket_any_more_keeps_no_memory_for_them() {
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    // Room for the first sources, signals and whatever else there is only once.
    let (id, _) = bind(&mut reactor, Echo);
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    let left = allocation_counter::measure(|| {
        let (id, address) = bind(&mut reactor, Echo);
        let client = peer("127.0.0.1:0");
        for _ in 0..100 {
            client.send_to(&[0; 1_000], address).unwrap();
        }
        for _ in 0..100 {
            poll(&mut reactor);
        }
        reactor.datagrams(id).unwrap().close();
        poll(&mut reactor);
    });
    assert!(left.bytes_total > 32 * 65_536, "{left:?}");
    // The list of events has grown, and is the loop's.
    assert!(left.bytes_current < 16_384, "{left:?}");
}

#[test]
fn a_forked_child_leaves_the_parents_socket_and_its_file_alone() {
    use fork::{Fork, fork, waitpid};
    let path = std::env::temp_dir().join(format!("pelton-{}-fork.sock", std::process::id()));
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let id = reactor.bind_datagrams(&Address::Unix(path.clone()), logging(&Log::default())).unwrap();
    match fork().unwrap() {
        Fork::Child => {
            let refused = reactor.bind_datagrams(&localhost(), Echo).is_err();
            // Closes everything, and touches nothing that is the parent's.
            let ended = reactor.shutdown().is_ok();
            drop(reactor);
            // Nothing else of this process may run in the child: not the test harness, not its exit handlers.
            signal_hook::low_level::exit(if refused && ended { 0 } else { 1 });
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).unwrap(), 0, "the child failed"),
    }
    let ours = UnixDatagram::unbound().unwrap();
    ours.send_to(b"still there?", &path).unwrap();
    poll(&mut reactor);
    assert_eq!(reactor.stats().calls(pelton::CallbackKind::Datagrams), 1, "it is still received from");
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    assert!(!path.exists());
}

/// Set in the child of the test below: the engine to use.
#[cfg(target_os = "linux")]
const CHILD: &str = "PELTON_TEST_CHILD";

#[cfg(target_os = "linux")]
#[test]
fn a_thousand_each_way_take_far_fewer_system_calls() {
    const COUNT: usize = 1_000;
    const NAME: &str = "a_thousand_each_way_take_far_fewer_system_calls";
    if let Ok(name) = std::env::var(CHILD) {
        let mut reactor =
            Reactor::builder().engine(name.parse().unwrap()).panic_policy(PanicPolicy::Propagate).build().unwrap();
        let (server, address) = bind(&mut reactor, Echo);
        let client = scripted(&Log::default(), |io, _| *io.reactor().state::<usize>() += 1);
        let client = reactor.connect_datagrams(&address.into(), client).unwrap();
        let mut exchange = |count: usize| {
            for _ in 0..count / 100 {
                *reactor.state::<usize>() = 0;
                for number in 0..100 {
                    reactor.datagrams(client).unwrap().send(&[number]).unwrap();
                }
                reactor.run_until(|reactor| *reactor.state::<usize>() == 100).unwrap();
            }
        };
        exchange(COUNT);
        let _ = rustix::process::getppid();
        exchange(COUNT);
        let _ = rustix::process::getppid();
        reactor.datagrams(server).unwrap().close();
        std::process::exit(0);
    }
    for engine in ["epoll", "poll", "select"] {
        let trace = std::env::temp_dir().join(format!("pelton-{}-datagrams-{engine}.strace", std::process::id()));
        let output = Command::new("strace")
            .args(["-f", "-o", trace.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, engine)
            .output()
            .expect("strace is needed for this test");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        let calls: Vec<&str> = text.split("getppid(").nth(1).expect("the marks").lines().collect();
        let count = |name: &str| calls.iter().filter(|line| line.contains(name)).count();
        // Each datagram is sent and received twice.
        assert!(calls.len() < COUNT / 2, "{engine}: {} calls", calls.len());
        assert!(count("recvmmsg(") < 150 && count("sendmmsg(") < 150, "{engine}: {calls:#?}");
        assert_eq!(count("epoll_ctl("), 0, "{engine}");
    }
}
