//! Short-lived connections: the cost of accepting one, echoing a byte and closing it.

use std::time::Duration;

use super::entrants::{Entrant, FLOOR};
use crate::client::come_and_go;
use crate::harness::{Better, Case, Contender, Contest, Reading};
use crate::mark::Mark;
use crate::process::Server;

/// Returns the contest, with `at_once` clients at any time.
pub fn contest<'a>(servers: &'a [(Entrant, Server)], at_once: usize, window: Duration) -> Contest<'a> {
    let contenders = servers.iter().map(|(entrant, server)| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let before = server.cpu_time()?;
            let (served, wall) = come_and_go(server.address, at_once, window)?;
            let cpu = server.cpu_time()? - before;
            let cpu_us = cpu.as_secs_f64() * 1e6 / served as f64;
            let reading = |value| Some(Reading { value, cpu_us: Some(cpu_us), syscalls: None });
            Ok(vec![reading(cpu_us), reading(served as f64 / 1e3 / wall.as_secs_f64())])
        })
    });
    let as_good_as_floor = Mark::Times { factor: 1.0, against: vec![FLOOR] };
    let cases = vec![
        Case::new("come and go, CPU", "µs", Better::Lower).relative_to(FLOOR).mark(as_good_as_floor.clone()),
        Case::new("come and go, rate", "k/s", Better::Higher).relative_to(FLOOR).mark(as_good_as_floor).table_only(),
    ];
    Contest { name: "come and go".into(), cases, contenders: contenders.collect() }
}
