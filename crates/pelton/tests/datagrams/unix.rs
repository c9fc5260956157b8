//! Unix sockets: paths, stale files, abstract and unnamed addresses.

use std::os::unix::net::UnixDatagram;

use pelton::{Address, DatagramOptions, PanicPolicy, Reactor};
use pelton_testing::{Echo, Log, On, localhost, on_every_engine, poll, run_until, run_with};

use super::{local, logging, scratch, scripted, unix_peer};

on_every_engine![
    a_unix_socket_with_a_path_works_replaces_a_stale_file_and_removes_its_own,
    foreign_file_is_neither_replaced_nor_removed,
    abstract_socket_works_and_an_unnamed_one_gets_no_answer,
    a_unix_datagram_that_does_not_fit_is_dropped_and_the_next_one_arrives,
];

fn a_unix_socket_with_a_path_works_replaces_a_stale_file_and_removes_its_own(on: On) {
    let (path, asking) = (scratch(on, "echo.sock"), scratch(on, "asking.sock"));
    let address = Address::Unix(path.clone());
    // A stale file of a socket that did not clean up.
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

    // A connected socket needs a file of its own to be answered.
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
    assert!(!asking.exists(), "the file of a failed socket is removed, too");
}

fn foreign_file_is_neither_replaced_nor_removed(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-datagrams-{}-{}-file", std::process::id(), on.0));
    let address = Address::Unix(path.clone());
    let mut reactor = on.reactor();
    // Connecting to it is refused, as to a socket without a process.
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

fn abstract_socket_works_and_an_unnamed_one_gets_no_answer(on: On) {
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

fn a_unix_datagram_that_does_not_fit_is_dropped_and_the_next_one_arrives(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    reactor.adopt_datagrams(ours, logging(&log)).unwrap();
    // The system may not accept such a large one in the first place.
    match theirs.send(&[b'x'; 100_000]) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error())),
    }
    theirs.send(b"fits").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received fits"]);
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
            // Drops everything without touching the parent's resources.
            let ended = reactor.shutdown().is_ok();
            drop(reactor);
            // Nothing else of this process may run in the child: neither the test harness nor its exit handlers.
            signal_hook::low_level::exit(if refused && ended { 0 } else { 1 });
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).unwrap(), 0, "the child failed"),
    }
    let ours = UnixDatagram::unbound().unwrap();
    ours.send_to(b"still there?", &path).unwrap();
    poll(&mut reactor);
    assert_eq!(reactor.stats().calls(pelton::CallbackKind::Datagrams), 1, "the socket still receives");
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    assert!(!path.exists());
}
