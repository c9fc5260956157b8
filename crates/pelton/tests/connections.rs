//! Connections, on every engine, with peers that are plain blocking sockets in other threads.

mod common;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pelton::{Address, Chunk, Connection, ConnectionId, EventLoop, Io, Reactor, Reason, SendError};

use common::{Log, On, activity, on_every_engine, poll, run_until};

on_every_engine![
    what_is_sent_comes_back_whole,
    a_large_transfer_to_a_slow_reader_keeps_little_in_memory,
    closed_comes_once_and_last_and_says_why,
    a_refused_connection_is_told_to_its_handler_after_connect_has_returned,
    a_half_closed_connection_can_still_be_answered,
    close_after_writing_sends_everything_and_close_drops_it,
    a_paused_connection_reads_nothing_and_a_hang_up_on_it_costs_nothing,
    a_callback_can_send_to_and_close_other_connections,
    a_panicking_handler_closes_its_connection_only,
    one_send_past_the_limit_is_refused_and_loses_nothing,
    unix_sockets_work_and_a_stale_file_is_replaced,
    two_reactors_worth_of_connections_talk_to_each_other,
    many_connections_come_and_go,
    stopping_the_loop_closes_its_connections,
    errors_name_the_address,
];

type Act = Box<dyn FnMut(&mut Io<'_>)>;
type Receive = Box<dyn FnMut(&mut Io<'_>, Chunk)>;

/// Does what it is told to by closures, and logs the rest.
#[derive(Default)]
struct Scripted {
    log: Log,
    received: Option<Receive>,
    opened: Option<Act>,
    peer_finished: Option<Act>,
}

impl Connection for Scripted {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.log.add("opened");
        if let Some(act) = &mut self.opened {
            act(io);
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        match &mut self.received {
            Some(act) => act(io, chunk),
            None => self.log.add(format!("received {}", String::from_utf8_lossy(&chunk))),
        }
    }

    fn drained(&mut self, _: &mut Io<'_>) {
        self.log.add("drained");
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        match &mut self.peer_finished {
            Some(act) => act(io),
            None => io.close_after_writing(),
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }
}

fn localhost() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn listen<C: Connection>(reactor: &mut EventLoop, serve: impl FnMut(&mut Reactor) -> C + 'static) -> SocketAddr {
    let listener = reactor.listen(&localhost(), serve).unwrap();
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    }
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

fn what_is_sent_comes_back_whole(on: On) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    let data: Vec<u8> = (0..1_000_000u32).map(|number| (number * 7 % 251) as u8).collect();
    let sent = data.clone();
    let back = run_with(&mut reactor, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writing = thread::spawn(move || {
            for part in sent.chunks(7_777) {
                writer.write_all(part).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        writing.join().unwrap();
        back
    });
    assert!(back == data);
    poll(&mut reactor);
    assert_eq!(reactor.connection_count(), 0);
}

fn a_large_transfer_to_a_slow_reader_keeps_little_in_memory(on: On) {
    // More than the kernel takes in on its way.
    const TOTAL: usize = 40_000_000;
    let mut reactor = on.reactor();
    let most = Rc::new(Cell::new(0));
    let id = Rc::new(Cell::new(None));
    let (log, seen, known) = (Log::default(), most.clone(), id.clone());
    let entries = log.clone();
    // Each byte is answered with ten: the answers pile up until reading pauses.
    let address = listen(&mut reactor, move |_| {
        let (seen, known) = (seen.clone(), known.clone());
        Scripted {
            log: entries.clone(),
            received: Some(Box::new(move |io, chunk| {
                io.send_bytes(vec![b'x'; chunk.len() * 10]).unwrap();
                seen.set(seen.get().max(io.queued()));
                known.set(Some(io.id()));
            })),
            ..Scripted::default()
        }
    });
    let (start, may_read) = mpsc::channel();
    let peer = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let asking = thread::spawn(move || {
            for _ in 0..TOTAL / 10 / 1_000 {
                writer.write_all(&[b'?'; 1_000]).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        may_read.recv().unwrap();
        let mut all = vec![0; 1 << 16];
        let mut received = 0;
        loop {
            match stream.read(&mut all).unwrap() {
                0 => break,
                count => received += count,
            }
        }
        asking.join().unwrap();
        received
    });
    // Nobody reads until so much is waiting that the reactor does not read either.
    run_until(&mut reactor, |reactor| {
        let waiting = id.get().and_then(|id| Some(reactor.connection(id)?.queued()));
        waiting.is_some_and(|waiting| waiting > 64 * 1024)
    });
    for _ in 0..10 {
        poll(&mut reactor);
    }
    // What may wait, and the answer to one read more.
    assert!(most.get() < 1_000_000, "{} bytes were queued", most.get());
    start.send(()).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| peer.is_finished());
    reactor.cancel(waiting);
    assert_eq!(peer.join().unwrap(), TOTAL);
    assert!(log.take().contains(&"drained".to_owned()));
    assert!(most.get() < 1_000_000, "{} bytes were queued", most.get());
}

fn closed_comes_once_and_last_and_says_why(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted { log: entries.clone(), ..Scripted::default() });

    run_with(&mut reactor, move || TcpStream::connect(address).unwrap().write_all(b"hello").unwrap());
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take(), ["opened", "received hello", "peer finished", "closed: finished by the other side"]);

    run_with(&mut reactor, move || {
        let stream = socket2::SockRef::from(&TcpStream::connect(address).unwrap()).try_clone().unwrap();
        // Closing it with this set resets it.
        stream.set_linger(Some(Duration::ZERO)).unwrap();
    });
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!((log.len(), reactor.connection_count()), (0, 0));
}

fn a_refused_connection_is_told_to_its_handler_after_connect_has_returned(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    // Bound and closed again, so that nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    reactor.connect(&address.into(), Scripted { log: log.clone(), ..Scripted::default() }).unwrap();
    assert_eq!(log.len(), 0);
    run_until(&mut reactor, |_| log.len() > 0);
    assert_eq!(log.take(), [format!("closed: connect to {address}: refused")]);
    assert_eq!(reactor.connection_count(), 0);
}

fn a_half_closed_connection_can_still_be_answered(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        log: entries.clone(),
        peer_finished: Some(Box::new(|io| {
            io.send(b"the answer").unwrap();
            io.finish();
            assert_eq!(io.send(b"too late"), Err(SendError::Closed));
        })),
        ..Scripted::default()
    });
    let answer = run_with(&mut reactor, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"the question").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert_eq!(answer, "the answer");
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take().last().unwrap(), "closed: finished by the other side");
}

