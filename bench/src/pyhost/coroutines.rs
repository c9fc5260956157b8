//! Coroutines: one that does nothing, and one that yields once.

use anyhow::{Result, ensure};
use pelton_python::Value;
use pelton_python::host::{Call, Config};

use super::{hosting, python_version};
use crate::harness::{Better, Case, Contender, Contest, Elapsed, Reading, Side, Stopwatch};
use crate::machine::version;
use crate::mark::Mark;

const PLAIN: &str = "asyncio create_task + gather";

/// Number of concurrent coroutines, on both sides.
const BATCH: u64 = 1_000;

const SOURCE: &str = "
import asyncio

async def nothing(): pass
async def turn(): await asyncio.sleep(0)

async def gathered(function, count):
    done = 0
    while done < count:
        tasks = [asyncio.create_task(function()) for _ in range(1000)]
        done += len(await asyncio.gather(*tasks))
    return done

def plain(function, count):
    loop = asyncio.SelectorEventLoop()
    try:
        return loop.run_until_complete(gathered(globals()[function], count))
    finally:
        loop.close()
";

pub fn contests(coroutines: u64) -> Result<Vec<Contest<'static>>> {
    let python = python_version()?;
    let count = coroutines.div_ceil(BATCH) * BATCH;
    let contenders = |function: &'static str, reading: fn(Elapsed, u64) -> Reading| {
        vec![
            Contender::new(PLAIN, python.clone(), Side::Peer, move || {
                Ok(vec![Some(reading(plain(function, count)?, count))])
            }),
            Contender::new("pelton batch", version("pelton-python"), Side::Ours, move || {
                Ok(vec![Some(reading(ours(function, count)?, count))])
            }),
        ]
    };
    let rate = Case::new("coroutine that does nothing", "k/s", Better::Higher).mark(Mark::Rate { at_least: 500.0 });
    let cost = Case::new("coroutine that awaits sleep(0), CPU", "ns", Better::Lower)
        .mark(Mark::AtMost { factor: 1.0, against: PLAIN });
    Ok(vec![
        Contest {
            name: rate.name.clone(),
            cases: vec![rate.relative_to(PLAIN)],
            contenders: contenders("nothing", Elapsed::thousands_per_second),
        },
        Contest {
            name: cost.name.clone(),
            cases: vec![cost.relative_to(PLAIN)],
            contenders: contenders("turn", Elapsed::cpu_ns_each),
        },
    ])
}

fn plain(function: &'static str, count: u64) -> Result<Elapsed> {
    hosting(Config::new(), |host| {
        let namespace = host.namespace();
        namespace.exec(SOURCE)?.wait()?;
        let call = Call::new("__main__", "plain").arg(function).arg(count as i64).on_worker();
        let watch = Stopwatch::start();
        let done = namespace.submit(call)?.wait()?;
        let elapsed = watch.stop();
        ensure!(done == Value::Int(count as i64), "{done:?} of {count} coroutines ran");
        Ok(elapsed)
    })
}

fn ours(function: &'static str, count: u64) -> Result<Elapsed> {
    hosting(Config::new(), |host| {
        let namespace = host.namespace();
        namespace.exec(SOURCE)?.wait()?;
        let watch = Stopwatch::start();
        for _ in 0..count / BATCH {
            let calls = (0..BATCH).map(|_| Call::new("__main__", function)).collect();
            for outcome in namespace.batch(calls)?.wait() {
                outcome?;
            }
        }
        Ok(watch.stop())
    })
}
