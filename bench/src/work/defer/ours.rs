//! Deferring to one of pelton's lanes.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use pelton::{EventLoop, Lane, LaneSettings, Reactor};

use super::{IN_FLIGHT, THREADS, work};
use crate::harness::{Elapsed, Stopwatch};

/// The loop's own state.
#[derive(Default)]
struct Trips {
    begun: u64,
    back: u64,
    sum: u64,
    all: u64,
}

fn reactor() -> Result<EventLoop> {
    let settings = LaneSettings { threads: THREADS, ..LaneSettings::CPU };
    Reactor::builder().lane(Lane::Cpu, settings).build().context("make a reactor")
}

/// With a callback that starts the next one.
pub fn defer(trips: u64) -> Result<(u64, Elapsed)> {
    fn begin(reactor: &mut Reactor) {
        let trips = reactor.state::<Trips>();
        let number = trips.begun;
        if number == trips.all {
            return;
        }
        trips.begun += 1;
        let begun = reactor.defer(
            Lane::Cpu,
            move || work(number),
            |reactor, result| {
                let trips = reactor.state::<Trips>();
                trips.back += 1;
                trips.sum += result.unwrap_or(0);
                begin(reactor);
            },
        );
        assert!(begun.is_ok(), "the lane has room for more than are in flight");
    }
    let mut reactor = reactor()?;
    reactor.state::<Trips>().all = trips;
    let watch = Stopwatch::start();
    (0..IN_FLIGHT).for_each(|_| begin(&mut reactor));
    reactor.run_until(|reactor| reactor.state::<Trips>().back == trips)?;
    let elapsed = watch.stop();
    Ok((reactor.state::<Trips>().sum, elapsed))
}

/// With replies that are awaited in the order in which they were requested.
pub fn defer_reply(trips: u64) -> Result<(u64, Elapsed)> {
    let mut reactor = reactor()?;
    let handle = reactor.handle();
    let watch = Stopwatch::start();
    let sum = reactor.block_on(async {
        let begin = |number| handle.defer_reply(Lane::Cpu, move || work(number));
        let mut under_way = (0..trips.min(IN_FLIGHT)).map(begin).collect::<Result<VecDeque<_>, _>>()?;
        let (mut sum, mut next) = (0, under_way.len() as u64);
        while let Some(first) = under_way.pop_front() {
            sum += first.await??;
            if next < trips {
                under_way.push_back(begin(next)?);
                next += 1;
            }
        }
        anyhow::Ok(sum)
    })??;
    Ok((sum, watch.stop()))
}
