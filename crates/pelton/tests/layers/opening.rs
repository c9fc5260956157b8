//! Layers that a connection has from the start.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, Endpoint, Io, Layered, Limit, Reconnect};
use pelton_testing::{Log, Network, listen, on_every_network, pattern, run_until};

use super::toys::{BYE, Framer, HELLO, Shift, frame, shift, unframe};
use super::{EchoAll, Scripted, listen_once, listen_prepared, run_out, with_peer};

on_every_network![
    bytes_are_transformed_in_both_directions,
    opened_waits_for_the_handshake,
    handshake_and_frames_may_be_split_at_every_place,
    both_sides_of_a_stack_understand_each_other,
    bytes_sent_before_the_connection_is_established_go_through_the_layer,
    a_handshake_has_a_limit,
    a_peer_that_ends_during_the_handshake_has_truncated_the_stream,
    a_peer_that_resets_during_the_handshake_is_noticed,
    a_kept_connection_gets_its_layers_each_time,
    a_connection_can_be_closed_during_the_handshake,
    a_connection_detached_before_it_has_its_layers_is_closed,
];

fn bytes_are_transformed_in_both_directions(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).received(|io, chunk| io.send_chunk(chunk).unwrap());
    let address = listen_once(&mut reactor, handler, Shift::default());
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&shift(b"some water")).unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(back, shift(b"some water"));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received some water", "peer finished", "closed: finished by the other side"]);
}

fn opened_waits_for_the_handshake(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let handler = Scripted::logging(&log).opened(|io| io.send(b"welcome").unwrap());
    let address = listen_prepared(&mut reactor, handler, move |io| {
        entries.add(format!("prepared, open: {}", io.is_open()));
        io.push_layer(Framer::default());
    });
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&HELLO[..4]).unwrap();
        assert_eq!(peer.read_some(HELLO.len()), HELLO);
        peer
    });
    assert_eq!(log.take(), ["prepared, open: false"]);
    let mut other = peer.clone();
    let answer = pelton_testing::run_with(&mut reactor, move || {
        other.write_all(&HELLO[4..]).unwrap();
        other.write_all(&frame(b"thanks")).unwrap();
        other.write_all(BYE).unwrap();
        other.read_all().unwrap()
    });
    assert_eq!(unframe(&answer), (b"welcome".to_vec(), true));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received thanks", "peer finished", "closed: finished by the other side"]);
    drop(peer);
}

fn handshake_and_frames_may_be_split_at_every_place(on: impl Network) {
    let stream = [HELLO, &frame(b"one"), &frame(b""), &frame(b"three"), &frame(b"4"), BYE].concat();
    for place in 0..stream.len() {
        let (mut reactor, log) = (on.reactor(), Log::default());
        let handler = Scripted::logging(&log).received(|io, chunk| io.send_chunk(chunk).unwrap());
        let address = listen_prepared(&mut reactor, handler, |io| {
            io.push_layer(Shift::default());
            io.push_layer(Framer::default());
        });
        let sent = shift(&stream);
        let back = with_peer(&mut reactor, on, &address, move |mut peer| {
            let (first, second) = sent.split_at(place);
            peer.write_all(first).unwrap();
            peer.read_some(HELLO.len());
            peer.write_all(second).unwrap();
            peer.read_all().unwrap()
        });
        let back = super::toys::unshift(&[&[0; HELLO.len()], &back[..]].concat());
        assert_eq!(unframe(&back[HELLO.len()..]), (b"onethree4".to_vec(), true), "split at {place}");
        run_out(&mut reactor);
        let expected = ["opened", "received onethree4", "peer finished", "closed: finished by the other side"];
        assert_eq!(log.take(), expected, "split at {place}");
    }
}

/// Puts both toys on a connection.
fn stack(io: &mut Io<'_>) {
    io.push_layer(Shift::default());
    io.push_layer(Framer::default());
    io.push_layer(Shift::default());
}

