//! The reactor without connections: timers, posts, wake-ups, idle turns, and the cost of statistics.

mod breaker;
mod idle;
mod posts;
mod stats;
mod timers;
mod wakeup;

#[cfg(feature = "pyhost")]
pub use wakeup::bare_round_trips;

pub use posts::tokio_loop;

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

    /// Timers per window, spread over 60 s
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    timers: u32,

    /// Posts per window, from all threads together
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    posts: u64,

    /// Round trips per window
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pings: u64,

    /// Idle turns per window
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,

    /// Events per window, for the cost of statistics
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "timers,posts,wakeup,idle,stats")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Timers,
    Posts,
    Wakeup,
    Idle,
    Stats,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        !self.quick && Part::value_variants().iter().all(|part| self.only.contains(part))
    }

    /// With `--quick`, returns only as much as is needed to run every line once.
    fn effective(&self) -> Self {
        if !self.quick {
            return self.clone();
        }
        Self {
            windows: self.windows.min(2),
            timers: self.timers.min(20_000),
            posts: self.posts.min(20_000),
            pings: self.pings.min(200),
            turns: self.turns.min(2_000),
            events: self.events.min(6_400),
            ..self.clone()
        }
    }
}

/// Runs the selected parts one after the other on the calling thread, which becomes the loop's thread.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Loop)?;
    let mut standings = Vec::new();
    let mut hold = |contest: Contest| contest.run(load.windows as usize).map(|more| standings.extend(more));
    for part in &load.only {
        match part {
            Part::Timers => timers::contests(load.timers as usize).into_iter().try_for_each(&mut hold)?,
            Part::Posts => {
                for threads in [1, 2, 4] {
                    hold(posts::contest(threads, load.posts))?;
                }
            }
            Part::Wakeup => hold(wakeup::contest(load.pings))?,
            Part::Idle => hold(idle::contest(load.turns))?,
            Part::Stats => {
                hold(stats::watches(load.events))?;
                hold(stats::ticks(load.events))?;
            }
        }
    }
    Ok(standings)
}
