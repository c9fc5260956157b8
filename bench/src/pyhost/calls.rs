//! Functions: many outstanding calls, from one caller and from twenty.

use std::collections::VecDeque;
use std::thread;

use anyhow::{Result, ensure};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, Outcome, Reply};

use super::{hosting, on_the_loops_core, python_version};
use crate::harness::{Better, Case, Contender, Contest, Elapsed, Readings, Side, Stopwatch};
use crate::machine::{Place, pin, version};
use crate::mark::Mark;

const BATCH: usize = 1_000;
const CALLERS: u64 = 20;
const OUTSTANDING: usize = 64;

/// The minimum that calling takes, from Python.
const LOOP: &str = "
import math
def calls(count):
    function = math.sqrt
    for _ in range(count): function(2.0)
    return count
";

pub fn contests(calls: u64) -> Result<Vec<Contest<'static>>> {
    let python = python_version()?;
    let case =
        |name| Case::new(name, "M/s", Better::Higher).mark(Mark::Rate { at_least: 1.5 }).relative_to("loop in Python");
    let floor = move || {
        Contender::new("loop in Python", python.clone(), Side::Floor, move || readings(calls, loop_in_python(calls)?))
    };
    let ours = |name, window: fn(u64) -> Result<Elapsed>| {
        Contender::new(name, version("pelton-python"), Side::Ours, move || readings(calls, window(calls)?))
    };
    Ok(vec![
        Contest {
            name: "math.sqrt, one caller".into(),
            cases: vec![case("math.sqrt, one caller, 1,000 outstanding")],
            contenders: vec![floor(), ours("pelton batch", batches), ours("pelton submit", replies)],
        },
        Contest {
            name: "math.sqrt, 20 callers".into(),
            cases: vec![case("math.sqrt, 20 callers, 64 outstanding each")],
            contenders: vec![floor(), ours("pelton batch", batches_of_many), ours("pelton submit", replies_of_many)],
        },
    ])
}

fn readings(calls: u64, elapsed: Elapsed) -> Result<Readings> {
    Ok(vec![Some(elapsed.millions_per_second(calls))])
}

fn call() -> Call {
    Call::new("math", "sqrt").arg(2.0)
}

fn check(outcome: &Outcome) -> Result<()> {
    ensure!(matches!(outcome, Ok(Value::Float(root)) if *root == 2f64.sqrt()), "the root of 2 is not {outcome:?}");
    Ok(())
}

fn loop_in_python(calls: u64) -> Result<Elapsed> {
    hosting(Config::new(), |host| {
        let watch = Stopwatch::start();
        let done = on_the_loops_core(host, LOOP, "calls", calls)?;
        let elapsed = watch.stop();
        ensure!(done == Value::Int(calls as i64), "{done:?} of {calls} calls were made");
        Ok(elapsed)
    })
}

/// Calls in batches, the next as soon as the one before has returned.
fn in_batches(host: &Host, calls: u64, batch: usize) -> Result<()> {
    let mut left = calls as usize;
    while left > 0 {
        let size = left.min(batch);
        for outcome in host.batch((0..size).map(|_| call()).collect())?.wait() {
            check(&outcome)?;
        }
        left -= size;
    }
    Ok(())
}

/// Calls one by one, with this many outstanding.
fn one_by_one(host: &Host, calls: u64, ahead: usize) -> Result<()> {
    let mut outstanding: VecDeque<Reply> = VecDeque::with_capacity(ahead);
    for _ in 0..calls {
        if outstanding.len() == ahead
            && let Some(oldest) = outstanding.pop_front()
        {
            check(&oldest.wait())?;
        }
        outstanding.push_back(host.submit(call())?);
    }
    outstanding.into_iter().try_for_each(|reply| check(&reply.wait()))
}

fn timed(work: impl FnOnce(&Host) -> Result<()>) -> Result<Elapsed> {
    hosting(Config::new(), |host| {
        host.run("math", "sqrt", (2.0,), ())?;
        let watch = Stopwatch::start();
        work(host)?;
        Ok(watch.stop())
    })
}

fn batches(calls: u64) -> Result<Elapsed> {
    timed(|host| in_batches(host, calls, BATCH))
}

fn replies(calls: u64) -> Result<Elapsed> {
    timed(|host| one_by_one(host, calls, BATCH))
}

fn of_many(calls: u64, work: fn(&Host, u64, usize) -> Result<()>) -> Result<Elapsed> {
    timed(|host| {
        thread::scope(|scope| {
            let caller = |number: u64| {
                let share = calls / CALLERS + u64::from(number < calls % CALLERS);
                scope.spawn(move || pin(Place::Others).and_then(|()| work(host, share, OUTSTANDING)))
            };
            let callers: Vec<_> = (0..CALLERS).map(caller).collect();
            callers.into_iter().try_for_each(|caller| match caller.join() {
                Ok(done) => done,
                Err(_) => anyhow::bail!("a calling thread panicked"),
            })
        })
    })
}

fn batches_of_many(calls: u64) -> Result<Elapsed> {
    of_many(calls, in_batches)
}

fn replies_of_many(calls: u64) -> Result<Elapsed> {
    of_many(calls, one_by_one)
}
