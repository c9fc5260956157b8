//! Manual listeners, and listeners that somebody else owns.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pelton::{Accepted, Address, EventLoop, ListenOptions, ListenerId, Reactor, Socket};
use pelton_testing::{
    Echo, Log, Network, On, child, localhost, on_every_engine, on_every_network, poll, run_until, run_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::is_blocking;

on_every_network![every_connection_is_accepted_on_request];

/// Counts its calls, and accepts nothing.
fn counting(count: &Rc<Cell<usize>>) -> impl FnMut(&mut Reactor, ListenerId) + 'static {
    let count = count.clone();
    move |_, _| count.set(count.get() + 1)
}

/// A listener of the test, which the reactor borrows. It is paused.
fn lend(
    reactor: &mut EventLoop,
    acceptable: impl FnMut(&mut Reactor, ListenerId) + 'static,
) -> (ListenerId, Arc<TcpListener>, SocketAddr) {
    let ours = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = ours.local_addr().unwrap();
    let id = reactor.adopt_manual_listener(Socket::borrowed(ours.clone()), acceptable).unwrap();
    (id, ours, address)
}

/// Reads until the loop has made this many turns, which wait a little.
fn turns(reactor: &mut EventLoop, count: usize) {
    for _ in 0..count {
        reactor.turn(Some(Duration::from_millis(5))).unwrap();
    }
}

fn every_connection_is_accepted_on_request(on: impl Network) {
    let mut reactor = on.reactor();
    let waiting = Rc::new(Cell::new(0));
    let listener = reactor.listen_manually(&localhost(), &ListenOptions::default(), counting(&waiting)).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let peers: Vec<_> = (0..3).map(|_| on.connect_peer(&address)).collect();
    turns(&mut reactor, 3);
    assert_eq!(waiting.get(), 0, "it is paused");
    reactor.resume_accepting(listener);
    let mut accepted = 0;
    let serve = |reactor: &mut Reactor| match reactor.accept(listener) {
        Ok(Accepted { socket, .. }) => {
            reactor.adopt(socket, Echo).unwrap();
            1
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        }
    };
    while accepted < peers.len() {
        let before = waiting.get();
        // Nothing is lost while it is not fetched.
        run_until(&mut reactor, |_| waiting.get() > before + 1);
        reactor.pause_accepting(listener);
        let paused = waiting.get();
        turns(&mut reactor, 3);
        assert_eq!(waiting.get(), paused);
        accepted += serve(&mut reactor);
        reactor.resume_accepting(listener);
    }
    assert_eq!(reactor.accept(listener).unwrap_err().kind(), ErrorKind::WouldBlock);
    run_with(&mut reactor, move || {
        for mut peer in peers {
            peer.write_all(b"hello").unwrap();
            assert_eq!(peer.read_some(5), b"hello");
        }
    });
    assert!(reactor.end(listener));
    assert_eq!(reactor.accept(listener).unwrap_err().kind(), ErrorKind::NotConnected);
}

mod with_a_kernel {
    use super::*;

    on_every_engine![
        a_borrowed_listener_is_given_back_open_and_in_its_mode,
        a_borrowed_listener_serves_like_any_other,
        connections_come_with_their_address,
        a_non_blocking_listener_stays_non_blocking,
        a_socket_that_does_not_listen_is_refused,
        a_listener_is_borrowed_once_at_a_time,
        a_pause_ends_by_itself,
        a_listener_may_end_in_its_own_callback,
        after_a_panic_the_listener_goes_on,
        a_stopped_loop_accepts_nothing,
        a_lack_of_descriptors_is_the_callers_error,
        a_long_turn_does_not_accept_for_the_caller,
    ];

    fn a_borrowed_listener_is_given_back_open_and_in_its_mode(on: On) {
        let mut reactor = on.reactor();
        let calls = Rc::new(Cell::new(0));
        let (id, ours, address) = lend(&mut reactor, counting(&calls));
        assert!(!is_blocking(&*ours), "accepting must not block");
        assert_eq!(reactor.accept(id).unwrap_err().kind(), ErrorKind::WouldBlock);
        reactor.resume_accepting(id);
        let peer = TcpStream::connect(address).unwrap();
        run_until(&mut reactor, |_| calls.get() > 2);
        assert_eq!(Arc::strong_count(&ours), 2);
        assert!(reactor.end(id));
        assert_eq!(Arc::strong_count(&ours), 1, "it is released at once");
        assert!(is_blocking(&*ours));
        let (mut accepted, _) = ours.accept().unwrap();
        accepted.write_all(b"from its owner").unwrap();
        drop(accepted);
        let mut received = String::new();
        (&peer).read_to_string(&mut received).unwrap();
        assert_eq!(received, "from its owner");
    }

