//! Twice as many requests as a server can answer: it should still answer as many as it can, in time, and refuse the rest early.

mod offer;

use std::cell::Cell;
use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::entrants::Entrant;
use super::exchange::{request, tried};
use super::stage::Stage;
use crate::client::{Client, Exchange, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading, Side};
use crate::mark::Mark;
use offer::{Offer, offer};

/// How long a server may take to recover.
const SETTLING: Duration = Duration::from_secs(5);

/// A response that takes a millisecond of processor time.
const PATH: &str = "/costly";

/// Most connections that the server may have.
const CONNECTIONS: usize = 64;

/// Offered load, as a multiple of the server's capacity.
const TIMES: f64 = 2.0;

/// How much of its capacity the server may lose by refusing the rest, in percent.
const MOST_LOST: f64 = 10.0;

/// How long a response may take, in rounds. A round is the time in which all admitted connections can be answered once: a request
/// may arrive when a round has just begun, and be the last of the next.
const MOST_ROUNDS: f64 = 2.0;

/// How long a refusal may take, in rounds: it does not wait for its turn.
const MOST_ROUNDS_REFUSED: f64 = 0.5;

/// How much the server may grow between the first overload and the last, in KiB.
const MOST_GROWTH: f64 = 256.0;

/// Sends one request as soon as there is room: connections of the previous run may have to be closed first.
fn admitted(server: SocketAddrV4) -> Result<Exchange> {
    let deadline = Instant::now() + SETTLING;
    loop {
        match tried(server, PATH) {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            answered => return answered,
        }
    }
}

/// Returns the contest of pelton against its own capacity.
pub fn contest<'a>(entrants: &'a [Entrant], stage: &'a Stage, window: Duration) -> Result<Contest<'a>> {
    let mut contenders = Vec::new();
    for entrant in entrants.iter().filter(|entrant| entrant.side == Side::Ours) {
        let server = entrant.start_with(stage, &["--connections".to_owned(), CONNECTIONS.to_string()])?;
        // Memory in use after the first run.
        let settled = Cell::new(None);
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let exchange = admitted(server.address)?;
            let mut client = Client::open(server.address, CONNECTIONS / 2, exchange)?;
            let started = server.cpu_time()?;
            let burst = client.run(Until::Elapsed(window))?;
            drop(client);
            let loaded = server.cpu_time()?;
            let peak = burst.messages as f64 / burst.wall.as_secs_f64();
            let offered = offer(&Offer {
                server: server.address,
                request: request(server.address, PATH),
                rate: peak * TIMES,
                kept: CONNECTIONS / 2,
                window,
            })?;
            let overloaded = server.cpu_time()?;
            ensure!(offered.served > 0 && offered.refused > 0, "no request was served, or none refused: {offered:?}");
            ensure!(offered.failed == 0, "{} requests got no response", offered.failed);
            let memory = server.memory()?;
            let before = settled.get().unwrap_or(memory);
            settled.set(Some(before));
            let served = offered.served as f64 / offered.wall.as_secs_f64();
            let cost_at_peak = (loaded - started).as_secs_f64() / burst.messages as f64;
            let cost = (overloaded - loaded).as_secs_f64() / offered.served as f64;
            let p99_ms = |latencies: &hdrhistogram::Histogram<u64>| latencies.value_at_quantile(0.99) as f64 / 1e6;
            let round_ms = 1e3 * CONNECTIONS as f64 / peak;
            let (served_after, refused_after) = (p99_ms(&offered.served_after), p99_ms(&offered.refused_after));
            let reading = |value| Some(Reading { value, cpu_us: None, syscalls: None });
            Ok(vec![
                reading(peak / 1e3),
                reading(served / 1e3),
                reading(100.0 * (1.0 - served / peak)),
                reading(100.0 * (1.0 - cost_at_peak / cost)),
                reading(100.0 * offered.refused as f64 / (offered.served + offered.refused) as f64),
                reading(served_after),
                reading(served_after / round_ms),
                reading(refused_after),
                reading(refused_after / round_ms),
                reading(memory.saturating_sub(before) as f64 / 1024.0),
            ])
        }));
    }
    let case = |what: &str, unit, better| Case::new(format!("overload, {what}"), unit, better).table_only();
    let limited = |what, unit, at_most| case(what, unit, Better::Lower).mark(Mark::Limit { at_most });
    let cases = vec![
        case("at its peak", "k/s", Better::Higher),
        case(&format!("at {TIMES} times that"), "k/s", Better::Higher),
        limited("lost of the peak", "%", MOST_LOST),
        // Processor time excludes what others on the machine took away.
        limited("lost of the peak, by CPU", "%", MOST_LOST),
        case("refused", "%", Better::Higher),
        case("p99 of what is served", "ms", Better::Lower),
        limited("p99 of what is served", "rounds", MOST_ROUNDS),
        case("p99 of refusals", "ms", Better::Lower),
        limited("p99 of refusals", "rounds", MOST_ROUNDS_REFUSED),
        limited("growth", "KiB", MOST_GROWTH),
    ];
    Ok(Contest { name: "overload".into(), cases, contenders })
}
