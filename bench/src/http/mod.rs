//! HTTP: servers under load, each a process on one core, with the load on the other.
//!
//! The floor is a hand-written epoll loop that parses heads and gives all requests the same response.

pub(crate) mod entrants;
pub(crate) mod exchange;
pub(crate) mod forwarding;
mod idle;
mod instructions;
mod overload;
pub(crate) mod requests;
pub(crate) mod servers;
pub(crate) mod stage;
pub(crate) mod wrk;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::callgrind;
use crate::client::raise_descriptor_limit;
use crate::harness::{Contest, Standing};
use crate::installed::is_installed;
use crate::machine::{Place, pin};
use crate::process::Server;
use entrants::Entrant;
use forwarding::Forwarding;
use servers::Kind;
use stage::Stage;

pub use servers::{Serving, serve};

/// Numbers of concurrent connections.
const CONNECTIONS: [u32; 2] = [64, 512];

/// Number of pipelined requests.
const DEPTH: u32 = 16;

/// How long a server is overloaded: long enough, even with `--quick`, that it has to refuse requests.
const OVERLOADED: Duration = Duration::from_secs(1);

/// Descriptors that a process needs besides its connections.
const OTHER_DESCRIPTORS: usize = 200;

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Length of a window, in seconds
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,

    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=19_000))]
    idle: u32,

    /// Number of requests over which instructions are counted
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,

    /// Parts to run, separated by commas; hello and files need wrk, instructions needs valgrind
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "hello,files,forward,overload,idle")]
    only: Vec<Part>,

    /// Contenders, separated by commas; the floor always takes part [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,

    /// Also counts instructions per request of the floor and of pelton, with valgrind's callgrind
    #[arg(long)]
    callgrind: bool,

    /// One small window of everything, with the floor, pelton and hyper: shows that they work; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Short responses: processor time per request, rate and latency, also pipelined
    Hello,
    /// Files, small and large
    Files,
    /// Short responses through reverse proxies
    Forward,
    /// Twice as many requests as the server can answer
    Overload,
    /// Idle connections: bytes each, and their effect on the others
    Idle,
    /// Instructions per request
    Instructions,
}

impl Load {
    /// Returns whether this measures everything, except for optional parts that need an extra tool and much time.
    pub fn is_whole(&self) -> bool {
        let everybody = cfg!(feature = "http-peers") && self.contenders.is_empty();
        let mut parts = Part::value_variants().iter().filter(|part| **part != Part::Instructions);
        everybody && !self.quick && parts.all(|part| self.only.contains(part))
    }

    /// Fills in all parts; with `--quick`, only as much as is needed to run every line once.
    fn effective(&self) -> Self {
        let mut load = self.clone();
        if load.callgrind && !load.only.contains(&Part::Instructions) {
            load.only.push(Part::Instructions);
        }
        if load.quick {
            load.idle = load.idle.min(200);
            load.requests = load.requests.min(500);
        }
        load
    }

    /// Returns the length of a window where the load is not wrk, which cannot run for less than a second.
    fn short_window(&self) -> Duration {
        Duration::from_millis(if self.quick { 20 } else { 200 })
    }
}

/// Runs the selected parts one after the other. The calling thread generates the load.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    raise_descriptor_limit(load.idle as usize + OTHER_DESCRIPTORS)?;
    let bench = Bench { load, entrants: entrants(load)?, stage: Stage::new()? };
    let mut standings = Vec::new();
    for part in &load.only {
        standings.extend(bench.run(*part)?);
    }
    Ok(standings)
}

/// Returns the contenders. Prints which are missing.
fn entrants(load: &Load) -> Result<Vec<Entrant>> {
    let (mut entrants, missing) = entrants::all();
    missing.iter().for_each(|line| eprintln!("{line}"));
    let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name).collect();
    for name in &load.contenders {
        ensure!(
            names.contains(&name.as_str()),
            "there is no contender {name:?}; the contenders are {}",
            names.join(", ")
        );
    }
    let chosen = |name: &str| {
        let quick = load.quick && [entrants::FLOOR, entrants::OURS, "hyper"].contains(&name);
        match load.contenders.as_slice() {
            [] => quick || !load.quick,
            contenders => name == entrants::FLOOR || contenders.iter().any(|chosen| chosen == name),
        }
    };
    entrants.retain(|entrant| chosen(entrant.name));
    Ok(entrants)
}

