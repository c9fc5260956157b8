//! The peers' ways to run work on another thread.

use std::collections::VecDeque;
use std::thread;

use anyhow::{Context, Result, anyhow};
use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::runtime::Builder;
use tokio::task;

use super::{IN_FLIGHT, THREADS, work};
use crate::harness::{Elapsed, Stopwatch};

pub const SPAWN_BLOCKING: &str = "tokio spawn_blocking";
pub const SPAWN_BLOCKING_NARROW: &str = "tokio spawn_blocking, 2";

type Job = Box<dyn FnOnce() -> u64 + Send>;

/// With the default number of threads.
pub fn spawn_blocking(trips: u64) -> Result<(u64, Elapsed)> {
    tokio(trips, Builder::new_current_thread().enable_io())
}

/// With as many threads as the others.
pub fn spawn_blocking_narrow(trips: u64) -> Result<(u64, Elapsed)> {
    tokio(trips, Builder::new_current_thread().enable_io().max_blocking_threads(THREADS))
}

/// Joined in the order in which they were spawned: the cheapest way to wait for several.
fn tokio(trips: u64, runtime: &mut Builder) -> Result<(u64, Elapsed)> {
    let runtime = runtime.build().context("build a tokio runtime")?;
    let watch = Stopwatch::start();
    let sum = runtime.block_on(async {
        let begin = |number| task::spawn_blocking(move || work(number));
        let mut under_way: VecDeque<_> = (0..trips.min(IN_FLIGHT)).map(begin).collect();
        let (mut sum, mut next) = (0, under_way.len() as u64);
        while let Some(first) = under_way.pop_front() {
            sum += first.await?;
            if next < trips {
                under_way.push_back(begin(next));
                next += 1;
            }
        }
        anyhow::Ok(sum)
    })?;
    Ok((sum, watch.stop()))
}

/// Threads at the ends of two channels. There is no loop: the calling thread can only wait.
pub fn channels(trips: u64) -> Result<(u64, Elapsed)> {
    let ((jobs, taken), (results, back)) = (unbounded::<Job>(), unbounded());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (taken, results) = (taken.clone(), results.clone());
            scope.spawn(move || {
                for job in taken {
                    if results.send(job()).is_err() {
                        break;
                    }
                }
            });
        }
        // Moved in, so that the threads end when this function does.
        let jobs: Sender<Job> = jobs;
        round_trips(trips, &back, |number| {
            jobs.send(Box::new(move || work(number))).map_err(|_| anyhow!("the threads have gone"))
        })
    })
}

/// rayon's pool, with a channel for the results; there is no loop here either.
pub fn rayon(trips: u64) -> Result<(u64, Elapsed)> {
    let pool = rayon_core::ThreadPoolBuilder::new().num_threads(THREADS).build().context("start rayon's threads")?;
    let (results, back) = unbounded();
    round_trips(trips, &back, |number| {
        let results = results.clone();
        pool.spawn(move || {
            // Fails only if nobody waits for it any more.
            let _ = results.send(work(number));
        });
        Ok(())
    })
}

fn round_trips(trips: u64, back: &Receiver<u64>, begin: impl Fn(u64) -> Result<()>) -> Result<(u64, Elapsed)> {
    let watch = Stopwatch::start();
    (0..trips.min(IN_FLIGHT)).try_for_each(&begin)?;
    let mut sum = 0;
    for next in IN_FLIGHT..trips + IN_FLIGHT {
        sum += back.recv().context("the threads have gone")?;
        if next < trips {
            begin(next)?;
        }
    }
    Ok((sum, watch.stop()))
}
