//! Many reactors on many threads, on every engine, with blocking peers.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pelton::{
    Address, Chunk, Connection, Error, Exit, Handle, Io, ListenOptions, PanicPolicy, Reactor, ReactorThread, Reactors,
    Sharing,
};
use pelton_testing::{DEADLINE, Echo, On, child, localhost, on_every_engine};

on_every_engine![
    connections_are_spread_over_all,
    moving_connections_echo_correctly,
    draining_loses_no_queued_bytes,
    drain_ends_at_its_deadline,
    draining_and_stopping_again_is_harmless,
    unused_connection_does_not_delay_a_drain,
    connection_for_a_draining_or_ended_reactor_is_closed_or_served_by_another,
    connection_moved_to_a_draining_reactor_is_notified,
    error_in_setup_is_returned_and_none_runs,
    panic_in_setup_is_returned,
    failed_reactor_stops_the_others_and_is_reported,
    dropping_them_stops_and_joins_them,
    unix_sockets_are_shared_too,
    single_reactor_does_not_share_its_port,
    if_one_cannot_listen_none_listens,
    listening_on_one_of_their_threads_is_refused,
    first_signal_drains_and_second_stops_all,
    threads_and_descriptors_are_not_leaked,
    reactor_thread_sets_up_there_and_is_reached_by_its_handle,
    failed_setup_of_a_reactor_thread_is_returned,
    dropping_a_reactors_thread_stops_and_joins_it,
];

/// More than the kernel buffers for a peer that does not read, and less than a connection's queue limit.
const LARGE: usize = 15_000_000;

/// Sends the index of its reactor, then echoes.
struct Named;

impl Connection for Named {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(format!("{}\n", thread::current().name().unwrap()).as_bytes()).unwrap();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }
}

/// Answers any input with a lot of data.
struct Generous;

impl Connection for Generous {
    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        io.send_bytes(large_answer()).unwrap();
    }
}

fn large_answer() -> Vec<u8> {
    (0..LARGE).map(|number| (number * 7 % 251) as u8).collect()
}

fn start(on: On, count: usize) -> Reactors {
    Reactors::start(count, move |_| on.builder(), |_, _| Ok(())).unwrap()
}

fn listen<C: Connection>(reactors: &Reactors, sharing: Sharing, serve: fn() -> C) -> SocketAddr {
    match reactors.listen(&localhost(), sharing, &ListenOptions::default(), move |_| serve()).unwrap() {
        Address::Tcp(address) => address,
        other => panic!("{other:?}"),
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn first_line(stream: impl Read) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Polls until another thread has caused `condition`.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        thread::yield_now();
    }
}

fn is_gone(handle: &Handle) -> bool {
    handle.post(|_| {}).is_err()
}

fn connections(reactors: &Reactors) -> usize {
    let count = |handle: &Handle| handle.post_with_reply(|reactor| reactor.connection_count()).wait().unwrap();
    reactors.handles().iter().map(count).sum()
}

fn all_are(exits: Vec<Result<Exit, Error>>, expected: Exit) {
    for exit in exits {
        assert_eq!(exit.unwrap(), expected);
    }
}

/// How reactors share a port on this system.
fn sharings() -> Vec<Sharing> {
    // Other kernels let them share, but do not distribute connections.
    if cfg!(target_os = "linux") { vec![Sharing::ReusePort, Sharing::HandOver] } else { vec![Sharing::HandOver] }
}

fn connections_are_spread_over_all(on: On) {
    for sharing in sharings() {
        let reactors = start(on, 3);
        let address = listen(&reactors, sharing, || Named);
        let mut served = BTreeMap::<String, usize>::new();
        for _ in 0..200 {
            *served.entry(first_line(connect(address))).or_default() += 1;
        }
        assert_eq!(served.keys().collect::<Vec<_>>(), ["pelton-0", "pelton-1", "pelton-2"], "{sharing:?}");
        if sharing == Sharing::HandOver {
            assert!(served.values().all(|count| (66..=67).contains(count)), "distributed evenly: {served:?}");
        }
        reactors.stop();
        all_are(reactors.join(), Exit::Stopped);
    }
}

/// Echoes, and sometimes moves to another reactor.
struct Roaming {
    others: Arc<[Handle]>,
    moves: Arc<AtomicUsize>,
    until_it_moves: usize,
}

