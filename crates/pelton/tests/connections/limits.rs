//! Time limits.

use std::io::Write;
use std::time::Duration;

use pelton::{Chunk, Connection, Io, Limit, Reactor, Reason, Time};

use super::common::{on_every_network, run_until};
use super::{Network, listen};

on_every_network![
    connecting_takes_no_longer_than_its_limit,
    a_peer_that_reads_nothing_stalls_no_longer_than_the_limit,
    a_connection_on_which_nothing_happens_is_closed,
    a_handler_may_go_on_after_a_limit,
];

const SHORT: Duration = Duration::from_millis(40);
/// Has room for something to happen several times, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);

/// Sends so much when opened, and notes down which limit was reached and why it is over.
#[derive(Default)]
struct Limited {
    to_send: usize,
    /// A limit of its own.
    limit: Option<Limit>,
    /// Times that it goes on after a limit was reached.
    patience: usize,
}

/// What became of it, in the reactor's state.
#[derive(Default)]
struct Fate {
    limits: Vec<Limit>,
    received_at: Time,
    reason: Option<Reason>,
}

impl Connection for Limited {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send_bytes(vec![b'x'; self.to_send]).unwrap();
        if let Some(limit) = self.limit {
            io.set_limit(limit, Some(SHORT));
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        let now = io.reactor().now();
        io.reactor().state::<Fate>().received_at = now;
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        io.reactor().state::<Fate>().limits.push(limit);
        match self.patience.checked_sub(1) {
            Some(left) => self.patience = left,
            None => {
                let after = io.limit(limit).unwrap();
                io.close_with(Reason::TimedOut { limit, after });
            }
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        reactor.state::<Fate>().reason = Some(reason);
    }
}

fn is_over(reactor: &mut Reactor) -> bool {
    reactor.state::<Fate>().reason.is_some()
}

/// Fails unless it is over for having taken longer than `wanted`.
fn assert_timed_out(reactor: &mut Reactor, wanted: Limit) {
    let fate = reactor.take_state::<Fate>().unwrap();
    match fate.reason {
        Some(Reason::TimedOut { limit, after: SHORT }) if limit == wanted => {}
        other => panic!("{other:?}, after {:?}", fate.limits),
    }
}

fn connecting_takes_no_longer_than_its_limit(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::Connect, Some(SHORT)));
    let silent = on.silent_listener();
    let start = reactor.clock();
    reactor.connect(&silent.address(), Limited::default()).unwrap();
    run_until(&mut reactor, is_over);
    assert!(reactor.clock() - start >= SHORT);
    assert_timed_out(&mut reactor, Limit::Connect);
    assert_eq!(reactor.connection_count(), 0);
}

fn a_peer_that_reads_nothing_stalls_no_longer_than_the_limit(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::WriteStall, Some(SHORT)).limit(Limit::Inactivity, Some(LONG)));
    let to_send = on.more_than_fits();
    let address = listen(&mut reactor, move |_| Limited { to_send, ..Limited::default() });
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, is_over);
    assert_timed_out(&mut reactor, Limit::WriteStall);
    assert_eq!(reactor.queued(), 0);
}

fn a_connection_on_which_nothing_happens_is_closed(on: impl Network) {
    let mut reactor = on.build(on.builder().limit(Limit::Inactivity, Some(SHORT)));
    let address = listen(&mut reactor, |_| Limited::default());
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"something").unwrap();
    run_until(&mut reactor, is_over);
    // What comes in puts it off.
    let active_at = reactor.state::<Fate>().received_at;
    assert!(active_at > Time::ZERO && reactor.now() - active_at >= SHORT);
    assert_timed_out(&mut reactor, Limit::Inactivity);
}

fn a_handler_may_go_on_after_a_limit(on: impl Network) {
    let mut reactor = on.reactor();
    let start = reactor.clock();
    let limit = Some(Limit::Inactivity);
    let address = listen(&mut reactor, move |_| Limited { patience: 3, limit, ..Limited::default() });
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, is_over);
    assert!(reactor.clock() - start >= 4 * SHORT);
    assert_eq!(reactor.state::<Fate>().limits, [Limit::Inactivity; 4]);
    assert_timed_out(&mut reactor, Limit::Inactivity);
}