    fn a_borrowed_listener_serves_like_any_other(on: On) {
        let mut reactor = on.reactor();
        let ours = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = ours.local_addr().unwrap();
        let id = reactor.adopt_listener(Socket::borrowed(ours.clone()), |_| Echo).unwrap();
        assert_eq!(reactor.listening_on(id).unwrap(), &Address::Tcp(address));
        for _ in 0..2 {
            run_with(&mut reactor, move || {
                let mut peer = TcpStream::connect(address).unwrap();
                let mut echoed = [0; 5];
                peer.write_all(b"hello").unwrap();
                peer.read_exact(&mut echoed).unwrap();
                assert_eq!(&echoed, b"hello");
            });
        }
        drop(reactor);
        assert_eq!(Arc::strong_count(&ours), 1);
        let _peer = TcpStream::connect(address).unwrap();
        ours.accept().unwrap();
    }

    fn connections_come_with_their_address(on: On) {
        let mut reactor = on.reactor();
        let (id, _ours, address) = lend(&mut reactor, |_, _| {});
        let peer = TcpStream::connect(address).unwrap();
        let Accepted { socket, from } = accept(&mut reactor, id);
        assert_eq!(from, Some(Address::Tcp(peer.local_addr().unwrap())));
        let accepted = socket.into_fd().unwrap();
        assert!(!is_blocking(&accepted));
        let flags = rustix::io::fcntl_getfd(&accepted).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let path = std::env::temp_dir().join(format!("pelton-manual-{}-{}", std::process::id(), on.0));
        let _ = std::fs::remove_file(&path);
        let ours = UnixListener::bind(&path).unwrap();
        let id = reactor.adopt_manual_listener(ours, |_, _| {}).unwrap();
        let _peer = UnixStream::connect(&path).unwrap();
        assert_eq!(accept(&mut reactor, id).from, Some(Address::Unnamed));
        std::fs::remove_file(&path).unwrap();
    }

    /// Accepts a connection that is about to come in.
    fn accept(reactor: &mut EventLoop, id: ListenerId) -> Accepted {
        let mut accepted = None;
        let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
        run_until(reactor, |reactor| {
            accepted = reactor.accept(id).ok();
            accepted.is_some()
        });
        reactor.cancel(waiting);
        accepted.unwrap()
    }

    fn a_non_blocking_listener_stays_non_blocking(on: On) {
        let mut reactor = on.reactor();
        let ours = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        ours.set_nonblocking(true).unwrap();
        let id = reactor.adopt_manual_listener(Socket::borrowed(ours.clone()), |_, _| {}).unwrap();
        reactor.end(id);
        assert!(!is_blocking(&*ours));
    }

    fn a_socket_that_does_not_listen_is_refused(on: On) {
        let mut reactor = on.reactor();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = reactor.adopt_manual_listener(Socket::borrowed(ours), |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("the socket does not listen"), "{error}");
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        reactor.adopt_listener(Socket::borrowed(udp), |_| Echo).unwrap_err();
        assert_eq!(reactor.connection_count(), 0);
    }

    fn a_listener_is_borrowed_once_at_a_time(on: On) {
        let mut reactor = on.reactor();
        let (id, ours, _) = lend(&mut reactor, |_, _| {});
        reactor.adopt_manual_listener(Socket::borrowed(ours.clone()), |_, _| {}).unwrap_err();
        assert!(!is_blocking(&*ours), "the first one still uses it");
        reactor.end(id);
        reactor.adopt_manual_listener(Socket::borrowed(ours.clone()), |_, _| {}).unwrap();
    }

    fn a_pause_ends_by_itself(on: On) {
        let mut reactor = on.reactor();
        let calls = Rc::new(Cell::new(0));
        let (id, _ours, address) = lend(&mut reactor, counting(&calls));
        reactor.resume_accepting(id);
        let _peer = TcpStream::connect(address).unwrap();
        run_until(&mut reactor, |_| calls.get() > 0);
        let (before, begun) = (calls.get(), Instant::now());
        let pause = Duration::from_millis(50);
        reactor.pause_accepting_for(id, pause);
        reactor.pause_accepting_for(id, Duration::from_secs(600));
        let mut looks = 0;
        run_until(&mut reactor, |_| {
            looks += 1;
            calls.get() > before
        });
        assert!(begun.elapsed() >= pause);
        assert!(looks < 50, "the loop sleeps meanwhile, but has looked {looks} times");
        // A listener that was paused stays so afterwards.
        reactor.pause_accepting_for(id, pause);
        reactor.pause_accepting(id);
        let before = calls.get();
        let over = Rc::new(Cell::new(false));
        let flag = over.clone();
        reactor.after(2 * pause, move |_| flag.set(true));
        run_until(&mut reactor, |_| over.get());
        assert_eq!(calls.get(), before);
    }

