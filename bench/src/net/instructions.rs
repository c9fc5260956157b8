//! Instructions per echoed message.

use anyhow::{Context, Result};

use super::echo::Shape;
use super::entrants::{Entrant, FLOOR, own_command};
use super::servers::Kind;
use crate::callgrind::Counted;
use crate::client::{Client, Exchange};
use crate::harness::{Better, Case, Contender, Contest, Reading};

/// Returns the contest of those `entrants` that run in this binary, under each of these loads.
pub fn contest<'a>(entrants: &'a [Entrant], shapes: &'a [Shape], messages: u64) -> Contest<'a> {
    let counted = entrants.iter().filter(|entrant| matches!(entrant.kind(), Some(Kind::Floor | Kind::Pelton)));
    let contenders = counted.map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let kind = entrant.kind().context("only this binary's own servers are counted")?;
            let count = |shape: &Shape| {
                let value = per_message(kind, *shape, messages)?;
                Ok(Some(Reading { value, cpu_us: None, syscalls: None }))
            };
            shapes.iter().map(count).collect()
        })
    });
    let case = |shape: &Shape| {
        Case::new(format!("instructions, {}", shape.name()), "each", Better::Lower).relative_to(FLOOR).table_only()
    };
    Contest { name: "instructions".into(), cases: shapes.iter().map(case).collect(), contenders: contenders.collect() }
}

/// Returns the instructions in user space per message, over `messages` messages.
pub fn per_message(kind: Kind, shape: Shape, messages: u64) -> Result<f64> {
    let counted = Counted {
        command: &|| own_command(kind),
        client: &|server, count| Client::open(server, count, Exchange::echo(shape.size)),
        at_once: shape.connections,
    };
    counted.per_message(messages)
}