fn close_after_writing_sends_everything_and_close_drops_it(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        log: entries.clone(),
        opened: Some(Box::new(|io| {
            io.send_bytes(vec![b'y'; 3_000_000]).unwrap();
            io.close_after_writing();
        })),
        ..Scripted::default()
    });
    let read = |mut stream: TcpStream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all.len()
    };
    let all = run_with(&mut reactor, move || read(TcpStream::connect(address).unwrap()));
    assert_eq!(all, 3_000_000);
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);

    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            io.send(b"never sent").unwrap();
            io.close();
            assert_eq!(io.send(b"nor this"), Err(SendError::Closed));
        })),
        ..Scripted::default()
    });
    assert_eq!(run_with(&mut reactor, move || read(TcpStream::connect(address).unwrap())), 0);
}

fn a_paused_connection_reads_nothing_and_a_hang_up_on_it_costs_nothing(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let id = Rc::new(Cell::new(None));
    let (entries, known) = (log.clone(), id.clone());
    let address = listen(&mut reactor, move |_| {
        let known = known.clone();
        let opened = move |io: &mut Io<'_>| {
            io.pause();
            known.set(Some(io.id()));
        };
        Scripted { log: entries.clone(), opened: Some(Box::new(opened)), ..Scripted::default() }
    });
    run_with(&mut reactor, move || TcpStream::connect(address).unwrap().write_all(b"data").unwrap());
    run_until(&mut reactor, |_| log.len() == 1);
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
    reactor.connection(id.get().unwrap()).unwrap().resume();
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(
        log.take(),
        ["received data", "peer finished", "closed: finished by the other side"],
        "data comes first"
    );
    assert!(reactor.connection(id.get().unwrap()).is_none());
}

fn a_callback_can_send_to_and_close_other_connections(on: On) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Others(Vec<ConnectionId>);
    // What one says, all others hear; "bye" closes them.
    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            let id = io.id();
            io.reactor().state::<Others>().0.push(id);
        })),
        received: Some(Box::new(|io, chunk| {
            let own = io.id();
            let others: Vec<_> = io.reactor().state::<Others>().0.iter().copied().filter(|id| *id != own).collect();
            for other in others {
                let mut other = io.reactor().connection(other).unwrap();
                if &*chunk == b"bye" { other.close() } else { other.send(&chunk).unwrap() }
            }
            io.send(b"ok").unwrap();
        })),
        ..Scripted::default()
    });
    run_with(&mut reactor, move || {
        let (mut a, mut b) = (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
        let mut ok = [0; 2];
        // By the first answer both are known to be open.
        b.write_all(b"!").unwrap();
        b.read_exact(&mut ok).unwrap();
        a.write_all(b"to b").unwrap();
        let mut heard = [0; 4];
        b.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"to b");
        a.write_all(b"bye").unwrap();
        assert_eq!(b.read(&mut heard).unwrap(), 0);
    });
}

