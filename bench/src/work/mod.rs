//! Work beside the loop: deferring, actors, tasks, promises and files.

mod actors;
mod defer;
mod files;
mod promises;
mod tasks;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::harness::{Contest, Standing};
use crate::machine::{Place, pin};

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Deferred round trips per window
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    trips: u64,

    /// Actors
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    actors: u32,

    /// Messages per window, to all actors together
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,

    /// Tasks spawned and joined per window, and wake-ups from one task to another
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    tasks: u64,

    /// Links of promises per window
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    links: u64,

    /// Small files to read per window, all at once
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,

    /// Size of the large file, in MiB. It is created in the temporary directory, and needs as much page cache
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..))]
    large: u32,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "defer,actors,tasks,promises,files")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Work on another thread, with the result back on the loop
    Defer,
    /// Messages to very many actors, from outside and among each other
    Actors,
    /// Futures that are spawned, joined and woken
    Tasks,
    /// Links of a chain of promises
    Promises,
    /// Many small files, and one large one
    Files,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        // Without the actor crates, half of the contenders are missing.
        let everybody = cfg!(feature = "actor-peers");
        everybody && !self.quick && Part::value_variants().iter().all(|part| self.only.contains(part))
    }

    /// With `--quick`, returns only as much as is needed to run every line once.
    fn effective(&self) -> Self {
        if !self.quick {
            return self.clone();
        }
        Self {
            windows: self.windows.min(2),
            trips: self.trips.min(500),
            actors: self.actors.min(100),
            messages: self.messages.min(5_000),
            tasks: self.tasks.min(2_000),
            links: self.links.min(1_000),
            files: self.files.min(20),
            large: self.large.min(4),
            ..self.clone()
        }
    }
}

/// Runs the selected parts one after the other. The calling thread becomes the loop's thread.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    let mut standings = Vec::new();
    let mut hold = |contest: Contest| contest.run(load.windows as usize).map(|more| standings.extend(more));
    for part in &load.only {
        // Threads inherit the core of the thread that starts them. The contender and the system decide which thread works for
        // whom, so only single-threaded parts are pinned.
        pin(match part {
            Part::Tasks | Part::Promises => Place::Loop,
            Part::Defer | Part::Actors | Part::Files => Place::Anywhere,
        })?;
        match part {
            Part::Defer => hold(defer::contest(load.trips))?,
            Part::Actors => {
                let stage = actors::Stage::prepare(load.actors as usize, load.messages)?;
                stage.contests().into_iter().try_for_each(&mut hold)?;
            }
            Part::Tasks => tasks::contests(load.tasks).into_iter().try_for_each(&mut hold)?,
            Part::Promises => promises::contests(load.links).into_iter().try_for_each(&mut hold)?,
            Part::Files => {
                let files = files::Files::prepare(load.files, load.large)?;
                files.contests().into_iter().try_for_each(&mut hold)?;
            }
        }
    }
    Ok(standings)
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
            <Command as clap::Parser>::try_parse_from(["work"].into_iter().chain(line.split_whitespace())).unwrap().load
        };
        for whole in ["", "--windows 40", "--only files,promises,tasks,actors,defer"] {
            assert_eq!(load(whole).is_whole(), cfg!(feature = "actor-peers"), "{whole}");
        }
        for part in ["--quick", "--only defer", "--only actors,tasks,promises,files"] {
            assert!(!load(part).is_whole(), "{part}");
        }
    }
}
