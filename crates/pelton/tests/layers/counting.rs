//! What counts as queued: the bytes that the handler has sent, whatever the layers make of them.

use std::cell::Cell;
use std::io::{IoSlice, Write};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pelton::{ConnectionId, EventLoop, Io, Layer, LayerIo, Reactor, Reason, WaterMarks};
use pelton_testing::{Log, Network, on_every_network, poll, run_until};

use super::flow::file_with;
use super::toys::{BYE, Framer, HELLO, frame, unframe};
use super::{Scripted, listen_once, listen_prepared, run_out, with_peer};

on_every_network![
    water_marks_count_what_the_handler_has_sent,
    answers_of_a_layer_count_when_they_pile_up,
    bytes_that_pass_several_layers_count_once,
    bytes_that_a_layer_holds_count_once,
    bytes_sent_before_a_layer_was_pushed_count_as_they_are,
    what_is_queued_only_falls_while_nothing_is_sent,
];

/// How many bytes [`Expand`] makes of one.
const TIMES: usize = 30;

/// Repeats each byte.
struct Expand;

fn expand(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [*byte; TIMES]).collect()
}

impl Layer for Expand {
    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        io.deliver(input.to_vec().into());
        Ok(input.len())
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        output.iter().for_each(|slice| io.transmit_bytes(expand(slice)));
        Ok(output.iter().map(|slice| slice.len()).sum())
    }

    fn finish(&mut self, io: &mut LayerIo<'_>) -> Result<Poll<()>, Reason> {
        io.transmit(b".");
        Ok(Poll::Ready(()))
    }
}

/// Remembers the id of a connection when it opens.
fn opened<A: FnMut(&mut Io<'_>)>(id: &Rc<Cell<Option<ConnectionId>>>, mut act: A) -> impl FnMut(&mut Io<'_>) + use<A> {
    let id = id.clone();
    move |io| {
        id.set(Some(io.id()));
        act(io);
    }
}

fn queued(reactor: &mut Reactor, id: &Cell<Option<ConnectionId>>) -> usize {
    reactor.connection(id.get().unwrap()).unwrap().queued()
}

/// Turns the loop until a thread is done.
fn join<T>(reactor: &mut EventLoop, thread: JoinHandle<T>) -> T {
    let wakes = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(reactor, |_| thread.is_finished());
    reactor.cancel(wakes);
    thread.join().unwrap()
}

/// Turns the loop as often as a mistake would need to show.
fn some_turns(reactor: &mut EventLoop) {
    for _ in 0..20 {
        poll(reactor);
    }
}

fn water_marks_count_what_the_handler_has_sent(on: impl Network) {
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let act = opened(&id, |io| {
        io.set_water_marks(WaterMarks { low: 1_000, high: 4_000, most: 10_000 });
        io.pause_sending();
        io.send(&[b'x'; 4_000]).unwrap();
    });
    let handler = Scripted::logging(&log).opened(act).received(|io, chunk| io.send(&chunk).unwrap());
    let address = listen_once(&mut reactor, handler, Expand);
    let (says, said) = mpsc::channel();
    let peer = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        said.into_iter().for_each(|bytes: &[u8]| peer.write_all(bytes).unwrap());
        peer.read_all().unwrap()
    });
    run_until(&mut reactor, |_| log.len() == 1);
    some_turns(&mut reactor);
    // The layer has made 120,000 bytes of them, which is more than all marks.
    assert_eq!((queued(&mut reactor, &id), reactor.queued()), (4_000, 4_000 * TIMES));
    // At the mark, the peer is still read from.
    says.send(b"a").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    some_turns(&mut reactor);
    assert_eq!(queued(&mut reactor, &id), 4_001);
    // Above it, no longer.
    says.send(b"b").unwrap();
    some_turns(&mut reactor);
    assert_eq!(log.take(), ["opened", "received a"]);
    let marks = WaterMarks { low: 4_000, high: 8_000, most: 10_000 };
    reactor.connection(id.get().unwrap()).unwrap().set_water_marks(marks);
    some_turns(&mut reactor);
    assert_eq!(log.len(), 0, "it is above the low mark by one byte");
    reactor.connection(id.get().unwrap()).unwrap().set_water_marks(WaterMarks { low: 4_001, ..marks });
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["writable", "received b"]);
    assert_eq!(queued(&mut reactor, &id), 4_002);
    let mut io = reactor.connection(id.get().unwrap()).unwrap();
    io.tell_when_sent();
    io.resume_sending();
    drop(says);
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["sent, 0 queued"]);
    reactor.connection(id.get().unwrap()).unwrap().close_after_writing();
    let sent = [&[b'x'; 4_000][..], b"ab"].concat();
    assert!(join(&mut reactor, peer) == [&expand(&sent)[..], b"."].concat());
    run_out(&mut reactor);
}