fn both_sides_of_a_stack_understand_each_other(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (arrived, back) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let kept = arrived.clone();
    let address = listen(&mut reactor, move |_| Layered::new(EchoAll { kept: kept.clone() }, stack));
    let data = pattern(300_000);
    let (sent, got, total) = (data.clone(), back.clone(), data.len());
    let client = Scripted::logging(&Log::default())
        .opened(move |io| sent.chunks(7_777).for_each(|part| io.send_bytes(part.to_vec()).unwrap()))
        .received(move |io, chunk| {
            got.borrow_mut().extend_from_slice(&chunk);
            if got.borrow().len() == total {
                io.finish();
            }
        });
    let client = Scripted { log: log.clone(), ..client };
    reactor.connect(&address, Layered::new(client, stack)).unwrap();
    run_out(&mut reactor);
    assert!(*arrived.borrow() == data && *back.borrow() == data);
    let entries = log.take();
    assert_eq!(entries.last().unwrap(), "closed: finished by the other side");
}

fn bytes_sent_before_the_connection_is_established_go_through_the_layer(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    let id = reactor
        .connect(&listener.address(), Layered::new(Scripted::logging(&log), |io| io.push_layer(Shift::default())))
        .unwrap();
    let mut io = reactor.connection(id).unwrap();
    io.send(b"secret").unwrap();
    io.push_layer(Shift::default());
    io.send(b" also").unwrap();
    io.close_after_writing();
    let seen = pelton_testing::run_with(&mut reactor, move || listener.accept().read_all().unwrap());
    assert_eq!(seen, shift(&shift(b"secret also")));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn a_handshake_has_a_limit(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::Handshake, Some(Duration::from_millis(20))));
    let log = Log::default();
    let address = listen_once(&mut reactor, Scripted::logging(&log), Framer::default());
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"HELL").unwrap();
        peer.read_some(HELLO.len());
        peer
    });
    run_out(&mut reactor);
    let expected = ["no handshake was completed", "closed: no handshake was completed within 20ms"];
    assert_eq!(log.take(), expected);
    drop(peer);
}

fn a_peer_that_ends_during_the_handshake_has_truncated_the_stream(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = listen_once(&mut reactor, Scripted::logging(&log), Framer::default());
    let rest = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"HELL").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(rest, HELLO);
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: the stream was truncated"]);
}

fn a_peer_that_resets_during_the_handshake_is_noticed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = listen_once(&mut reactor, Scripted::logging(&log), Framer::default());
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"HELL").unwrap();
        peer.read_some(HELLO.len());
        peer.reset();
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: reset by the other side"]);
}

fn a_kept_connection_gets_its_layers_each_time(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let served = log.clone();
    let address = listen(&mut reactor, move |_| {
        let handler = Scripted::logging(&served).received(|io, _| io.close_after_writing());
        Layered::new(handler, stack)
    });
    let outages = log.clone();
    let kept = Reconnect::to(Endpoint::Address(address))
        .backoff(Backoff::default().start(Duration::from_millis(1)))
        .on_outage(move |_, outage| outages.add(format!("up: {}", outage.up.is_some())))
        .run(&mut reactor, |_, _| Layered::new(Scripted::default().opened(|io| io.send(b"again").unwrap()), stack));
    let entries = log.clone();
    run_until(&mut reactor, move |_| entries.entries().iter().filter(|entry| *entry == "received again").count() == 2);
    reactor.stop_reconnecting(kept);
    assert!(log.take().contains(&"up: true".to_owned()));
}

fn a_connection_detached_before_it_has_its_layers_is_closed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    let handler = Layered::new(Scripted::logging(&log), |io| io.push_layer(Shift::default()));
    let id = reactor.connect(&listener.address(), handler).unwrap();
    let mut io = reactor.connection(id).unwrap();
    io.send(b"secret").unwrap();
    io.detach(|_, _| unreachable!("its socket would be used without the layer")).unwrap();
    let seen = pelton_testing::run_with(&mut reactor, move || listener.accept().read_all().unwrap_or_default());
    assert!(seen.is_empty());
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: a connection cannot be detached before it has its layers"]);
}

fn a_connection_can_be_closed_during_the_handshake(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    let handler = Layered::new(Scripted::logging(&log), |io| io.push_layer(Framer::default()));
    let id = reactor.connect(&listener.address(), handler).unwrap();
    let peer = pelton_testing::run_with(&mut reactor, move || {
        let mut peer = listener.accept();
        peer.read_some(HELLO.len());
        peer
    });
    reactor.connection(id).unwrap().close();
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    drop(peer);
}
