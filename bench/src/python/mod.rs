//! asyncio loops: callbacks, servers under load, the cost of a connection and of the import.
//!
//! Every loop is a Python process on one core that lives for the whole run and receives commands; the load is generated here, on
//! another core. All take turns in short windows.

mod instructions;
mod plain;
mod serving;
mod worker;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::client::{Client, Exchange, raise_descriptor_limit};
use crate::harness::{Better, Case, Contender, Contest, Reading, Readings, Row, Side, Standing};
use crate::machine::{Place, pin};
use crate::mark::Mark;
use crate::process::memory_of;
pub use instructions::{Counting, print as print_instructions};
use serving::{From, Served, Serving, address};
use worker::{Heap, Python, Refused, Worker};

/// Certificate of the TLS servers, relative to this workspace.
const CERTIFICATE: &str = "../python/tests/certificate.pem";

const OURS: &str = "pelton";
/// Another build of our loop, usually an older one.
const OLDER: &str = "older pelton";
const PEERS: [&str; 4] = ["asyncio", "uvloop", "rloop", "rsloop"];

/// Rows that need no load, by their names in `bench/python/rows.py`. The first ones are about callbacks alone.
const ROWS: [&str; 13] = [
    "call_soon chain",
    "call_soon burst",
    "call_later + cancel",
    "call_later firing",
    "create_task + await",
    "gather(100)",
    "sleep(0)",
    "wait_for",
    "run_in_executor",
    "call_soon_threadsafe",
    "connect + close",
    "add/remove_reader",
    "subprocess spawn",
];
const CALLBACKS: usize = 8;

/// Promised speed-up for the rows about callbacks, as a geometric mean.
const CALLBACK_FACTOR: f64 = 1.2;

/// How much longer an import may take than that of asyncio and ssl, in milliseconds.
const IMPORT_AT_MOST: f64 = 10.0;

const MEMORY: &str = "memory of an idle connection";
const IMPORT: &str = "import beyond asyncio and ssl";

/// What to measure, and for how long.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Python interpreter, with the loops to compare with installed
    #[arg(long, value_name = "PROGRAM")]
    python: PathBuf,

    /// Directory to import pelton from
    #[arg(long, value_name = "DIR")]
    package: PathBuf,

    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Length of a window, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    idle: u32,

    /// Prefixes of the rows to run, separated by commas [default: all]
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    only: Vec<String>,

    /// Loops, separated by commas; pelton always takes part [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,

    /// Directory to import another build of pelton from, to compare with: each row's mark is its number then
    #[arg(long, value_name = "DIR")]
    older: Option<PathBuf>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        !self.quick && self.only.is_empty() && self.contenders.is_empty() && self.older.is_none()
    }

    fn effective(&self) -> Self {
        let mut load = self.clone();
        if load.quick {
            (load.windows, load.window, load.idle) = (2, 20, 100);
        }
        load
    }

    fn takes(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| row.starts_with(wanted.as_str()))
    }

    fn window(&self) -> Duration {
        Duration::from_millis(self.window)
    }

    /// Returns the loops to compare with: the others, or its older build.
    fn against(&self) -> Vec<&'static str> {
        if self.older.is_some() { vec![OLDER] } else { PEERS.to_vec() }
    }
}

/// An installed loop.
struct Loop {
    name: &'static str,
    version: String,
    /// The interpreter that finds it.
    python: Python,
    worker: Rc<RefCell<Worker>>,
}

impl Loop {
    fn side(&self) -> Side {
        if self.name == OURS { Side::Ours } else { Side::Peer }
    }

    /// Returns the name of its package.
    fn package(&self) -> &'static str {
        package_of(self.name)
    }
}

