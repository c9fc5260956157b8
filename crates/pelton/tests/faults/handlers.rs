//! Handlers that close, panic and interfere with each other.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use pelton::{ConnectionId, Io, SendError};
use pelton_testing::{On, dial, on_every_engine, poll};

use crate::scene::{Actor, FINISHED, LOCAL, Moment, ON_PURPOSE, PANICKED, Scene, echo, plain};

on_every_engine![
    first_of_many_ready_connections_closes_the_others,
    a_callback_sends_to_another_and_closes_it,
    each_callback_closes_its_own_connection,
    each_callback_panics,
    a_client_panics_when_it_is_opened,
    closed_panics,
    closed_panics_after_another_callback_has,
    making_a_handler_panics,
    a_visit_panics,
    closed_closes_the_next_and_so_on,
    closed_connects_again_and_again,
    listener_ends_while_it_accepts,
];

/// More than the kernel buffers.
const MUCH: usize = 12_000_000;

/// This many open connections.
fn dial_some(scene: &mut Scene, address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let peers: Vec<TcpStream> = (0..count).map(|_| dial(address)).collect();
    scene.until(|cast| cast.ids().len() == count);
    peers
}

fn first_of_many_ready_connections_closes_the_others(on: On) {
    let mut scene = Scene::new(on);
    let cast = scene.cast.clone();
    let address = scene.listen(move |io: &mut Io<'_>, moment: Moment<'_>| match moment {
        Moment::Received(_) => {
            let own = io.id();
            for other in cast.ids().into_iter().filter(|id| *id != own) {
                // Closing twice is the same as closing once.
                io.reactor().connection(other).unwrap().close();
                assert!(io.reactor().connection(other).is_none());
            }
        }
        other => plain(io, other),
    });
    let mut peers = dial_some(&mut scene, address, 20);
    for peer in &mut peers {
        peer.write_all(b"now").unwrap();
    }
    scene.until(|cast| cast.over() == 19);
    assert_eq!(scene.reactor.stats().panics, 0);
    let all: Vec<Vec<String>> = (0..20).map(|number| scene.told(number)).collect();
    assert_eq!(all.iter().filter(|told| **told == ["opened", LOCAL]).count(), 19, "{all:?}");
    assert_eq!(all.iter().filter(|told| **told == ["opened", "received"]).count(), 1, "{all:?}");
    drop(peers);
    scene.finish();
}

fn a_callback_sends_to_another_and_closes_it(on: On) {
    let mut scene = Scene::new(on);
    let cast = scene.cast.clone();
    let address = scene.listen(move |io: &mut Io<'_>, moment: Moment<'_>| match moment {
        Moment::Received(_) => {
            let (own, ids) = (io.id(), cast.ids());
            let [closed, flushed] = [ids[1], ids[2]];
            assert_eq!(own, ids[0]);
            let mut other = io.reactor().connection(closed).unwrap();
            other.send(b"never sent").unwrap();
            other.close();
            let mut other = io.reactor().connection(flushed).unwrap();
            other.send(b"goodbye").unwrap();
            other.close_after_writing();
            assert_eq!(other.send(b"too late"), Err(SendError::Closed));
        }
        other => plain(io, other),
    });
    let mut peers = dial_some(&mut scene, address, 3);
    peers[0].write_all(b"now").unwrap();
    scene.until(|cast| cast.over() == 2);
    for (peer, said) in peers.iter_mut().skip(1).zip(["", "goodbye"]) {
        let mut all = String::new();
        peer.read_to_string(&mut all).unwrap();
        assert_eq!(all, said);
    }
    assert_eq!([scene.told(1), scene.told(2)], [["opened", LOCAL]; 2]);
    assert_eq!(scene.reactor.stats().panics, 0);
    drop(peers);
    scene.finish();
}

const MOMENTS: [&str; 4] = ["opened", "received", "writable", "peer finished"];

