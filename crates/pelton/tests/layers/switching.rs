//! Layers that are put on an open connection, and layers that leave.

use std::io::{IoSlice, Write};

use pelton::{Layer, LayerIo, Reason};
use pelton_testing::{Log, Network, listen, on_every_network, run_with};

use super::toys::{BYE, Framer, HELLO, Shift, frame, shift, unframe};
use super::{Scripted, listen_prepared, run_out, with_peer};

on_every_network![
    a_layer_gets_the_bytes_that_arrive_with_the_switch,
    both_sides_switch_in_the_middle_of_the_stream,
    several_layers_can_be_pushed_in_one_callback,
    a_layer_that_leaves_passes_on_the_rest,
    a_layer_pushed_while_reading_is_paused_gets_the_held_input,
    a_handler_can_look_into_a_layer,
    a_handler_that_switches_and_closes_at_once_closes,
];

/// Returns what follows the first line, once that has arrived.
fn after_line(line: &mut Vec<u8>, chunk: &[u8]) -> Option<Vec<u8>> {
    line.extend_from_slice(chunk);
    let end = line.iter().position(|byte| *byte == b'\n')?;
    Some(line.split_off(end + 1))
}

/// Pushes a layer when it has received a line, with what has arrived behind it.
fn starts(log: &Log) -> Scripted {
    let (entries, mut line) = (log.clone(), Vec::new());
    let ready = log.clone();
    Scripted::default()
        .received(move |io, chunk| {
            if io.has_layers() {
                entries.received(&chunk);
            } else if let Some(unread) = after_line(&mut line, &chunk) {
                io.send(b"in clear\n").unwrap();
                io.push_layer_with_unread(Framer::default(), unread);
                io.send(b"not in clear").unwrap();
            }
        })
        .layer_ready(move |_| ready.add("ready"))
}

fn a_layer_gets_the_bytes_that_arrive_with_the_switch(on: impl Network) {
    // All but the first line belongs to the layer, wherever the segments end.
    let stream = [&b"START\n"[..], HELLO, &frame(b"framed"), BYE].concat();
    for place in 6..stream.len() {
        let (mut reactor, log) = (on.reactor(), Log::default());
        let mut once = Some(starts(&log));
        let address = listen(&mut reactor, move |_| once.take().unwrap());
        let sent = stream.clone();
        let back = with_peer(&mut reactor, on, &address, move |mut peer| {
            let (first, second) = sent.split_at(place);
            peer.write_all(first).unwrap();
            assert_eq!(peer.read_some(9), b"in clear\n");
            assert_eq!(peer.read_some(HELLO.len()), HELLO);
            peer.write_all(second).unwrap();
            peer.read_all().unwrap()
        });
        assert_eq!(unframe(&back), (b"not in clear".to_vec(), true), "split at {place}");
        run_out(&mut reactor);
        assert_eq!(log.take(), ["ready", "received framed"], "split at {place}");
    }
}

fn both_sides_switch_in_the_middle_of_the_stream(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let mut once = Some(starts(&Log::default()));
    let address = listen(&mut reactor, move |_| once.take().unwrap());
    let (entries, mut line) = (log.clone(), Vec::new());
    let client = Scripted::default().opened(|io| io.send(b"START\n").unwrap()).received(move |io, chunk| {
        if io.has_layers() {
            entries.received(&chunk);
            if chunk.ends_with(b"r") {
                io.close_after_writing();
            }
        } else if let Some(unread) = after_line(&mut line, &chunk) {
            entries.add(String::from_utf8_lossy(&line));
            io.push_layer_with_unread(Framer::default(), unread);
        }
    });
    reactor.connect(&address, client).unwrap();
    run_out(&mut reactor);
    assert_eq!(log.take(), ["in clear\n", "received not in clear"]);
}

fn several_layers_can_be_pushed_in_one_callback(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(b"plain ").unwrap();
        io.push_layer(Shift::default());
        io.send(b"once ").unwrap();
        io.push_layer(Shift::default());
        io.send(b"twice").unwrap();
        io.close_after_writing();
    });
    let mut once = Some(handler);
    let address = listen(&mut reactor, move |_| once.take().unwrap());
    let seen = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    let expected = [b"plain ".to_vec(), shift(&[&b"once "[..], &shift(b"twice")].concat())].concat();
    assert_eq!(seen, expected);
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "layer ready", "closed: closed by this side"]);
}

/// Waits for a line and leaves, as after the handshake with a proxy.
struct Line;

