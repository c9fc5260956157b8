//! Streams, listeners and datagrams in `async` code.

#![forbid(unsafe_code)]

mod common;

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::rt::ReadBufCursor;
use pelton::net::{Datagrams, Listener, Stream};
use pelton::task;
use pelton::{Address, EventLoop, Exit, Limit, Reactor, Reason, WaterMarks};

use common::peer::Network;
use common::{On, on_every_network, poll, run_until};

on_every_network![
    what_is_written_is_read_by_the_other_side,
    both_ends_can_be_on_one_loop,
    a_side_that_has_finished_still_reads,
    a_stream_that_is_not_read_makes_the_other_side_wait,
    a_stream_whose_peer_does_not_read_makes_its_writer_wait,
    flushing_waits_until_everything_has_been_taken,
    a_read_that_times_out_loses_nothing,
    chunks_and_bytes_go_through_without_being_copied,
    one_task_reads_and_writes_at_once,
    what_was_written_is_sent_after_the_stream_is_dropped,
    what_was_written_is_sent_although_block_on_is_over,
    a_stream_that_is_dropped_unread_is_closed,
    a_reset_is_an_error_of_its_kind,
    writing_after_closing_is_a_broken_pipe,
    a_limit_that_is_reached_is_a_timeout,
    giving_up_on_connecting_leaves_no_connection,
    dropping_the_reactor_drops_tasks_with_their_streams,
    streams_outlive_their_reactor_harmlessly,
    a_stream_belongs_to_its_reactor,
    a_listener_that_is_dropped_ends,
    a_listener_is_a_stream_of_streams,
    a_draining_loop_waits_for_its_streams;
    with_a_kernel:
    connections_that_are_not_accepted_wait_in_the_kernel,
    a_refused_connection_is_an_error_of_its_kind,
    names_and_unix_sockets_can_be_connected_to,
    sockets_can_be_adopted,
    datagrams_are_answered,
    a_datagram_that_nobody_receives_is_told,
    datagrams_that_find_no_room_make_their_sender_wait,
    datagrams_that_are_not_received_stay_in_the_kernel,
    a_client_that_knows_nothing_of_pelton_works,
];

/// Blocks on `future`, and fails if it takes too long.
fn block_on<T>(reactor: &mut EventLoop, future: impl Future<Output = T>) -> T {
    let late = reactor.after(Duration::from_secs(20), |reactor| reactor.stop());
    let value = reactor.block_on(future).expect("it does not take that long");
    reactor.cancel(late);
    value
}

fn anywhere() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// A stream and a plain blocking peer.
async fn accepted<N: Network>(network: N) -> (Stream, common::peer::Peer) {
    let listener = Listener::bind(&anywhere()).unwrap();
    let address = listener.local_address().unwrap();
    let peer = thread::spawn(move || network.connect_peer(&address));
    let stream = listener.accept().await.unwrap();
    (stream, peer.join().unwrap())
}

/// Two streams that are connected with each other.
async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(&anywhere()).unwrap();
    let address = listener.local_address().unwrap();
    let (accepted, connected) = futures::join!(listener.accept(), Stream::connect(&address));
    (accepted.unwrap(), connected.unwrap())
}

/// Runs something that blocks on a thread.
async fn off_the_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = async_channel::bounded(1);
    thread::spawn(move || sender.send_blocking(work()));
    receiver.recv().await.unwrap()
}

fn what_is_written_is_read_by_the_other_side(network: impl Network) {
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

fn a_side_that_has_finished_still_reads(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        let answering = task::spawn(async move {
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "the end stays the end");
            server.write_all(question.to_uppercase().as_bytes()).await.unwrap();
            server.close().await.unwrap();
        });
        client.write_all(b"is it loud?").await.unwrap();
        client.close().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "IS IT LOUD?");
        answering.await.unwrap();
        assert!(client.close().await.is_ok(), "closing twice is closing once");
    });
}

