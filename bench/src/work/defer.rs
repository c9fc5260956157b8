//! Deferring: round trips to another thread and back to the loop, with as many in flight as a busy server has.
//!
//! The work itself is trivial, so this measures the overhead. Everybody has the same number of threads; tokio also runs with its
//! default, up to 512.

mod ours;
mod peers;

use anyhow::{Result, ensure};

use crate::harness::{Better, Case, Contender, Contest, Elapsed, Readings, Side};
use crate::machine::version;
use crate::mark::Mark;

/// Threads beside the loop.
const THREADS: usize = 2;

/// Round trips in flight at any time.
const IN_FLIGHT: u64 = 64;

/// Returns the contest over `trips` round trips.
pub fn contest(trips: u64) -> Contest<'static> {
    let name = format!("defer, {IN_FLIGHT} in flight");
    let against = vec![peers::SPAWN_BLOCKING, peers::SPAWN_BLOCKING_NARROW];
    let case = Case::new(name.clone(), "k/s", Better::Higher).mark(Mark::Times { factor: 3.0, against });
    let entrant = |name, package, side, window: fn(u64) -> Result<(u64, Elapsed)>| {
        Contender::new(name, version(package), side, move || readings(trips, window(trips)?))
    };
    let contenders = vec![
        entrant(peers::SPAWN_BLOCKING, "tokio", Side::Peer, peers::spawn_blocking),
        entrant(peers::SPAWN_BLOCKING_NARROW, "tokio", Side::Peer, peers::spawn_blocking_narrow),
        entrant("crossbeam-channel", "crossbeam-channel", Side::Peer, peers::channels),
        entrant("rayon spawn", "rayon-core", Side::Peer, peers::rayon),
        entrant("pelton defer", "pelton", Side::Ours, ours::defer),
        entrant("pelton defer_reply", "pelton", Side::Ours, ours::defer_reply),
    ];
    Contest { name, cases: vec![case], contenders }
}

/// The work on the other thread. The sum of its results shows that everything ran exactly once.
fn work(number: u64) -> u64 {
    number ^ 0x5eed
}

fn readings(trips: u64, (sum, elapsed): (u64, Elapsed)) -> Result<Readings> {
    let expected: u64 = (0..trips).map(work).sum();
    ensure!(sum == expected, "the results of {trips} round trips add up to {sum} instead of {expected}");
    Ok(vec![Some(elapsed.thousands_per_second(trips))])
}