fn answers_of_a_layer_count_when_they_pile_up(on: impl Network) {
    /// Answers every byte with many.
    struct Answers;
    impl Layer for Answers {
        fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
            input.iter().for_each(|_| io.transmit(&[b'!'; 30_000]));
            io.deliver(input.to_vec().into());
            Ok(input.len())
        }

        fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
            io.transmit(&output[0]);
            Ok(output[0].len())
        }
    }
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let act = opened(&id, |io| {
        io.set_water_marks(WaterMarks { low: 10, high: 100, most: 200_000 });
        io.pause_sending();
    });
    let address = listen_once(&mut reactor, Scripted::logging(&log).opened(act), Answers);
    let (says, said) = mpsc::channel();
    let peer = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        said.into_iter().for_each(|bytes: &[u8]| peer.write_all(bytes).unwrap());
        peer.finish();
        peer.read_all().unwrap().len()
    });
    // The first two could be a handshake.
    for (count, bytes) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        run_until(&mut reactor, |_| log.len() == count.min(2));
        says.send(bytes).unwrap();
        run_until(&mut reactor, |reactor| reactor.queued() == count * 30_000);
        some_turns(&mut reactor);
        assert_eq!(queued(&mut reactor, &id), 0);
    }
    assert_eq!(log.take(), ["opened", "received abc"]);
    // A peer that asks for more and does not read is not read from either.
    says.send(b"d").unwrap();
    some_turns(&mut reactor);
    assert_eq!((reactor.queued(), log.len()), (90_000, 0));
    reactor.connection(id.get().unwrap()).unwrap().resume_sending();
    drop(says);
    assert_eq!(join(&mut reactor, peer), 120_000);
    run_out(&mut reactor);
    assert_eq!(log.take()[..2], ["writable", "received d"]);
}

fn bytes_that_pass_several_layers_count_once(on: impl Network) {
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let act = opened(&id, |io| {
        io.pause_sending();
        io.tell_when_sent();
        io.send(&[b'x'; 100]).unwrap();
        io.send(&[b'y'; 3_000]).unwrap();
    });
    let address = listen_prepared(&mut reactor, Scripted::logging(&log).opened(act), |io| {
        io.push_layer(Expand);
        io.push_layer(Expand);
    });
    let (checked, may_read) = mpsc::channel();
    let peer = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        may_read.recv().unwrap();
        peer.read_all().unwrap().len()
    });
    run_until(&mut reactor, |_| log.len() == 1);
    some_turns(&mut reactor);
    assert!(reactor.queued() > 1_000_000, "{} bytes", reactor.queued());
    assert_eq!(queued(&mut reactor, &id), 3_100);
    reactor.connection(id.get().unwrap()).unwrap().resume_sending();
    checked.send(()).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "sent, 0 queued"]);
    reactor.connection(id.get().unwrap()).unwrap().close_after_writing();
    assert_eq!(join(&mut reactor, peer), 3_100 * TIMES * TIMES + TIMES + 1);
    run_out(&mut reactor);
}

