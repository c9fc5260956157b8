//! Streams that are dropped, reset or closed, and reactors that end before them.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::net::{Listener, Stream};
use pelton::{Exit, Limit, Reactor, Reason, task};
use pelton_testing::{Network, block_on, localhost, on_every_network, pattern, poll, run_until};

use super::{accepted, off_the_loop, pair};

on_every_network![
    written_data_is_sent_after_the_stream_is_dropped,
    written_data_is_sent_after_block_on_returns,
    dropped_unread_stream_is_closed,
    reset_is_a_connection_reset_error,
    writing_after_closing_is_a_broken_pipe,
    exceeded_limit_is_a_timeout,
    dropping_the_reactor_drops_tasks_with_their_streams,
    streams_outlive_their_reactor_harmlessly,
    a_stream_belongs_to_its_reactor,
    a_draining_loop_waits_for_its_streams,
];

fn written_data_is_sent_after_the_stream_is_dropped(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (stream, mut peer) = accepted(network).await;
        stream.write_bytes(pattern(total)).await.unwrap();
        drop(stream);
        let all = off_the_loop(move || peer.read_all().unwrap()).await;
        assert!(all == pattern(total), "the data differs");
    });
    assert_eq!(reactor.task_count(), 0);
}

fn written_data_is_sent_after_block_on_returns(network: impl Network) {
    let mut reactor = network.reactor();
    let mut peer = block_on(&mut reactor, async {
        let (mut stream, peer) = accepted(network).await;
        stream.write_all(b"bye").await.unwrap();
        peer
    });
    let last = thread::spawn(move || peer.read_some(3));
    // The in-memory network delivers late.
    while !last.is_finished() {
        poll(&mut reactor);
    }
    assert_eq!(last.join().unwrap(), b"bye");
}

fn dropped_unread_stream_is_closed(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (stream, mut peer) = accepted(network).await;
        let sent = pattern(network.more_than_fits());
        let (begin, begun) = mpsc::channel();
        let writing = thread::spawn(move || {
            let (first, rest) = sent.split_at(sent.len() / 16);
            peer.write_all(first).unwrap();
            begin.send(()).unwrap();
            // This ends only if the peer reads; it does, to be able to close without a reset.
            peer.write_all(rest).unwrap();
            assert_eq!(peer.read_all().unwrap(), b"");
        });
        off_the_loop(move || begun.recv().unwrap()).await;
        drop(stream);
        off_the_loop(move || writing.join().unwrap()).await;
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

fn reset_is_a_connection_reset_error(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut stream, peer) = accepted(network).await;
        peer.reset();
        let error = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let reason = error.get_ref().unwrap().downcast_ref::<Arc<Reason>>().unwrap();
        assert!(matches!(**reason, Reason::Reset));
        assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(stream.flush().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

fn writing_after_closing_is_a_broken_pipe(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        client.close().await.unwrap();
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        // The other side finishes too, which ends the connection.
        server.close().await.unwrap();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        task::sleep(Duration::from_millis(5)).await;
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(client.flush().await.is_ok(), "everything was sent");
    });
}

fn exceeded_limit_is_a_timeout(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, _client) = pair().await;
        server.with_io(|io| io.set_limit(Limit::Inactivity, Some(Duration::from_millis(5)))).unwrap();
        let error = server.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    });
}

fn dropping_the_reactor_drops_tasks_with_their_streams(network: impl Network) {
    struct Counts(Rc<RefCell<Vec<thread::ThreadId>>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.borrow_mut().push(thread::current().id());
        }
    }
    let mut reactor = network.reactor();
    let drops = Rc::new(RefCell::new(Vec::new()));
    let (reads, accepts, writes) = (Counts(drops.clone()), Counts(drops.clone()), Counts(drops.clone()));
    let mut peer = block_on(&mut reactor, async {
        let (mut stream, peer) = accepted(network).await;
        task::spawn(async move {
            let _counts = reads;
            task::timeout(Duration::from_secs(3600), stream.read(&mut [0; 8])).await.ok();
        });
        let listener = Listener::bind(&localhost()).unwrap();
        task::spawn(async move {
            let _counts = accepts;
            listener.accept().await.ok();
        });
        let (one, mut other) = pair().await;
        task::spawn(async move {
            let _counts = (writes, one);
            while other.write_all(&[0; 10_000]).await.is_ok() {}
        });
        task::sleep(Duration::from_millis(5)).await;
        peer
    });
    drop(reactor);
    assert_eq!(*drops.borrow(), [thread::current().id(); 3]);
    // The other side sees either an end or an error.
    let mut rest = Vec::new();
    let _ = peer.read_to_end(&mut rest);
}

fn streams_outlive_their_reactor_harmlessly(network: impl Network) {
    let mut reactor = network.reactor();
    let (server, mut client) = block_on(&mut reactor, pair());
    let listener = block_on(&mut reactor, async { Listener::bind(&localhost()).unwrap() });
    drop(reactor);
    let error = futures::executor::block_on(client.write(b"x")).unwrap_err();
    assert!(error.to_string().contains("no current reactor"), "{error}");
    let mut other = network.reactor();
    let error = block_on(&mut other, client.write(b"x")).unwrap_err();
    assert!(error.to_string().contains("a reactor other than the current one"), "{error}");
    assert!(block_on(&mut other, listener.accept()).is_err());
    drop((server, client, listener));
    assert!(futures::executor::block_on(Stream::connect(&localhost())).is_err());
    assert!(Listener::bind(&localhost()).is_err());
}

fn a_stream_belongs_to_its_reactor(network: impl Network) {
    let (mut reactor, mut other) = (network.reactor(), network.reactor());
    let (mut server, client) = block_on(&mut reactor, pair());
    block_on(&mut reactor, server.write_all(b"water")).unwrap();
    // Received data can be read anywhere on the thread; only its own reactor receives more.
    let mut word = [0; 5];
    let mut reading = std::pin::pin!(async { (&client).read_exact(&mut word).await });
    while futures::executor::block_on(async { futures::poll!(reading.as_mut()).is_pending() }) {
        poll(&mut reactor);
    }
    assert_eq!(&word, b"water");
    let refused = block_on(&mut other, server.close());
    assert!(refused.is_err());
    block_on(&mut reactor, server.close()).unwrap();
}

fn a_draining_loop_waits_for_its_streams(network: impl Network) {
    let mut reactor = network.reactor();
    let (mut server, mut client, listener) = block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        // A connection on which nothing was ever sent or received would be closed.
        server.write_all(b".").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        (server, client, Listener::bind(&localhost()).unwrap())
    });
    let log = pelton_testing::Log::default();
    let (answered, ended) = (log.clone(), log.clone());
    reactor.spawn(async move {
        client.write_all(b"?").await.unwrap();
        Reactor::with_current(|reactor| reactor.drain(Duration::from_secs(10)));
        client.read_exact(&mut [0]).await.unwrap();
        answered.add("answered");
    });
    reactor.spawn(async move {
        server.read_exact(&mut [0]).await.unwrap();
        task::sleep(Duration::from_millis(5)).await;
        server.write_all(b"!").await.unwrap();
    });
    reactor.spawn(async move {
        assert!(listener.accept().await.is_err());
        ended.add("ended");
    });
    assert_eq!(pelton_testing::run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["ended", "answered"]);
}
