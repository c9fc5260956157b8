//! The cost of pelton's statistics per event: the same reactor with them on and off.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pelton::{EventLoop, Interest, Reactor};

use super::breaker::eventfd;
use crate::harness::{Better, Case, Contender, Contest, Readings, Side, Stopwatch};
use crate::machine::version;
use crate::mark::Mark;

const OFF: &str = "pelton, stats off";
const ON: &str = "pelton, stats on";
/// Number of ready descriptors in every turn: a busy loop, in which many events share the wait.
const WATCHES: u64 = 64;

/// How many callbacks have run; kept in the reactor's state.
#[derive(Default)]
struct Events(u64);

/// Returns the contest with descriptors that nobody reads, so that all of them are ready in every turn.
pub fn watches(events: u64) -> Contest<'static> {
    // A whole number of turns, or the last one would run more events than requested.
    contest("stats, 64 watches a turn", events.next_multiple_of(WATCHES), |events, mut reactor| {
        let descriptors = (0..WATCHES).map(|_| eventfd(1)).collect::<Result<Vec<_>>>()?;
        for descriptor in &descriptors {
            reactor
                .watch(descriptor, Interest::READABLE, |reactor, _| reactor.state::<Events>().0 += 1)
                .context("watch an eventfd")?;
        }
        run(events, reactor)
    })
}

/// Returns the contest with ticks, each of which sets the next.
pub fn ticks(events: u64) -> Contest<'static> {
    fn again(reactor: &mut Reactor) {
        reactor.state::<Events>().0 += 1;
        reactor.next_tick(again);
    }
    contest("stats, one tick a turn", events, |events, mut reactor| {
        reactor.next_tick(again);
        run(events, reactor)
    })
}

fn contest(
    name: &'static str,
    events: u64,
    window: impl Fn(u64, EventLoop) -> Result<Readings> + Copy + 'static,
) -> Contest<'static> {
    let entrant = |name, side, on| {
        Contender::new(name, version("pelton"), side, move || {
            let reactor = Reactor::builder().stats(on).build().context("make a reactor")?;
            window(events, reactor)
        })
    };
    let mark = Mark::Above { at_most: 120.0, contender: OFF };
    Contest {
        name: name.into(),
        cases: vec![Case::new(name, "ns", Better::Lower).mark(mark)],
        contenders: vec![entrant(OFF, Side::Floor, false), entrant(ON, Side::Ours, true)],
    }
}

fn run(events: u64, mut reactor: EventLoop) -> Result<Readings> {
    let watch = Stopwatch::start();
    while reactor.state::<Events>().0 < events {
        reactor.turn(Some(Duration::ZERO))?;
    }
    let elapsed = watch.stop();
    let ran = reactor.state::<Events>().0;
    ensure!(ran == events, "{ran} events ran instead of {events}");
    Ok(vec![Some(elapsed.cpu_ns_each(events))])
}
