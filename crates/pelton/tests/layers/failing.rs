//! Layers that misbehave.

use std::io::{IoSlice, Write};
use std::time::Duration;

use pelton::{Layer, LayerIo, Reason, Throttle, WaterMarks};
use pelton_testing::{Log, Network, Peer, on_every_network, poll, run_until};

use super::toys::{HELLO, Shift};
use super::{Scripted, listen_once, listen_prepared, run_out, with_peer};

on_every_network![
    a_failing_layer_ends_the_connection_with_its_error,
    a_layer_that_fails_delivers_and_transmits_what_came_before,
    a_layer_below_can_fail_while_another_is_on_top,
    a_layer_that_fails_to_send_is_noticed,
    a_panicking_layer_ends_only_its_connection,
    a_layer_that_produces_nothing_starves_nobody,
    a_layer_with_endless_output_leaves_time_for_others,
    a_layer_that_claims_too_much_does_no_harm,
    a_peer_that_makes_a_layer_answer_and_does_not_read_is_closed,
    a_layer_may_close_and_send_on_its_own_connection,
    a_layer_may_wake_itself_without_end,
];

type Step = fn(&mut LayerIo<'_>) -> Result<(), Reason>;
type Receive = fn(&mut LayerIo<'_>, &[u8]) -> Result<usize, Reason>;
type Send = fn(&mut LayerIo<'_>, &[IoSlice<'_>]) -> Result<usize, Reason>;

/// A layer of closures. By default it passes bytes on.
#[derive(Default)]
struct Custom {
    start: Option<Step>,
    receive: Option<Receive>,
    send: Option<Send>,
    woken: Option<Step>,
}

impl Layer for Custom {
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        match self.start {
            Some(start) => start(io),
            None => {
                io.ready();
                Ok(())
            }
        }
    }

    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        match self.receive {
            Some(receive) => receive(io, input),
            None => {
                io.deliver(input.to_vec().into());
                Ok(input.len())
            }
        }
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        match self.send {
            Some(send) => send(io, output),
            None => {
                io.transmit(&output[0]);
                Ok(output[0].len())
            }
        }
    }

    fn woken(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        self.woken.map_or(Ok(()), |woken| woken(io))
    }
}

fn fails(_: &mut LayerIo<'_>, _: &[u8]) -> Result<usize, Reason> {
    Err(Reason::layer("bad record"))
}

/// Writes, ends and reads everything. The other side may close early.
fn writes(mut peer: Peer, bytes: &[u8]) -> Vec<u8> {
    peer.write_all(bytes).unwrap();
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut peer, &mut all).ok();
    all
}

fn a_failing_layer_ends_the_connection_with_its_error(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom { receive: Some(fails), ..Custom::default() };
    let handler = Scripted::logging(&log).opened(|io| io.tell_when_sent());
    let address = listen_once(&mut reactor, handler, layer);
    with_peer(&mut reactor, on, &address, |peer| writes(peer, b"x"));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "sent, 0 queued", "closed: bad record"]);
    // The same before it is ready.
    let layer = Custom { start: Some(|_| Err(Reason::layer("no certificate"))), ..Custom::default() };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    with_peer(&mut reactor, on, &address, |peer| writes(peer, b""));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: no certificate"]);
}

fn a_layer_that_fails_delivers_and_transmits_what_came_before(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom {
        receive: Some(|io, input| {
            for byte in input.iter().filter(|byte| **byte != b'!') {
                io.deliver(vec![*byte].into());
            }
            if input.contains(&b'!') {
                io.transmit(b"alert");
                return Err(Reason::layer("bad record"));
            }
            Ok(input.len())
        }),
        ..Custom::default()
    };
    // Paused: the bytes before the failure are received nevertheless, as with other failures.
    let handler = Scripted::logging(&log).received(|io, _| {
        io.send(b"never sent").ok();
        io.pause();
    });
    let address = listen_once(&mut reactor, handler, layer);
    let back = with_peer(&mut reactor, on, &address, |peer| writes(peer, b"!abc"));
    assert!(back.ends_with(b"alert"), "{:?}", String::from_utf8_lossy(&back));
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!((entries[0].as_str(), entries.last().unwrap().as_str()), ("opened", "closed: bad record"));
}

