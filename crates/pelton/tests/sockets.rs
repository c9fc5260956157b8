//! Sockets: options, files, and adoption of foreign ones.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Address, Bytes, Chunk, ConnectOptions, Connection, Error, EventLoop, Io, ListenOptions, SocketOptions};
use pelton_testing::{Echo, On, child, on_every_engine, run_until};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

on_every_engine![
    socket_options_are_set_as_documented,
    dual_stack_listener_accepts_both_families,
    listeners_may_share_a_port_if_enabled,
    connection_can_be_bound_to_a_local_address,
    unix_socket_file_has_the_requested_permissions_and_is_removed,
    file_that_is_not_a_stale_socket_is_not_replaced,
    foreign_listener_can_be_adopted,
    a_stream_that_another_process_passes_can_be_adopted,
    detached_socket_still_works,
    addresses_and_endpoints_are_parsed_from_text,
    chunk_becomes_bytes_for_another_thread,
];

/// Runs a closure when it is opened, and echoes.
struct Then<F>(Option<F>);

impl<F: FnOnce(&mut Io<'_>) + 'static> Connection for Then<F> {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.0.take().unwrap()(io);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }
}

fn tcp(reactor: &EventLoop, listener: pelton::ListenerId) -> SocketAddr {
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    }
}

/// Sends something and runs the loop until it is echoed.
fn is_echoed(reactor: &mut EventLoop, mut stream: impl Read + Write) {
    stream.write_all(b"ping").unwrap();
    let mut answer = Vec::new();
    // Wakes the loop, so that the condition is checked.
    let looking = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(reactor, |_| {
        let mut bytes = [0; 4];
        let count = stream.read(&mut bytes).unwrap_or(0);
        answer.extend_from_slice(&bytes[..count]);
        answer.len() == 4
    });
    reactor.cancel(looking);
    assert_eq!(answer, b"ping");
}

/// A temporary directory, removed at the end of the test.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(on: On, test: &str) -> Directory {
        let name = format!("pelton-{}-{test}-{}", std::process::id(), on.builder().build().unwrap().engine_name());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn nonblocking(stream: TcpStream) -> TcpStream {
    stream.set_nonblocking(true).unwrap();
    stream
}

fn socket_options_are_set_as_documented(on: On) {
    let mut reactor = on.reactor();
    let told = Rc::new(Cell::new(0));
    let check = |told: Rc<Cell<u32>>| {
        move |io: &mut Io<'_>| {
            let socket = io.descriptor().unwrap();
            let flags = rustix::io::fcntl_getfd(socket).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            let options = SocketOptions::of(&socket);
            assert!(options.nodelay().unwrap());
            assert!(!options.keepalive().unwrap());
            options.set_nodelay(false).unwrap();
            options.set_keepalive(Some(Duration::from_secs(30))).unwrap();
            options.set_send_buffer(20_000).unwrap();
            options.set_receive_buffer(20_000).unwrap();
            assert!(!options.nodelay().unwrap() && options.keepalive().unwrap());
            assert!(options.send_buffer().unwrap() >= 20_000 && options.receive_buffer().unwrap() >= 20_000);
            options.set_linger(Some(Duration::ZERO)).unwrap();
            told.set(told.get() + 1);
        }
    };
    let accepted = told.clone();
    let listener = reactor.listen("127.0.0.1:0", move |_| Then(Some(check(accepted.clone())))).unwrap();
    let address = tcp(&reactor, listener);
    reactor.connect(&address.into(), Then(Some(check(told.clone())))).unwrap();
    run_until(&mut reactor, |_| told.get() == 2);
    // Closed a moment ago by this side: without SO_REUSEADDR the port would be in use for a minute.
    reactor.end(listener);
    drop(reactor);
    on.reactor().listen(address, |_| Echo).unwrap();
}

