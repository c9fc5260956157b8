//! Tasks: futures that are spawned and joined, in batches and one at a time; and two tasks that wake each other.
//!
//! Both sides run them on one thread, where they need not be `Send`: pelton on its loop, tokio in a `LocalSet` of a runtime with
//! I/O enabled.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use anyhow::{Context, Result, ensure};
use pelton::Reactor;
use tokio::task::LocalSet;

use crate::harness::{Better, Case, Contender, Contest, Elapsed, Readings, Side, Stopwatch};
use crate::machine::version;
use crate::mark::Mark;
use crate::wheel::tokio_loop;

/// Tasks that are spawned before the first is joined.
const BATCH: u64 = 1_000;

const TOKIO: &str = "tokio LocalSet";

/// A loop that runs tasks.
trait Executor {
    /// Runs `main` on the loop, to its end.
    fn block_on<F: Future>(&mut self, main: F) -> Result<F::Output>;

    /// Spawns a task. The returned future yields its result.
    fn spawn(future: impl Future<Output = u64> + 'static) -> impl Future<Output = Result<u64>> + 'static;
}

struct Pelton(pelton::EventLoop);

impl Executor for Pelton {
    fn block_on<F: Future>(&mut self, main: F) -> Result<F::Output> {
        Ok(self.0.block_on(main)?)
    }

    fn spawn(future: impl Future<Output = u64> + 'static) -> impl Future<Output = Result<u64>> + 'static {
        let task = pelton::task::spawn(future);
        async { Ok(task.await?) }
    }
}

struct Tokio(tokio::runtime::Runtime, LocalSet);

impl Executor for Tokio {
    fn block_on<F: Future>(&mut self, main: F) -> Result<F::Output> {
        Ok(self.1.block_on(&self.0, main))
    }

    fn spawn(future: impl Future<Output = u64> + 'static) -> impl Future<Output = Result<u64>> + 'static {
        let task = tokio::task::spawn_local(future);
        async { Ok(task.await?) }
    }
}

/// Returns the contests over `tasks` tasks, and as many wake-ups.
pub fn contests(tasks: u64) -> Vec<Contest<'static>> {
    vec![
        contest("task spawn + join, by 1,000", tasks, batches::<Pelton>, batches::<Tokio>),
        contest("task spawn + join, one by one", tasks, one_by_one::<Pelton>, one_by_one::<Tokio>),
        contest("task wakes task", tasks, ping_pong::<Pelton>, ping_pong::<Tokio>),
    ]
}

fn contest(
    name: &'static str,
    tasks: u64,
    ours: fn(&mut Pelton, u64) -> Result<Elapsed>,
    tokio: fn(&mut Tokio, u64) -> Result<Elapsed>,
) -> Contest<'static> {
    let readings = move |elapsed: Elapsed| -> Readings { vec![Some(elapsed.cpu_ns_each(tasks))] };
    let case = Case::new(name, "ns", Better::Lower).mark(Mark::Times { factor: 1.0, against: vec![TOKIO] });
    let contenders = vec![
        Contender::new(TOKIO, version("tokio"), Side::Peer, move || {
            tokio(&mut Tokio(tokio_loop()?, LocalSet::new()), tasks).map(readings)
        }),
        Contender::new("pelton spawn", version("pelton"), Side::Ours, move || {
            ours(&mut Pelton(Reactor::new().context("make a reactor")?), tasks).map(readings)
        }),
    ];
    Contest { name: name.into(), cases: vec![case], contenders }
}

fn batches<E: Executor>(executor: &mut E, tasks: u64) -> Result<Elapsed> {
    let (sum, elapsed) = executor.block_on(async {
        let (mut sum, mut spawned) = (0, Vec::with_capacity(BATCH as usize));
        let watch = Stopwatch::start();
        for start in (0..tasks).step_by(BATCH as usize) {
            let end = tasks.min(start + BATCH);
            spawned.extend((start..end).map(|number| E::spawn(async move { number })));
            for task in spawned.drain(..) {
                sum += task.await?;
            }
        }
        anyhow::Ok((sum, watch.stop()))
    })??;
    check(sum, tasks)?;
    Ok(elapsed)
}

fn one_by_one<E: Executor>(executor: &mut E, tasks: u64) -> Result<Elapsed> {
    let (sum, elapsed) = executor.block_on(async {
        let mut sum = 0;
        let watch = Stopwatch::start();
        for number in 0..tasks {
            sum += E::spawn(async move { number }).await?;
        }
        anyhow::Ok((sum, watch.stop()))
    })??;
    check(sum, tasks)?;
    Ok(elapsed)
}

fn check(sum: u64, tasks: u64) -> Result<()> {
    let expected: u64 = (0..tasks).sum();
    ensure!(sum == expected, "the results of {tasks} tasks add up to {sum} instead of {expected}");
    Ok(())
}

/// A ball that is played back and forth: each player waits until it has it, counts, and wakes the other.
#[derive(Default)]
struct Ball {
    /// How often it has been played. Even: the first player has it.
    played: Cell<u64>,
    waiting: RefCell<Option<Waker>>,
}

impl Ball {
    async fn play(self: Rc<Self>, parity: u64, end: u64) -> u64 {
        let mut mine = 0;
        poll_fn(|context| {
            while self.played.get() < end && self.played.get() % 2 == parity {
                self.played.set(self.played.get() + 1);
                mine += 1;
                // To be woken by the other player when that one has played.
                if let Some(other) = self.waiting.replace(Some(context.waker().clone())) {
                    other.wake();
                }
            }
            if self.played.get() >= end {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if waiting.is_none() {
                *waiting = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        mine
    }
}

fn ping_pong<E: Executor>(executor: &mut E, wakes: u64) -> Result<Elapsed> {
    let (sum, elapsed) = executor.block_on(async {
        let ball = Rc::new(Ball::default());
        let watch = Stopwatch::start();
        // The second player first, so that the other finds it waiting.
        let second = E::spawn(ball.clone().play(1, wakes));
        let first = E::spawn(ball.play(0, wakes));
        let sum = first.await? + second.await?;
        anyhow::Ok((sum, watch.stop()))
    })??;
    ensure!(sum == wakes, "{sum} wake-ups instead of {wakes}");
    Ok(elapsed)
}
