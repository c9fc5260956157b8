//! Python from Rust: the cost of calling a function or a coroutine, and the latency of the result.
//!
//! The loop is pinned to the first core, and its callers to the second. A process can have only one host at a time, so each
//! window starts its own.

mod calls;
mod coroutines;
mod latency;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use pelton_python::host::{Call, Config, Host, Outcome};

use crate::harness::{Contest, Standing};
use crate::machine::{Place, pin};

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Function calls per window
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,

    /// Coroutines per window
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    coroutines: u64,

    /// Round trips per window
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    trips: u64,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "calls,latency,coroutines")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Functions, many outstanding calls
    Calls,
    /// A function, one outstanding call
    Latency,
    /// Coroutines
    Coroutines,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        !self.quick && Part::value_variants().iter().all(|part| self.only.contains(part))
    }

    fn effective(&self) -> Self {
        if !self.quick {
            return self.clone();
        }
        Self {
            windows: self.windows.min(2),
            calls: self.calls.min(20_000),
            coroutines: self.coroutines.min(5_000),
            trips: self.trips.min(500),
            ..self.clone()
        }
    }
}

/// Runs the selected parts one after the other.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    let mut standings = Vec::new();
    let mut hold = |contest: Contest| contest.run(load.windows as usize).map(|more| standings.extend(more));
    for part in &load.only {
        match part {
            Part::Calls => calls::contests(load.calls)?.into_iter().try_for_each(&mut hold)?,
            Part::Latency => hold(latency::contest(load.trips)?)?,
            Part::Coroutines => coroutines::contests(load.coroutines)?.into_iter().try_for_each(&mut hold)?,
        }
    }
    Ok(standings)
}

/// Runs `work` on the second core, with a host whose loop is on the first.
fn hosting<R>(config: Config, work: impl FnOnce(&Host) -> Result<R>) -> Result<R> {
    // Threads inherit the core of the thread that starts them.
    pin(Place::Loop)?;
    let host = Host::start(config.stall(Duration::ZERO)).context("start Python")?;
    pin(Place::Partner)?;
    let done = work(&host);
    let remains = host.shutdown(Duration::from_secs(30));
    ensure!(remains.is_clean(), "some tasks did not finish: {remains:?}");
    done
}

/// Returns the version of Python.
fn python_version() -> Result<String> {
    hosting(Config::new(), |host| {
        let version = host.run("platform", "python_version", (), ()).context("ask Python for its version")?;
        Ok(version.as_str().unwrap_or("unknown").to_owned())
    })
}

/// Calls a function of a script on its own thread, on the first core, and returns its result.
fn on_the_loops_core(host: &Host, source: &'static str, function: &'static str, count: u64) -> Outcome {
    let namespace = host.namespace();
    namespace.exec(source)?.wait()?;
    namespace.submit(Call::new("__main__", function).arg(count as i64).on_worker())?.wait()
}