fn a_stream_that_is_not_read_makes_the_other_side_wait(network: impl Network) {
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
        // Until it gets no further.
        let mut before = usize::MAX;
        while before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            task::sleep(Duration::from_millis(30)).await;
        }
        assert!(written.load(Ordering::Relaxed) < total, "somebody keeps all of it");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert!(all == pattern(total), "something came out wrong");
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
        assert!(all == pattern(total), "something came out wrong");
        writing.await.unwrap();
        watching.cancel();
    });
    let peak = *peak.borrow();
    assert!(peak > marks.high && peak <= marks.high + 64 * 1024, "{peak}");
}

fn flushing_waits_until_everything_has_been_taken(network: impl Network) {
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
        assert!(reading.join().unwrap() == pattern(total), "something came out wrong");
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

fn chunks_and_bytes_go_through_without_being_copied(network: impl Network) {
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
        assert!(got == sent, "something came out wrong");
        let client = sending.await.unwrap();
        // More than may wait at all is refused as a whole.
        client.with_io(|io| io.set_water_marks(WaterMarks { low: 1, high: 10, most: 100 })).unwrap();
        server.with_io(|io| io.set_water_marks(WaterMarks { low: 1, high: 10, most: 100 })).unwrap();
        assert_eq!(server.write_bytes(vec![0; 101]).await.unwrap_err().kind(), ErrorKind::FileTooLarge);
        // But written bit by bit it goes through.
        (&server).write_all(&sent[..10_000]).await.unwrap();
        drop(server);
        let mut got = Vec::new();
        (&client).read_to_end(&mut got).await.unwrap();
        assert!(got == sent[..10_000], "something came out wrong");
    });
}

fn one_task_reads_and_writes_at_once(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (server, client) = pair().await;
        task::spawn(async move {
            // What comes in goes out again, as fast as the other side takes it.
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
        assert!(got == sent, "something came out wrong");
    });
}

fn what_was_written_is_sent_after_the_stream_is_dropped(network: impl Network) {
    let mut reactor = network.reactor();
    let total = network.more_than_fits();
    block_on(&mut reactor, async {
        let (stream, mut peer) = accepted(network).await;
        stream.write_bytes(pattern(total)).await.unwrap();
        drop(stream);
        let all = off_the_loop(move || peer.read_all().unwrap()).await;
        assert!(all == pattern(total), "something came out wrong");
    });
    assert_eq!(reactor.task_count(), 0);
}

fn what_was_written_is_sent_although_block_on_is_over(network: impl Network) {
    let mut reactor = network.reactor();
    let mut peer = block_on(&mut reactor, async {
        let (mut stream, peer) = accepted(network).await;
        stream.write_all(b"bye").await.unwrap();
        peer
    });
    let last = thread::spawn(move || peer.read_some(3));
    // The network in memory takes its time.
    while !last.is_finished() {
        poll(&mut reactor);
    }
    assert_eq!(last.join().unwrap(), b"bye");
}

fn a_stream_that_is_dropped_unread_is_closed(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (stream, mut peer) = accepted(network).await;
        let sent = pattern(network.more_than_fits());
        let (begin, begun) = mpsc::channel();
        let writing = thread::spawn(move || {
            let (first, rest) = sent.split_at(sent.len() / 16);
            peer.write_all(first).unwrap();
            begin.send(()).unwrap();
            // This ends only if somebody takes it; the other side does, though nobody wants it, to be able to say that it has
            // ended without a reset.
            peer.write_all(rest).unwrap();
            assert_eq!(peer.read_all().unwrap(), b"");
        });
        off_the_loop(move || begun.recv().unwrap()).await;
        drop(stream);
        off_the_loop(move || writing.join().unwrap()).await;
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

fn a_reset_is_an_error_of_its_kind(network: impl Network) {
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
        // The other side finishes too, and the connection is over.
        server.close().await.unwrap();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        task::sleep(Duration::from_millis(5)).await;
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(client.flush().await.is_ok(), "everything was sent");
    });
}

fn a_limit_that_is_reached_is_a_timeout(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let (mut server, _client) = pair().await;
        server.with_io(|io| io.set_limit(Limit::Inactivity, Some(Duration::from_millis(5)))).unwrap();
        let error = server.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    });
}