fn package_of(name: &'static str) -> &'static str {
    if name == OLDER { OURS } else { name }
}

pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = load.effective();
    ensure_known(&load)?;
    raise_descriptor_limit(load.idle as usize + 200)?;
    pin(Place::Partner)?;
    let python = Python { program: load.python.clone(), package: load.package.clone(), heap: Heap::Tuned };
    let loops = start(&load, &python)?;
    let mut standings = Vec::new();
    for row in serving::ROWS.into_iter().filter(|row| load.takes(row.name)) {
        standings.extend(serve(&load, &loops, row)?);
    }
    for row in ROWS.into_iter().filter(|row| load.takes(row)) {
        standings.extend(alone(&load, &loops, row)?);
    }
    standings.extend(callbacks_on_the_whole(&standings));
    standings.extend(against_the_older_build(&standings));
    if load.takes(MEMORY) {
        standings.extend(memory(&load, &loops)?);
    }
    if load.takes(IMPORT) {
        standings.extend(import(&load, &loops)?);
    }
    Ok(standings)
}

fn ensure_known(load: &Load) -> Result<()> {
    let rows = serving::ROWS.iter().map(|row| row.name).chain(ROWS).chain([MEMORY, IMPORT]);
    let rows: Vec<&str> = rows.collect();
    for wanted in &load.only {
        let known = rows.iter().any(|row| row.starts_with(wanted.as_str()));
        ensure!(known, "no row begins with {wanted:?}; the rows are {}", rows.join(", "));
    }
    for wanted in &load.contenders {
        let known = wanted == OURS || PEERS.contains(&wanted.as_str());
        ensure!(known, "there is no loop {wanted:?}; the loops are {}, {OURS}", PEERS.join(", "));
    }
    Ok(())
}

fn start(load: &Load, python: &Python) -> Result<Vec<Loop>> {
    let wanted = |name: &str| load.contenders.is_empty() || load.contenders.iter().any(|wanted| wanted == name);
    let mut loops = Vec::new();
    let older = load.older.as_ref().map(|_| OLDER);
    for name in PEERS.into_iter().filter(|name| wanted(name)).chain(older).chain([OURS]) {
        let mut python = python.clone();
        if let Some(package) = load.older.as_ref().filter(|_| name == OLDER) {
            python.package.clone_from(package);
        }
        match Worker::start(&python, package_of(name))? {
            Ok(worker) => {
                let version = worker.version.clone();
                loops.push(Loop { name, version, python, worker: Rc::new(RefCell::new(worker)) });
            }
            Err(Refused(why)) => {
                ensure!(name != OURS, "{why}");
                eprintln!("{why}");
            }
        }
    }
    Ok(loops)
}

/// Reports a row that a contender cannot do. For a peer the row is empty; for pelton it is an error.
fn refused(name: &str, row: &str, why: &str) -> Result<()> {
    ensure!(name != OURS, "{row}: {why}");
    eprintln!("{row}: {name} cannot: {why}");
    Ok(())
}

/// A row in which our loop should be at least as fast as these.
fn a_tie_at_least(row: &str, against: Vec<&'static str>) -> Case {
    Case::new(row, "op/s", Better::Higher).mark(Mark::Times { factor: 1.0, against })
}

fn serve(load: &Load, loops: &[Loop], row: Serving) -> Result<Vec<Standing>> {
    let mut served = Vec::new();
    for one in loops {
        let started = match row.from {
            From::Rust => Served::start(&one.worker, row, &one.python)?,
            From::Python => {
                // A fresh process, because the state of the heap depends on its history.
                let python = one.python.as_it_comes();
                match Worker::start(&python, one.package())? {
                    Ok(worker) => Served::start(&Rc::new(RefCell::new(worker)), row, &python)?,
                    Err(refused) => Err(refused),
                }
            }
        };
        match started {
            Ok(server) => served.push((one, Rc::new(RefCell::new(server)))),
            Err(Refused(why)) => refused(one.name, row.name, &why)?,
        }
    }
    let contenders = served.iter().map(|(one, server)| {
        Contender::new(one.name, &one.version, one.side(), || {
            Ok(vec![Some(server.borrow_mut().window(load.window())?)])
        })
    });
    let contest = Contest {
        name: row.name.to_owned(),
        cases: vec![a_tie_at_least(row.name, load.against())],
        contenders: contenders.collect(),
    };
    let standings = contest.run(load.windows as usize)?;
    for (_, server) in served {
        Rc::into_inner(server).context("a server that is still in use")?.into_inner().end()?;
    }
    Ok(standings)
}

