//! HTTP: servers under load, each a process of its own on one core, the load on the other.
//!
//! The floor is a hand-written epoll loop that parses heads and answers all of them with the same bytes.

mod entrants;
mod exchange;
mod idle;
mod instructions;
mod overload;
mod requests;
mod servers;
mod stage;
mod wrk;

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
use servers::Kind;
use stage::Stage;

pub use servers::{Serving, serve};

/// Connections that ask for the same at once.
const CONNECTIONS: [u32; 2] = [64, 512];

/// Requests that are sent at once where they are pipelined.
const DEPTH: u32 = 16;

/// How long a server is overloaded: long enough, also when looked at quickly, that it has to refuse something.
const OVERLOADED: Duration = Duration::from_secs(1);

/// Descriptors that a process needs besides those of the connections.
const OTHER_DESCRIPTORS: usize = 200;

/// How much is done in a window, and how many windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// How long a window is, in seconds
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,

    /// How many idle connections to hold
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=19_000))]
    idle: u32,

    /// Requests over which instructions are counted
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,

    /// Parts to run, separated by commas; hello and files need wrk, instructions needs valgrind
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "hello,files,overload,idle")]
    only: Vec<Part>,

    /// Contenders, separated by commas; the floor is always among them [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,

    /// Also count instructions per request of the floor and of pelton, under valgrind's callgrind
    #[arg(long)]
    callgrind: bool,

    /// One small window of everything, for the floor, pelton and hyper: shows that they serve, and measures nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A short answer: processor time per request, rate and latency, also with several requests at once
    Hello,
    /// Files, small and large
    Files,
    /// Twice as many requests as can be answered
    Overload,
    /// Connections that are kept: bytes each, and what they do to the others
    Idle,
    /// Instructions per request
    Instructions,
}

impl Load {
    /// Whether this measures everything there is to measure; what needs an extra tool and much time may be left out.
    pub fn is_whole(&self) -> bool {
        let everybody = cfg!(feature = "http-peers") && self.contenders.is_empty();
        let mut parts = Part::value_variants().iter().filter(|part| **part != Part::Instructions);
        everybody && !self.quick && parts.all(|part| self.only.contains(part))
    }

    /// All parts filled in; under `--quick`, no more than is needed to run through every line once.
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

    /// How long a window is where the load is not wrk, which can do nothing shorter than a second.
    fn short_window(&self) -> Duration {
        Duration::from_millis(if self.quick { 20 } else { 200 })
    }
}

/// Runs the chosen parts one after the other. The calling thread becomes the load.
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

/// Who takes part. Says who does not because it is not installed.
fn entrants(load: &Load) -> Result<Vec<Entrant>> {
    let (mut entrants, missing) = entrants::all();
    missing.iter().for_each(|line| eprintln!("{line}"));
    let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name).collect();
    for name in &load.contenders {
        ensure!(names.contains(&name.as_str()), "no contender {name:?} here; there are: {}", names.join(", "));
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
            Part::Overload => self.hold(overload::contest(&self.entrants, &self.stage, OVERLOADED)?),
            Part::Idle => {
                let count = self.load.idle as usize;
                let mut standings = idle::memory(&self.entrants, &self.stage, count).count()?;
                standings.extend(self.hold(idle::latency(&self.start()?, count, self.load.short_window()))?);
                Ok(standings)
            }
            Part::Instructions if !is_installed(callgrind::TOOL) => {
                eprintln!("{0}: not installed, so nothing is counted with it (apt-get install {0})", callgrind::TOOL);
                Ok(Vec::new())
            }
            Part::Instructions => instructions::contest(&self.entrants, &self.stage, self.load.requests).count(),
        }
    }

    /// Under `--quick`, one round is enough.
    fn hold(&self, contest: Contest<'_>) -> Result<Vec<Standing>> {
        if self.load.quick { contest.count() } else { contest.run(self.load.windows as usize) }
    }

    /// Starts everybody anew: no part is to pay for what another has left behind.
    fn start(&self) -> Result<Vec<(Entrant, Server)>> {
        self.entrants.iter().map(|entrant| Ok((entrant.clone(), entrant.start(&self.stage)?))).collect()
    }

    /// Holds contests under wrk, if that is installed.
    fn under_wrk(
        &self,
        contests: impl FnOnce(&[(Entrant, Server)], &mut dyn FnMut(Contest<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<Vec<Standing>> {
        if !wrk::is_installed() {
            eprintln!("{}: not installed, so nothing is measured with it (apt-get install wrk)", wrk::TOOL);
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

/// Prints how many instructions a request takes; see [`callgrind::print`].
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
        for whole in ["", "--callgrind", "--windows 40", "--only idle,overload,files,hello"] {
            assert_eq!(load(whole).is_whole(), cfg!(feature = "http-peers"), "{whole}");
        }
        for part in ["--quick", "--only hello", "--contenders nginx", "--only idle,overload,files"] {
            assert!(!load(part).is_whole(), "{part}");
        }
        assert!(load("--callgrind").effective().only.contains(&Part::Instructions));
    }
}