fn a_panicking_handler_closes_its_connection_only(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    reactor.on_fault(|reactor, fault| *reactor.state::<String>() = fault.to_string());
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        log: entries.clone(),
        received: Some(Box::new(|io, chunk| {
            assert_ne!(&*chunk, b"bad", "on purpose");
            io.send(b"fine").unwrap();
        })),
        ..Scripted::default()
    });
    run_with(&mut reactor, move || {
        let (mut good, mut bad) = (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
        bad.write_all(b"bad").unwrap();
        let mut end = [0; 4];
        assert!(matches!(bad.read(&mut end), Ok(0) | Err(_)));
        good.write_all(b"good").unwrap();
        good.read_exact(&mut end).unwrap();
        assert_eq!(&end, b"fine");
    });
    assert!(log.take().contains(&"closed: its handler panicked".to_owned()));
    assert!(reactor.state::<String>().starts_with("connection ("));
}

fn one_send_past_the_limit_is_refused_and_loses_nothing(on: On) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            let error = io.send_bytes(vec![0; 17 * 1024 * 1024]).unwrap_err();
            assert!(matches!(error, SendError::Full { bytes: 17_825_792, queued: 0, .. }), "{error}");
            io.send(b"still here").unwrap();
            io.close_after_writing();
        })),
        ..Scripted::default()
    });
    let text = run_with(&mut reactor, move || {
        let mut text = String::new();
        TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
        text
    });
    assert_eq!(text, "still here");
    assert_eq!(reactor.stats().panics, 0);
}

fn unix_sockets_work_and_a_stale_file_is_replaced(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-{}-{}.sock", std::process::id(), on.0));
    let address = Address::Unix(path.clone());
    // Left behind by a listener that did not clean up.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut reactor = on.reactor();
    let listener = reactor.listen(&address, |_| Echo).unwrap();
    let error = on.reactor().listen(&address, |_| Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {address}: ")), "somebody listens there: {error}");
    let name = path.clone();
    let back = run_with(&mut reactor, move || {
        let mut stream = UnixStream::connect(name).unwrap();
        stream.write_all(b"over unix").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = String::new();
        stream.read_to_string(&mut back).unwrap();
        back
    });
    assert_eq!(back, "over unix");
    assert!(reactor.unlisten(listener) && !reactor.unlisten(listener));
    assert!(!path.exists());
}

fn two_reactors_worth_of_connections_talk_to_each_other(on: On) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    let log = Log::default();
    for number in 0..20 {
        let mut left = 50;
        let handler = Scripted {
            log: log.clone(),
            opened: Some(Box::new(|io| io.send(b"ping").unwrap())),
            received: Some(Box::new(move |io, chunk| {
                assert_eq!(&*chunk, b"ping");
                left -= 1;
                if left == 0 { io.close() } else { io.send_chunk(chunk).unwrap() }
            })),
            ..Scripted::default()
        };
        let id = reactor.connect(&address.into(), handler).unwrap();
        reactor.label(id, format!("client {number}"));
    }
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take().iter().filter(|entry| *entry == "closed: closed by this side").count(), 20);
    assert_eq!(reactor.stats().panics, 0);
}

fn many_connections_come_and_go(on: On) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    run_with(&mut reactor, move || {
        for _ in 0..300 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

fn stopping_the_loop_closes_its_connections(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted { log: entries.clone(), ..Scripted::default() });
    let _stream = run_with(&mut reactor, move || TcpStream::connect(address).unwrap());
    run_until(&mut reactor, |_| log.len() == 1);
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn errors_name_the_address(on: On) {
    let mut reactor = on.reactor();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(taken.local_addr().unwrap());
    let error = reactor.listen(&address, |_| Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {address}: ")), "{error}");
    let nowhere = Address::Unix("/nonexistent/some.sock".into());
    let log = Log::default();
    reactor.connect(&nowhere, Scripted { log: log.clone(), ..Scripted::default() }).unwrap();
    run_until(&mut reactor, |_| log.len() > 0);
    let told = log.take();
    assert!(told[0].starts_with("closed: connect to unix:/nonexistent/some.sock: "), "{told:?}");
    let too_long = Address::Unix("x".repeat(200).into());
    let error = reactor.connect(&too_long, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect to unix:xxx"), "{error}");
    assert_eq!(reactor.connection_count(), 0);
}
