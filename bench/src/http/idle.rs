//! Connections that have been answered and are kept for later: what each costs in user space, and what very many of them do to those
//! that are at work.

use std::time::Duration;

use anyhow::Result;

use super::entrants::{Entrant, FLOOR};
use super::exchange::tried;
use super::requests::Servers;
use super::stage::Stage;
use crate::client::{Burst, Client, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading, Side};
use crate::mark::Mark;

/// Bytes that a connection may cost, with all that HTTP needs to know of it.
const MOST: f64 = 600.0;

/// How many times longer the slowest of a hundred answers may take because of those that are idle.
const MOST_SLOWER: f64 = 1.2;

/// Connections that come and go before the first look, so that what is made once is there.
const WARM_UP: usize = 64;

/// Connections that are at work.
pub const ACTIVE: usize = 64;

/// How much a server grows by when so many connections have had one answer each.
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
        // Not drawn: next to a floor that keeps nothing but a descriptor, every bar would be cut.
        cases: vec![case.relative_to(FLOOR).mark(Mark::Limit { at_most: MOST }).table_only()],
        contenders: contenders.collect(),
    }
}

/// Latency of those that are at work, without any that are idle and with so many.
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
            // Their ends are dealt with meanwhile, and not at the cost of whoever comes next.
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
