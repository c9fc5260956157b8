//! A proxied connection is detached, moved or handed over.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;

use pelton::{Chunk, Connection, Io, Proxy, Reactor};
use pelton_testing::{Log, Network, on_every_network, run_until, run_with};

use super::{Side, pair, pair_of, run_out};

on_every_network![
    a_source_can_be_detached,
    a_target_can_be_detached,
    a_proxied_connection_can_be_moved,
    a_new_handler_is_told_of_the_end,
];

fn a_source_can_be_detached(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let (peers, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        (client, server)
    });
    let (from, to) = ids.get().unwrap();
    let kept = Rc::new(RefCell::new(None));
    let place = kept.clone();
    reactor.connection(from).unwrap().detach(move |_, detached| *place.borrow_mut() = Some(detached)).unwrap();
    run_until(&mut reactor, |_| kept.borrow().is_some());
    // Its source is gone, and so is the target of the other direction.
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert!(reactor.connection(to).is_none());
    let entries = log.take();
    assert_eq!(entries[..3], ["client: 4 bytes, source closed", "client: detached", "server: 0 bytes, target closed"]);
    drop((peers, kept));
}

fn a_target_can_be_detached(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client.finished(|_, _| {}),
        |server| server,
        |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
        },
    );
    let ids = pair.ids.clone();
    let ((mut client, server), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        (client, server)
    });
    let (_, to) = ids.get().unwrap();
    let kept = Rc::new(RefCell::new(None));
    let place = kept.clone();
    reactor.connection(to).unwrap().detach(move |_, detached| *place.borrow_mut() = Some(detached)).unwrap();
    client.write_all(b"more").unwrap();
    // It may come in pieces, with other entries in between.
    let received = || -> String {
        let entries = log.entries();
        entries.iter().filter_map(|entry| entry.strip_prefix("received ")).collect()
    };
    run_until(&mut reactor, |_| kept.borrow().is_some() && received() == "more");
    assert!(log.take().contains(&"client: 4 bytes, target closed".to_owned()));
    drop((client, server, kept));
    run_out(&mut reactor);
}

fn a_proxied_connection_can_be_moved(on: impl Network) {
    let mut reactor = on.reactor();
    let mut elsewhere = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client,
        |server| server.finished(|io, _| io.close()),
        |io, server| {
            io.proxy_both(server, Proxy::new()).unwrap();
        },
    );
    let ids = pair.ids.clone();
    let ((mut client, server), _) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        (client, server)
    });
    let (from, _) = ids.get().unwrap();
    reactor.connection(from).unwrap().move_to(&elsewhere.handle(), |_| pelton_testing::Echo).unwrap();
    run_out(&mut reactor);
    let heard = run_with(&mut elsewhere, move || {
        client.write_all(b"echo").unwrap();
        client.finish();
        client.read_all().unwrap()
    });
    assert_eq!(heard, b"echo");
    drop(server);
}

fn a_new_handler_is_told_of_the_end(on: impl Network) {
    struct Successor(Log);
    impl Connection for Successor {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
            panic!("the connection is proxied");
        }

        fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &pelton::Proxied) {
            self.0.add(format!("successor: {} bytes", proxied.bytes));
            io.close_after_writing();
        }

        fn closed(&mut self, _: &mut Reactor, reason: pelton::Reason) {
            self.0.add(format!("successor: {reason}"));
        }
    }
    let mut reactor = on.reactor();
    let successors = Log::default();
    let entries = successors.clone();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client,
        Side::stays,
        move |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
            // What the old handler has not processed is forwarded as well.
            io.hand_over(Box::new(Successor(entries)), b"unread, ".to_vec());
        },
    );
    let (heard, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"received").unwrap();
        client.finish();
        let heard = server.read_all().unwrap();
        server.finish();
        heard
    });
    assert_eq!(heard, b"unread, received");
    run_out(&mut reactor);
    assert_eq!(successors.take(), ["successor: 16 bytes", "successor: finished by the other side"]);
    assert_eq!(log.take()[0], "client: handed over to another handler");
}