fn a_layer_below_can_fail_while_another_is_on_top(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = listen_prepared(&mut reactor, Scripted::logging(&log).opened(|io| io.send(b"x").unwrap()), |io| {
        io.push_layer(Custom { receive: Some(fails), ..Custom::default() });
        io.push_layer(Shift::default());
    });
    with_peer(&mut reactor, on, &address, |peer| writes(peer, b"x"));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: bad record"]);
}

fn a_layer_that_fails_to_send_is_noticed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom { send: Some(|_, _| Err(Reason::layer("cannot encrypt"))), ..Custom::default() };
    let handler = Scripted::logging(&log).opened(|io| {
        io.send(b"one").unwrap();
        io.flush();
        io.send(b"two").unwrap();
    });
    let address = listen_once(&mut reactor, handler, layer);
    let back = with_peer(&mut reactor, on, &address, |peer| writes(peer, b""));
    assert!(back.is_empty());
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: cannot encrypt"]);
}

fn a_panicking_layer_ends_only_its_connection(on: impl Network) {
    let (mut reactor, log) = (on.catching(), Log::default());
    let faults = Log::default();
    let reported = faults.clone();
    reactor.on_fault(move |_, fault| reported.add(fault.message.clone()));
    let layer = Custom { receive: Some(|_, _| panic!("in a layer")), ..Custom::default() };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    with_peer(&mut reactor, on, &address, |peer| writes(peer, b"x"));
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: its handler panicked"]);
    assert_eq!(faults.take(), ["in a layer"]);
}

fn a_layer_that_produces_nothing_starves_nobody(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom { receive: Some(|_, _| Ok(0)), ..Custom::default() };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    // It never processes anything: reading stops, and the peer cannot send more.
    let total = on.more_than_fits();
    let mut peer = with_peer(&mut reactor, on, &address, |peer| peer);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    let writing = std::thread::spawn(move || {
        let bytes = vec![0; 100_000];
        (0..total / bytes.len()).all(|_| peer.write_all(&bytes).is_ok())
    });
    let turns = reactor.stats().turns;
    let waited = std::rc::Rc::new(std::cell::Cell::new(false));
    let done = waited.clone();
    reactor.after(Duration::from_millis(100), move |_| done.set(true));
    run_until(&mut reactor, |_| waited.get());
    assert!(!writing.is_finished(), "the reactor reads without end");
    assert!(reactor.stats().turns - turns < 5_000, "{} turns", reactor.stats().turns - turns);
    drop(reactor);
    assert!(!writing.join().unwrap());
    assert_eq!(log.take(), ["opened"]);
}

fn a_layer_with_endless_output_leaves_time_for_others(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom {
        receive: Some(|io, input| {
            io.deliver(vec![b'.'; 10].into());
            io.again();
            Ok(input.len())
        }),
        ..Custom::default()
    };
    let count = std::rc::Rc::new(std::cell::Cell::new(0));
    let (counts, id) = (count.clone(), std::rc::Rc::new(std::cell::Cell::new(None)));
    let known = id.clone();
    let handler = Scripted::default().received(move |io, _| {
        known.set(Some(io.id()));
        counts.set(counts.get() + 1);
        if counts.get() == 1_000 {
            io.pause();
        }
    });
    let address = listen_once(&mut reactor, Scripted { log: log.clone(), ..handler }, layer);
    let mut peer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"x").unwrap();
        peer
    });
    // Timers fire meanwhile, and pausing stops it.
    run_until(&mut reactor, |_| count.get() == 1_000);
    for _ in 0..20 {
        poll(&mut reactor);
    }
    assert_eq!(count.get(), 1_000);
    reactor.connection(id.get().unwrap()).unwrap().resume();
    run_until(&mut reactor, |_| count.get() > 3_000);
    reactor.connection(id.get().unwrap()).unwrap().close();
    run_out(&mut reactor);
    peer.write_all(b"x").ok();
}

