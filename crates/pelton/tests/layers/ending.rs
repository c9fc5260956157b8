//! How connections with layers end.

use std::io::Write;
use std::time::Duration;

use pelton::{DetachError, Exit, MoveError};
use pelton_testing::{Log, Network, Peer, listen, on_every_network, pattern, run, run_until};

use super::toys::{BYE, Framer, HELLO, Shift, frame, shift, unframe};
use super::{Scripted, listen_once, listen_prepared, run_out, with_peer};

on_every_network![
    finishing_sends_the_closing_message_and_reading_continues,
    closing_after_writing_flushes_the_layer,
    closing_drops_what_the_layer_has_not_sent,
    a_missing_closing_message_is_a_truncated_stream,
    a_reset_delivers_what_came_before,
    an_end_of_the_stream_by_the_layer_needs_no_end_of_the_socket,
    bytes_after_the_end_of_the_stream_are_discarded,
    a_connection_with_layers_is_not_detached,
    another_handler_keeps_the_layers,
    draining_flushes_the_layers,
    draining_does_not_wait_for_a_handshake,
    sent_is_called_when_everything_has_left_the_layers,
];

/// Completes the handshake of a [`Framer`].
fn greet(peer: &mut Peer) {
    peer.write_all(HELLO).unwrap();
    assert_eq!(peer.read_some(HELLO.len()), HELLO);
}

fn finishing_sends_the_closing_message_and_reading_continues(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(b"all").unwrap();
        io.finish();
        assert!(io.send(b"more").is_err());
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        let back = peer.read_all().unwrap();
        peer.write_all(&frame(b"still")).unwrap();
        peer.write_all(&frame(b" here")).unwrap();
        peer.write_all(BYE).unwrap();
        peer.finish();
        back
    });
    assert_eq!(unframe(&back), (b"all".to_vec(), true));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received still here", "peer finished", "closed: finished by the other side"]);
}

fn closing_after_writing_flushes_the_layer(on: impl Network) {
    let (mut reactor, log, data) = (on.reactor(), Log::default(), pattern(500_000));
    let sent = data.clone();
    let handler = Scripted::logging(&log).opened(move |io| {
        sent.chunks(9_999).for_each(|part| io.send(part).unwrap());
        io.close_after_writing();
    });
    let address = listen_prepared(&mut reactor, handler, |io| {
        io.push_layer(Framer::default());
        io.push_layer(Framer::default());
    });
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.write_all(&frame(HELLO)).unwrap();
        peer.read_all().unwrap()
    });
    let (inner, closed) = unframe(&back);
    assert!(closed && inner.starts_with(HELLO));
    let (data_back, closed) = unframe(&inner[HELLO.len()..]);
    assert!(closed && data_back == data);
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "writable", "closed: closed by this side"]);
}

fn closing_drops_what_the_layer_has_not_sent(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(b"never sent").unwrap();
        io.close();
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.read_all().unwrap_or_default()
    });
    assert!(back.is_empty(), "{back:?}");
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn a_missing_closing_message_is_a_truncated_stream(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = listen_once(&mut reactor, Scripted::logging(&log), Framer::default());
    with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.write_all(&frame(b"one")).unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received one", "closed: the stream was truncated"]);
}

fn a_reset_delivers_what_came_before(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).received(|io, _| io.send(&[0; 100_000]).unwrap());
    let address = listen_once(&mut reactor, handler, Shift::default());
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&shift(b"last words")).unwrap();
        peer.read_some(1);
        peer.reset();
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received last words", "closed: reset by the other side"]);
}

fn an_end_of_the_stream_by_the_layer_needs_no_end_of_the_socket(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).peer_finished(|io| {
        io.send(b"bye").unwrap();
        io.finish();
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.write_all(BYE).unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(unframe(&back), (b"bye".to_vec(), true));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "peer finished", "closed: finished by the other side"]);
}