fn name(moment: &Moment<'_>) -> &'static str {
    MOMENTS[match moment {
        Moment::Opened => 0,
        Moment::Received(_) => 1,
        Moment::Drained => 2,
        Moment::PeerFinished => 3,
    }]
}

/// Goes through every kind of callback with a peer, and runs `harm` in the callback `harmful`.
fn live_until(on: On, harmful: &'static str, harm: fn(&mut Io<'_>)) -> Scene {
    let mut scene = Scene::catching(on);
    let address = scene.listen(move |io: &mut Io<'_>, moment: Moment<'_>| {
        if name(&moment) == harmful {
            return harm(io);
        }
        match moment {
            // So much that reading pauses, and resumes when it has drained.
            Moment::Received(_) => io.send_bytes(vec![b'x'; MUCH]).unwrap(),
            other => plain(io, other),
        }
    });
    let mut peer = dial(address);
    peer.write_all(b"more").unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut read = 0;
    while scene.cast.over() == 0 {
        scene.turn();
        while let Ok(count @ 1..) = peer.read(&mut [0; 1 << 16]) {
            read += count;
        }
        if read == MUCH {
            // The connection may have ended already.
            let _ = peer.shutdown(Shutdown::Write);
        }
    }
    drop(peer);
    // The next connection is served normally.
    assert_eq!(scene.cast.len(), 1);
    scene
}

fn each_callback_closes_its_own_connection(on: On) {
    for (place, moment) in MOMENTS.into_iter().enumerate() {
        let scene = live_until(on, moment, |io| {
            let _ = io.send(b"never sent");
            io.close();
            io.close();
            io.close_after_writing();
            io.finish();
            io.pause();
            io.resume();
            assert_eq!(io.send(b"too late"), Err(SendError::Closed));
        });
        assert_eq!(scene.told(0), [&MOMENTS[..=place], &[LOCAL]].concat());
        assert_eq!(scene.reactor.stats().panics, 0);
        scene.finish();
    }
}

fn each_callback_panics(on: On) {
    for (place, moment) in MOMENTS.into_iter().enumerate() {
        let mut scene = live_until(on, moment, |io| {
            let _ = io.send(b"never sent");
            std::panic::panic_any(ON_PURPOSE);
        });
        assert_eq!(scene.told(0), [&MOMENTS[..=place], &[PANICKED]].concat());
        assert_eq!(scene.reactor.stats().panics, 1);
        let mut next = dial(scene.listen(echo));
        next.write_all(b"still there?").unwrap();
        scene.until(|cast| cast.received() >= 12);
        next.read_exact(&mut [0; 12]).unwrap();
        drop(next);
        scene.finish();
    }
}

fn a_client_panics_when_it_is_opened(on: On) {
    let mut scene = Scene::catching(on);
    let address = scene.listen(plain);
    scene.connect(address, |_, _| std::panic::panic_any(ON_PURPOSE));
    scene.until(|cast| cast.len() == 2 && cast.over() == 2);
    assert_eq!(scene.told(0), ["opened", PANICKED]);
    assert_eq!(scene.told(1), ["opened", "peer finished", FINISHED]);
    scene.finish();
}

fn closed_panics(on: On) {
    let mut scene = Scene::catching(on);
    let address = scene.listen(echo);
    scene.cast.at_the_end(|_, _| std::panic::panic_any(ON_PURPOSE));
    drop(dial_some(&mut scene, address, 5));
    scene.until(|cast| cast.over() == 5);
    assert_eq!(scene.reactor.stats().panics, 5);
    scene.finish();
}

fn closed_panics_after_another_callback_has(on: On) {
    let mut scene = Scene::catching(on);
    let faults = Rc::new(Cell::new(0));
    let seen = faults.clone();
    scene.reactor.on_fault(move |_, _| seen.set(seen.get() + 1));
    let address = scene.listen(|_: &mut Io<'_>, _: Moment<'_>| std::panic::panic_any(ON_PURPOSE));
    scene.cast.at_the_end(|_, _| std::panic::panic_any(ON_PURPOSE));
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1 && cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", PANICKED]);
    scene.turn();
    assert_eq!((faults.get(), scene.reactor.stats().panics), (2, 2));
    drop(peer);
    scene.finish();
}

