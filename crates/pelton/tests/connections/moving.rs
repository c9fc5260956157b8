//! Connections that are detached, adopted and moved between reactors.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use pelton::{Chunk, Connection, Handle, Io, MoveError, Reactor, Reason};
use pelton_testing::{Log, on_every_network, poll, run_until};

use super::{Network, Scripted, listen, pattern, run_with, with_peer};

on_every_network![
    detached_and_adopted_connection_loses_nothing,
    unread_data_is_delivered_first_and_held_while_paused,
    everything_is_sent_before_a_connection_is_detached,
    connection_that_breaks_before_it_is_detached_is_closed,
    closing_a_connection_that_is_being_detached_drops_its_socket,
    connection_is_either_detached_or_closed_in_a_race,
    a_connection_can_be_moved_between_reactors_under_load,
    moving_to_a_reactor_that_is_gone_is_refused_and_the_connection_stays,
];

/// Detaches itself after a while, and is adopted by the next of its kind.
struct Hopping {
    collected: Rc<RefCell<Vec<u8>>>,
    hops: usize,
    log: Log,
}

impl Connection for Hopping {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.collected.borrow_mut().extend_from_slice(&chunk);
        if self.hops == 0 {
            return;
        }
        let next = Hopping { collected: self.collected.clone(), hops: self.hops - 1, log: self.log.clone() };
        let detached = io.detach(move |reactor, detached| {
            next.log.add("detached");
            reactor.adopt_detached(detached, next).unwrap();
        });
        // It may be called once more while it is being detached.
        if detached.is_ok() {
            self.hops = 0;
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn detached_and_adopted_connection_loses_nothing(on: impl Network) {
    const HOPS: usize = 10;
    let mut reactor = on.reactor();
    let (log, collected) = (Log::default(), Rc::new(RefCell::new(Vec::new())));
    let (entries, into) = (log.clone(), collected.clone());
    let address = listen(&mut reactor, move |_| Hopping { collected: into.clone(), hops: HOPS, log: entries.clone() });
    let data = pattern(3_000_000);
    let sent = data.clone();
    with_peer(&mut reactor, on, &address, move |mut peer| peer.write_all(&sent).unwrap());
    run_until(&mut reactor, |_| log.len() == 2 * HOPS + 1);
    assert!(*collected.borrow() == data);
    let mut expected = ["closed: detached", "detached"].repeat(HOPS);
    expected.push("closed: finished by the other side");
    assert_eq!(log.take(), expected);
}

fn unread_data_is_delivered_first_and_held_while_paused(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let id = Rc::new(Cell::new(None));
    let known = id.clone();
    let listener = reactor.listen_for_sockets(
        &"127.0.0.1:0".parse().unwrap(),
        &pelton::ListenOptions::default(),
        move |reactor, socket| {
            let handler = Scripted { opened: Some(Box::new(|io| io.pause())), ..Scripted::logging(&entries) };
            let detached = pelton::Detached { socket, unread: b"unread, ".to_vec() };
            known.set(Some(reactor.adopt_detached(detached, handler).unwrap()));
            assert!(entries.is_empty(), "called before this returned");
        },
    );
    let address = reactor.listening_on(listener.unwrap()).unwrap().clone();
    with_peer(&mut reactor, on, &address, |mut peer| peer.write_all(b"then read").unwrap());
    run_until(&mut reactor, |_| log.len() == 1);
    for _ in 0..10 {
        poll(&mut reactor);
    }
    assert_eq!(log.len(), 1);
    reactor.visit(id.get().unwrap(), |_: &mut Scripted, io| io.resume()).unwrap();
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(
        log.take(),
        ["opened", "received unread, then read", "peer finished", "closed: finished by the other side"]
    );
}

fn everything_is_sent_before_a_connection_is_detached(on: impl Network) {
    let mut reactor = on.reactor();
    let data = pattern(on.more_than_fits());
    let sent = data.clone();
    let address = listen(&mut reactor, move |_| {
        let sent = sent.clone();
        let opened = move |io: &mut Io<'_>| {
            io.send_bytes(sent.clone()).unwrap();
            io.detach(|reactor, detached| {
                assert!(detached.unread.is_empty());
                let last_words = Box::new(|io: &mut Io<'_>| {
                    io.send(b"the end").unwrap();
                    io.close_after_writing();
                });
                reactor.adopt(detached.socket, Scripted { opened: Some(last_words), ..Scripted::default() }).unwrap();
            })
            .unwrap();
            assert!(io.send(b"too late").is_err());
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::default() }
    });
    let all = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert!(all == [&data[..], b"the end"].concat());
}

