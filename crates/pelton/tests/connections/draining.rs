//! What happens to connections when the loop ends.

use std::io::Write;
use std::thread;
use std::time::Duration;

use pelton::{Chunk, Connection, Exit, Io};
use pelton_testing::{Log, on_every_network, run, run_until};

use super::{Network, Scripted, listen, pattern, run_with};

on_every_network![
    draining_closes_unused_connections_at_once_and_lets_the_others_finish,
    draining_asks_the_handler_of_an_unused_connection_that_counts_as_used,
    draining_ends_in_time_with_a_peer_that_does_not_read,
];

/// Answers any input with this much.
fn answering(log: &Log, answer: &[u8]) -> Scripted {
    let answer = answer.to_vec();
    let received = move |io: &mut Io<'_>, _| io.send_bytes(answer.clone()).unwrap();
    Scripted { received: Some(Box::new(received)), ..Scripted::logging(log) }
}

fn draining_closes_unused_connections_at_once_and_lets_the_others_finish(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let answer = pattern(on.more_than_fits());
    let sent = answer.clone();
    let address = listen(&mut reactor, move |_| answering(&entries, &sent));
    let (mut unused, mut used) = (on.connect_peer(&address), on.connect_peer(&address));
    used.write_all(b"?").unwrap();
    run_until(&mut reactor, |reactor| log.len() == 2 && reactor.queued() > 0);
    log.take();
    reactor.drain(Duration::from_secs(15));
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(run_with(&mut reactor, move || unused.read_all().unwrap()), b"");
    assert_eq!(reactor.connection_count(), 1);
    let reading = thread::spawn(move || used.read_all().unwrap() == answer);
    assert_eq!(run(&mut reactor), Exit::Drained);
    // An engine may keep forgotten sources for as long as it lives.
    drop(reactor);
    assert!(reading.join().unwrap());
    let told = log.take();
    assert_eq!(told.iter().filter(|entry| *entry == "closed: closed by this side").count(), 2, "{told:?}");
}

/// Answers input, however late, and closes only then.
struct Late;

impl Connection for Late {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.count_as_used();
        *io.reactor().state::<u32>() += 1;
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
        io.close_after_writing();
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        *io.reactor().state::<bool>() = true;
    }
}

fn draining_asks_the_handler_of_an_unused_connection_that_counts_as_used(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Late);
    let mut peer = on.connect_peer(&address);
    run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 1);
    reactor.drain(Duration::from_secs(15));
    run_until(&mut reactor, |reactor| *reactor.state::<bool>());
    let talking = thread::spawn(move || {
        peer.write_all(b"?").unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(run(&mut reactor), Exit::Drained);
    drop(reactor);
    assert_eq!(talking.join().unwrap(), b"?");
}

fn draining_ends_in_time_with_a_peer_that_does_not_read(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let answer = pattern(on.more_than_fits());
    let address = listen(&mut reactor, move |_| answering(&entries, &answer));
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"?").unwrap();
    run_until(&mut reactor, |reactor| reactor.queued() > 0);
    reactor.drain(Duration::from_millis(50));
    assert_eq!(run(&mut reactor), Exit::DrainTimedOut { holds: 0, connections: 1 });
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
    assert_eq!(reactor.queued(), 0);
}