    fn a_listener_may_end_in_its_own_callback(on: On) {
        let mut reactor = on.reactor();
        let calls = Rc::new(Cell::new(0));
        let count = calls.clone();
        let (id, ours, address) = lend(&mut reactor, move |reactor, id| {
            count.set(count.get() + 1);
            assert!(reactor.end(id));
        });
        reactor.resume_accepting(id);
        let _peer = TcpStream::connect(address).unwrap();
        run_until(&mut reactor, |_| calls.get() > 0);
        turns(&mut reactor, 3);
        assert_eq!((calls.get(), Arc::strong_count(&ours)), (1, 1));
    }

    fn after_a_panic_the_listener_goes_on(on: On) {
        let mut reactor = on.catching();
        reactor.on_fault(|_, _| {});
        let calls = Rc::new(Cell::new(0));
        let count = calls.clone();
        let (id, _ours, address) = lend(&mut reactor, move |_, _| {
            count.set(count.get() + 1);
            assert!(count.get() > 1, "the first call panics");
        });
        reactor.resume_accepting(id);
        let _peer = TcpStream::connect(address).unwrap();
        run_until(&mut reactor, |_| calls.get() > 2);
        reactor.accept(id).unwrap();
    }

    fn a_stopped_loop_accepts_nothing(on: On) {
        let mut reactor = on.reactor();
        let calls = Rc::new(Cell::new(0));
        let (id, ours, address) = lend(&mut reactor, counting(&calls));
        reactor.resume_accepting(id);
        let _peer = TcpStream::connect(address).unwrap();
        reactor.stop();
        assert_eq!(reactor.accept(id).unwrap_err().kind(), ErrorKind::NotConnected);
        reactor.run().unwrap();
        assert_eq!((calls.get(), Arc::strong_count(&ours)), (0, 1));
        reactor.adopt_manual_listener(Socket::borrowed(ours), |_, _| {}).unwrap_err();
    }

    /// The limit is that of a process, so the test runs in one of its own.
    fn a_lack_of_descriptors_is_the_callers_error(on: On) {
        if child::role().is_none() {
            let name = format!("listeners::with_a_kernel::{}::a_lack_of_descriptors_is_the_callers_error", on.0);
            let output = child::command(&name, "1").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("accepted in the end"), "{output:?}");
            return;
        }
        let mut reactor = on.reactor();
        let log = Log::default();
        let accepted = Rc::new(RefCell::new(None));
        let (lines, keeps) = (log.clone(), accepted.clone());
        let (id, _ours, address) = lend(&mut reactor, move |reactor, id| match reactor.accept(id) {
            Ok(connection) => *keeps.borrow_mut() = Some(connection),
            Err(error) => {
                lines.add(format!("{:?}", error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error())));
                reactor.pause_accepting_for(id, Duration::from_millis(20));
            }
        });
        reactor.resume_accepting(id);
        let _peer = TcpStream::connect(address).unwrap();
        let limit = getrlimit(Resource::Nofile);
        let next = rustix::io::dup(io::stdout()).unwrap();
        let lowered = Some(std::os::fd::AsRawFd::as_raw_fd(&next) as u64);
        drop(next);
        setrlimit(Resource::Nofile, Rlimit { current: lowered, maximum: limit.maximum }).unwrap();
        let begun = Instant::now();
        run_until(&mut reactor, |_| log.len() >= 3);
        assert!(begun.elapsed() >= Duration::from_millis(40), "it pauses between the tries");
        assert!(log.entries().iter().all(|is_expected| is_expected == "true"));
        setrlimit(Resource::Nofile, limit).unwrap();
        run_until(&mut reactor, |_| accepted.borrow().is_some());
        println!("accepted in the end");
    }

    /// Listeners are checked during a long turn, for others.
    fn a_long_turn_does_not_accept_for_the_caller(on: On) {
        let mut reactor = on.reactor();
        let calls = Rc::new(Cell::new(0));
        let (id, _ours, address) = lend(&mut reactor, counting(&calls));
        reactor.resume_accepting(id);
        let served = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
        let other: SocketAddr = reactor.listening_on(served).unwrap().to_string().parse().unwrap();
        let _peers = [TcpStream::connect(address).unwrap(), TcpStream::connect(other).unwrap()];
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        let slow = move |_: &mut Reactor, _: pelton::Ready| std::thread::sleep(Duration::from_millis(15));
        reactor.watch(&ours, pelton::Interest::READABLE, slow).unwrap();
        run_until(&mut reactor, |reactor| calls.get() > 2 && reactor.connection_count() == 1);
        reactor.accept(id).unwrap();
        poll(&mut reactor);
    }
}
