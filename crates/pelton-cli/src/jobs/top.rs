//! `pelton jobs top`: a live table of all queues.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use pelton::{EventLoop, Reactor};
use pelton_jobs::Jobs;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Failure;
use super::metrics::{self, Queues};
use crate::units;

#[derive(Args)]
pub struct Options {
    /// Where the jobs are
    #[arg(value_name = "STORE")]
    store: String,

    /// Time between updates
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, default_value = "1s")]
    interval: Duration,

    /// Prints this many tables and exits; 0: until a signal
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    count: u64,
}

pub fn run(
    mut reactor: EventLoop,
    options: &Options,
    say: impl Fn(&str) -> io::Result<()> + Clone + 'static,
) -> Result<u8, Failure> {
    let jobs = Jobs::open(&mut reactor, &options.store)?;
    // A store that cannot be opened is an error now.
    let first = metrics::of_all(&mut reactor, &jobs)?;
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    say(&format!("{clear}{}", table(&first, None)))?;
    if options.count == 1 {
        return Ok(0);
    }
    for signal in [SIGINT, SIGTERM] {
        reactor.on_signal(signal, |reactor, _| reactor.stop())?;
    }
    let (before, interval) = (Rc::new(RefCell::new(first)), options.interval);
    let left = Rc::new(std::cell::Cell::new(options.count));
    reactor.every(interval, move |reactor, _| {
        let (before, say, left) = (before.clone(), say.clone(), left.clone());
        metrics::ask_all(reactor, &jobs).done(move |reactor: &mut Reactor, queues| {
            let text = match queues {
                Ok(queues) => {
                    let text = table(&queues, Some((&before.borrow(), interval)));
                    *before.borrow_mut() = queues;
                    text
                }
                Err(error) => format!("{error}\n"),
            };
            let printed = say(&format!("{clear}{text}"));
            left.set(left.get().saturating_sub(1));
            if left.get() == 1 || printed.is_err() {
                reactor.stop();
            }
        });
    });
    reactor.run()?;
    Ok(0)
}

/// Returns a table, with rates if there is an earlier one.
pub fn table(queues: &Queues, before: Option<(&Queues, Duration)>) -> String {
    let mut text = format!(
        "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}\n",
        "QUEUE", "READY", "BLOCKED", "DELAYED", "RUNNING", "DEAD", "OLDEST", "IN/S", "DONE/S", "FAILED/S"
    );
    for (name, stats) in queues {
        let earlier = before.and_then(|(queues, time)| {
            let (_, earlier) = queues.iter().find(|(other, _)| other == name)?;
            Some((earlier, time.as_secs_f64()))
        });
        let rate = |count: fn(&pelton_jobs::QueueStats) -> u64| match earlier {
            Some((earlier, seconds)) => format!("{:.0}", count(stats).saturating_sub(count(earlier)) as f64 / seconds),
            None => "-".to_owned(),
        };
        let paused = if stats.limits.paused { " (paused)" } else { "" };
        // Writing to memory cannot fail.
        let _ = writeln!(
            text,
            "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8.1}s {:>8} {:>8} {:>8}{paused}",
            name.escape_debug().to_string(),
            stats.ready,
            stats.blocked,
            stats.delayed,
            stats.running,
            stats.dead,
            stats.oldest as f64 / 1000.0,
            rate(|stats| stats.enqueued),
            rate(|stats| stats.done),
            rate(|stats| stats.failed),
        );
    }
    text
}