impl Connection for Roaming {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
        self.until_it_moves -= 1;
        if self.until_it_moves == 0 {
            let (others, moves) = (self.others.clone(), self.moves.clone());
            let count = moves.fetch_add(1, Ordering::Relaxed);
            let to = others[count % others.len()].clone();
            io.move_to(&to, move |_| Roaming { others, moves, until_it_moves: 1 + count % 3 }).unwrap();
        }
    }
}

fn moving_connections_echo_correctly(on: On) {
    const CLIENTS: usize = 12;
    const MESSAGES: usize = 150;
    for sharing in sharings() {
        let reactors = start(on, 3);
        let (others, moves): (Arc<[Handle]>, _) = (reactors.handles().into(), Arc::new(AtomicUsize::new(0)));
        let counted = moves.clone();
        let serve = move |_: &mut Reactor| {
            let (others, moves) = (others.clone(), moves.clone());
            Roaming { others, moves, until_it_moves: 1 }
        };
        let bound = reactors.listen(&localhost(), sharing, &ListenOptions::default(), serve).unwrap();
        let Address::Tcp(address) = bound else { panic!("{bound}") };
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                thread::spawn(move || {
                    let data: Vec<u8> = (0..MESSAGES * 97).map(|place| (place * 31 + client) as u8).collect();
                    let mut stream = connect(address);
                    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
                    // Does not wait for answers, so that data is in flight during each move.
                    let writing = thread::spawn(move || {
                        sent.chunks(97).for_each(|message| writer.write_all(message).unwrap());
                        writer.shutdown(Shutdown::Write).unwrap();
                    });
                    let mut back = Vec::new();
                    stream.read_to_end(&mut back).unwrap();
                    writing.join().unwrap();
                    assert!(back == data, "client {client} got {} of {} bytes right", back.len(), data.len());
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        assert!(counted.load(Ordering::Relaxed) >= CLIENTS, "the connections have moved");
        reactors.drain(DEADLINE);
        all_are(reactors.join(), Exit::Drained);
    }
}

fn draining_loses_no_queued_bytes(on: On) {
    let reactors = start(on, 2);
    let address = listen(&reactors, Sharing::HandOver, || Generous);
    let mut slow: Vec<TcpStream> = (0..4).map(|_| connect(address)).collect();
    let mut first = [0];
    for stream in &mut slow {
        stream.write_all(b"?").unwrap();
        // The whole answer is queued once a part of it has arrived.
        stream.read_exact(&mut first).unwrap();
    }
    reactors.drain(DEADLINE);
    reactors.drain(Duration::ZERO);
    until("new connections are refused", || TcpStream::connect(address).is_err());
    let expected = large_answer();
    for stream in &mut slow {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest == expected[1..], "{} of {LARGE} bytes came", rest.len() + 1);
    }
    all_are(reactors.join(), Exit::Drained);
}

fn drain_ends_at_its_deadline(on: On) {
    let reactors = start(on, 2);
    let address = listen(&reactors, Sharing::HandOver, || Generous);
    // The first connection goes to the first reactor.
    let mut stream = connect(address);
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    reactors.drain(Duration::from_millis(20));
    let exits: Vec<Exit> = reactors.join().into_iter().map(|exit| exit.unwrap()).collect();
    assert_eq!(exits, [Exit::DrainTimedOut { holds: 0, connections: 1 }, Exit::Drained]);
}

fn draining_and_stopping_again_is_harmless(on: On) {
    let reactors = start(on, 2);
    let handles = reactors.handles().to_vec();
    let hold = handles[0].hold();
    for _ in 0..3 {
        reactors.drain(DEADLINE);
    }
    until("the one that nothing holds has ended", || is_gone(&handles[1]));
    assert!(!is_gone(&handles[0]));
    for _ in 0..3 {
        reactors.stop();
        reactors.drain(DEADLINE);
    }
    let exits: Vec<Exit> = reactors.join().into_iter().map(|exit| exit.unwrap()).collect();
    assert_eq!(exits, [Exit::Stopped, Exit::Drained]);
    for handle in handles {
        handle.stop();
        handle.drain(DEADLINE);
    }
    drop(hold);
}

fn unused_connection_does_not_delay_a_drain(on: On) {
    for sharing in sharings() {
        let reactors = start(on, 2);
        let address = listen(&reactors, sharing, || Echo);
        let mut streams: Vec<TcpStream> = (0..8).map(|_| connect(address)).collect();
        until("all are being served", || connections(&reactors) == streams.len());
        let begun = Instant::now();
        reactors.drain(2 * DEADLINE);
        all_are(reactors.join(), Exit::Drained);
        assert!(begun.elapsed() < DEADLINE);
        for stream in &mut streams {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    }
}

fn connection_for_a_draining_or_ended_reactor_is_closed_or_served_by_another(on: On) {
    let reactors = start(on, 2);
    let address = listen(&reactors, Sharing::HandOver, || Named);
    let second = &reactors.handles()[1];
    let hold = second.hold();
    second.drain(DEADLINE);
    assert!(second.post_with_reply(|reactor| reactor.stopping()).wait().unwrap());
    assert_eq!(first_line(connect(address)), "pelton-0");
    assert_eq!(first_line(connect(address)), "", "a draining reactor accepts nothing new");
    drop(hold);
    until("the second has ended", || is_gone(second));
    for _ in 0..4 {
        assert_eq!(first_line(connect(address)), "pelton-0");
    }
}

fn connection_moved_to_a_draining_reactor_is_notified(on: On) {
    struct Mover(Handle);
    impl Connection for Mover {
        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            io.send_chunk(chunk).unwrap();
            io.move_to(&self.0, |_| Echo).unwrap();
        }
    }
    let reactors = start(on, 2);
    let (first, second) = (&reactors.handles()[0], reactors.handles()[1].clone());
    let hold = second.hold();
    second.drain(DEADLINE);
    // Its connections are told in a later tick; posts and ticks alternate.
    for _ in 0..2 {
        assert!(second.post_with_reply(|reactor| reactor.stopping()).wait().unwrap());
    }
    let listening = first.post_with_reply(move |reactor| {
        let listener = reactor.listen(localhost(), move |_| Mover(second.clone())).unwrap();
        reactor.listening_on(listener).cloned()
    });
    let Some(Address::Tcp(address)) = listening.wait().unwrap() else { panic!("no address") };
    let mut stream = connect(address);
    stream.write_all(b"move").unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "move");
    drop(hold);
    until("the second has ended", || is_gone(&reactors.handles()[1]));
    reactors.stop();
    assert_eq!(reactors.join().pop().unwrap().unwrap(), Exit::Drained);
}