fn alone(load: &Load, loops: &[Loop], row: &'static str) -> Result<Vec<Standing>> {
    let seconds = load.window().as_secs_f64();
    let contenders = loops.iter().map(|one| {
        let mut gave_up = false;
        Contender::new(one.name, &one.version, one.side(), move || -> Result<Readings> {
            if gave_up {
                return Ok(vec![None]);
            }
            match one.worker.borrow_mut().run(row, seconds)? {
                Ok((value, cpu_us)) => Ok(vec![Some(Reading { value, cpu_us: Some(cpu_us), syscalls: None })]),
                Err(Refused(why)) => {
                    gave_up = true;
                    refused(one.name, row, &why)?;
                    Ok(vec![None])
                }
            }
        })
    });
    let contest = Contest {
        name: row.to_owned(),
        cases: vec![a_tie_at_least(row, load.against())],
        contenders: contenders.collect(),
    };
    contest.run(load.windows as usize)
}

/// Returns our time for the callback rows relative to the best peer of each: the geometric mean.
fn callbacks_on_the_whole(standings: &[Standing]) -> Option<Standing> {
    let of = |figure: fn(&Row) -> f64| -> Option<f64> {
        let mut logarithms = 0.0;
        for row in &ROWS[..CALLBACKS] {
            let standing = standings.iter().find(|standing| standing.case.name == *row)?;
            let ours = standing.rows.iter().find(|row| row.side == Side::Ours)?;
            let peers = standing.rows.iter().filter(|row| row.side == Side::Peer && row.contender != OLDER);
            let theirs = peers.map(figure).max_by(f64::total_cmp)?;
            logarithms += (theirs / figure(ours)).ln();
        }
        Some((logarithms / CALLBACKS as f64).exp())
    };
    let (best, median) = (of(|row| row.best)?, of(|row| row.median)?);
    let ours = standings.iter().flat_map(|standing| &standing.rows).find(|row| row.side == Side::Ours)?;
    let case = Case::new("callback rows, geometric mean", "of the best peers' time", Better::Lower)
        .mark(Mark::Limit { at_most: 1.0 / CALLBACK_FACTOR })
        .table_only();
    Some(Standing { case, rows: vec![Row { best, median, cpu_us: None, syscalls: None, ..ours.clone() }] })
}

/// Returns our time for all rows relative to that of the older build: the geometric mean.
fn against_the_older_build(standings: &[Standing]) -> Option<Standing> {
    let of = |figure: fn(&Row) -> f64| -> Option<f64> {
        let ratios = standings.iter().filter_map(|standing| {
            let of = |name: &str| standing.rows.iter().find(|row| row.contender == name).map(figure);
            Some((of(OLDER)? / of(OURS)?).ln())
        });
        let ratios: Vec<f64> = ratios.collect();
        (!ratios.is_empty()).then(|| (ratios.iter().sum::<f64>() / ratios.len() as f64).exp())
    };
    let (best, median) = (of(|row| row.best)?, of(|row| row.median)?);
    let ours = standings.iter().flat_map(|standing| &standing.rows).find(|row| row.side == Side::Ours)?;
    let case = Case::new("all rows, geometric mean", "of the older build's time", Better::Lower)
        .mark(Mark::Limit { at_most: 1.0 })
        .table_only();
    Some(Standing { case, rows: vec![Row { best, median, cpu_us: None, syscalls: None, ..ours.clone() }] })
}

