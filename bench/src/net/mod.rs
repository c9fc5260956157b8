//! Connections: echo servers under load, each a process on one core, with the load on the other.
//!
//! The floor is a hand-written epoll loop. All servers run at the same time, and idle ones cost nothing, so windows can be short
//! and interleaved: other load on the machine affects everybody alike.

mod churn;
mod echo;
mod entrants;
mod instructions;
mod memory;
mod servers;
mod syscalls;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::callgrind;
use crate::harness::Standing;
use crate::installed::is_installed;
use crate::machine::{Place, pin};
use crate::process::Server;
use echo::Shape;
use entrants::Entrant;

pub use servers::{Kind, serve};

const SHAPES: [Shape; 7] = [
    Shape::new(64, 1),
    Shape::new(64, 50),
    Shape::new(64, 500),
    Shape::new(64, 5_000),
    Shape::new(16 << 10, 1),
    Shape::new(16 << 10, 50),
    Shape::new(16 << 10, 500),
];

/// The load under which system calls are counted.
const COUNTED: Shape = Shape::new(64, 50);

/// The loads under which instructions are counted: one message per turn, and many.
const COUNTED_BY_CALLGRIND: [Shape; 2] = [Shape::new(64, 1), COUNTED];

/// Number of concurrent short-lived clients.
const AT_ONCE: usize = 50;

/// Descriptors that a process needs besides its connections.
const OTHER_DESCRIPTORS: usize = 200;

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Length of a window, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Number of messages over which system calls and instructions are counted
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,

    /// Numbers of idle connections, ascending, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "10000,19000")]
    idle: Vec<usize>,

    /// Parts to run, separated by commas; syscalls needs strace, instructions needs valgrind
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "echo,syscalls,memory,churn")]
    only: Vec<Part>,

    /// Loads of the echo part, as bytes x connections, separated by commas: 64x50,16384x500 [default: all seven]
    #[arg(long, value_name = "LOADS", value_delimiter = ',', value_parser = shape)]
    loads: Vec<Shape>,

    /// Contenders, separated by commas; the floor always takes part [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,

    /// Also counts instructions per message of the floor and of pelton, with valgrind's callgrind
    #[arg(long)]
    callgrind: bool,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per message, rate and latency
    Echo,
    /// System calls per message
    Syscalls,
    /// Bytes per idle connection
    Memory,
    /// Short-lived connections
    Churn,
    /// Instructions per message
    Instructions,
}

fn shape(text: &str) -> Result<Shape> {
    let (size, connections) = text.split_once('x').context("not of the form BYTESxCONNECTIONS, as 64x50")?;
    let positive = |text: &str| text.parse().ok().filter(|&number: &usize| number > 0);
    let size = positive(size).with_context(|| format!("{size:?} is no number of bytes"))?;
    let connections = positive(connections).with_context(|| format!("{connections:?} is no number of connections"))?;
    Ok(Shape { size, connections })
}

impl Load {
    /// Returns whether this measures everything, except for optional parts that need an extra tool and much time.
    pub fn is_whole(&self) -> bool {
        let mut parts = Part::value_variants().iter().filter(|part| **part != Part::Instructions);
        let all = self.loads.is_empty() && self.contenders.is_empty() && parts.all(|part| self.only.contains(part));
        all && !self.quick
    }

    /// Returns how many descriptors a process needs at most.
    fn descriptors(&self, contenders: usize) -> usize {
        let echo = self.loads.iter().filter(|_| self.only.contains(&Part::Echo));
        let echo = echo.map(|shape| shape.open_at_once(contenders));
        let idle = self.idle.iter().copied().filter(|_| self.only.contains(&Part::Memory));
        echo.chain(idle).max().unwrap_or(0) + OTHER_DESCRIPTORS
    }

    fn window(&self) -> Duration {
        Duration::from_millis(self.window)
    }

    /// Fills in all loads and parts; with `--quick`, only as much as is needed to run every line once.
    fn effective(&self) -> Self {
        let mut load = self.clone();
        if load.loads.is_empty() {
            load.loads = SHAPES.to_vec();
        }
        if load.callgrind && !load.only.contains(&Part::Instructions) {
            load.only.push(Part::Instructions);
        }
        if load.quick {
            load.windows = load.windows.min(2);
            load.window = load.window.min(10);
            load.messages = load.messages.min(500);
            load.idle = vec![100, 200];
            for shape in &mut load.loads {
                shape.connections = shape.connections.min(20);
            }
            load.loads.dedup();
        }
        load
    }
}

