//! Memory per idle connection in user space: how much a server grows when this many connections have had one message echoed and
//! are idle. The kernel's memory per connection is the same for everybody, and not counted.

use super::entrants::{Entrant, FLOOR};
use crate::client::{Client, Exchange};
use crate::harness::{Better, Case, Contender, Contest, Reading};
use crate::mark::Mark;
use crate::process::Server;

/// Most bytes that a connection with an empty handler may cost.
const MOST: f64 = 200.0;

/// Bytes per message: small, because the test also measures the servers' buffers for it.
const SIZE: usize = 64;

/// Connections opened and closed before the first measurement, so that one-time allocations are done.
const WARM_UP: usize = 50;

/// Returns the contest for these numbers of connections, in ascending order.
pub fn contest<'a>(entrants: &'a [Entrant], counts: &'a [usize]) -> Contest<'a> {
    let contenders = entrants.iter().map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let server = Server::start(entrant.command()?)?;
            drop(Client::open(server.address, WARM_UP, Exchange::echo(SIZE))?);
            let mut client = Client::open(server.address, 1, Exchange::echo(SIZE))?;
            let before = server.memory()?;
            let mut readings = Vec::new();
            for &count in counts {
                client.grow(server.address, count)?;
                let grown = server.memory()?.saturating_sub(before);
                let value = grown as f64 / (count - 1) as f64;
                readings.push(Some(Reading { value, cpu_us: None, syscalls: None }));
            }
            Ok(readings)
        })
    });
    let case = |count: &usize| {
        let case = Case::new(format!("idle connections, {count}"), "B each", Better::Lower);
        // Not plotted: next to a floor that keeps only a descriptor, every bar would be cut.
        case.relative_to(FLOOR).mark(Mark::Limit { at_most: MOST }).table_only()
    };
    Contest {
        name: "idle connections".into(),
        cases: counts.iter().map(case).collect(),
        contenders: contenders.collect(),
    }
}