fn bytes_after_the_end_of_the_stream_are_discarded(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).peer_finished(|io| {
        let id = io.id();
        io.reactor().after(Duration::from_millis(5), move |reactor| {
            reactor.connection(id).unwrap().close_after_writing();
        });
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.write_all(&[&frame(b"data"), BYE, &frame(b"late")].concat()).unwrap();
        peer.write_all(&frame(b"later")).unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(unframe(&back), (Vec::new(), true));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received data", "peer finished", "closed: finished by the other side"]);
}

fn a_connection_with_layers_is_not_detached(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let handler = Scripted::default().opened(move |io| {
        assert_eq!(io.detach(|_, _| unreachable!()).unwrap_err(), DetachError::Layered);
        let handle = io.reactor().handle();
        assert_eq!(io.move_to(&handle, |_| Scripted::default()).unwrap_err(), MoveError::Layered);
        entries.add("refused");
        io.send(b"still here").unwrap();
        io.close_after_writing();
    });
    let address = listen_once(&mut reactor, handler, Shift::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert_eq!(back, shift(b"still here"));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["refused"]);
}

fn another_handler_keeps_the_layers(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let first = Scripted::logging(&log).received(move |io, chunk| {
        io.send(b"first, ").unwrap();
        let second = Scripted::logging(&entries).received(|io, _| {
            io.send(b"second").unwrap();
            io.close_after_writing();
        });
        io.hand_over(Box::new(second), chunk[1..].to_vec());
    });
    let address = listen_once(&mut reactor, first, Framer::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        peer.write_all(&frame(b"12")).unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(unframe(&back), (b"first, second".to_vec(), true));
    run_out(&mut reactor);
    let expected = [
        "opened",
        "received 12",
        "closed: handed over to another handler",
        "opened",
        "received 2",
        "closed: closed by this side",
    ];
    assert_eq!(log.take(), expected);
}

fn draining_flushes_the_layers(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).received(|io, _| {
        io.send(b"last answer").unwrap();
        io.reactor().drain(Duration::from_secs(20));
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let other = std::thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        greet(&mut peer);
        peer.write_all(&frame(b"question")).unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(run(&mut reactor), Exit::Drained);
    // The network in memory closes its ends late.
    drop(reactor);
    assert_eq!(unframe(&other.join().unwrap()), (b"last answer".to_vec(), true));
    assert_eq!(log.take(), ["opened", "received question", "draining", "closed: closed by this side"]);
}

fn draining_does_not_wait_for_a_handshake(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = listen_once(&mut reactor, Scripted::logging(&log), Framer::default());
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"HELL").unwrap();
        peer.read_some(HELLO.len());
        peer
    });
    reactor.drain(Duration::from_secs(3600));
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    drop(peer);
}

fn sent_is_called_when_everything_has_left_the_layers(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(&[b'x'; 50_000]).unwrap();
        io.tell_when_sent();
        assert!(io.queued() >= 50_000);
    });
    let address = listen_once(&mut reactor, handler, Framer::default());
    let (back, _peer) = with_peer(&mut reactor, on, &address, |mut peer| {
        greet(&mut peer);
        (peer.read_some(50_000 + 5 * 3), peer)
    });
    assert_eq!(unframe(&back), (vec![b'x'; 50_000], false));
    let entries = log.clone();
    run_until(&mut reactor, move |_| entries.len() >= 2);
    assert_eq!(log.entries()[..2], ["opened", "sent, 0 queued"]);
    // Also without layers on the other side, and in the right order with a half-close.
    let (log, listener) = (Log::default(), listen(&mut reactor, |_| Scripted::default()));
    let handler = Scripted::logging(&log).opened(|io| {
        io.finish();
        io.tell_when_sent();
    });
    reactor.connect(&listener, pelton::Layered::new(handler, |io| io.push_layer(Shift::default()))).unwrap();
    let entries = log.clone();
    run_until(&mut reactor, move |_| entries.len() >= 3);
    assert_eq!(log.take(), ["opened", "sent, 0 queued", "peer finished", "closed: finished by the other side"]);
}
