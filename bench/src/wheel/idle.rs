//! An idle turn: the cost of a turn with nothing to do and no waiting.
//!
//! Every loop has its waker registered, like a loop in use.

mod ours;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::EpollTimeout;

use super::breaker::{Breaker, ready};
use crate::harness::{Better, Case, Contender, Contest, Readings, Side, Stopwatch};
use crate::machine::version;

/// Returns the contest over `turns` turns.
pub fn contest(turns: u64) -> Contest<'static> {
    let entrant = |name, version, side, window: fn(u64) -> Result<Readings>| {
        Contender::new(name, version, side, move || window(turns))
    };
    let contenders = vec![
        entrant("bare epoll_wait(0)", version("nix"), Side::Floor, bare),
        entrant("mio poll(0)", version("mio"), Side::Peer, mio),
        entrant("calloop dispatch(0)", version("calloop"), Side::Peer, calloop),
        entrant("pelton turn(0)", version("pelton"), Side::Ours, ours::reactor),
    ];
    Contest { name: "idle turn".into(), cases: vec![Case::new("idle turn", "ns", Better::Lower)], contenders }
}

/// Times `turns` calls of `turn`.
fn timed(turns: u64, mut turn: impl FnMut() -> Result<()>) -> Result<Readings> {
    let watch = Stopwatch::start();
    for _ in 0..turns {
        turn()?;
    }
    Ok(vec![Some(watch.stop().cpu_ns_each(turns))])
}

fn bare(turns: u64) -> Result<Readings> {
    let (breaker, mut events) = (Breaker::new()?, ready());
    timed(turns, || {
        let ready = breaker.poll(&mut events, EpollTimeout::ZERO)?;
        ensure!(ready == 0, "{ready} events on an idle loop");
        Ok(())
    })
}

fn mio(turns: u64) -> Result<Readings> {
    let mut poll = mio::Poll::new().context("make a mio poll")?;
    let mut events = mio::Events::with_capacity(64);
    let _waker = mio::Waker::new(poll.registry(), mio::Token(0)).context("make a mio waker")?;
    timed(turns, || {
        poll.poll(&mut events, Some(Duration::ZERO))?;
        ensure!(events.is_empty(), "events on an idle loop");
        Ok(())
    })
}

fn calloop(turns: u64) -> Result<Readings> {
    let mut event_loop = calloop::EventLoop::<()>::try_new().context("make a calloop loop")?;
    let (_waker, source) = calloop::ping::make_ping().context("make a calloop ping")?;
    let inserted = event_loop.handle().insert_source(source, |(), _, ()| {});
    inserted.map_err(|refused| refused.error).context("watch a calloop ping")?;
    timed(turns, || Ok(event_loop.dispatch(Some(Duration::ZERO), &mut ())?))
}