fn error_in_setup_is_returned_and_none_runs(on: On) {
    let (ran, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, ending) = (ran.clone(), ended.clone());
    let setup = move |index: usize, reactor: &mut Reactor| {
        let (running, ending) = (running.clone(), ending.clone());
        reactor.next_tick(move |_| {
            running.fetch_add(1, Ordering::SeqCst);
        });
        reactor.on_shutdown(move |_| {
            ending.fetch_add(1, Ordering::SeqCst);
        });
        match index {
            1 => Err(Error::System { doing: "open the gates".to_owned(), error: io::Error::other("stuck") }),
            _ => Ok(()),
        }
    };
    let error = Reactors::start(3, move |_| on.builder(), setup).unwrap_err();
    assert_eq!(error.to_string(), "open the gates: stuck");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!(ended.load(Ordering::SeqCst), 2, "reactors that were set up are shut down");
}

fn panic_in_setup_is_returned(on: On) {
    let setup = |index, _: &mut Reactor| {
        assert_ne!(index, 2, "on purpose");
        Ok(())
    };
    let error = Reactors::start(3, move |_| on.builder(), setup).unwrap_err();
    assert!(matches!(&error, Error::Panicked { thread, .. } if thread == "pelton-2"), "{error:?}");
    assert!(error.to_string().contains("on purpose"), "{error}");
}

fn failed_reactor_stops_the_others_and_is_reported(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-{}-{}-failing.sock", std::process::id(), on.0));
    let build = move |_| on.builder().panic_policy(PanicPolicy::Propagate);
    let reactors = Reactors::start(3, build, |_, _| Ok(())).unwrap();
    let address = Address::Unix(path.clone());
    reactors.listen(&address, Sharing::HandOver, &ListenOptions::default(), |_| Echo).unwrap();
    reactors.handles()[0].post(|_| panic!("on purpose")).unwrap();
    let mut exits = reactors.join();
    all_are(exits.split_off(1), Exit::Stopped);
    let error = exits.remove(0).unwrap_err();
    assert_eq!(error.to_string(), "thread pelton-0 panicked: on purpose");
    assert!(!path.exists(), "the failed reactor was shut down properly");
}

