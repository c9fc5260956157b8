//! Sending.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pelton::{Io, SendError};
use pelton_testing::{Log, On, on_every_network, poll, run_until};

use super::{Echo, Network, Scripted, listen, pattern, run_with, with_peer};

on_every_network![
    everything_sent_is_echoed,
    a_large_transfer_to_a_slow_reader_keeps_little_in_memory,
    send_past_the_limit_is_refused_and_loses_nothing,
    connections_of_one_reactor_talk_to_each_other,
    files_are_sent_in_order_with_other_data,
    file_shorter_than_announced_closes_the_connection,
    send_now_keeps_the_order,
    a_connection_can_be_sent_to_before_it_is_established;
    // An engine that completes sends later needs a turn for that, and a callback has none.
    with_a_kernel: send_now_does_not_wait_for_the_callback_to_return,
];

fn everything_sent_is_echoed(on: impl Network) {
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
    // Nobody reads until so much is queued that the reactor stops reading.
    run_until(&mut reactor, |reactor| {
        let waiting = id.get().and_then(|id| Some(reactor.connection(id)?.queued()));
        waiting.is_some_and(|waiting| waiting > 64 * 1024)
    });
    for _ in 0..10 {
        poll(&mut reactor);
    }
    // The high-water mark, and the answer to one more read.
    assert!(most.get() < 1_000_000, "{} bytes were queued", most.get());
    start.send(()).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| peer.is_finished());
    reactor.cancel(waiting);
    assert_eq!(peer.join().unwrap(), total);
    assert!(log.take().contains(&"writable".to_owned()));
    assert!(most.get() < 1_000_000, "{} bytes were queued", most.get());
}

fn send_past_the_limit_is_refused_and_loses_nothing(on: impl Network) {
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

fn connections_of_one_reactor_talk_to_each_other(on: impl Network) {
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

/// An unnamed file with these contents.
fn file_of(contents: &[u8]) -> Arc<File> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pelton-{}-{number}.data", std::process::id()));
    std::fs::write(&path, contents).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Arc::new(file)
}

fn files_are_sent_in_order_with_other_data(on: impl Network) {
    let mut reactor = on.reactor();
    let contents = pattern(3_000_000);
    let file = file_of(&contents);
    let address = listen(&mut reactor, move |_| {
        let file = file.clone();
        let opened = move |io: &mut Io<'_>| {
            io.send(b"head").unwrap();
            io.send_file(file.clone(), 0..1_000_000).unwrap();
            io.send_bytes(vec![b'-'; 10_000]).unwrap();
            io.send_file(file.clone(), 5..5).unwrap();
            io.send_file(file.clone(), 2_999_999..3_000_000).unwrap();
            io.send_file(file.clone(), 100..3_000_000).unwrap();
            assert_eq!(io.queued() as u64 + io.queued_in_files(), 4 + 1_000_000 + 10_000 + 1 + 2_999_900);
            assert_eq!(io.reactor().queued(), 4 + 10_000, "files take up no memory");
            io.send(b"tail").unwrap();
            io.close_after_writing();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::default() }
    });
    let all = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    let dashes = [b'-'; 10_000];
    let parts = [b"head", &contents[..1_000_000], &dashes, &contents[2_999_999..], &contents[100..], b"tail"];
    assert!(all == parts.concat());
    assert_eq!((reactor.queued(), reactor.stats().panics), (0, 0));
}

fn file_shorter_than_announced_closes_the_connection(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (entries, file) = (log.clone(), file_of(b"short"));
    let address = listen(&mut reactor, move |_| {
        let file = file.clone();
        let opened = move |io: &mut Io<'_>| {
            io.send_file(file.clone(), 0..1_000).unwrap();
            io.send(b"never reached").unwrap();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    assert_eq!(with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap()), b"short");
    run_until(&mut reactor, |_| log.len() == 2);
    assert!(log.take()[1].contains("file"));
    assert_eq!(reactor.queued(), 0);
}

fn send_now_keeps_the_order(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            for number in 0..100 {
                let text = format!("{number} ");
                if number % 3 == 0 { io.send_now(text.as_bytes()) } else { io.send(text.as_bytes()) }.unwrap();
            }
            io.close_after_writing();
        })),
        ..Scripted::default()
    });
    let all = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    let wanted: String = (0..100).map(|number| format!("{number} ")).collect();
    assert_eq!(String::from_utf8(all).unwrap(), wanted);
}

fn send_now_does_not_wait_for_the_callback_to_return(on: On) {
    let mut reactor = on.reactor();
    let (tell, told) = mpsc::channel();
    let told = Rc::new(told);
    let address = listen(&mut reactor, move |_| {
        let told = told.clone();
        let opened = move |io: &mut Io<'_>| {
            io.send_now(b"now").unwrap();
            told.recv_timeout(Duration::from_secs(10)).unwrap();
            io.close();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::default() }
    });
    with_peer(&mut reactor, on, &address, move |mut peer| {
        assert_eq!(peer.read_some(3), b"now");
        tell.send(()).unwrap();
    });
    assert_eq!(reactor.stats().panics, 0);
}

fn a_connection_can_be_sent_to_before_it_is_established(on: impl Network) {
    let mut reactor = on.reactor();
    let listener = on.listen_peer();
    let log = Log::default();
    let id = reactor.connect(&listener.address(), Scripted::logging(&log)).unwrap();
    let mut io = reactor.connection(id).unwrap();
    io.send(b"early ").unwrap();
    io.send(b"bird").unwrap();
    io.finish();
    let heard = run_with(&mut reactor, move || {
        let mut peer = listener.accept();
        let heard = peer.read_all().unwrap();
        peer.write_all(b"worm").unwrap();
        heard
    });
    assert_eq!(heard, b"early bird");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["opened", "received worm", "peer finished", "closed: finished by the other side"]);
}