fn a_layer_that_claims_too_much_does_no_harm(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom {
        receive: Some(|io, input| {
            io.deliver(input.to_vec().into());
            Ok(usize::MAX)
        }),
        send: Some(|io, output| {
            io.transmit(&output[0]);
            Ok(usize::MAX)
        }),
        ..Custom::default()
    };
    let handler = Scripted::logging(&log).received(|io, chunk| {
        io.send_chunk(chunk).unwrap();
        io.close_after_writing();
    });
    let address = listen_once(&mut reactor, handler, layer);
    let back = with_peer(&mut reactor, on, &address, |peer| writes(peer, b"x"));
    assert_eq!(back, b"x");
    run_out(&mut reactor);
}

fn a_peer_that_makes_a_layer_answer_and_does_not_read_is_closed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom {
        receive: Some(|io, input| {
            io.transmit(&vec![0; input.len() * 1_000]);
            Ok(input.len())
        }),
        ..Custom::default()
    };
    let handler = Scripted::logging(&log).opened(|io| {
        io.set_water_marks(WaterMarks { most: 1_000_000, ..WaterMarks::default() });
        // Otherwise the reactor would stop reading in time.
        io.throttle_reading(Throttle::Never);
    });
    let address = listen_once(&mut reactor, handler, layer);
    let total = on.more_than_fits();
    let peer = with_peer(&mut reactor, on, &address, move |mut peer| {
        let bytes = [0; 10_000];
        (0..total / 100_000).take_while(|_| peer.write_all(&bytes).is_ok()).count();
        peer
    });
    let entries = log.clone();
    run_until(&mut reactor, move |_| entries.len() == 2);
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: the send queue is full"]);
    drop(peer);
}

fn a_layer_may_close_and_send_on_its_own_connection(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let layer = Custom {
        receive: Some(|io, input| {
            io.deliver(input.to_vec().into());
            // As the code of another runtime might, which the layer calls.
            let mut connection = io.connection();
            connection.send(b"from below").unwrap();
            connection.flush();
            connection.close_after_writing();
            Ok(input.len())
        }),
        send: Some(|io, output| {
            io.transmit(&output[0]);
            assert!(io.connection().send(b"refused").is_err());
            io.connection().flush();
            Ok(output[0].len())
        }),
        ..Custom::default()
    };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    let back = with_peer(&mut reactor, on, &address, |peer| writes(peer, b"x"));
    assert_eq!(back, b"from below");
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
    let layer = Custom {
        receive: Some(|io, input| {
            io.connection().close();
            io.deliver(input.to_vec().into());
            io.transmit(b"never sent");
            Ok(input.len())
        }),
        ..Custom::default()
    };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    let back = with_peer(&mut reactor, on, &address, |peer| writes(peer, HELLO));
    assert!(back.is_empty());
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn a_layer_may_wake_itself_without_end(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let wakes: Step = |io| {
        let id = io.id();
        io.wait();
        io.reactor().wake_layers(id);
        Ok(())
    };
    let layer = Custom { start: Some(wakes), woken: Some(wakes), ..Custom::default() };
    let address = listen_once(&mut reactor, Scripted::logging(&log), layer);
    let peer = with_peer(&mut reactor, on, &address, |peer| peer);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    // Other work gets its turns.
    let (beats, counted) = (std::rc::Rc::new(std::cell::Cell::new(0)), std::rc::Rc::new(std::cell::Cell::new(0)));
    let count = beats.clone();
    reactor.every(Duration::from_micros(100), move |_, _| count.set(count.get() + 1));
    run_until(&mut reactor, |_| {
        counted.set(counted.get() + 1);
        beats.get() > 20
    });
    drop((reactor, peer));
    assert!(log.is_empty());
}