fn bytes_that_a_layer_holds_count_once(on: impl Network) {
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let act = opened(&id, |io| {
        io.pause_sending();
        for _ in 0..10 {
            io.send_bytes(vec![b'x'; 100]).unwrap();
        }
    });
    let handler = Scripted::logging(&log).opened(act);
    let address = listen_prepared(&mut reactor, handler, |io| {
        io.push_layer(Expand);
        io.push_layer(Framer::default());
    });
    let peer = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        peer.write_all(HELLO).unwrap();
        let all = peer.read_all().unwrap();
        let (last, repeated) = all.split_last().unwrap();
        assert_eq!(*last, b'.');
        repeated.chunks(TIMES).map(|bytes| bytes[0]).collect::<Vec<_>>()
    });
    run_until(&mut reactor, |_| log.len() == 1);
    // The layer holds each piece for a turn, and then transmits it in a frame.
    for _ in 0..20 {
        assert_eq!(queued(&mut reactor, &id), 1_000);
        poll(&mut reactor);
    }
    let frames = frame(&[b'x'; 100]).repeat(10);
    run_until(&mut reactor, |reactor| reactor.queued() >= frames.len() * TIMES);
    assert_eq!(queued(&mut reactor, &id), 1_000);
    let mut io = reactor.connection(id.get().unwrap()).unwrap();
    io.resume_sending();
    io.close_after_writing();
    let back = join(&mut reactor, peer);
    assert_eq!(back, [HELLO, &frames, BYE].concat());
    assert_eq!(unframe(&back[HELLO.len()..]), (vec![b'x'; 1_000], true));
    run_out(&mut reactor);
}

fn bytes_sent_before_a_layer_was_pushed_count_as_they_are(on: impl Network) {
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let mut file = Some(file_with(&[b'f'; 700]));
    let act = opened(&id, move |io| {
        io.pause_sending();
        io.send(&[b'a'; 500]).unwrap();
        io.send_file(file.take().unwrap(), 0..700).unwrap();
        io.push_layer(Expand);
        io.send(&[b'b'; 100]).unwrap();
        assert_eq!((io.queued(), io.queued_in_files()), (600, 700));
    });
    let mut handler = Some(Scripted::logging(&log).opened(act));
    let address = pelton_testing::listen(&mut reactor, move |_| handler.take().unwrap());
    let peer = thread::spawn(move || on.connect_peer(&address).read_all().unwrap());
    run_until(&mut reactor, |_| log.len() == 2);
    some_turns(&mut reactor);
    assert_eq!(reactor.queued(), 500 + 100 * TIMES);
    let mut io = reactor.connection(id.get().unwrap()).unwrap();
    assert_eq!((io.queued(), io.queued_in_files()), (600, 700));
    io.tell_when_sent();
    io.resume_sending();
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(log.take(), ["opened", "layer ready", "sent, 0 queued"]);
    reactor.connection(id.get().unwrap()).unwrap().close_after_writing();
    let expected = [&[b'a'; 500][..], &[b'f'; 700], &expand(&[b'b'; 100]), b"."].concat();
    assert!(join(&mut reactor, peer) == expected);
    run_out(&mut reactor);
}

fn what_is_queued_only_falls_while_nothing_is_sent(on: impl Network) {
    let total = on.more_than_fits() / TIMES;
    let (mut reactor, log, id) = (on.reactor(), Log::default(), Rc::default());
    let act = opened(&id, move |io| {
        io.send(&vec![b'x'; total]).unwrap();
        assert_eq!(io.queued(), total);
        io.tell_when_sent();
    });
    let address = listen_once(&mut reactor, Scripted::logging(&log).opened(act), Expand);
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.read_some(1);
        peer
    });
    let mut last = queued(&mut reactor, &id);
    assert!(last > 0, "everything fits");
    let reader = thread::spawn(move || peer.clone().read_all().unwrap().len() + 1);
    run_until(&mut reactor, |reactor| {
        let now = queued(reactor, &id);
        assert!(now <= last, "{now} bytes after {last}");
        // Each byte that waits is above the layer, or has become many.
        assert!(reactor.queued() <= now * TIMES && now <= reactor.queued());
        last = now;
        now == 0 && log.len() > 1
    });
    // `writable` comes as well if the queue was above the high mark when it was asked for.
    assert_eq!(log.take().last().unwrap(), "sent, 0 queued");
    reactor.connection(id.get().unwrap()).unwrap().close_after_writing();
    assert_eq!(join(&mut reactor, reader), total * TIMES + 1);
    run_out(&mut reactor);
}
