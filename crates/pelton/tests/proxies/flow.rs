//! Back-pressure, limits and stalls.

use std::io::{Read, Write};
use std::time::Duration;

use pelton::{Limit, Proxy, WaterMarks};
use pelton_testing::{Network, on_every_network, pattern, run_until, run_with};

use super::{pair, pair_of, run_out, sorted};

on_every_network![
    a_target_that_does_not_read_pauses_the_source,
    a_smaller_buffer_holds_less,
    a_hard_limit_below_a_chunk_does_not_block,
    flushing_a_full_target_resumes_the_source,
    a_limit_ends_proxying_and_the_handler_gets_the_rest,
    a_limit_at_the_end_of_a_chunk_ends_proxying,
    a_limit_of_nothing_forwards_nothing,
    a_target_that_stalls_is_closed_and_resets_its_source,
    a_source_that_waits_for_its_target_is_not_inactive,
];

/// Sends more than fits while the server does not read. Returns the most that was queued, after everything arrived.
fn most_queued(on: impl Network, proxy: Proxy, marks: Option<WaterMarks>) -> usize {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair(&mut reactor, on, move |io, server| {
        io.proxy_both(server, proxy).unwrap();
        if let Some(marks) = marks {
            io.reactor().connection(server).unwrap().set_water_marks(marks);
        }
    });
    let ids = pair.ids.clone();
    let (server, sending) = pair
        .run(&mut reactor, on, move |mut client, server| {
            let sending = std::thread::spawn(move || {
                client.write_all(&pattern(count)).unwrap();
                client.finish();
                client.read_all().unwrap()
            });
            (server, sending)
        })
        .0;
    // Until the source is paused: it has forwarded a lot, and nothing more follows.
    let (from, to) = ids.get().unwrap();
    let mut most = 0;
    let mut before = (0, 0);
    run_until(&mut reactor, |reactor| {
        most = most.max(reactor.queued());
        let bytes = reactor.connection(from).unwrap().proxied_bytes().unwrap();
        before = if before.0 == bytes { (bytes, before.1 + 1) } else { (bytes, 0) };
        reactor.next_tick(|_| {});
        // Bulk may wait in a pipe.
        let waits = reactor.queued() > 0 || reactor.connection(to).unwrap().queued_in_files() > 0;
        before.1 > 2_000 && waits
    });
    assert!(before.0 < count as u64, "the source was never paused");
    let mut server = server;
    let heard = run_with(&mut reactor, move || server.read_all().unwrap());
    assert!(heard == pattern(count));
    run_out(&mut reactor);
    assert_eq!(run_with(&mut reactor, move || sending.join().unwrap()), b"");
    most
}

fn a_target_that_does_not_read_pauses_the_source(on: impl Network) {
    let most = most_queued(on, Proxy::new(), None);
    assert!(most <= 2 * 65_536, "{most} bytes were queued");
}

fn a_smaller_buffer_holds_less(on: impl Network) {
    let most = most_queued(on, Proxy::new().buffer(1000), None);
    assert!(most <= 1000 + 65_536, "{most} bytes were queued");
}

fn a_hard_limit_below_a_chunk_does_not_block(on: impl Network) {
    let marks = WaterMarks { low: 10, high: 100, most: 100 };
    let most = most_queued(on, Proxy::new(), Some(marks));
    assert!(most <= 65_536, "{most} bytes were queued");
}

fn flushing_a_full_target_resumes_the_source(on: impl Network) {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair(&mut reactor, on, |io, server| {
        io.proxy_both(server, Proxy::new()).unwrap();
        // Somebody else flushes the target all the time, outside of its callbacks.
        io.reactor().every(Duration::from_micros(200), move |reactor, _| {
            if let Some(mut server) = reactor.connection(server) {
                server.flush();
            }
        });
    });
    pair.run(&mut reactor, on, move |mut client, mut server| {
        let reading = std::thread::spawn(move || server.read_all().unwrap());
        client.write_all(&pattern(count)).unwrap();
        client.finish();
        assert!(reading.join().unwrap() == pattern(count));
    });
    run_out(&mut reactor);
}

fn a_limit_ends_proxying_and_the_handler_gets_the_rest(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client.stays(),
        |server| server,
        |io, server| {
            io.proxy_to(server, Proxy::new().limit(10)).unwrap();
        },
    );
    let (heard, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ten bytes.the rest").unwrap();
        client.finish();
        let heard = server.read_some(10);
        drop(server);
        heard
    });
    assert_eq!(heard, b"ten bytes.");
    run_until(&mut reactor, |_| log.entries().iter().any(|entry| entry == "client: peer finished"));
    let entries: Vec<_> = log.take().into_iter().filter(|entry| !entry.starts_with("server")).collect();
    assert_eq!(entries[..3], ["client: 10 bytes, limit reached", "received the rest", "client: peer finished"]);
}

fn a_limit_at_the_end_of_a_chunk_ends_proxying(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_to(server, Proxy::new().limit(4)).unwrap());
    let (_peers, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"four").unwrap();
        assert_eq!(server.read_some(4), b"four");
        (client, server)
    });
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take()[0], "client: 4 bytes, limit reached");
}

fn a_limit_of_nothing_forwards_nothing(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_to(server, Proxy::new().limit(0)).unwrap());
    let (_peers, log) = pair.run(&mut reactor, on, |mut client, server| {
        client.write_all(b"for the handler").unwrap();
        (client, server)
    });
    run_until(&mut reactor, |_| log.entries().last().is_some_and(|last| last == "received for the handler"));
    assert_eq!(log.take(), ["client: 0 bytes, limit reached", "received for the handler"]);
}

fn a_target_that_stalls_is_closed_and_resets_its_source(on: impl Network) {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair(&mut reactor, on, |io, server| {
        io.proxy_both(server, Proxy::new()).unwrap();
        let mut server = io.reactor().connection(server).unwrap();
        server.set_limit(Limit::WriteStall, Some(Duration::from_millis(100)));
    });
    let (_server, log) = pair.run(&mut reactor, on, move |mut client, server| {
        // Fails when the connection is closed.
        let _ = client.write_all(&pattern(count));
        let _ = client.read(&mut [0]);
        server
    });
    run_out(&mut reactor);
    let entries = sorted(&log);
    assert!(entries[0].starts_with("client: ") && entries[0].ends_with(" bytes, target failed"), "{entries:?}");
    assert!(entries.iter().any(|entry| entry.starts_with("server: the other side read nothing")), "{entries:?}");
}

fn a_source_that_waits_for_its_target_is_not_inactive(on: impl Network) {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair(&mut reactor, on, |io, server| {
        io.proxy_both(server, Proxy::new()).unwrap();
        io.set_limit(Limit::Inactivity, Some(Duration::from_millis(80)));
    });
    let bytes = pattern(count);
    let (heard, log) = pair.run(&mut reactor, on, move |mut client, mut server| {
        let sending = std::thread::spawn(move || {
            client.write_all(&bytes).unwrap();
            client.finish();
        });
        // Much longer than the limit. Only the time has to pass.
        std::thread::sleep(Duration::from_millis(400));
        let heard = server.read_all().unwrap();
        sending.join().unwrap();
        heard
    });
    assert!(heard == pattern(count));
    run_out(&mut reactor);
    assert!(log.take().contains(&format!("client: {count} bytes, peer finished")));
}