/// Runs the selected parts one after the other. The calling thread generates the load.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    let entrants = entrants(load)?;
    crate::client::raise_descriptor_limit(load.descriptors(entrants.len()))?;
    let mut standings = Vec::new();
    for part in &load.only {
        standings.extend(run_part(*part, load, &entrants)?);
    }
    Ok(standings)
}

/// Returns the contenders. Prints which are missing.
fn entrants(load: &Load) -> Result<Vec<Entrant>> {
    let (mut entrants, missing) = entrants::all();
    missing.iter().for_each(|line| eprintln!("{line}"));
    if !load.contenders.is_empty() {
        let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name).collect();
        for name in &load.contenders {
            ensure!(
                names.contains(&name.as_str()),
                "there is no contender {name:?}; the contenders are {}",
                names.join(", ")
            );
        }
        let chosen = |name: &str| name == entrants::FLOOR || load.contenders.iter().any(|chosen| chosen == name);
        entrants.retain(|entrant| chosen(entrant.name));
    }
    Ok(entrants)
}

fn run_part(part: Part, load: &Load, entrants: &[Entrant]) -> Result<Vec<Standing>> {
    let windows = load.windows as usize;
    // Restarted for every part, so that none is affected by an earlier one.
    let start = || -> Result<Vec<(Entrant, Server)>> {
        let started = entrants.iter().map(|entrant| {
            let server = Server::start(entrant.command()?).with_context(|| format!("start {}", entrant.name))?;
            Ok((entrant.clone(), server))
        });
        started.collect()
    };
    match part {
        Part::Echo => {
            let servers = start()?;
            let run = |&shape| echo::contest(&servers, shape, load.window()).run(windows);
            let standings: Result<Vec<_>> = load.loads.iter().map(run).collect();
            Ok(standings?.into_iter().flatten().collect())
        }
        Part::Churn => churn::contest(&start()?, AT_ONCE, load.window()).run(windows),
        Part::Memory => memory::contest(entrants, &load.idle).count(),
        Part::Syscalls => counted_by(syscalls::TOOL, || {
            let servers = start()?;
            // Containers and hardened systems forbid tracing, which is no reason to fail.
            if let Some((_, server)) = servers.first()
                && let Err(error) = syscalls::try_out(server)
            {
                eprintln!("{}: {error:#}; skipping the counts that need it", syscalls::TOOL);
                return Ok(Vec::new());
            }
            syscalls::contest(&servers, COUNTED, load.messages).count()
        }),
        Part::Instructions => counted_by(callgrind::TOOL, || {
            instructions::contest(entrants, &COUNTED_BY_CALLGRIND, load.messages).count()
        }),
    }
}

/// Runs a part that needs a tool, if it is installed.
fn counted_by(tool: &str, run: impl FnOnce() -> Result<Vec<Standing>>) -> Result<Vec<Standing>> {
    if is_installed(tool) {
        return run();
    }
    eprintln!("{tool}: not installed; skipping the counts that need it");
    Ok(Vec::new())
}

/// Prints the instructions per message; see [`callgrind::print`].
pub fn print_instructions(framed: bool, connections: usize, messages: u64, most: Option<u64>) -> Result<()> {
    pin(Place::Partner)?;
    let ours = if framed { Kind::PeltonFramed } else { Kind::Pelton };
    let count = |kind| instructions::per_message(kind, Shape { connections, ..COUNTED }, messages);
    callgrind::print((count(Kind::Floor)?, count(ours)?), "message", connections, most)
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
            <Command as clap::Parser>::try_parse_from(["net"].into_iter().chain(line.split_whitespace())).unwrap().load
        };
        for whole in ["", "--callgrind", "--windows 40"] {
            assert!(load(whole).is_whole(), "{whole}");
        }
        for part in ["--quick", "--only echo", "--loads 64x50", "--contenders tokio"] {
            assert!(!load(part).is_whole(), "{part}");
        }
        assert!(load("--callgrind").effective().only.contains(&Part::Instructions));
    }

    #[test]
    fn a_load_is_bytes_by_connections() {
        assert_eq!(shape("16384x500").unwrap(), Shape::new(16 << 10, 500));
        for wrong in ["64", "64x", "x1", "0x1", "64x-1", "64x1x1"] {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
    }
}
