//! Windows, their interleaving, and the statistics over them. Every benchmark runs through here.
//!
//! A [`Contest`] is a set of contenders that do the same work. They run in many short windows, one contender after the other in
//! turn, so that other load on the machine affects all of them alike. One window may answer several questions at once (the
//! [`Case`]s), such as setting and cancelling timers.

use std::hint::black_box;
use std::io::{IsTerminal, Write, stderr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::mark::Mark;

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// The role of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Pelton.
    Ours,
    /// A common alternative.
    Peer,
    /// The minimum that the work takes: a bare system call loop that is useless by itself.
    Floor,
}

/// Whether a case is plotted, or only appears in the table and the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plotted {
    Yes,
    No,
}

/// One question: a number that every contender has a value for.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub unit: &'static str,
    pub better: Better,
    /// What pelton promises here. Without a mark, it is compared with the reference.
    pub marks: Vec<Mark>,
    /// The contender that all others are compared with. By default the best that is not pelton.
    pub relative_to: Option<&'static str>,
    pub plotted: Plotted,
}

impl Case {
    pub fn new(name: impl Into<String>, unit: &'static str, better: Better) -> Self {
        Self { name: name.into(), unit, better, marks: Vec::new(), relative_to: None, plotted: Plotted::Yes }
    }

    pub fn relative_to(mut self, contender: &'static str) -> Self {
        self.relative_to = Some(contender);
        self
    }

    pub fn mark(mut self, mark: Mark) -> Self {
        self.marks.push(mark);
        self
    }

    pub fn table_only(mut self) -> Self {
        self.plotted = Plotted::No;
        self
    }
}

/// The reading of one window for one case.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// In the unit of the case.
    pub value: f64,
    /// Processor time of the whole process, per operation.
    pub cpu_us: Option<f64>,
    /// Per operation, if counted.
    pub syscalls: Option<f64>,
}

/// The readings of one window, one for each case of the contest; `None` where the contender cannot do the work.
pub type Readings = Vec<Option<Reading>>;

/// One way of doing the work.
pub struct Contender<'a> {
    pub name: &'static str,
    pub version: String,
    pub side: Side,
    window: Box<dyn FnMut() -> Result<Readings> + 'a>,
}

impl<'a> Contender<'a> {
    /// Creates a contender. `window` does the work once, and must fail if not all of it was done.
    pub fn new(
        name: &'static str,
        version: impl Into<String>,
        side: Side,
        window: impl FnMut() -> Result<Readings> + 'a,
    ) -> Self {
        Self { name, version: version.into(), side, window: Box::new(window) }
    }
}

/// Contenders that do the same work.
pub struct Contest<'a> {
    pub name: String,
    pub cases: Vec<Case>,
    pub contenders: Vec<Contender<'a>>,
}

/// The result of one contender in one case, over all windows.
#[derive(Clone, Debug)]
pub struct Row {
    pub contender: &'static str,
    pub version: String,
    pub side: Side,
    pub best: f64,
    pub median: f64,
    pub windows: usize,
    pub cpu_us: Option<f64>,
    pub syscalls: Option<f64>,
}

/// A case with the results of all contenders.
#[derive(Clone, Debug)]
pub struct Standing {
    pub case: Case,
    pub rows: Vec<Row>,
}

impl Standing {
    /// Returns the row that this case is compared with: the one that the case names, or the best that is not ours.
    pub fn reference(&self) -> Option<&Row> {
        match self.case.relative_to {
            Some(named) => self.rows.iter().find(|row| row.contender == named),
            None => self.best_of(|row| row.side != Side::Ours),
        }
    }

    /// Returns the best row among those that are `eligible`.
    pub fn best_of(&self, eligible: impl Fn(&Row) -> bool) -> Option<&Row> {
        self.rows.iter().filter(|row| eligible(row)).min_by(|a, b| match self.case.better {
            Better::Lower => a.best.total_cmp(&b.best),
            Better::Higher => b.best.total_cmp(&a.best),
        })
    }

    /// Returns how many times as costly `row` is as `other`: below 1 is better, whichever direction the unit has.
    pub fn relative_cost(&self, row: &Row, other: &Row) -> f64 {
        match self.case.better {
            Better::Lower => row.best / other.best,
            Better::Higher => other.best / row.best,
        }
    }
}

