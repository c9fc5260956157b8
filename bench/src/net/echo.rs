//! Echoing messages: processor time of the server per message, messages per second, and latency.

use std::time::Duration;

use anyhow::{Context, Result};

use super::entrants::{Entrant, FLOOR};
use crate::client::{Burst, Client, Exchange, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading, Readings, Side};
use crate::mark::Mark;
use crate::process::Server;

/// Most connections left open between windows, over all contenders. A process has 20,000 descriptors.
const MOST_KEPT: usize = 15_000;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes per message.
    pub size: usize,
    pub connections: usize,
}

impl Shape {
    pub const fn new(size: usize, connections: usize) -> Self {
        Self { size, connections }
    }

    pub fn name(self) -> String {
        let size = if self.size < 1024 { format!("{} B", self.size) } else { format!("{} KiB", self.size >> 10) };
        format!("{size} × {}", self.connections)
    }

    /// Returns whether the connections of this many contenders stay open between windows.
    fn is_kept(self, contenders: usize) -> bool {
        self.connections * contenders <= MOST_KEPT
    }

    /// Returns how many connections are open at once.
    pub fn open_at_once(self, contenders: usize) -> usize {
        if self.is_kept(contenders) { self.connections * contenders } else { self.connections }
    }

    /// Returns how much processor time pelton may need, relative to the floor.
    fn most_over_floor(self) -> f64 {
        // This many connections do not fit into the caches, and pelton's state per connection is larger than a descriptor.
        if self.connections >= 5_000 { 1.10 } else { 1.05 }
    }

    fn cases(self, peers: &[&'static str]) -> Vec<Case> {
        let case =
            |what, unit, better| Case::new(format!("echo {}, {what}", self.name()), unit, better).relative_to(FLOOR);
        let floor = |factor| Mark::AtMost { factor, against: FLOOR };
        let cpu = case("CPU", "µs", Better::Lower).mark(floor(self.most_over_floor()));
        let mut p99 = case("p99", "µs", Better::Lower).table_only();
        if self == Self::new(16 << 10, 500) {
            p99 = p99.mark(floor(1.2));
        }
        vec![
            cpu.mark(Mark::Times { factor: 1.0, against: peers.to_vec() }),
            case("rate", "k/s", Better::Higher).table_only(),
            case("p50", "µs", Better::Lower).table_only(),
            p99,
        ]
    }
}

/// Returns the contest of `servers` under one load, in windows of this length.
pub fn contest<'a>(servers: &'a [(Entrant, Server)], shape: Shape, window: Duration) -> Contest<'a> {
    let peers: Vec<_> = servers.iter().filter(|(entrant, _)| entrant.side == Side::Peer).map(|(e, _)| e.name).collect();
    let kept = shape.is_kept(servers.len());
    let contenders = servers.iter().map(|(entrant, server)| {
        let mut client = None;
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let mut open = match client.take() {
                Some(open) => open,
                None => Client::open(server.address, shape.connections, Exchange::echo(shape.size))?,
            };
            let readings = measured(server, &mut open, window)?;
            client = kept.then_some(open);
            Ok(readings)
        })
    });
    Contest { name: format!("echo {}", shape.name()), cases: shape.cases(&peers), contenders: contenders.collect() }
}

fn measured(server: &Server, client: &mut Client, window: Duration) -> Result<Readings> {
    let before = server.cpu_time()?;
    let burst = client.run(Until::Elapsed(window)).context("keep messages in flight")?;
    let cpu = server.cpu_time()? - before;
    Ok(readings(&burst, cpu))
}

/// Returns the readings in the order of the cases.
fn readings(burst: &Burst, cpu: Duration) -> Readings {
    let cpu_us = cpu.as_secs_f64() * 1e6 / burst.messages as f64;
    let reading = |value| Some(Reading { value, cpu_us: Some(cpu_us), syscalls: None });
    let quantile_us = |q| burst.latencies.value_at_quantile(q) as f64 / 1e3;
    let thousands_per_second = burst.messages as f64 / 1e3 / burst.wall.as_secs_f64();
    vec![reading(cpu_us), reading(thousands_per_second), reading(quantile_us(0.5)), reading(quantile_us(0.99))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;

    #[test]
    fn a_burst_is_read_per_message_and_per_second() {
        let mut latencies = Histogram::new_with_bounds(1, 1_000_000_000, 2).unwrap();
        latencies.record_n(20_000, 990).unwrap();
        latencies.record_n(900_000, 10).unwrap();
        let burst = Burst { messages: 1000, wall: Duration::from_millis(10), latencies };
        let values: Vec<f64> =
            readings(&burst, Duration::from_millis(6)).into_iter().map(|reading| reading.unwrap().value).collect();
        assert_eq!(values[..2], [6.0, 100.0]);
        assert!((values[2] / 20.0 - 1.0).abs() < 0.01 && (values[3] / 20.0 - 1.0).abs() < 0.01, "{values:?}");
    }

    #[test]
    fn connections_are_kept_open_between_windows_as_long_as_they_fit() {
        assert_eq!(Shape::new(64, 500).open_at_once(10), 5_000);
        assert_eq!(Shape::new(64, 5_000).open_at_once(10), 5_000);
    }

    #[test]
    fn loads_are_named_by_size_and_connections() {
        assert_eq!(Shape::new(64, 5_000).name(), "64 B × 5000");
        assert_eq!(Shape::new(16 << 10, 1).name(), "16 KiB × 1");
    }
}