fn connection_that_breaks_before_it_is_detached_is_closed(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let most = on.more_than_fits();
    let address = listen(&mut reactor, move |_| Scripted {
        opened: Some(Box::new(move |io| {
            io.send_bytes(vec![0; most]).unwrap();
            io.detach(|_, _| panic!("the connection ended before")).unwrap();
        })),
        ..Scripted::logging(&entries)
    });
    let peer = on.connect_peer(&address);
    run_until(&mut reactor, |_| log.len() == 1);
    for _ in 0..10 {
        poll(&mut reactor);
    }
    peer.reset();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
    assert_eq!((reactor.stats().panics, reactor.queued()), (0, 0));
}

fn closing_a_connection_that_is_being_detached_drops_its_socket(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        opened: Some(Box::new(|io| {
            io.detach(|_, _| panic!("the connection ended before")).unwrap();
            io.close();
        })),
        ..Scripted::logging(&entries)
    });
    assert!(with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap()).is_empty());
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
    assert_eq!(reactor.stats().panics, 0);
}

fn connection_is_either_detached_or_closed_in_a_race(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let others = Rc::new(RefCell::new(Vec::new()));
    let known = others.clone();
    // Of two neighbours, each is detached when it receives something, and closed when the other does.
    let address = listen(&mut reactor, move |_| {
        let (told, known) = (entries.clone(), known.clone());
        let number = known.borrow().len();
        known.borrow_mut().push(None);
        let seen = known.clone();
        let opened = move |io: &mut Io<'_>| seen.borrow_mut()[number] = Some(io.id());
        let received = move |io: &mut Io<'_>, _: Chunk| {
            if number % 2 == 0 {
                let told = told.clone();
                return io.detach(move |_, _| told.add("handed on")).unwrap();
            }
            let neighbour = known.borrow()[number - 1].unwrap();
            if let Some(mut neighbour) = io.reactor().connection(neighbour) {
                neighbour.close();
            }
            io.close();
        };
        Scripted { opened: Some(Box::new(opened)), received: Some(Box::new(received)), ..Scripted::logging(&entries) }
    });
    let mut peers: Vec<_> = (0..100).map(|_| on.connect_peer(&address)).collect();
    run_until(&mut reactor, |_| log.len() == 100);
    peers.iter_mut().for_each(|peer| peer.write_all(b"!").unwrap());
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    for _ in 0..20 {
        poll(&mut reactor);
    }
    let told = log.take();
    let count = |wanted: &str| told.iter().filter(|entry| *entry == wanted).count();
    assert_eq!(count("handed on"), count("closed: detached"), "{told:?}");
    assert_eq!(count("closed: detached") + count("closed: closed by this side"), 100, "{told:?}");
}

/// Echoes, and sometimes moves to the other reactor.
struct Moving {
    here: Handle,
    there: Handle,
    moves: usize,
    bytes: usize,
}

impl Connection for Moving {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.bytes += chunk.len();
        io.send_chunk(chunk).unwrap();
        if self.bytes > 50_000 && self.moves > 0 {
            let (here, there, moves) = (self.there.clone(), self.here.clone(), self.moves - 1);
            io.move_to(&self.there, move |_| Moving { here, there, moves, bytes: 0 }).unwrap();
        }
    }
}

fn a_connection_can_be_moved_between_reactors_under_load(on: impl Network) {
    let mut reactor = on.reactor();
    let (tell, told) = mpsc::channel();
    let other = thread::spawn(move || {
        let mut reactor = on.reactor();
        tell.send(reactor.handle()).unwrap();
        reactor.run().unwrap();
        assert_eq!((reactor.connection_count(), reactor.stats().panics), (0, 0));
    });
    let there = told.recv().unwrap();
    let (here, away) = (reactor.handle(), there.clone());
    let address =
        listen(&mut reactor, move |_| Moving { here: here.clone(), there: away.clone(), moves: 15, bytes: 0 });
    let data = pattern(1_500_000);
    run_with(&mut reactor, move || {
        let streams: Vec<_> = (0..3)
            .map(|_| {
                let (mut reader, sent) = (on.connect_peer(&address), data.clone());
                let mut writer = reader.clone();
                let writing = thread::spawn(move || {
                    writer.write_all(&sent).unwrap();
                    writer.finish();
                });
                let reading = thread::spawn(move || reader.read_all().unwrap());
                (writing, reading)
            })
            .collect();
        for (writing, reading) in streams {
            writing.join().unwrap();
            assert!(reading.join().unwrap() == data);
        }
    });
    there.post(|reactor| reactor.stop()).unwrap();
    other.join().unwrap();
    assert_eq!((reactor.connection_count(), reactor.stats().panics), (0, 0));
}

fn moving_to_a_reactor_that_is_gone_is_refused_and_the_connection_stays(on: impl Network) {
    let mut reactor = on.reactor();
    let gone = on.reactor().handle();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| {
        let gone = gone.clone();
        let opened = move |io: &mut Io<'_>| {
            assert_eq!(io.move_to(&gone, |_| Scripted::default()), Err(MoveError::Stopped));
            io.send(b"still here").unwrap();
            io.close_after_writing();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    assert_eq!(with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap()), b"still here");
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}