fn dropping_them_stops_and_joins_them(on: On) {
    let ended = Arc::new(AtomicUsize::new(0));
    let ending = ended.clone();
    let setup = move |_, reactor: &mut Reactor| {
        let ending = ending.clone();
        reactor.on_shutdown(move |_| {
            ending.fetch_add(1, Ordering::SeqCst);
        });
        Ok(())
    };
    let reactors = Reactors::start(3, move |_| on.builder(), setup).unwrap();
    let handles = reactors.handles().to_vec();
    drop(reactors);
    assert_eq!(ended.load(Ordering::SeqCst), 3);
    assert!(handles.iter().all(is_gone));
}

fn unix_sockets_are_shared_too(on: On) {
    for sharing in [Sharing::ReusePort, Sharing::HandOver] {
        let path = std::env::temp_dir().join(format!("pelton-{}-{}-many.sock", std::process::id(), on.0));
        let reactors = start(on, 2);
        let address = Address::Unix(path.clone());
        let options = ListenOptions::default();
        assert_eq!(reactors.listen(&address, sharing, &options, |_| Named).unwrap(), address);
        for server in ["pelton-0", "pelton-1", "pelton-0"] {
            assert_eq!(first_line(UnixStream::connect(&path).unwrap()), server);
        }
        drop(reactors);
        assert!(!path.exists());
    }
}

fn single_reactor_does_not_share_its_port(on: On) {
    let (one, other) = (start(on, 1), start(on, 1));
    let address = listen(&one, Sharing::ReusePort, || Named);
    assert_eq!(first_line(connect(address)), "pelton-0");
    let taken = other.listen(&address.into(), Sharing::ReusePort, &ListenOptions::default(), |_| Named);
    let error = taken.unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {address}: ")), "{error}");
    assert_eq!(start(on, 0).handles().len(), 1, "there is always at least one");
}

fn if_one_cannot_listen_none_listens(on: On) {
    let reactors = start(on, 2);
    reactors.handles()[1].stop();
    until("the second has ended", || is_gone(&reactors.handles()[1]));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = reactors.listen(&free.into(), Sharing::ReusePort, &ListenOptions::default(), |_| Echo);
    assert!(matches!(refused, Err(Error::Stopped)), "{refused:?}");
    until("the port is free again", || TcpListener::bind(free).is_ok());
}

fn listening_on_one_of_their_threads_is_refused(on: On) {
    let reactors = start(on, 2);
    let first = reactors.handles()[0].clone();
    let outcome = first.post_with_reply(move |_| {
        let outcome = reactors.listen(&localhost(), Sharing::HandOver, &ListenOptions::default(), |_| Echo);
        // Dropping them there does not wait for this thread either.
        drop(reactors);
        outcome.unwrap_err().to_string()
    });
    assert_eq!(outcome.wait().unwrap(), "listen on 127.0.0.1:0: this thread would wait for itself");
    until("it has ended by itself", || is_gone(&first));
}

/// Runs the test of this name and engine in a child process, unless this is the child. For resources that a process has only
/// once.
fn in_a_child(test: &str, on: On) -> bool {
    if child::role().is_some() {
        return false;
    }
    let output = child::command(&format!("{}::{test}", on.0), "1").output().unwrap();
    assert!(output.status.success(), "{output:#?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:#?}");
    true
}

fn first_signal_drains_and_second_stops_all(on: On) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::low_level::raise;
    if in_a_child("first_signal_drains_and_second_stops_all", on) {
        return;
    }
    let reactors = start(on, 3);
    reactors.drain_on_signals(&[SIGINT, SIGTERM], DEADLINE).unwrap();
    raise(SIGTERM).unwrap();
    all_are(reactors.join(), Exit::Drained);

    let reactors = start(on, 3);
    reactors.drain_on_signals(&[SIGINT, SIGTERM], DEADLINE).unwrap();
    // Work is in progress on the last reactor, so the first one, which handles signals, must stay for the second signal.
    let _hold = reactors.handles()[2].hold();
    raise(SIGTERM).unwrap();
    until("the one that nothing holds has ended", || is_gone(&reactors.handles()[1]));
    for _ in 0..10 {
        assert!(reactors.handles()[0].post_with_reply(|reactor| reactor.stopping()).wait().unwrap());
    }
    raise(SIGINT).unwrap();
    let exits: Vec<Exit> = reactors.join().into_iter().map(|exit| exit.unwrap()).collect();
    assert_eq!(exits, [Exit::Stopped, Exit::Drained, Exit::Stopped]);
}

