//! Bounds and counts the handshakes of a server.
//!
//! A handshake costs a quarter of a millisecond of computation or more. Two bounds protect established connections from
//! a flood of new ones: at most so many handshakes are in progress, and in one turn of a loop at most
//! [`PER_TURN`] are computed. Connections beyond the first bound are refused; those beyond the second wait for the next turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use pelton::{ConnectionId, Reactor, Time};
use rustls::HandshakeKind;

use crate::TlsError;

/// Handshakes that a loop computes in one turn. Together they take about 2 ms.
const PER_TURN: usize = 8;

/// Handshakes of a server that may be in progress at once, unless it is configured otherwise. Each takes about 20 KiB
/// while its messages are assembled.
pub(crate) const IN_FLIGHT: usize = 2_048;

/// Why handshakes fail, coarsely enough for a metric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The peer sent an alert.
    AlertReceived,
    /// The peer's certificate is missing or was rejected.
    Certificate,
    /// The peers have no version, cipher suite or protocol in common.
    Incompatible,
    /// The peer does not speak TLS, or violates it.
    Protocol,
    /// The peer closed or reset the connection, or was too slow.
    Abandoned,
    /// Too many handshakes were in progress.
    Refused,
}

impl Failure {
    /// All kinds.
    pub const ALL: [Failure; 6] = [
        Failure::AlertReceived,
        Failure::Certificate,
        Failure::Incompatible,
        Failure::Protocol,
        Failure::Abandoned,
        Failure::Refused,
    ];

    /// A name for metrics: `alert_received`, `certificate`, and so on.
    pub fn name(self) -> &'static str {
        match self {
            Failure::AlertReceived => "alert_received",
            Failure::Certificate => "certificate",
            Failure::Incompatible => "incompatible",
            Failure::Protocol => "protocol",
            Failure::Abandoned => "abandoned",
            Failure::Refused => "refused",
        }
    }

    fn of(error: &TlsError) -> Failure {
        match error {
            TlsError::AlertReceived(_) => Failure::AlertReceived,
            TlsError::ClosedInHandshake => Failure::Abandoned,
            TlsError::TooManyHandshakes { .. } => Failure::Refused,
            TlsError::NotTls { .. } | TlsError::TooLarge => Failure::Protocol,
            TlsError::Failed { error, .. } => match error {
                rustls::Error::InvalidCertificate(_)
                | rustls::Error::NoCertificatesPresented
                | rustls::Error::InvalidCertRevocationList(_) => Failure::Certificate,
                rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol => Failure::Incompatible,
                _ => Failure::Protocol,
            },
        }
    }
}

/// What a server or client has counted, over all its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Handshakes in progress.
    pub in_flight: usize,
    /// Completed handshakes, including the resumed ones.
    pub completed: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    failed: [u64; Failure::ALL.len()],
}

impl Stats {
    /// Returns how many handshakes failed in this way.
    pub fn failed(&self, how: Failure) -> u64 {
        self.failed[how as usize]
    }

    /// Returns how many handshakes failed.
    pub fn all_failed(&self) -> u64 {
        self.failed.iter().sum()
    }
}

/// The counters of a server or client, which its connections share.
pub(crate) struct Counters {
    most: usize,
    in_flight: AtomicUsize,
    completed: AtomicU64,
    resumed: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
}

impl Counters {
    pub(crate) fn new(most: usize) -> Arc<Counters> {
        Arc::new(Counters {
            most,
            in_flight: AtomicUsize::new(0),
            completed: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            failed: Default::default(),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            in_flight: self.in_flight.load(Relaxed),
            completed: self.completed.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            failed: std::array::from_fn(|how| self.failed[how].load(Relaxed)),
        }
    }

    /// Admits another handshake, unless there are too many.
    pub(crate) fn begin(self: &Arc<Counters>) -> Result<Handshake, TlsError> {
        let admit = |count| (count < self.most).then_some(count + 1);
        if self.in_flight.fetch_update(Relaxed, Relaxed, admit).is_err() {
            let error = TlsError::TooManyHandshakes { most: self.most };
            self.failed[Failure::Refused as usize].fetch_add(1, Relaxed);
            return Err(error);
        }
        Ok(Handshake { counters: Arc::clone(self), ended: false })
    }
}

/// A handshake in progress. Dropping it counts it as abandoned.
pub(crate) struct Handshake {
    counters: Arc<Counters>,
    ended: bool,
}

impl Handshake {
    pub(crate) fn completed(mut self, kind: Option<HandshakeKind>) {
        self.counters.completed.fetch_add(1, Relaxed);
        if kind == Some(HandshakeKind::Resumed) {
            self.counters.resumed.fetch_add(1, Relaxed);
        }
        self.ended = true;
    }

