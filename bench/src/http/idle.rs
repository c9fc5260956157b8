//! Idle keep-alive connections: what each costs in user space, and how very many of them affect active ones.

use std::time::Duration;

use anyhow::Result;

use super::entrants::{Entrant, FLOOR};
use super::exchange::tried;
use super::requests::Servers;
use super::stage::Stage;
use crate::client::{Burst, Client, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading, Side};
use crate::mark::Mark;

/// Most bytes that a connection may cost, including all HTTP state.
const MOST: f64 = 600.0;

/// By what factor idle connections may increase the p99 latency.
const MOST_SLOWER: f64 = 1.2;

/// Connections opened and closed before the first measurement, so that one-time allocations are done.
const WARM_UP: usize = 64;

/// Number of active connections.
pub const ACTIVE: usize = 64;

/// Measures how much a server grows when this many connections have had one response each.
pub fn memory<'a>(entrants: &'a [Entrant], stage: &'a Stage, count: usize) -> Contest<'a> {
    let contenders = entrants.iter().map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let server = entrant.start(stage)?;
            let exchange = tried(server.address, "/hello")?;
            drop(Client::open(server.address, WARM_UP, exchange.clone())?);
            let mut client = Client::open(server.address, 1, exchange)?;
            let before = server.memory()?;
            client.grow(server.address, count)?;
            let value = server.memory()?.saturating_sub(before) as f64 / (count - 1) as f64;
            Ok(vec![Some(Reading { value, cpu_us: None, syscalls: None })])
        })
    });
    let case = Case::new(format!("idle, {count}"), "B each", Better::Lower);
    Contest {
        name: "idle connections".into(),
        // Not plotted: next to a floor that keeps only a descriptor, every bar would be cut.
        cases: vec![case.relative_to(FLOOR).mark(Mark::Limit { at_most: MOST }).table_only()],
        contenders: contenders.collect(),
    }
}

/// Measures the latency of active connections, without idle ones and with this many.
pub fn latency<'a>(servers: &'a Servers, count: usize, window: Duration) -> Contest<'a> {
    let compared = servers.iter().filter(|(entrant, _)| entrant.side != Side::Peer || entrant.name == "hyper");
    let contenders = compared.map(|(entrant, server)| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let exchange = tried(server.address, "/hello")?;
            let mut active = Client::open(server.address, ACTIVE, exchange.clone())?;
            let mut p99 = || -> Result<f64> { Ok(p99_us(&active.run(Until::Elapsed(window))?)) };
            let alone = p99()?;
            let idle = Client::open(server.address, count, exchange)?;
            let beside = p99()?;
            drop(idle);
            // Give the servers time to close them, so that the next contender does not pay for it.
            p99()?;
            let reading = |value| Some(Reading { value, cpu_us: None, syscalls: None });
            Ok(vec![reading(alone), reading(beside), reading(beside / alone)])
        })
    });
    let case = |what: String, unit| Case::new(what, unit, Better::Lower).relative_to(FLOOR).table_only();
    let cases = vec![
        case(format!("{ACTIVE} at work, none idle, p99"), "µs"),
        case(format!("{ACTIVE} at work, {count} idle, p99"), "µs"),
        case(format!("{ACTIVE} at work, {count} idle, p99"), "times").mark(Mark::Limit { at_most: MOST_SLOWER }),
    ];
    Contest { name: format!("latency beside {count} idle"), cases, contenders: contenders.collect() }
}

fn p99_us(burst: &Burst) -> f64 {
    burst.latencies.value_at_quantile(0.99) as f64 / 1e3
}
