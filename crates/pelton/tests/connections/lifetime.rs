//! How connections begin and end.

use std::io::{Read, Write};

use pelton::{Address, ConnectionId, Io, SendError};
use pelton_testing::{Log, on_every_network, poll, run_until};

use super::{Act, Echo, Network, Peer, Scripted, listen, run_with, with_peer};

on_every_network![
    closed_is_called_once_and_last_with_the_reason,
    refused_connection_is_reported_after_connect_has_returned,
    a_half_closed_connection_can_still_be_answered,
    the_peers_end_is_told_also_to_a_handler_that_has_finished,
    close_after_writing_sends_everything_and_close_drops_it,
    a_callback_can_send_to_and_close_other_connections,
    a_panicking_handler_closes_its_connection_only,
    many_connections_come_and_go,
    stopping_the_loop_closes_its_connections,
    errors_name_the_address,
];

fn closed_is_called_once_and_last_with_the_reason(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted::logging(&entries));

    with_peer(&mut reactor, on, &address, |mut peer| peer.write_all(b"hello").unwrap());
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take(), ["opened", "received hello", "peer finished", "closed: finished by the other side"]);

    with_peer(&mut reactor, on, &address, Peer::reset);
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
    for _ in 0..10 {
        poll(&mut reactor);
    }
    assert_eq!((log.len(), reactor.connection_count()), (0, 0));
}

fn refused_connection_is_reported_after_connect_has_returned(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    // Bound and closed again, so nobody listens there.
    let address = on.listen_peer().address();
    reactor.connect(&address, Scripted::logging(&log)).unwrap();
    assert_eq!(log.len(), 0);
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), [format!("closed: connect to {address}: refused")]);
    assert_eq!(reactor.connection_count(), 0);
}

fn a_half_closed_connection_can_still_be_answered(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        peer_finished: Some(Box::new(|io| {
            io.send(b"the answer").unwrap();
            io.finish();
            assert_eq!(io.send(b"too late"), Err(SendError::Closed));
        })),
        ..Scripted::logging(&entries)
    });
    let answer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"the question").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(answer, b"the answer");
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take().last().unwrap(), "closed: finished by the other side");
}

fn the_peers_end_is_told_also_to_a_handler_that_has_finished(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let ask = |io: &mut Io<'_>| {
        io.send(b"ask").unwrap();
        io.finish();
    };
    let acts: [Option<Act>; 4] = [
        None,
        Some(Box::new(|_| {})),
        Some(Box::new(|io| assert_eq!(io.send(b"too late"), Err(SendError::Closed)))),
        Some(Box::new(|io| io.finish())),
    ];
    for peer_finished in acts {
        let (entries, mut peer_finished) = (log.clone(), Some(peer_finished));
        let address = listen(&mut reactor, move |_| Scripted {
            opened: Some(Box::new(ask)),
            peer_finished: peer_finished.take().unwrap(),
            ..Scripted::logging(&entries)
        });
        with_peer(&mut reactor, on, &address, |mut peer| {
            assert_eq!(peer.read_all().unwrap(), b"ask");
            peer.write_all(b"answer").unwrap();
        });
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        let told = ["opened", "received answer", "peer finished", "closed: finished by the other side"];
        assert_eq!(log.take(), told);
    }
}

fn close_after_writing_sends_everything_and_close_drops_it(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        opened: Some(Box::new(|io| {
            io.send_bytes(vec![b'y'; 3_000_000]).unwrap();
            io.close_after_writing();
        })),
        ..Scripted::logging(&entries)
    });
    let all = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert_eq!(all.len(), 3_000_000);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    let told = log.take();
    assert_eq!(told[0], "opened");
    assert_eq!(told.last().unwrap(), "closed: closed by this side", "{told:?}");

    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            io.send(b"never sent").unwrap();
            io.close();
            assert_eq!(io.send(b"nor this"), Err(SendError::Closed));
        })),
        ..Scripted::default()
    });
    assert!(with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap()).is_empty());
}

fn a_callback_can_send_to_and_close_other_connections(on: impl Network) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Others(Vec<ConnectionId>);
    // Messages of one are sent to all others; "." closes them.
    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            let id = io.id();
            io.reactor().state::<Others>().0.push(id);
        })),
        received: Some(Box::new(|io, chunk| {
            let own = io.id();
            let others: Vec<_> = io.reactor().state::<Others>().0.iter().copied().filter(|id| *id != own).collect();
            for other in others {
                let mut other = io.reactor().connection(other).unwrap();
                if &*chunk == b"." { other.close() } else { other.send(&chunk).unwrap() }
            }
            io.send(b"ok").unwrap();
        })),
        ..Scripted::default()
    });
    run_with(&mut reactor, move || {
        let (mut a, mut b) = (on.connect_peer(&address), on.connect_peer(&address));
        // The first answer shows that both are open.
        b.write_all(b"!").unwrap();
        assert_eq!(b.read_some(2), b"ok");
        a.write_all(b"to b").unwrap();
        assert_eq!(b.read_some(4), b"to b");
        a.write_all(b".").unwrap();
        assert_eq!(b.read(&mut [0; 4]).unwrap(), 0);
    });
}

fn a_panicking_handler_closes_its_connection_only(on: impl Network) {
    let mut reactor = on.catching();
    let log = Log::default();
    reactor.on_fault(|reactor, fault| *reactor.state::<String>() = fault.to_string());
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted {
        received: Some(Box::new(|io, chunk| {
            assert_ne!(chunk[0], b'b', "on purpose");
            io.send_chunk(chunk).unwrap();
        })),
        ..Scripted::logging(&entries)
    });
    run_with(&mut reactor, move || {
        let (mut good, mut bad) = (on.connect_peer(&address), on.connect_peer(&address));
        bad.write_all(b"bad").unwrap();
        assert!(matches!(bad.read(&mut [0; 4]), Ok(0) | Err(_)));
        good.write_all(b"good").unwrap();
        assert_eq!(good.read_some(4), b"good");
    });
    assert!(log.take().contains(&"closed: its handler panicked".to_owned()));
    assert!(reactor.state::<String>().starts_with("connection ("));
}

fn many_connections_come_and_go(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Echo);
    run_with(&mut reactor, move || {
        for _ in 0..300 {
            let mut peer = on.connect_peer(&address);
            peer.write_all(b"x").unwrap();
            assert_eq!(peer.read_some(1), b"x");
        }
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

fn stopping_the_loop_closes_its_connections(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted::logging(&entries));
    let _peer = with_peer(&mut reactor, on, &address, |peer| peer);
    run_until(&mut reactor, |_| log.len() == 1);
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn errors_name_the_address(on: impl Network) {
    let mut reactor = on.reactor();
    let taken = on.listen_peer();
    let address = taken.address();
    let error = reactor.listen(&address, |_| Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {address}: ")), "{error}");
    let nowhere = Address::Unix("/nonexistent/some.sock".into());
    let log = Log::default();
    reactor.connect(&nowhere, Scripted::logging(&log)).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    let told = log.take();
    assert!(told[0].starts_with("closed: connect to unix:/nonexistent/some.sock: "), "{told:?}");
    let error = reactor.connect(&Address::Unnamed, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect to unix:: "), "{error}");
    assert_eq!(reactor.connection_count(), 0);
}
