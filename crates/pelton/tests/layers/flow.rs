//! Back-pressure through layers, bursts, files.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pelton::{Chunk, Layer, LayerIo, Reason};
use pelton_testing::{Log, Network, on_every_network, pattern, poll, run_until};

use super::toys::{Shift, shift};
use super::{Scripted, listen_once, listen_prepared, run_out, with_peer};

on_every_network![
    a_slow_reader_pauses_the_sender,
    the_byte_budget_counts_what_waits_below_a_layer,
    a_handler_that_pauses_in_a_burst_gets_the_rest_later,
    a_handler_that_closes_in_a_burst_gets_nothing_more,
    a_handler_that_closes_after_writing_in_a_burst_gets_nothing_more,
    a_handler_that_hands_over_in_a_burst_passes_on_the_rest,
    files_go_through_the_layer_in_order,
    a_file_that_is_too_short_closes_the_connection,
    pieces_are_offered_together;
    // An engine that completes sends later needs a turn for that, which there is none of inside a callback.
    with_a_kernel: what_is_sent_now_goes_through_the_layer_at_once,
];

fn a_slow_reader_pauses_the_sender(on: impl Network) {
    let total = on.more_than_fits() * 2;
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (most, id) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let (seen, known) = (most.clone(), id.clone());
    // Each byte is answered with ten: the answers pile up until reading pauses.
    let handler = Scripted::default().received(move |io, chunk| {
        io.send_bytes(vec![b'x'; chunk.len() * 10]).unwrap();
        seen.set(seen.get().max(io.queued()));
        known.set(Some(io.id()));
    });
    let address = listen_prepared(&mut reactor, Scripted { log: log.clone(), ..handler }, |io| {
        io.push_layer(Shift::default());
        io.push_layer(Shift::default());
    });
    let (start, may_read) = mpsc::channel();
    let peer = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        let mut writer = peer.clone();
        let asking = thread::spawn(move || {
            for _ in 0..total / 10 / 1_000 {
                writer.write_all(&[b'?'; 1_000]).unwrap();
            }
            writer.finish();
        });
        may_read.recv().unwrap();
        let (mut buffer, mut received) = (vec![0; 1 << 16], 0);
        loop {
            match peer.read(&mut buffer).unwrap() {
                0 => break,
                count => received += count,
            }
        }
        asking.join().unwrap();
        received
    });
    run_until(&mut reactor, |reactor| {
        let waiting = id.get().and_then(|id| Some(reactor.connection(id)?.queued()));
        waiting.is_some_and(|waiting| waiting > 64 * 1024)
    });
    for _ in 0..10 {
        poll(&mut reactor);
    }
    assert!(most.get() < 1_500_000, "{} bytes were queued", most.get());
    start.send(()).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| peer.is_finished());
    reactor.cancel(waiting);
    assert_eq!(peer.join().unwrap(), total);
    assert!(log.take().contains(&"writable".to_owned()));
    assert!(most.get() < 1_500_000, "{} bytes were queued", most.get());
    run_out(&mut reactor);
}

fn the_byte_budget_counts_what_waits_below_a_layer(on: impl Network) {
    let mut reactor = on.build(on.builder().byte_budget(1_000_000));
    let (log, total) = (Log::default(), on.more_than_fits());
    let handler = Scripted::logging(&log).opened(move |io| {
        for _ in 0..total / 100_000 {
            io.send_bytes(vec![0; 100_000]).unwrap();
        }
        io.close_after_writing();
    });
    let address = listen_once(&mut reactor, handler, Shift::default());
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.read_some(1);
        peer
    });
    let queued = reactor.queued();
    assert!(queued > 100_000, "{queued} bytes wait");
    let received = pelton_testing::run_with(&mut reactor, move || peer.clone().read_all().unwrap().len() + 1);
    assert_eq!(received, total / 100_000 * 100_000);
    run_out(&mut reactor);
}

/// Delivers each byte on its own.
struct Burst;

impl Layer for Burst {
    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        input.iter().for_each(|byte| io.deliver(vec![*byte].into()));
        Ok(input.len())
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        io.transmit(&output[0]);
        Ok(output[0].len())
    }
}