fn making_a_handler_panics(on: On) {
    let mut scene = Scene::catching(on);
    let cast = scene.cast.clone();
    let mut count = 0;
    let make = move |_: &mut pelton::Reactor| {
        count += 1;
        if count % 2 == 1 {
            std::panic::panic_any(ON_PURPOSE);
        }
        Actor::new(&cast, echo)
    };
    let listener = scene.reactor.listen("127.0.0.1:0", make).unwrap();
    let address: SocketAddr = scene.reactor.listening_on(listener).unwrap().to_string().parse().unwrap();
    scene.is_set_up();
    let mut peers: Vec<TcpStream> = (0..10).map(|_| dial(address)).collect();
    scene.until(|cast| cast.ids().len() == 5);
    for (number, peer) in peers.iter_mut().enumerate() {
        if number % 2 == 0 {
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the refused client sees the end");
        } else {
            peer.write_all(b"x").unwrap();
        }
    }
    scene.until(|cast| cast.received() == 5);
    assert_eq!(scene.reactor.stats().panics, 5);
    drop(peers);
    scene.finish();
}

fn a_visit_panics(on: On) {
    type Plain = Actor<fn(&mut Io<'_>, Moment<'_>)>;
    let mut scene = Scene::catching(on);
    let address = scene.listen(plain as fn(&mut Io<'_>, Moment<'_>));
    let peers = dial_some(&mut scene, address, 2);
    let id = scene.cast.ids()[0];
    let visited = scene.reactor.visit(id, |_: &mut Plain, _| std::panic::panic_any(ON_PURPOSE));
    assert!(visited.is_none());
    assert!(scene.reactor.visit(id, |_: &mut Plain, _| {}).is_none(), "the connection has ended");
    scene.turn();
    assert_eq!(scene.told(0), ["opened", PANICKED]);
    assert_eq!(scene.told(1), ["opened"]);
    drop(peers);
    scene.finish();
}

fn closed_closes_the_next_and_so_on(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    let peers = dial_some(&mut scene, address, 100);
    let cast = scene.cast.clone();
    let ids = cast.ids();
    cast.at_the_end(move |reactor, number| {
        if let Some(next) = ids.get(number + 1) {
            reactor.connection(*next).unwrap().close();
        }
    });
    let first: ConnectionId = scene.cast.ids()[0];
    scene.reactor.connection(first).unwrap().close();
    poll(&mut scene.reactor);
    assert_eq!(scene.cast.over(), 100, "connections closed in a `closed` callback end in the same turn");
    assert!((0..100).all(|number| scene.told(number) == ["opened", LOCAL]));
    drop(peers);
    scene.finish();
}

fn closed_connects_again_and_again(on: On) {
    let mut scene = Scene::new(on);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let cast = Rc::downgrade(&scene.cast);
    scene.cast.at_the_end(move |reactor, number| {
        if let Some(cast) = cast.upgrade()
            && number < 49
        {
            // It may reuse the slot that was just freed.
            reactor.connect(&address.into(), Actor::new(&cast, plain)).unwrap();
        }
    });
    scene.connect(address, plain);
    for number in 0..50 {
        drop(listener.accept().unwrap());
        scene.until(|cast| cast.over() == number + 1);
        assert_eq!(scene.told(number), ["opened", "peer finished", FINISHED]);
    }
    assert_eq!(scene.cast.len(), 50);
    drop(listener);
    scene.finish();
}

fn listener_ends_while_it_accepts(on: On) {
    let mut scene = Scene::new(on);
    let own = Rc::new(Cell::new(None));
    let known = own.clone();
    let listener = scene.listen_on(&"127.0.0.1:0".parse().unwrap(), move |io: &mut Io<'_>, moment: Moment<'_>| {
        match moment {
            Moment::Opened => {
                // The first connection ends the listener; further ones find it ended.
                if let Some(listener) = known.take() {
                    assert!(io.reactor().end(listener));
                }
            }
            other => plain(io, other),
        }
    });
    own.set(Some(listener));
    let address: SocketAddr = scene.reactor.listening_on(listener).unwrap().to_string().parse().unwrap();
    let peers: Vec<TcpStream> = (0..20).map(|_| dial(address)).collect();
    scene.until(|cast| cast.len() > 0);
    scene.turn();
    assert_eq!(scene.cast.len(), 1, "an ended listener accepts nothing");
    assert_eq!(scene.reactor.stats().panics, 0);
    assert!(TcpStream::connect(address).is_err());
    drop(peers);
    scene.until(|cast| cast.over() == 1);
    scene.is_set_up();
    scene.finish();
}