/// Measures memory, each loop in a fresh process.
fn memory(load: &Load, loops: &[Loop]) -> Result<Vec<Standing>> {
    let idle = load.idle as usize;
    let contenders = loops.iter().map(|one| {
        Contender::new(one.name, &one.version, one.side(), move || -> Result<Readings> {
            let mut worker = match Worker::start(&one.python, one.package())? {
                Ok(worker) => worker,
                Err(Refused(why)) => anyhow::bail!("{why}"),
            };
            let at = match worker.serve("protocol")? {
                Ok(at) => address(&at)?,
                Err(Refused(why)) => anyhow::bail!("{why}"),
            };
            // The first connections allocate what all share.
            let mut client = Client::open(at, 100, Exchange::echo(64))?;
            let before = memory_of(worker.id())?;
            client.grow(at, 100 + idle)?;
            let each = (memory_of(worker.id())?.saturating_sub(before)) as f64 / idle as f64;
            Ok(vec![Some(Reading { value: each, cpu_us: None, syscalls: None })])
        })
    });
    let case = Case::new(MEMORY, "bytes", Better::Lower).mark(Mark::AtMost { factor: 1.0, against: "uvloop" });
    Contest { name: MEMORY.to_owned(), cases: vec![case], contenders: contenders.collect() }.count()
}

fn import(load: &Load, loops: &[Loop]) -> Result<Vec<Standing>> {
    let contenders = loops.iter().filter(|one| one.name != "asyncio").map(|one| {
        let program = format!(
            "import asyncio, ssl, time\n\
             wall, cpu = time.perf_counter(), time.process_time()\n\
             import {}\n\
             print(time.perf_counter() - wall, time.process_time() - cpu)",
            one.package()
        );
        let python = &one.python;
        Contender::new(one.name, &one.version, one.side(), move || -> Result<Readings> {
            let mut command = python.command();
            let output = command.args(["-c", &program]).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
            let output = output.with_context(|| format!("run {}", python.program.display()))?;
            let said = String::from_utf8_lossy(&output.stdout);
            let seconds: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
            let Ok([wall, cpu]) = seconds.as_deref() else { anyhow::bail!("no times of an import: {said:?}") };
            Ok(vec![Some(Reading { value: wall * 1e3, cpu_us: Some(cpu * 1e6), syscalls: None })])
        })
    });
    let case = Case::new(IMPORT, "ms", Better::Lower).mark(Mark::Limit { at_most: IMPORT_AT_MOST });
    let contest = Contest { name: IMPORT.to_owned(), cases: vec![case], contenders: contenders.collect() };
    contest.run(load.windows as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(case: &str, rows: &[(&'static str, Side, f64)]) -> Standing {
        let row = |&(contender, side, best)| Row {
            contender,
            version: "1".into(),
            side,
            best,
            median: best / 2.0,
            windows: 3,
            cpu_us: Some(1.0),
            syscalls: None,
        };
        Standing { case: a_tie_at_least(case, PEERS.to_vec()), rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn the_total_is_the_mean_of_each_rows_ratio_to_its_best_peer() {
        let row = |(index, name): (usize, &&'static str)| {
            let ours = if index % 2 == 0 { 100.0 } else { 400.0 };
            standing(name, &[("slow", Side::Peer, 50.0), ("fast", Side::Peer, 100.0), (OURS, Side::Ours, ours)])
        };
        let standings: Vec<Standing> = ROWS[..CALLBACKS].iter().enumerate().map(row).collect();
        let whole = callbacks_on_the_whole(&standings).unwrap();
        assert!((whole.rows[0].best - 0.5).abs() < 1e-9, "half of them at par, half at a quarter: {:?}", whole.rows);
        assert!((whole.rows[0].median - 0.5).abs() < 1e-9);
        assert!(callbacks_on_the_whole(&standings[1..]).is_none(), "no mean without all rows");
    }

    #[test]
    fn an_unknown_row_or_loop_is_an_error_that_names_it() {
        let load = Load {
            python: PathBuf::new(),
            package: PathBuf::new(),
            windows: 1,
            window: 1,
            idle: 1,
            only: vec!["call_soon".into()],
            contenders: vec!["uvloop".into()],
            older: None,
            quick: false,
        };
        assert!(ensure_known(&load).is_ok());
        let wrong = Load { only: vec!["call_son".into()], ..load.clone() };
        assert!(ensure_known(&wrong).unwrap_err().to_string().contains("call_son"));
        let wrong = Load { contenders: vec!["uvlop".into()], ..load };
        assert!(ensure_known(&wrong).unwrap_err().to_string().contains("uvlop"));
    }
}