    pub(crate) fn failed(mut self, error: &TlsError) {
        self.counters.failed[Failure::of(error) as usize].fetch_add(1, Relaxed);
        self.ended = true;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
        if !self.ended {
            self.counters.failed[Failure::Abandoned as usize].fetch_add(1, Relaxed);
        }
    }
}

/// The handshakes that a loop computes in the current turn.
#[derive(Default)]
struct Turn {
    computed: usize,
    /// When the first of them was, by the loop's clock, which is read once per turn.
    at: Time,
    waiting: VecDeque<ConnectionId>,
    /// A tick in the next turn counts anew. Otherwise the clock tells turns apart, which costs no turn of its own.
    asked: bool,
}

/// Returns whether a handshake may be computed in this turn; [`computed`] counts it. If not, the connection's layers are woken in a
/// later one, where it is counted already: first come, first served.
pub(crate) fn may_compute(reactor: &mut Reactor, id: ConnectionId) -> bool {
    let now = reactor.now();
    let turn = reactor.state::<Turn>();
    if !turn.asked && turn.at != now {
        (turn.computed, turn.at) = (0, now);
    }
    if turn.computed < PER_TURN {
        return true;
    }
    turn.waiting.push_back(id);
    if !std::mem::replace(&mut turn.asked, true) {
        reactor.next_tick(next_turn);
    }
    false
}

/// Counts a handshake that was computed in this turn.
pub(crate) fn computed(reactor: &mut Reactor) {
    reactor.state::<Turn>().computed += 1;
}

/// Admits the next connections that wait.
fn next_turn(reactor: &mut Reactor) {
    let mut next = Vec::with_capacity(PER_TURN);
    while next.len() < PER_TURN
        && let Some(id) = reactor.state::<Turn>().waiting.pop_front()
    {
        // Connections that have left do not use up places.
        if reactor.connection(id).is_some() {
            next.push(id);
        }
    }
    let turn = reactor.state::<Turn>();
    if turn.waiting.is_empty() {
        turn.waiting = VecDeque::new();
    }
    // As long as somebody is admitted here, newcomers in the same turn get only the rest.
    (turn.computed, turn.asked) = (next.len(), !next.is_empty());
    if turn.asked {
        reactor.next_tick(next_turn);
    }
    next.into_iter().for_each(|id| reactor.wake_layers(id));
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use pelton::{Chunk, Connection, Io};

    use super::*;

    struct Nothing;

    impl Connection for Nothing {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
    }

    fn compute(reactor: &mut Reactor, id: ConnectionId) -> bool {
        let may = may_compute(reactor, id);
        if may {
            computed(reactor);
        }
        may
    }

    #[test]
    fn connections_that_have_left_take_no_place() {
        let mut reactor = Reactor::new().unwrap();
        let [(one, _one), (other, _other)] = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        let [left, stays] = [one, other].map(|socket| reactor.adopt(socket, Nothing).unwrap());
        // The clock is read once, as in a turn.
        let crowd = |reactor: &mut Reactor| {
            for id in std::iter::repeat_n(stays, PER_TURN).chain(std::iter::repeat_n(left, 1_000)) {
                compute(reactor, id);
            }
            compute(reactor, stays)
        };
        assert!(!crowd(&mut reactor));
        reactor.connection(left).unwrap().close();
        reactor.turn(Some(std::time::Duration::ZERO)).unwrap();
        reactor.turn(Some(std::time::Duration::ZERO)).unwrap();
        assert_eq!(reactor.state::<Turn>().waiting.len(), 0, "the last one did not wait for a thousand that have left");
    }

    #[test]
    fn asking_costs_nothing() {
        let mut reactor = Reactor::new().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let id = reactor.adopt(socket, Nothing).unwrap();
        let reactor: &mut Reactor = &mut reactor;
        assert!((0..10 * PER_TURN).all(|_| may_compute(reactor, id)), "parts of a hello arrive");
        assert!((0..PER_TURN).all(|_| compute(reactor, id)));
        assert!(!may_compute(reactor, id));
    }

    #[test]
    fn handshakes_beyond_those_of_a_turn_wait() {
        let mut reactor = Reactor::new().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let id = reactor.adopt(socket, Nothing).unwrap();
        let begin = |reactor: &mut Reactor, count| (0..count).filter(|_| compute(reactor, id)).count();
        assert_eq!(begin(&mut reactor, 2 * PER_TURN + 3), PER_TURN);
        assert_eq!(reactor.state::<Turn>().waiting.len(), PER_TURN + 3);
        // Those that are woken count first. Newcomers get the rest.
        reactor.turn(Some(std::time::Duration::ZERO)).unwrap();
        assert_eq!(reactor.state::<Turn>().waiting.len(), 3);
        assert_eq!(begin(&mut reactor, 1), 0);
        reactor.turn(Some(std::time::Duration::ZERO)).unwrap();
        assert_eq!(reactor.state::<Turn>().waiting.len(), 0);
        assert_eq!(begin(&mut reactor, PER_TURN), PER_TURN - 4);
        reactor.run_until(|reactor| !reactor.state::<Turn>().asked).unwrap();
        assert_eq!(begin(&mut reactor, PER_TURN), PER_TURN, "nobody waits any more");
    }

    #[test]
    fn handshakes_that_need_not_wait_cost_no_turn() {
        let mut reactor = Reactor::new().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let id = reactor.adopt(socket, Nothing).unwrap();
        reactor.turn(Some(std::time::Duration::ZERO)).unwrap();
        for _ in 0..3 {
            assert!((0..PER_TURN).all(|_| compute(&mut reactor, id)));
            let before = reactor.now();
            reactor.turn(Some(std::time::Duration::from_millis(5))).unwrap();
            assert!(reactor.now() - before >= std::time::Duration::from_millis(5), "no tick was queued");
        }
    }

    #[test]
    fn handshakes_are_counted_once() {
        let counters = Counters::new(2);
        let (first, second) = (counters.begin().unwrap(), counters.begin().unwrap());
        assert!(matches!(counters.begin(), Err(TlsError::TooManyHandshakes { most: 2 })));
        first.completed(Some(HandshakeKind::Resumed));
        second.failed(&TlsError::TooLarge);
        drop(counters.begin().unwrap());
        let stats = counters.stats();
        assert_eq!((stats.in_flight, stats.completed, stats.resumed, stats.all_failed()), (0, 1, 1, 3));
        for how in [Failure::Refused, Failure::Protocol, Failure::Abandoned] {
            assert_eq!(stats.failed(how), 1, "{}", how.name());
        }
    }
}