fn giving_up_on_connecting_leaves_no_connection(network: impl Network) {
    let mut reactor = network.reactor();
    let somebody = network.listen_peer();
    block_on(&mut reactor, async {
        for round in 1..=10 {
            assert!(Stream::connect(&somebody.address()).now_or_never().is_none());
            // Until the next flush.
            assert_eq!(Reactor::with_current(|reactor| reactor.connection_count()), Some(round));
        }
    });
    poll(&mut reactor);
    assert_eq!(reactor.connection_count(), 0);
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
        let listener = Listener::bind(&anywhere()).unwrap();
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
    // Whether as an end or as an error, the other side learns of it.
    let mut rest = Vec::new();
    let _ = peer.read_to_end(&mut rest);
}

fn streams_outlive_their_reactor_harmlessly(network: impl Network) {
    let mut reactor = network.reactor();
    let (server, mut client) = block_on(&mut reactor, pair());
    let listener = block_on(&mut reactor, async { Listener::bind(&anywhere()).unwrap() });
    drop(reactor);
    let error = futures::executor::block_on(client.write(b"x")).unwrap_err();
    assert!(error.to_string().contains("no current reactor"), "{error}");
    let mut other = network.reactor();
    let error = block_on(&mut other, client.write(b"x")).unwrap_err();
    assert!(error.to_string().contains("a reactor other than the current one"), "{error}");
    assert!(block_on(&mut other, listener.accept()).is_err());
    drop((server, client, listener));
    assert!(futures::executor::block_on(Stream::connect(&anywhere())).is_err());
    assert!(Listener::bind(&anywhere()).is_err());
}

fn a_stream_belongs_to_its_reactor(network: impl Network) {
    let (mut reactor, mut other) = (network.reactor(), network.reactor());
    let (mut server, client) = block_on(&mut reactor, pair());
    block_on(&mut reactor, server.write_all(b"water")).unwrap();
    // What has come in may be read anywhere on the thread; that it comes in is its reactor's doing.
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

fn a_listener_that_is_dropped_ends(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&anywhere()).unwrap();
        let address = listener.local_address().unwrap();
        let connecting = Stream::connect(&address);
        let (client, accepted) = futures::join!(connecting, listener.accept());
        let not_accepted = Stream::connect(&address).await.unwrap();
        drop(listener);
        let mut not_accepted = not_accepted;
        assert!(!matches!(not_accepted.read(&mut [0; 8]).await, Ok(1..)));
        assert!(Stream::connect(&address).await.is_err());
        // Those that were accepted stay.
        let (mut client, mut accepted) = (client.unwrap(), accepted.unwrap());
        client.write_all(b"x").await.unwrap();
        accepted.read_exact(&mut [0]).await.unwrap();
    });
}

fn a_listener_is_a_stream_of_streams(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&anywhere()).unwrap();
        let address = listener.local_address().unwrap();
        let clients = join_all((0..20u8).map(|number| {
            let address = address.clone();
            async move {
                let mut stream = Stream::connect(&address).await.unwrap();
                stream.write_all(&[number]).await.unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(answer, [number + 100]);
            }
        }));
        let serving = listener.take(20).for_each_concurrent(4, |mut stream| async move {
            let mut number = [0];
            stream.read_exact(&mut number).await.unwrap();
            stream.write_all(&[number[0] + 100]).await.unwrap();
        });
        futures::join!(clients, serving);
    });
}

fn a_draining_loop_waits_for_its_streams(network: impl Network) {
    let mut reactor = network.reactor();
    let (mut server, mut client, listener) = block_on(&mut reactor, async {
        let (mut server, mut client) = pair().await;
        // One on which nothing was ever sent or received would be closed.
        server.write_all(b".").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        (server, client, Listener::bind(&anywhere()).unwrap())
    });
    let log = common::Log::default();
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
    assert_eq!(common::run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["ended", "answered"]);
}

