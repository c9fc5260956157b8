//! Reading and writing: both directions, back pressure, flushing, timeouts.

use std::cell::RefCell;
use std::io::{ErrorKind, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::{Reactor, WaterMarks, task};
use pelton_testing::{Network, block_on, on_every_network, pattern, poll};

use super::{accepted, off_the_loop, pair};

on_every_network![
    written_data_is_read_by_the_other_side,
    both_ends_can_be_on_one_loop,
    half_closed_stream_still_reads,
    unread_stream_makes_the_other_side_wait,
    a_stream_whose_peer_does_not_read_makes_its_writer_wait,
    flush_waits_until_everything_is_sent,
    a_read_that_times_out_loses_nothing,
    chunks_and_bytes_are_not_copied,
    one_task_reads_and_writes_at_once,
];

fn written_data_is_read_by_the_other_side(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut stream, mut peer) = accepted(network).await;
        stream.write_all(b"water").await.unwrap();
        let (word, mut peer) = off_the_loop(move || (peer.read_some(5), peer)).await;
        assert_eq!(word, b"water");
        off_the_loop(move || peer.write_all(b"wheel").unwrap()).await;
        let mut word = String::new();
        stream.read_to_string(&mut word).await.unwrap();
        assert_eq!(word, "wheel");
    });
}

fn both_ends_can_be_on_one_loop(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        assert_eq!(client.peer_address().unwrap(), server.local_address().unwrap());
        for round in 0..20u8 {
            client.write_all(&[round; 100]).await.unwrap();
            let mut got = [0; 100];
            server.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [round; 100]);
            server.write_all(&got).await.unwrap();
            client.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [round; 100]);
        }
    });
}

fn half_closed_stream_still_reads(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        let answering = task::spawn(async move {
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "the end is permanent");
            server.write_all(question.to_uppercase().as_bytes()).await.unwrap();
            server.close().await.unwrap();
        });
        client.write_all(b"is it loud?").await.unwrap();
        client.close().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "IS IT LOUD?");
        answering.await.unwrap();
        assert!(client.close().await.is_ok(), "closing twice is harmless");
    });
}

fn unread_stream_makes_the_other_side_wait(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (mut stream, peer) = accepted(network).await;
        let written = Arc::new(AtomicUsize::new(0));
        let progress = written.clone();
        let writer = thread::spawn(move || {
            let mut peer = peer;
            for part in pattern(total).chunks(8 * 1024) {
                peer.write_all(part).unwrap();
                progress.fetch_add(part.len(), Ordering::Relaxed);
            }
        });
        // Until it makes no more progress.
        let mut before = usize::MAX;
        while before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            task::sleep(Duration::from_millis(30)).await;
        }
        assert!(written.load(Ordering::Relaxed) < total, "everything was buffered");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert!(all == pattern(total), "the data differs");
        writer.join().unwrap();
    });
}

fn a_stream_whose_peer_does_not_read_makes_its_writer_wait(network: impl Network) {
    let mut reactor = network.reactor();
    let (total, marks) = (network.more_than_fits(), WaterMarks::default());
    let peak = Rc::new(RefCell::new(0));
    block_on(&mut reactor, async {
        let (mut stream, mut peer) = accepted(network).await;
        let writing = task::spawn(async move {
            stream.write_all(&pattern(total)).await.unwrap();
            stream.close().await.unwrap();
        });
        let most = peak.clone();
        let watching = task::spawn(async move {
            loop {
                let queued = Reactor::with_current(|reactor| reactor.queued()).unwrap();
                let peak = *most.borrow();
                most.replace(queued.max(peak));
                task::yield_now().await;
            }
        });
        task::sleep(Duration::from_millis(50)).await;
        assert!(!writing.is_finished());
        let all = off_the_loop(move || peer.read_all().unwrap()).await;
        assert!(all == pattern(total), "the data differs");
        writing.await.unwrap();
        watching.cancel();
    });
    let peak = *peak.borrow();
    assert!(peak > marks.high && peak <= marks.high + 64 * 1024, "{peak}");
}

fn flush_waits_until_everything_is_sent(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (mut stream, mut peer) = accepted(network).await;
        stream.flush().await.unwrap();
        stream.write_bytes(pattern(total)).await.unwrap();
        assert!(task::timeout(Duration::from_millis(20), stream.flush()).await.is_err());
        let reading = thread::spawn(move || peer.read_some(total));
        stream.flush().await.unwrap();
        assert_eq!(Reactor::with_current(|reactor| reactor.queued()), Some(0));
        assert!(reading.join().unwrap() == pattern(total), "the data differs");
    });
}

fn a_read_that_times_out_loses_nothing(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut stream, mut peer) = accepted(network).await;
        let mut word = [0; 5];
        for _ in 0..3 {
            assert!(task::timeout(Duration::from_millis(1), stream.read(&mut word)).await.is_err());
        }
        off_the_loop(move || peer.write_all(b"water")).await.unwrap();
        let read = task::timeout(Duration::from_secs(10), stream.read_exact(&mut word)).await;
        read.unwrap().unwrap();
        assert_eq!(&word, b"water");
    });
    poll(&mut reactor);
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn chunks_and_bytes_are_not_copied(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (server, client) = pair().await;
        let sent = pattern(200_000);
        let sending = task::spawn({
            let bytes = sent.clone();
            async move {
                let mut client = client;
                for part in bytes.chunks(50_000) {
                    client.write_bytes(part.to_vec()).await.unwrap();
                }
                client.close().await.unwrap();
                client
            }
        });
        let mut got = Vec::new();
        while let Some(chunk) = server.read_chunk().await.unwrap() {
            got.extend_from_slice(&chunk);
        }
        assert!(got == sent, "the data differs");
        let client = sending.await.unwrap();
        // A write larger than the queue limit is refused as a whole.
        client.with_io(|io| io.set_water_marks(WaterMarks { low: 1, high: 10, most: 100 })).unwrap();
        server.with_io(|io| io.set_water_marks(WaterMarks { low: 1, high: 10, most: 100 })).unwrap();
        assert_eq!(server.write_bytes(vec![0; 101]).await.unwrap_err().kind(), ErrorKind::FileTooLarge);
        // In smaller pieces it is accepted.
        (&server).write_all(&sent[..10_000]).await.unwrap();
        drop(server);
        let mut got = Vec::new();
        (&client).read_to_end(&mut got).await.unwrap();
        assert!(got == sent[..10_000], "the data differs");
    });
}

fn one_task_reads_and_writes_at_once(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (server, client) = pair().await;
        task::spawn(async move {
            // Echoes input as fast as the other side reads it.
            futures::io::copy(&server, &mut &server).await.unwrap();
            (&server).close().await.unwrap();
        });
        let sent = pattern(total);
        let writing = async {
            (&client).write_all(&sent).await.unwrap();
            (&client).close().await.unwrap();
        };
        let reading = async {
            let mut got = Vec::new();
            (&client).read_to_end(&mut got).await.unwrap();
            got
        };
        let ((), got) = futures::join!(writing, reading);
        assert!(got == sent, "the data differs");
    });
}
