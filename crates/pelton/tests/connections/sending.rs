//! What goes out.

use std::cell::Cell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pelton::SendError;

use super::common::{Log, on_every_network, poll, run_until};
use super::{Echo, Network, Scripted, listen, pattern, with_peer};

on_every_network![
    what_is_sent_comes_back_whole,
    a_large_transfer_to_a_slow_reader_keeps_little_in_memory,
    one_send_past_the_limit_is_refused_and_loses_nothing,
    two_reactors_worth_of_connections_talk_to_each_other,
];

fn what_is_sent_comes_back_whole(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    let data = pattern(1_000_000);
    let sent = data.clone();
    let back = with_peer(&mut reactor, on, &address, move |mut peer| {
        let mut writer = peer.clone();
        let writing = thread::spawn(move || {
            for part in sent.chunks(7_777) {
                writer.write_all(part).unwrap();
            }
            writer.finish();
        });
        let back = peer.read_all().unwrap();
        writing.join().unwrap();
        back
    });
    assert!(back == data);
    poll(&mut reactor);
    assert_eq!(reactor.connection_count(), 0);
}

fn a_large_transfer_to_a_slow_reader_keeps_little_in_memory(on: impl Network) {
    let total = on.more_than_fits() * 3;
    let mut reactor = on.reactor();
    let most = Rc::new(Cell::new(0usize));
    let id = Rc::new(Cell::new(None));
    let (log, seen, known) = (Log::default(), most.clone(), id.clone());
    let entries = log.clone();
    // Each byte is answered with ten: the answers pile up until reading pauses.
    let address = listen(&mut reactor, move |_| {
        let (seen, known) = (seen.clone(), known.clone());
        Scripted {
            received: Some(Box::new(move |io, chunk| {
                io.send_bytes(vec![b'x'; chunk.len() * 10]).unwrap();
                seen.set(seen.get().max(io.queued()));
                known.set(Some(io.id()));
            })),
            ..Scripted::logging(&entries)
        }
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
        let mut all = vec![0; 1 << 16];
        let mut received = 0;
        loop {
            match peer.read(&mut all).unwrap() {
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
    assert_eq!(peer.join().unwrap(), total);
    assert!(log.take().contains(&"drained".to_owned()));
    assert!(most.get() < 1_000_000, "{} bytes were queued", most.get());
}

fn one_send_past_the_limit_is_refused_and_loses_nothing(on: impl Network) {
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
    let text = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert_eq!(text, b"still here");
    assert_eq!(reactor.stats().panics, 0);
}

fn two_reactors_worth_of_connections_talk_to_each_other(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    let log = Log::default();
    for number in 0..20 {
        let (mut to_send, mut to_receive) = (49 * 4, 50 * 4);
        let handler = Scripted {
            opened: Some(Box::new(|io| io.send(b"ping").unwrap())),
            received: Some(Box::new(move |io, chunk| {
                assert!(chunk.iter().all(|byte| b"ping".contains(byte)));
                let again = chunk.len().min(to_send);
                to_send -= again;
                to_receive -= chunk.len();
                if to_receive == 0 { io.close() } else { io.send(&chunk[..again]).unwrap() }
            })),
            ..Scripted::logging(&log)
        };
        let id = reactor.connect(&address, handler).unwrap();
        reactor.label(id, format!("client {number}"));
    }
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take().iter().filter(|entry| *entry == "closed: closed by this side").count(), 20);
    assert_eq!(reactor.stats().panics, 0);
}
