//! Wake-up round trip: another thread wakes a sleeping loop, and sleeps until the loop has answered.
//!
//! Each contender has its own way to wake the loop; the answer is the same for everybody, a counter and an `unpark` (a futex).
//! The loop is pinned to the first core and the pinging thread to the second.

mod ours;
mod peers;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::harness::{Better, Case, Contender, Contest, Reading, Readings, Side, Stopwatch, quantile};
use crate::machine::{Place, pin, version};

/// Round trips to a bare eventfd, also used as a floor elsewhere.
#[cfg_attr(
    not(feature = "pyhost"),
    allow(unused_imports, reason = "only what answers by waking a thread needs it")
)]
pub use peers::bare as bare_round_trips;

/// Returns the contest over `pings` round trips.
pub fn contest(pings: u64) -> Contest<'static> {
    let cases = vec![
        Case::new("wake-up round trip, p50", "µs", Better::Lower),
        Case::new("wake-up round trip, p99", "µs", Better::Lower),
    ];
    let entrant = |name, version, side, window: fn(u64) -> Result<Readings>| {
        Contender::new(name, version, side, move || window(pings))
    };
    let contenders = vec![
        entrant("bare eventfd + epoll", version("nix"), Side::Floor, peers::bare),
        entrant("tokio mpsc recv", version("tokio"), Side::Peer, peers::tokio),
        entrant("pelton Handle::post", version("pelton"), Side::Ours, ours::handle),
    ];
    Contest { name: "wake-up".into(), cases, contenders }
}

/// The way the loop answers.
#[derive(Default)]
struct Answers {
    given: AtomicU64,
    pinger: OnceLock<Thread>,
    /// No more answers will follow.
    stopped: AtomicBool,
}

impl Answers {
    /// Called on the loop's thread, once for each ping. Returns how many it has answered.
    fn give(&self) -> u64 {
        let given = self.given.fetch_add(1, SeqCst) + 1;
        self.wake_pinger();
        given
    }

    fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.wake_pinger();
    }

    fn wake_pinger(&self) {
        if let Some(pinger) = self.pinger.get() {
            pinger.unpark();
        }
    }

    fn given(&self) -> u64 {
        self.given.load(SeqCst)
    }
}

/// Calls `ping` from another thread, each time after the answer to the one before, while `run` runs the loop until it has given
/// `pings` answers.
fn round_trips(
    pings: u64,
    answers: &Answers,
    ping: impl Fn() + Send,
    run: impl FnOnce() -> Result<()>,
) -> Result<Readings> {
    let watch = Stopwatch::start();
    let (ran, latencies) = thread::scope(|scope| {
        let pinger = scope.spawn(move || {
            let pinned = pin(Place::Partner);
            let mut latencies = Vec::with_capacity(pings as usize);
            answers.pinger.get_or_init(thread::current);
            for number in 1..=pings {
                let start = Instant::now();
                ping();
                while answers.given() < number && !answers.stopped.load(SeqCst) {
                    thread::park();
                }
                latencies.push(start.elapsed().as_secs_f64() * 1e6);
            }
            pinned.map(|()| latencies)
        });
        let ran = run();
        answers.stop();
        (ran, pinger.join())
    });
    let elapsed = watch.stop();
    ran.context("run the loop")?;
    let latencies = latencies.map_err(|_| anyhow::anyhow!("the pinging thread panicked"))??;
    let given = answers.given();
    ensure!(given == pings, "{given} answers to {pings} pings");
    let reading =
        |q| Some(Reading { value: quantile(&latencies, q), cpu_us: Some(elapsed.cpu_us(pings)), syscalls: None });
    Ok(vec![reading(0.5), reading(0.99)])
}
