//! Instructions per request.

use anyhow::Result;

use super::entrants::{Entrant, FLOOR, command};
use super::exchange::tried;
use super::servers::Kind;
use super::stage::Stage;
use crate::callgrind::Counted;
use crate::client::Client;
use crate::harness::{Better, Case, Contender, Contest, Reading};

/// Number of connections with a request for the server in every turn.
const AT_ONCE: [usize; 2] = [1, 50];

/// Returns the contest of the floor and pelton.
pub fn contest<'a>(entrants: &'a [Entrant], stage: &'a Stage, requests: u64) -> Contest<'a> {
    let counted = entrants.iter().filter(|entrant| matches!(entrant.kind, Kind::Floor | Kind::Pelton));
    let contenders = counted.map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let count = |at_once: &usize| {
                let value = per_request(entrant.kind, stage, *at_once, requests)?;
                Ok(Some(Reading { value, cpu_us: None, syscalls: None }))
            };
            AT_ONCE.iter().map(count).collect()
        })
    });
    let case = |at_once: &usize| {
        let name = format!("instructions, hello × {at_once}");
        Case::new(name, "each", Better::Lower).relative_to(FLOOR).table_only()
    };
    Contest { name: "instructions".into(), cases: AT_ONCE.iter().map(case).collect(), contenders: contenders.collect() }
}

/// Returns the instructions in user space per request, over `requests` requests.
pub fn per_request(kind: Kind, stage: &Stage, at_once: usize, requests: u64) -> Result<f64> {
    let counted = Counted {
        command: &|| command(kind, stage),
        client: &|server, count| Client::open(server, count, tried(server, "/hello")?),
        at_once,
    };
    counted.per_message(requests)
}