impl Layer for Line {
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        io.transmit(b"name?\n");
        Ok(())
    }

    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(0) };
        io.connection().set_label(String::from_utf8_lossy(&input[..end]).into_owned());
        io.leave();
        Ok(end + 1)
    }

    fn send(&mut self, _: &mut LayerIo<'_>, _: &[IoSlice<'_>]) -> Result<usize, Reason> {
        unreachable!("it is never ready")
    }
}

fn a_layer_that_leaves_passes_on_the_rest(on: impl Network) {
    let stream = [b"Kaplan\n".to_vec(), shift(b"and so on")].concat();
    for place in 0..=stream.len() {
        let (mut reactor, log) = (on.reactor(), Log::default());
        let handler = Scripted::logging(&log).received(|io, chunk| io.send_chunk(chunk).unwrap());
        let address = listen_prepared(&mut reactor, handler, |io| {
            io.push_layer(Line);
            io.push_layer(Shift::default());
        });
        let sent = stream.clone();
        let back = with_peer(&mut reactor, on, &address, move |mut peer| {
            peer.write_all(&sent[..place]).unwrap();
            assert_eq!(peer.read_some(6), b"name?\n");
            peer.write_all(&sent[place..]).unwrap();
            peer.finish();
            peer.read_all().unwrap()
        });
        assert_eq!(back, shift(b"and so on"));
        run_out(&mut reactor);
        let expected = ["opened", "received and so on", "peer finished", "closed: finished by the other side"];
        assert_eq!(log.take(), expected, "split at {place}");
    }
    // Alone: afterwards the connection has no layers, and can be detached.
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let handler = Scripted::logging(&log).received(move |io, _| {
        assert!(!io.has_layers());
        let entries = entries.clone();
        io.detach(move |_, _| entries.add("detached")).unwrap();
    });
    let address = listen_prepared(&mut reactor, handler, |io| io.push_layer(Line));
    let peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"Kaplan\nx").unwrap();
        peer.read_some(6);
        peer
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received x", "closed: detached", "detached"]);
    drop(peer);
}

fn a_layer_pushed_while_reading_is_paused_gets_the_held_input(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let id = std::rc::Rc::new(std::cell::Cell::new(None));
    let known = id.clone();
    let handler = Scripted::logging(&log).received(move |io, _| {
        if !io.has_layers() {
            known.set(Some(io.id()));
            io.pause();
        }
    });
    let mut once = Some(handler);
    let address = listen(&mut reactor, move |_| once.take().unwrap());
    let mut peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"!").unwrap();
        peer
    });
    pelton_testing::run_until(&mut reactor, |_| id.get().is_some());
    run_with(&mut reactor, move || {
        peer.write_all(&shift(b"for the layer")).unwrap();
        peer.finish();
        // Keeps the connection from being reset by unread input on this side.
        std::thread::spawn(move || peer.read_all().ok());
    });
    let mut io = reactor.connection(id.get().unwrap()).unwrap();
    io.push_layer(Shift::default());
    io.resume();
    run_out(&mut reactor);
    let expected = [
        "opened",
        "received !",
        "layer ready",
        "received for the layer",
        "peer finished",
        "closed: finished by the other side",
    ];
    assert_eq!(log.take(), expected);
}

fn a_handler_can_look_into_a_layer(on: impl Network) {
    struct Counts(usize);
    impl Layer for Counts {
        fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
            self.0 += input.len();
            io.deliver(input.to_vec().into());
            Ok(input.len())
        }

        fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
            io.transmit(&output[0]);
            Ok(output[0].len())
        }
    }
    let (mut reactor, log) = (on.reactor(), Log::default());
    let entries = log.clone();
    let handler = Scripted::default().peer_finished(move |io| {
        entries.add(format!("{:?}", io.visit_layer(|layer: &mut Counts| layer.0)));
        entries.add(format!("{:?}", io.visit_layer(|_: &mut Framer| ())));
        io.close();
    });
    let address = listen_prepared(&mut reactor, handler, |io| {
        io.push_layer(Counts(0));
        io.push_layer(Shift::default());
    });
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"12345").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["Some(5)", "None"]);
}

fn a_handler_that_switches_and_closes_at_once_closes(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(b"before").unwrap();
        io.push_layer(Framer::default());
        io.close();
        io.push_layer(Framer::default());
    });
    let mut once = Some(handler);
    let address = listen(&mut reactor, move |_| once.take().unwrap());
    with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().ok());
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}