fn a_handler_that_pauses_in_a_burst_gets_the_rest_later(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let chunks = Rc::new(RefCell::new(Vec::new()));
    let kept = chunks.clone();
    let handler = Scripted::logging(&log).received(move |io, chunk: Chunk| {
        kept.borrow_mut().push(chunk[0]);
        // Paused after each byte, and resumed in another turn.
        io.pause();
        let (id, seen, kept) = (io.id(), kept.borrow().len(), kept.clone());
        io.reactor().after(Duration::from_micros(50), move |reactor| {
            assert_eq!(kept.borrow().len(), seen, "received while it was paused");
            reactor.connection(id).unwrap().resume();
        });
    });
    let address = listen_once(&mut reactor, handler, Burst);
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"0123456789").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    run_out(&mut reactor);
    assert_eq!(*chunks.borrow(), b"0123456789");
    assert_eq!(log.take(), ["opened", "received 0123456789", "peer finished", "closed: finished by the other side"]);
}

fn a_handler_that_closes_in_a_burst_gets_nothing_more(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).received(|io, chunk| {
        if &*chunk == b"3" {
            io.close();
        }
    });
    let address = listen_once(&mut reactor, handler, Burst);
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"0123456789").unwrap();
        peer.read_all().ok()
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received 0123", "closed: closed by this side"]);
}

fn a_handler_that_closes_after_writing_in_a_burst_gets_nothing_more(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).received(|io, chunk| {
        if &*chunk == b"3" {
            io.send(b"enough").unwrap();
            io.close_after_writing();
        }
    });
    let address = listen_once(&mut reactor, handler, Burst);
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"0123456789").unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(back, b"enough");
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received 0123", "closed: closed by this side"]);
}

fn a_handler_that_hands_over_in_a_burst_passes_on_the_rest(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let handler = Scripted::logging(&log).received(move |io, chunk| {
        if &*chunk == b"3" {
            io.hand_over(Box::new(Scripted::logging(&entries)), b"(3)".to_vec());
        }
    });
    let address = listen_once(&mut reactor, handler, Burst);
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"0123456789").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    run_out(&mut reactor);
    let expected = [
        "opened",
        "received 0123",
        "closed: handed over to another handler",
        "opened",
        "received (3)456789",
        "peer finished",
        "closed: finished by the other side",
    ];
    assert_eq!(log.take(), expected);
}

/// Makes a file that has no name any more.
pub fn file_with(contents: &[u8]) -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pelton-layers-{}-{number}", std::process::id()));
    std::fs::write(&path, contents).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

fn files_go_through_the_layer_in_order(on: impl Network) {
    let mut reactor = on.reactor();
    let contents = pattern(1_000_000);
    let mut file = Some(file_with(&contents));
    let handler = Scripted::default().opened(move |io| {
        io.send(b"before").unwrap();
        io.send_file(file.take().unwrap(), 10..900_000).unwrap();
        assert_eq!(io.queued_in_files(), 899_990);
        io.send(b"after").unwrap();
        io.close_after_writing();
    });
    let address = listen_once(&mut reactor, handler, Shift::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert!(back == shift(&[b"before", &contents[10..900_000], b"after"].concat()));
    run_out(&mut reactor);
}

fn a_file_that_is_too_short_closes_the_connection(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let mut file = Some(file_with(b"short"));
    let handler = Scripted::logging(&log).opened(move |io| {
        io.send_file(file.take().unwrap(), 0..100).unwrap();
    });
    let address = listen_once(&mut reactor, handler, Shift::default());
    with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().ok());
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: the file is too short"]);
}

fn pieces_are_offered_together(on: impl Network) {
    /// Transmits how many pieces each call had.
    struct Counts;
    impl Layer for Counts {
        fn receive(&mut self, _: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
            Ok(input.len())
        }

        fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
            write!(io, "{} ", output.len()).map_err(Reason::layer)?;
            Ok(output.iter().map(|slice| slice.len()).sum())
        }
    }
    let mut reactor = on.reactor();
    let handler = Scripted::default().opened(|io| {
        for _ in 0..10 {
            io.send_bytes("head and body").unwrap();
        }
        io.close_after_writing();
    });
    let address = listen_once(&mut reactor, handler, Counts);
    let back = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert_eq!(back, b"8 2 ");
    run_out(&mut reactor);
}

fn what_is_sent_now_goes_through_the_layer_at_once(on: pelton_testing::On) {
    let mut reactor = on.reactor();
    let (seen, arrived) = mpsc::channel();
    let handler = Scripted::default().opened(move |io| {
        io.send(b"some ").unwrap();
        io.send_now(b"water").unwrap();
        // The other side has it while this callback is still running.
        let bytes: Vec<u8> = arrived.recv_timeout(pelton_testing::DEADLINE).unwrap();
        assert_eq!(bytes, shift(b"some water"));
        io.close();
    });
    let address = listen_once(&mut reactor, handler, Shift::default());
    with_peer(&mut reactor, on, &address, move |mut peer| seen.send(peer.read_some(10)).unwrap());
    run_out(&mut reactor);
}
