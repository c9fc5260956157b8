//! Connections and listeners, and connections that are moving to another reactor.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread::{self};

use pelton::codec::Lines;
use pelton::{
    Chunk, Connection, Detached, Error, Exit, Handle, Io, MoveError, Protocol, PushError, Reactor, Reason, Replies,
    ReplySlot, serve,
};
use pelton_testing::{DEADLINE, Network, on_every_network};

use super::{Mute, loopback, stopped};

on_every_network![
    connections_and_listeners_are_refused,
    a_connection_on_its_way_there_is_closed,
    peers_learn_that_the_connection_has_ended;
    // The in-memory engine needs a turn to close a connection.
    with_a_kernel:
    connection_accepted_after_stop_is_closed,
    connection_is_not_moved_there_and_stays,
    detaching_connection_leaves_in_the_last_turn_or_is_closed,
];

fn connections_and_listeners_are_refused(on: impl Network) {
    // Both after `stop` was called, and after the loop has stopped.
    let mut told = on.reactor();
    told.stop();
    for mut reactor in [told, stopped(on)] {
        let peers = on.listen_peer();
        let refused = [
            reactor.listen(loopback(), |_| Mute).err(),
            reactor.listen_with(&loopback(), &Default::default(), |_| Mute).err(),
            reactor.listen_for_sockets(&loopback(), &Default::default(), |_, _| {}).err(),
            reactor.adopt_listener(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), |_| Mute).err(),
            reactor.connect(&peers.address(), Mute).err(),
            reactor.connect_with(&peers.address(), &Default::default(), Mute).err(),
            reactor.connect_to("localhost:1", Mute).err(),
            reactor.connect_to("127.0.0.1:1", Mute).err(),
            reactor.connect_to_with("localhost:1", &Default::default(), Mute).err(),
            reactor.resolve("localhost", 1, |_, _| panic!("called")).err(),
            reactor.on_slow_callback(DEADLINE, |_| panic!("called")).err(),
        ];
        for (index, error) in refused.iter().enumerate() {
            assert!(matches!(error, Some(Error::Stopped)), "entry {index}: {error:?}");
        }
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(matches!(reactor.adopt(ours, Mute), Err(Error::Stopped)));
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "an adopted socket is closed");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let detached = Detached { socket: ours.into(), unread: b"unread".to_vec() };
        assert!(matches!(reactor.adopt_detached(detached, Mute), Err(Error::Stopped)));
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "a detached socket is closed, too");
        assert_eq!(reactor.connection_count(), 0);
    }
}

fn connection_accepted_after_stop_is_closed(on: impl Network) {
    let mut reactor = on.reactor();
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    let listener = reactor.listen(loopback(), move |reactor: &mut Reactor| {
        count.set(count.get() + 1);
        reactor.stop();
        Mute
    });
    let address = reactor.listening_on(listener.unwrap()).unwrap().clone();
    let peers = [on.connect_peer(&address), on.connect_peer(&address)];
    let peers = thread::spawn(move || peers.map(|mut peer| peer.read_all().unwrap_or_default().len()));
    reactor.run().unwrap();
    assert_eq!(peers.join().unwrap(), [0, 0]);
    assert_eq!(served.get(), 1, "no handler is created for the second");
}

/// Tries to move its connection, then greets.
struct Moving(Handle, Moves);

type Moves = Rc<RefCell<Vec<Result<(), MoveError>>>>;

impl Connection for Moving {
    fn opened(&mut self, io: &mut Io<'_>) {
        let moved = io.move_to(&self.0, |_| Mute);
        if moved.is_err() {
            io.send(b"still here").unwrap();
            io.close_after_writing();
        }
        self.1.borrow_mut().push(moved);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        // The result of detaching is handled after this.
        reactor.next_tick(|reactor| reactor.stop());
    }
}

fn connection_is_not_moved_there_and_stays(on: impl Network) {
    let there = stopped(on);
    let mut reactor = on.reactor();
    let (handle, moves) = (there.handle(), Moves::default());
    let list = moves.clone();
    let listener = reactor.listen(loopback(), move |_| Moving(handle.clone(), list.clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let peer = thread::spawn(move || on.connect_peer(&address).read_all().unwrap());
    pelton_testing::run(&mut reactor);
    assert_eq!(peer.join().unwrap(), b"still here");
    assert_eq!(*moves.borrow(), [Err(MoveError::Stopped)]);
}

/// Stops its loop and detaches, with this many bytes to send before.
struct Leaving(usize, Rc<RefCell<Vec<String>>>);

impl Connection for Leaving {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(&vec![0; self.0]).unwrap();
        io.reactor().stop();
        let told = self.1.clone();
        io.detach(move |_, _| told.borrow_mut().push("detached".into())).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.1.borrow_mut().push(format!("closed: {reason:?}"));
    }
}

fn detaching_connection_leaves_in_the_last_turn_or_is_closed(on: pelton_testing::On) {
    // The second is more than the kernel buffers for a peer that does not read.
    for (bytes, expected) in [(5, &["closed: Detached", "detached"][..]), (15 << 20, &["closed: Local"])] {
        let (mut reactor, told) = (on.reactor(), Rc::<RefCell<Vec<String>>>::default());
        let list = told.clone();
        let listener = reactor.listen(loopback(), move |_| Leaving(bytes, list.clone())).unwrap();
        let _peer = on.connect_peer(reactor.listening_on(listener).unwrap());
        assert_eq!(reactor.run().unwrap(), Exit::Stopped);
        assert_eq!(*told.borrow(), expected);
    }
}

fn a_connection_on_its_way_there_is_closed(on: impl Network) {
    // The target queues the connection, and stops before it adopts it.
    let mut there = on.reactor();
    let mut reactor = on.reactor();
    let (handle, moves) = (there.handle(), Moves::default());
    let list = moves.clone();
    let listener = reactor.listen(loopback(), move |_| Moving(handle.clone(), list.clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let peer = thread::spawn(move || on.connect_peer(&address).read_all().unwrap_or_default());
    pelton_testing::run(&mut reactor);
    assert_eq!(*moves.borrow(), [Ok(())]);
    assert_eq!(there.handle().pending_posts(), 1);
    there.stop();
    there.run().unwrap();
    assert_eq!(peer.join().unwrap(), b"");
}

/// Publishes a peer handle and a reply slot.
struct Introduce(std::sync::mpsc::Sender<(pelton::Peer<String>, ReplySlot<String>)>);

impl Protocol for Introduce {
    type Message = String;

    fn opened(&mut self, peer: &pelton::Peer<String>, replies: &mut Replies<String>) {
        self.0.send((peer.clone(), replies.later())).unwrap();
    }

    fn process(&mut self, _: String, _: &mut Replies<String>) {}
}

fn peers_learn_that_the_connection_has_ended(on: impl Network) {
    let mut reactor = on.reactor();
    let (tell, told) = channel();
    let service = serve(Lines::default, move || Introduce(tell.clone()));
    let listener = reactor.listen(loopback(), service).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let client = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        peer.read_all().unwrap_or_default()
    });
    let mut peer = None;
    pelton_testing::run_until(&mut reactor, |_| {
        peer = told.try_recv().ok().or(peer.take());
        peer.is_some()
    });
    reactor.stop();
    reactor.run().unwrap();
    let (peer, slot) = peer.unwrap();
    assert!(slot.is_gone());
    slot.send("late".into());
    assert_eq!(peer.push("late".into()), Err(PushError("late".into())));
    peer.close();
    peer.close_after_writing();
    // The in-memory engine closes late.
    drop(reactor);
    assert_eq!(client.join().unwrap(), b"");
}
