//! Requests from wrk: processor time of the server per request, requests per second, and latency.

use anyhow::{Context, Result};

use super::entrants::{Entrant, FLOOR, NGINX};
use super::stage::{Served, Stage};
use super::wrk::{self, Burst, Scheme, Shape};
use crate::harness::{Better, Case, Contender, Contest, Reading, Readings, Side};
use crate::mark::Mark;
use crate::process::Server;

/// How much processor time pelton may need, relative to the floor: for one request at a time, and pipelined, where no system call
/// hides the rest.
const MOST_PLAIN: f64 = 1.10;
const MOST_PIPELINED: f64 = 1.5;

/// How much processor time a small file may need, relative to nginx.
const MOST_SMALL: f64 = 0.8;

pub type Servers = [(Entrant, Server)];

/// Returns the contest for a short response, with this many connections and pipelined requests.
pub fn hello<'a>(servers: &'a Servers, stage: &'a Stage, connections: u32, depth: u32, seconds: u32) -> Contest<'a> {
    let shape = Shape { scheme: Scheme::Http, path: "/hello", connections, depth };
    let name = match depth {
        1 => format!("hello × {connections}"),
        _ => format!("hello × {connections}, {depth} at once"),
    };
    let peers = servers.iter().filter(|(entrant, _)| entrant.side == Side::Peer).map(|(entrant, _)| entrant.name);
    let factor = if depth == 1 { MOST_PLAIN } else { MOST_PIPELINED };
    let marks = [Mark::AtMost { factor, against: FLOOR }, Mark::Times { factor: 1.0, against: peers.collect() }].into();
    contest(servers.iter().collect(), stage, shape, name, FLOOR, marks, seconds)
}

/// Returns the contest for a file.
pub fn file<'a>(servers: &'a Servers, stage: &'a Stage, file: &Served, connections: u32, seconds: u32) -> Contest<'a> {
    let shape = Shape { scheme: Scheme::Http, path: file.path, connections, depth: 1 };
    let mark = match file.path == super::stage::SMALL.path {
        true => Mark::AtMost { factor: MOST_SMALL, against: NGINX },
        false => Mark::Times { factor: 1.0, against: vec![NGINX] },
    };
    let servers = servers.iter().filter(|(entrant, _)| entrant.serves_files()).collect();
    let name = format!("file of {} × {connections}", file.name);
    contest(servers, stage, shape, name, NGINX, vec![mark], seconds)
}

pub fn contest<'a>(
    servers: Vec<&'a (Entrant, Server)>,
    stage: &'a Stage,
    shape: Shape,
    name: String,
    reference: &'static str,
    marks: Vec<Mark>,
    seconds: u32,
) -> Contest<'a> {
    let case = |what, unit, better| Case::new(format!("{name}, {what}"), unit, better).relative_to(reference);
    let mut cases =
        vec![Case { marks, ..case("CPU", "µs", Better::Lower) }, case("rate", "k/s", Better::Higher).table_only()];
    // For pipelined requests, wrk measures only some latencies.
    if shape.depth == 1 {
        cases.extend(["p50", "p99"].map(|what| case(what, "µs", Better::Lower).table_only()));
    }
    let contenders = servers.into_iter().map(|(entrant, server)| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            measured(server, stage, shape, seconds)
        })
    });
    Contest { name, cases, contenders: contenders.collect() }
}

fn measured(server: &Server, stage: &Stage, shape: Shape, seconds: u32) -> Result<Readings> {
    let before = server.cpu_time()?;
    let burst = wrk::run(&stage.script(), server.address, shape, seconds).context("put a server under load")?;
    let cpu = server.cpu_time()? - before;
    let mut readings = readings(&burst, cpu.as_secs_f64());
    if shape.depth > 1 {
        readings.truncate(2);
    }
    Ok(readings)
}

/// Returns the readings in the order of the cases.
fn readings(burst: &Burst, cpu_seconds: f64) -> Readings {
    let cpu_us = cpu_seconds * 1e6 / burst.requests as f64;
    let reading = |value| Some(Reading { value, cpu_us: Some(cpu_us), syscalls: None });
    let rate = burst.requests as f64 / 1e3 / burst.wall.as_secs_f64();
    vec![reading(cpu_us), reading(rate), reading(burst.p50.as_secs_f64() * 1e6), reading(burst.p99.as_secs_f64() * 1e6)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_is_read_per_request_and_per_second() {
        let burst = Burst {
            requests: 1000,
            wall: Duration::from_millis(10),
            p50: Duration::from_micros(20),
            p99: Duration::from_micros(90),
        };
        let values: Vec<f64> = readings(&burst, 0.006).into_iter().map(|reading| reading.unwrap().value).collect();
        assert_eq!(values.iter().map(|value| value.round()).collect::<Vec<_>>(), [6.0, 100.0, 20.0, 90.0]);
    }
}