fn dual_stack_listener_accepts_both_families(on: On) {
    let mut reactor = on.reactor();
    let listener = reactor.listen("[::]:0", |_| Echo).unwrap();
    let port = tcp(&reactor, listener).port();
    for host in ["127.0.0.1", "::1"] {
        is_echoed(&mut reactor, nonblocking(TcpStream::connect((host, port)).unwrap()));
    }
    let only = ListenOptions::default().only_v6(true);
    let listener = reactor.listen_with(&"[::]:0".parse().unwrap(), &only, |_| Echo).unwrap();
    let port = tcp(&reactor, listener).port();
    is_echoed(&mut reactor, nonblocking(TcpStream::connect(("::1", port)).unwrap()));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

fn listeners_may_share_a_port_if_enabled(on: On) {
    let mut reactor = on.reactor();
    let shared = ListenOptions::default().reuse_port(true);
    let first = reactor.listen_with(&"127.0.0.1:0".parse().unwrap(), &shared, |_| Echo).unwrap();
    let address = Address::from(tcp(&reactor, first));
    reactor.listen_with(&address, &shared, |_| Echo).unwrap();
    reactor.listen(&address, |_| Echo).unwrap_err();
}

fn connection_can_be_bound_to_a_local_address(on: On) {
    let mut reactor = on.reactor();
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = ConnectOptions::default().bind("127.0.0.2:0".parse().unwrap());
    let local = Rc::new(Cell::new(None));
    let known = local.clone();
    let handler = Then(Some(move |io: &mut Io<'_>| known.set(Some(io.local_address().unwrap()))));
    reactor.connect_with(&peer.local_addr().unwrap().into(), &from, handler).unwrap();
    let (mut stream, address) = peer.accept().unwrap();
    assert_eq!(address.ip().to_string(), "127.0.0.2");
    run_until(&mut reactor, |_| local.take().is_some_and(|local| local == address.into()));
    stream.write_all(b"hi").unwrap();
    // An address of another machine or family cannot be used.
    for from in ["192.0.2.1:0", "[::1]:0"] {
        let from = ConnectOptions::default().bind(from.parse().unwrap());
        let error = reactor.connect_with(&peer.local_addr().unwrap().into(), &from, Echo).unwrap_err().to_string();
        assert!(error.starts_with("connect to 127.0.0.1:"), "{error}");
    }
}

fn unix_socket_file_has_the_requested_permissions_and_is_removed(on: On) {
    let directory = Directory::new(on, "permissions");
    let mut reactor = on.reactor();
    for (name, mode) in [("private", 0o600), ("public", 0o666)] {
        let path = directory.0.join(name);
        let options = ListenOptions::default().permissions(mode);
        let listener = reactor.listen_with(&Address::Unix(path.clone()), &options, |_| Echo).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_nonblocking(true).unwrap();
        is_echoed(&mut reactor, stream);
        reactor.end(listener);
        assert!(!path.exists());
    }
    let path = directory.0.join("left");
    reactor.listen(Address::Unix(path.clone()), |_| Echo).unwrap();
    reactor.shutdown().unwrap();
    assert!(!path.exists(), "the reactor removes it, too");
}

fn file_that_is_not_a_stale_socket_is_not_replaced(on: On) {
    let directory = Directory::new(on, "taken");
    let mut reactor = on.reactor();
    let plain = directory.0.join("plain");
    std::fs::write(&plain, "precious").unwrap();
    reactor.listen(Address::Unix(plain.clone()), |_| Echo).unwrap_err();
    assert_eq!(std::fs::read_to_string(&plain).unwrap(), "precious");

    let taken = directory.0.join("taken");
    let other = UnixListener::bind(&taken).unwrap();
    let error = reactor.listen(Address::Unix(taken.clone()), |_| Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on unix:{}: ", taken.display())), "{error}");
    assert!(taken.exists());
    drop(other);
    reactor.listen(Address::Unix(taken), |_| Echo).unwrap();
}

fn foreign_listener_can_be_adopted(on: On) {
    let directory = Directory::new(on, "adopted");
    let mut reactor = on.reactor();
    let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = theirs.local_addr().unwrap();
    let check = |io: &mut Io<'_>| assert!(SocketOptions::of(&io.descriptor().unwrap()).nodelay().unwrap());
    let listener = reactor.adopt_listener(theirs, move |_| Then(Some(check))).unwrap();
    assert_eq!(reactor.listening_on(listener), Some(&address.into()));
    is_echoed(&mut reactor, nonblocking(TcpStream::connect(address).unwrap()));

    let path = directory.0.join("theirs");
    let listener = reactor.adopt_listener(UnixListener::bind(&path).unwrap(), |_| Echo).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_nonblocking(true).unwrap();
    is_echoed(&mut reactor, stream);
    reactor.end(listener);
    assert!(path.exists(), "the file of an adopted listener is kept");
}

/// Sends a descriptor through a Unix socket.
fn pass(through: &UnixStream, fd: impl AsFd) {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(through, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
}

fn take(from: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty()).unwrap();
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
        _ => None,
    });
    fds.next().unwrap().pop().unwrap()
}

fn a_stream_that_another_process_passes_can_be_adopted(on: On) {
    let mut reactor = on.reactor();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let (giver, taker) = UnixStream::pair().unwrap();
    pass(&giver, accepted);
    reactor.adopt(take(&taker), Echo).unwrap();
    is_echoed(&mut reactor, nonblocking(client));
}

fn detached_socket_still_works(on: On) {
    struct Detach(Rc<Cell<Option<pelton::Detached>>>);
    impl Connection for Detach {
        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            io.send(&chunk).unwrap();
            let given = self.0.clone();
            io.detach(move |_, detached| given.set(Some(detached))).unwrap();
            io.send(b"too late").unwrap_err();
        }
    }
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let given = Rc::new(Cell::new(None));
    reactor.adopt(ours, Detach(given.clone())).unwrap();
    theirs.write_all(b"first").unwrap();
    let mut detached = None;
    run_until(&mut reactor, |_| {
        detached = detached.take().or(given.take());
        detached.is_some()
    });
    assert_eq!(reactor.connection_count(), 0);
    let mut first = [0; 5];
    theirs.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first", "queued data was sent");
    let mut ours = UnixStream::from(detached.unwrap().socket.into_fd().unwrap());
    ours.set_nonblocking(false).unwrap();
    theirs.write_all(b"second").unwrap();
    let mut second = [0; 6];
    ours.read_exact(&mut second).unwrap();
    assert_eq!(&second, b"second");
}

#[test]
fn inherited_listeners_are_returned_once() {
    const TEST: &str = "inherited_listeners_are_returned_once";
    if child::role().is_some() {
        let inherited = pelton::inherited_listeners().unwrap();
        assert_eq!(inherited.len(), 1);
        assert!(pelton::inherited_listeners().unwrap().is_empty(), "each is returned once");
        let mut reactor = pelton::Reactor::new().unwrap();
        for listener in inherited {
            assert_eq!(listener.name.as_deref(), Some("web"));
            reactor.adopt_listener(listener.socket, |_| Echo).unwrap();
        }
        run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        return;
    }
    assert!(pelton::inherited_listeners().unwrap().is_empty());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A child inherits it under another number and sets its own process id, as a service manager does between fork and exec.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let script = "import os, sys\n\
        os.dup2(int(sys.argv[1]), 3)\n\
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='web')\n\
        os.execv(sys.argv[2], sys.argv[2:])";
    let mut child = Command::new("python3")
        .args(["-c", script, &listener.as_raw_fd().to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(child::CHILD, "1")
        .spawn()
        .unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"ping").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
    drop(client);
    assert!(child.wait().unwrap().success());
}

fn addresses_and_endpoints_are_parsed_from_text(on: On) {
    let mut reactor = on.reactor();
    let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
    let port = reactor.listening_on(listener).and_then(Address::port).unwrap();
    assert_ne!(port, 0);
    reactor.listen(String::from("[::1]:0"), |_| Echo).unwrap();
    reactor.listen(SocketAddr::from(([127, 0, 0, 1], 0)), |_| Echo).unwrap();
    let address = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
    reactor.listen(&address, |_| Echo).unwrap();
    assert_eq!(address.port(), Some(0), "the address is still listening");
    let error = reactor.listen("localhost", |_| Echo).unwrap_err();
    assert!(
        matches!(error, Error::BadAddress(_)) && error.to_string().contains("\"localhost\" is not an address"),
        "{error}"
    );

    let opened = Rc::new(Cell::new(0));
    let then = || {
        let opened = opened.clone();
        Then(Some(move |io: &mut Io<'_>| {
            opened.set(opened.get() + 1);
            io.close();
        }))
    };
    reactor.connect_to(("127.0.0.1", port), then()).unwrap();
    reactor.connect_to((String::from("localhost"), port), then()).unwrap();
    reactor.connect_to((std::net::IpAddr::from([127, 0, 0, 1]), port), then()).unwrap();
    run_until(&mut reactor, |_| opened.get() == 3);
    for bad in ["", "a b", "[::1]", "host:80", "unix:/path"] {
        assert!(matches!(reactor.connect_to((bad, port), Echo), Err(Error::BadEndpoint(_))), "{bad:?}");
    }
}

/// Passes received data to another thread.
struct HandOver(std::sync::mpsc::Sender<Vec<Bytes>>);

impl Connection for HandOver {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let place = chunk.as_ptr();
        let copy = Bytes::copy_from_slice(&chunk);
        let bytes = Bytes::from(chunk);
        assert_ne!(bytes.as_ptr(), place, "the buffer belongs to the loop");
        let sender = self.0.clone();
        std::thread::spawn(move || sender.send(vec![bytes, copy]).unwrap());
        io.close();
    }
}

fn chunk_becomes_bytes_for_another_thread(on: On) {
    let mut reactor = on.reactor();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    reactor.adopt(ours, HandOver(sender)).unwrap();
    theirs.write_all(b"hello").unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)).unwrap(), ["hello", "hello"]);
    // A chunk that was made from a vector keeps its memory.
    let vector = vec![1, 2, 3];
    let place = vector.as_ptr();
    let vector = Chunk::from(vector).into_vec();
    assert_eq!((vector.as_ptr(), &vector[..]), (place, &[1, 2, 3][..]));
    let mut chunk = Chunk::from(vector);
    chunk.advance(1);
    assert_eq!(Vec::from(chunk), [2, 3]);
}