/// The number of threads and descriptors of the process, where the system provides it.
fn threads_and_descriptors() -> Option<(usize, usize)> {
    let count = |path| std::fs::read_dir(path).unwrap().count();
    cfg!(target_os = "linux").then(|| (count("/proc/self/task"), count("/proc/self/fd")))
}

fn threads_and_descriptors_are_not_leaked(on: On) {
    if in_a_child("threads_and_descriptors_are_not_leaked", on) {
        return;
    }
    let before = threads_and_descriptors();
    for sharing in sharings() {
        let reactors = start(on, 3);
        let address = listen(&reactors, sharing, || Named);
        let streams: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
        assert!(streams.iter().all(|stream| first_line(stream).starts_with("pelton-")));
        assert!(before.is_none() || threads_and_descriptors() != before);
        reactors.drain(DEADLINE);
        all_are(reactors.join(), Exit::Drained);
    }
    let failing = Reactors::start(
        3,
        move |_| on.builder(),
        |index, reactor| {
            reactor.listen(localhost(), |_| Echo)?;
            if index == 2 { Err(Error::Stopped) } else { Ok(()) }
        },
    );
    assert!(failing.is_err());
    // A joined thread may stay on the kernel's list for a moment.
    until("threads and descriptors are as before", || threads_and_descriptors() == before);
}

fn reactor_thread_sets_up_there_and_is_reached_by_its_handle(on: On) {
    let reactor = ReactorThread::start(
        "served",
        move || on.builder(),
        |reactor| {
            reactor.put_state(7_u32);
            assert_eq!(thread::current().name(), Some("served"));
            Ok(())
        },
    );
    let reactor = reactor.unwrap();
    let state =
        reactor.post_with_reply(|reactor| (*reactor.state::<u32>(), thread::current().name().map(str::to_owned)));
    assert_eq!(state.wait(), Ok((7, Some("served".to_owned()))));
    let handle = reactor.handle().clone();
    reactor.drain(DEADLINE);
    assert_eq!(reactor.join().unwrap(), Exit::Drained);
    assert!(handle.has_stopped());

    let reactor = Reactor::start_thread(|reactor| {
        reactor.next_tick(|reactor| reactor.stop());
        Ok(())
    });
    assert_eq!(reactor.unwrap().join().unwrap(), Exit::Stopped);
}

fn failed_setup_of_a_reactor_thread_is_returned(on: On) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let setup = move |reactor: &mut Reactor| reactor.listen(address, |_| Named).map(drop);
    let error = ReactorThread::start("fails", move || on.builder(), setup).unwrap_err();
    assert!(error.to_string().starts_with(&format!("listen on {address}: ")), "{error}");
    let error = ReactorThread::start("panics", move || on.builder(), |_| std::panic::resume_unwind(Box::new("no")));
    assert_eq!(error.unwrap_err().to_string(), "thread panics panicked: no");
    // A later failure is returned by `join`.
    let propagate = move || on.builder().panic_policy(PanicPolicy::Propagate).on_fault(|_, _| {});
    let reactor = ReactorThread::start("later", propagate, |_| Ok(())).unwrap();
    reactor.post(|_| std::panic::resume_unwind(Box::new("then"))).unwrap();
    assert_eq!(reactor.join().unwrap_err().to_string(), "thread later panicked: then");
}

fn dropping_a_reactors_thread_stops_and_joins_it(on: On) {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let reactor = ReactorThread::start(
        "dropped",
        move || on.builder(),
        move |reactor| {
            count.fetch_add(1, Ordering::SeqCst);
            reactor.on_shutdown(move |_| {
                count.fetch_sub(1, Ordering::SeqCst);
            });
            Ok(())
        },
    );
    let reactor = reactor.unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(reactor);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    // Dropped on its own thread, it cannot be joined; the loop stops.
    let reactor = ReactorThread::start("own", move || on.builder(), |_| Ok(())).unwrap();
    let handle = reactor.handle().clone();
    handle.post(move |_| drop(reactor)).unwrap();
    let begun = Instant::now();
    while !handle.has_stopped() {
        assert!(begun.elapsed() < DEADLINE, "the loop does not stop");
        thread::yield_now();
    }
}