impl Contest<'_> {
    /// Runs `windows` rounds after one warm-up round that does not count.
    pub fn run(self, windows: usize) -> Result<Vec<Standing>> {
        ensure!(windows > 0, "{}: at least one window is needed", self.name);
        self.rounds(0..=windows)
    }

    /// Runs one round, for values that are counted, not timed: these need no warm-up and do not vary.
    pub fn count(self) -> Result<Vec<Standing>> {
        self.rounds(1..=1)
    }

    /// Runs these rounds; number 0 does not count.
    fn rounds(mut self, rounds: RangeInclusive<usize>) -> Result<Vec<Standing>> {
        let windows = *rounds.end();
        let entrants = self.contenders.len();
        announce(format_args!("{} · {entrants} contenders, windows each: {windows}", self.name));
        let mut taken: Vec<Vec<Vec<Reading>>> = vec![vec![Vec::new(); self.cases.len()]; entrants];
        for round in rounds {
            // Each round starts one further on, so that no contender always follows the same one.
            for index in (0..entrants).map(|offset| (offset + round) % entrants) {
                let contender = &mut self.contenders[index];
                progress(format_args!("{} · window {round}/{windows} · {}", self.name, contender.name));
                settle_heap();
                let readings =
                    (contender.window)().with_context(|| format!("{}: contender {}", self.name, contender.name))?;
                ensure!(
                    readings.len() == self.cases.len(),
                    "{}: {} answered {} of {} cases",
                    self.name,
                    contender.name,
                    readings.len(),
                    self.cases.len()
                );
                if round > 0 {
                    for (of_case, reading) in taken[index].iter_mut().zip(readings) {
                        of_case.extend(reading);
                    }
                }
            }
        }
        clear_progress();
        Ok(self.standings(&taken))
    }

    fn standings(self, taken: &[Vec<Vec<Reading>>]) -> Vec<Standing> {
        let contenders = &self.contenders;
        let rows_of = |index: usize, case: &Case| {
            let entered = contenders.iter().zip(taken).filter(|(_, of_case)| !of_case[index].is_empty());
            entered.map(|(contender, of_case)| row(contender, case.better, &of_case[index])).collect()
        };
        self.cases.into_iter().enumerate().map(|(index, case)| Standing { rows: rows_of(index, &case), case }).collect()
    }
}

fn row(contender: &Contender, better: Better, readings: &[Reading]) -> Row {
    let values: Vec<f64> = readings.iter().map(|reading| reading.value).collect();
    let least = |figure: fn(&Reading) -> Option<f64>| readings.iter().filter_map(figure).min_by(f64::total_cmp);
    Row {
        contender: contender.name,
        version: contender.version.clone(),
        side: contender.side,
        best: best(&values, better),
        median: quantile(&values, 0.5),
        windows: values.len(),
        cpu_us: least(|reading| reading.cpu_us),
        syscalls: least(|reading| reading.syscalls),
    }
}

/// Returns the best of `values`, which must not be empty. On a shared machine, noise only makes things slower, so this is the
/// most stable estimate.
pub fn best(values: &[f64], better: Better) -> f64 {
    let pick = match better {
        Better::Lower => f64::min,
        Better::Higher => f64::max,
    };
    values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
}

/// Returns the `q` quantile (0 to 1), interpolated between neighbours.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let rank = q * last as f64;
    let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * rank.fract()
}

/// Measures wall-clock and processor time together.
pub struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

/// The times that a [`Stopwatch`] measured.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed {
    pub wall: Duration,
    /// Of all threads of the process, in user space and in the kernel.
    pub cpu: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { cpu: process_cpu_time(), wall: Instant::now() }
    }

    pub fn stop(self) -> Elapsed {
        let wall = self.wall.elapsed();
        Elapsed { wall, cpu: process_cpu_time() - self.cpu }
    }
}

impl Elapsed {
    pub fn cpu_us(self, operations: u64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / operations as f64
    }

    /// Returns nanoseconds of processor time per operation. For one thread that never sleeps, this is its wall time without the
    /// time that others on the machine took away.
    pub fn cpu_ns_each(self, operations: u64) -> Reading {
        let cpu_us = self.cpu_us(operations);
        Reading { value: cpu_us * 1e3, cpu_us: Some(cpu_us), syscalls: None }
    }

    /// Returns milliseconds of wall time, for work that was done once.
    pub fn milliseconds(self) -> Reading {
        Reading { value: self.wall.as_secs_f64() * 1e3, cpu_us: Some(self.cpu_us(1)), syscalls: None }
    }

    /// Returns thousand operations per second of wall time.
    pub fn thousands_per_second(self, operations: u64) -> Reading {
        let millions = self.millions_per_second(operations);
        Reading { value: millions.value * 1e3, ..millions }
    }

    /// Returns million operations per second of wall time.
    pub fn millions_per_second(self, operations: u64) -> Reading {
        let value = operations as f64 / 1e6 / self.wall.as_secs_f64();
        Reading { value, cpu_us: Some(self.cpu_us(operations)), syscalls: None }
    }
}

impl std::ops::Add for Elapsed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { wall: self.wall + other.wall, cpu: self.cpu + other.cpu }
    }
}

fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Merges freed blocks, so that the allocations of a window have the same layout for everybody. Otherwise they would be scattered
/// in the order in which the previous window freed its blocks, which alone can double the cost of a timer.
fn settle_heap() {
    // glibc merges its free lists when a block of more than 64 KiB is freed that was not mapped separately (128 KiB).
    drop(black_box(Vec::<u8>::with_capacity(96 << 10)));
}

/// Announces the next step if progress is not shown: in a log, a line per window would be too much.
fn announce(what: std::fmt::Arguments) {
    if !stderr().is_terminal() {
        let _ = writeln!(stderr(), "{what}");
    }
}

fn progress(what: std::fmt::Arguments) {
    if stderr().is_terminal() {
        // Measuring continues even if the terminal is gone.
        let _ = write!(stderr(), "\r\x1b[K{what}");
    }
}

fn clear_progress() {
    progress(format_args!(""));
}

#[cfg(test)]
mod tests;