fn connections_that_are_not_accepted_wait_in_the_kernel(on: On) {
    const CLIENTS: usize = 200;
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&anywhere()).unwrap();
        let address = listener.local_address().unwrap().to_string();
        let clients = thread::spawn(move || {
            (0..CLIENTS).map(|_| TcpStream::connect(&address).unwrap()).collect::<Vec<TcpStream>>()
        });
        let connections = || Reactor::with_current(|reactor| reactor.connection_count()).unwrap();
        while connections() < 64 {
            task::sleep(Duration::from_millis(1)).await;
        }
        task::sleep(Duration::from_millis(20)).await;
        assert!(connections() < 64 + 64, "{} were accepted", connections());
        let mut accepted = Vec::new();
        for _ in 0..CLIENTS {
            accepted.push(listener.accept().await.unwrap());
        }
        assert_eq!(clients.join().unwrap().len(), CLIENTS);
    });
}

fn a_refused_connection_is_an_error_of_its_kind(on: On) {
    let mut reactor = on.build(on.builder().resolver(|host: &str, port: u16| match host {
        "here" => Ok(vec![([127, 0, 0, 1], port).into()]),
        _ => Err(io::Error::other("not known here")),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(listener.local_addr().unwrap());
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    block_on(&mut reactor, async {
        let error = Stream::connect(&address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        let error = Stream::connect_to(&format!("here:{port}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = Stream::connect_to("elsewhere:80").await.unwrap_err();
        assert!(error.to_string().contains("elsewhere"), "{error}");
        let error = Stream::connect_to("no port").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

fn names_and_unix_sockets_can_be_connected_to(on: On) {
    let mut reactor = on.build(on.builder().resolver(|_: &str, port: u16| Ok(vec![([127, 0, 0, 1], port).into()])));
    let path = std::env::temp_dir().join(format!("pelton-async-{}-{}.sock", reactor.engine_name(), std::process::id()));
    let unix: Address = format!("unix:{}", path.display()).parse().unwrap();
    block_on(&mut reactor, async {
        for address in [anywhere(), unix] {
            let listener = Listener::bind(&address).unwrap();
            let target = match listener.local_address().unwrap() {
                Address::Tcp(address) => format!("a-name:{}", address.port()),
                other => other.to_string(),
            };
            let (client, server) = futures::join!(Stream::connect_to(&target), listener.accept());
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
        }
    });
    poll(&mut reactor);
    assert!(!path.exists());
}

fn sockets_can_be_adopted(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.write_all(b"water").unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    block_on(&mut reactor, async {
        let mut stream = Stream::adopt(ours).unwrap();
        // Before it is open, too.
        stream.write_all(b"wheel").await.unwrap();
        let mut word = String::new();
        stream.read_to_string(&mut word).await.unwrap();
        assert_eq!(word, "water");
        stream.close().await.unwrap();
    });
    let mut word = String::new();
    theirs.read_to_string(&mut word).unwrap();
    assert_eq!(word, "wheel");
}

fn datagrams_are_answered(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let echo = Datagrams::bind(&anywhere()).unwrap();
        let address = echo.local_address().unwrap();
        task::spawn(async move {
            loop {
                let datagram = echo.receive().await.unwrap();
                echo.send_to(&datagram.from, &datagram.bytes).await.unwrap();
            }
        });
        let client = Datagrams::connect(&address).unwrap();
        for round in 0..100u8 {
            client.send(&[round; 10]).await.unwrap();
            let mut buffer = [0; 4];
            let (count, from) = client.receive_from(&mut buffer).await.unwrap();
            assert_eq!((count, &from, buffer), (4, &address, [round; 4]));
        }
        assert!(task::timeout(Duration::from_millis(1), client.receive()).await.is_err());
    });
}

fn a_datagram_that_nobody_receives_is_told(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let gone = Datagrams::bind(&anywhere()).unwrap().local_address().unwrap();
        task::sleep(Duration::from_millis(2)).await;
        let client = Datagrams::connect(&gone).unwrap();
        client.send(b"anybody?").await.unwrap();
        assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        client.send(b"still here").await.unwrap();
        // Too large for any network.
        let socket = Datagrams::bind(&anywhere()).unwrap();
        socket.send_to(&gone, &[0; 70_000]).await.unwrap();
        let error = socket.receive().await.unwrap_err();
        assert!(error.to_string().contains(&gone.to_string()), "{error}");
    });
}

fn datagrams_that_find_no_room_make_their_sender_wait(on: On) {
    const COUNT: usize = 2_000;
    let mut reactor = on.reactor();
    let path = std::env::temp_dir().join(format!("pelton-dgram-{}-{}.sock", reactor.engine_name(), std::process::id()));
    let _ = std::fs::remove_file(&path);
    let theirs = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    block_on(&mut reactor, async {
        let ours = Datagrams::connect(&address).unwrap();
        let sending = task::spawn(async move {
            for number in 0..COUNT {
                ours.send(&[number as u8; 1_000]).await.unwrap();
            }
        });
        task::sleep(Duration::from_millis(20)).await;
        assert!(!sending.is_finished());
        let queued = Reactor::with_current(|reactor| reactor.queued()).unwrap();
        assert!(queued < 2 * WaterMarks::default().high, "{queued}");
        let receiving = thread::spawn(move || {
            let mut buffer = [0; 1_000];
            for number in 0..COUNT {
                assert_eq!(theirs.recv(&mut buffer).unwrap(), 1_000);
                assert_eq!(buffer[0], number as u8);
            }
        });
        sending.await.unwrap();
        off_the_loop(move || receiving.join().unwrap()).await;
    });
    std::fs::remove_file(&path).unwrap();
}

fn datagrams_that_are_not_received_stay_in_the_kernel(on: On) {
    const COUNT: usize = 1_000;
    let mut reactor = on.reactor();
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let path = std::env::temp_dir().join(format!("pelton-kept-{}-{}.sock", reactor.engine_name(), std::process::id()));
    drop(ours);
    block_on(&mut reactor, async {
        let ours = Datagrams::bind(&format!("unix:{}", path.display()).parse().unwrap()).unwrap();
        theirs.connect(&path).unwrap();
        let mut sent = 0;
        // Until the kernel has no more room, though the loop has had every opportunity.
        let mut refused = 0;
        while sent < COUNT && refused < 5 {
            match theirs.send(&[sent as u8; 1_000]) {
                Ok(_) => sent += 1,
                Err(_) => {
                    refused += 1;
                    task::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        assert!(sent < 200, "{sent} were kept");
        for number in 0..sent {
            assert_eq!(ours.receive().await.unwrap().bytes[0], number as u8);
        }
    });
}

/// hyper's way to read and write.
struct ForHyper(Stream);

impl hyper::rt::Read for ForHyper {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let most = bytes.len().min(buffer.remaining());
        futures::AsyncRead::poll_read(Pin::new(&mut self.0), context, &mut bytes[..most])
            .map_ok(|count| buffer.put_slice(&bytes[..count]))
    }
}

impl hyper::rt::Write for ForHyper {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        futures::AsyncWrite::poll_write(Pin::new(&mut self.0), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_close(Pin::new(&mut self.0), context)
    }
}

fn a_client_that_knows_nothing_of_pelton_works(on: On) {
    let mut reactor = on.reactor();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(server.local_addr().unwrap());
    let body = "water ".repeat(50_000);
    let sent = body.clone();
    let server = thread::spawn(move || {
        let mut stream = server.accept().unwrap().0;
        for _ in 0..3 {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /water HTTP/1.1\r\n"));
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{sent}", sent.len()).unwrap();
        }
    });
    block_on(&mut reactor, async {
        let stream = ForHyper(Stream::connect(&address).await.unwrap());
        let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let running = task::spawn(connection);
        for _ in 0..3 {
            let request = Request::get("/water").header("host", "wheel").body(Empty::<Bytes>::new()).unwrap();
            let response = client.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(response.into_body().collect().await.unwrap().to_bytes() == body);
        }
        drop(client);
        running.await.unwrap().unwrap();
    });
    server.join().unwrap();
}