struct Bench<'a> {
    load: &'a Load,
    entrants: Vec<Entrant>,
    stage: Stage,
}

impl Bench<'_> {
    fn run(&self, part: Part) -> Result<Vec<Standing>> {
        match part {
            Part::Hello => self.under_wrk(|servers, hold| {
                for depth in [1, DEPTH] {
                    for connections in CONNECTIONS {
                        hold(requests::hello(servers, &self.stage, connections, depth, self.load.window))?;
                    }
                }
                Ok(())
            }),
            Part::Files => self.under_wrk(|servers, hold| {
                for file in [stage::SMALL, stage::LARGE] {
                    hold(requests::file(servers, &self.stage, &file, CONNECTIONS[0], self.load.window))?;
                }
                Ok(())
            }),
            Part::Forward if !wrk::is_installed() => self.under_wrk(|_, _| Ok(())),
            Part::Forward => {
                let forwarding = Forwarding::start(&self.stage)?;
                let mut standings = Vec::new();
                for connections in CONNECTIONS {
                    standings.extend(self.hold(forwarding.contest(&self.stage, connections, self.load.window))?);
                }
                Ok(standings)
            }
            Part::Overload => self.hold(overload::contest(&self.entrants, &self.stage, OVERLOADED)?),
            Part::Idle => {
                let count = self.load.idle as usize;
                let mut standings = idle::memory(&self.entrants, &self.stage, count).count()?;
                standings.extend(self.hold(idle::latency(&self.start()?, count, self.load.short_window()))?);
                Ok(standings)
            }
            Part::Instructions if !is_installed(callgrind::TOOL) => {
                eprintln!(
                    "{0}: not installed; skipping the counts that need it (apt-get install {0})",
                    callgrind::TOOL
                );
                Ok(Vec::new())
            }
            Part::Instructions => instructions::contest(&self.entrants, &self.stage, self.load.requests).count(),
        }
    }

    /// Runs a contest. With `--quick`, one round is enough.
    fn hold(&self, contest: Contest<'_>) -> Result<Vec<Standing>> {
        if self.load.quick { contest.count() } else { contest.run(self.load.windows as usize) }
    }

    /// Starts all servers anew, so that no part is affected by an earlier one.
    fn start(&self) -> Result<Vec<(Entrant, Server)>> {
        self.entrants.iter().map(|entrant| Ok((entrant.clone(), entrant.start(&self.stage)?))).collect()
    }

    /// Runs contests with wrk, if it is installed.
    fn under_wrk(
        &self,
        contests: impl FnOnce(&[(Entrant, Server)], &mut dyn FnMut(Contest<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<Vec<Standing>> {
        if !wrk::is_installed() {
            eprintln!("{}: not installed; skipping the measurements that need it (apt-get install wrk)", wrk::TOOL);
            return Ok(Vec::new());
        }
        let mut standings = Vec::new();
        contests(&self.start()?, &mut |contest| {
            standings.extend(self.hold(contest)?);
            Ok(())
        })?;
        Ok(standings)
    }
}

/// Prints the instructions per request; see [`callgrind::print`].
pub fn print_instructions(connections: usize, requests: u64, most: Option<u64>) -> Result<()> {
    pin(Place::Partner)?;
    let stage = Stage::new()?;
    let count = |kind| instructions::per_request(kind, &stage, connections, requests);
    callgrind::print((count(Kind::Floor)?, count(Kind::Pelton)?), "request", connections, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_of_everything_is_whole() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            load: Load,
        }
        let load = |line: &str| {
            <Command as clap::Parser>::try_parse_from(["http"].into_iter().chain(line.split_whitespace())).unwrap().load
        };
        for whole in ["", "--callgrind", "--windows 40", "--only idle,overload,files,forward,hello"] {
            assert_eq!(load(whole).is_whole(), cfg!(feature = "http-peers"), "{whole}");
        }
        for part in ["--quick", "--only hello", "--contenders nginx", "--only idle,overload,files"] {
            assert!(!load(part).is_whole(), "{part}");
        }
        assert!(load("--callgrind").effective().only.contains(&Part::Instructions));
    }
}
