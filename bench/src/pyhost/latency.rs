//! One outstanding call: the latency of the result.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pelton_python::Value;
use pelton_python::host::Config;

use super::hosting;
use crate::harness::{Better, Case, Contender, Contest, Reading, Readings, Side, Stopwatch, quantile};
use crate::machine::{Place, pin, version};
use crate::mark::Mark;
use crate::wheel::bare_round_trips;

const FLOOR: &str = "bare eventfd + epoll";

/// How long a loop spins before it sleeps, where it does.
const SPIN: Duration = Duration::from_micros(100);

pub fn contest(trips: u64) -> Result<Contest<'static>> {
    let mark = Mark::Above { at_most: 5.0, contender: FLOOR };
    let cases = vec![
        Case::new("math.sqrt, one outstanding, p50", "µs", Better::Lower).relative_to(FLOOR).mark(mark),
        Case::new("math.sqrt, one outstanding, p99", "µs", Better::Lower).relative_to(FLOOR).table_only(),
    ];
    let ours = |name, spin| Contender::new(name, version("pelton-python"), Side::Ours, move || trips_with(trips, spin));
    let contenders = vec![
        Contender::new(FLOOR, version("nix"), Side::Floor, move || {
            pin(Place::Loop)?;
            bare_round_trips(trips)
        }),
        ours("pelton", Duration::ZERO),
        ours("pelton, spinning", SPIN),
    ];
    Ok(Contest { name: "math.sqrt, one outstanding".into(), cases, contenders })
}

fn trips_with(trips: u64, spin: Duration) -> Result<Readings> {
    hosting(Config::new().spin(spin), |host| {
        host.run("math", "sqrt", (2.0,), ())?;
        let mut latencies = Vec::with_capacity(trips as usize);
        let watch = Stopwatch::start();
        for _ in 0..trips {
            let start = Instant::now();
            let root = host.run("math", "sqrt", (2.0,), ())?;
            latencies.push(start.elapsed().as_secs_f64() * 1e6);
            ensure!(root == Value::Float(2f64.sqrt()), "the root of 2 is not {root:?}");
        }
        let elapsed = watch.stop();
        let reading =
            |q| Some(Reading { value: quantile(&latencies, q), cpu_us: Some(elapsed.cpu_us(trips)), syscalls: None });
        Ok(vec![reading(0.5), reading(0.99)])
    })
}
