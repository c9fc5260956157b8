//! Posts: closures from other threads, run on the loop's thread with the loop's own state.
//!
//! The closure is the same for everybody: 16 captured bytes. A window ends when the loop has run all of them. The loop has the
//! first core to itself; the posting threads share the others.

mod ours;
mod peers;

pub use peers::tokio_loop;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::harness::{Better, Case, Contender, Contest, Readings, Side, Stopwatch};
use crate::machine::{Place, pin, std_version, version};
use crate::mark::Mark;

/// The loop's own state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    count: u64,
    sum: u64,
}

impl Tally {
    /// What a posted closure does with its two captured numbers.
    fn add(&mut self, thread: u64, number: u64) {
        self.count += 1;
        self.sum += thread ^ number;
    }
}

/// Returns the contest over `posts` posts in all, from `threads` threads.
pub fn contest(threads: u64, posts: u64) -> Contest<'static> {
    let plural = if threads == 1 { "" } else { "s" };
    let name = format!("posts, {threads} thread{plural}");
    let load = Posting { threads, each: posts.div_ceil(threads) };
    let mut case = Case::new(name.clone(), "M/s", Better::Higher)
        // Uses the faster of tokio's ways to receive: beating the slower one would prove nothing.
        .mark(Mark::Times { factor: 1.5, against: vec![peers::MPSC, peers::MPSC_MANY] })
        .mark(Mark::Times { factor: 1.0, against: vec![peers::MUTEX, peers::SEG_QUEUE] });
    // The cases between one thread and four hold no surprise, and are not plotted.
    if threads == 2 {
        case = case.table_only();
    }
    let entrant = |name, version, side, window: fn(Posting) -> Result<Readings>| {
        Contender::new(name, version, side, move || window(load))
    };
    let contenders = vec![
        entrant(peers::MPSC, version("tokio"), Side::Peer, peers::mpsc),
        entrant(peers::MPSC_MANY, version("tokio"), Side::Peer, peers::mpsc_many),
        entrant(peers::MUTEX, std_version(), Side::Peer, peers::mutex_vec),
        entrant(peers::SEG_QUEUE, version("crossbeam-queue"), Side::Peer, peers::seg_queue),
        entrant("pelton Handle::post", version("pelton"), Side::Ours, ours::handle),
    ];
    Contest { name, cases: vec![case], contenders }
}

/// How many threads post, and how much.
#[derive(Clone, Copy)]
pub struct Posting {
    threads: u64,
    each: u64,
}

impl Posting {
    fn total(self) -> u64 {
        self.threads * self.each
    }

    /// Runs `post(thread, number)` on every thread at once, and times `run` until it has seen all of it.
    fn race(self, post: impl Fn(u64, u64) + Sync, run: impl FnOnce() -> Result<Tally>) -> Result<Readings> {
        let waiting = AtomicUsize::new(0);
        let gate = Barrier::new(self.threads as usize + 1);
        let (tally, elapsed) = thread::scope(|scope| {
            for thread in 0..self.threads {
                let (waiting, gate, post) = (&waiting, &gate, &post);
                scope.spawn(move || {
                    let pinned = pin(Place::Others);
                    waiting.fetch_add(1, SeqCst);
                    gate.wait();
                    // After the gate: a panic before it would make the others wait forever.
                    pinned.expect("the cores were asked for before");
                    (0..self.each).for_each(|number| post(thread, number));
                });
            }
            // Starting a thread is not measured.
            while waiting.load(SeqCst) < self.threads as usize {
                thread::yield_now();
            }
            let watch = Stopwatch::start();
            gate.wait();
            let tally = run();
            (tally, watch.stop())
        });
        let (tally, expected) = (tally.context("run the loop")?, self.expected());
        ensure!(tally == expected, "the loop saw {tally:?} instead of {expected:?}");
        Ok(vec![Some(elapsed.millions_per_second(self.total()))])
    }

    fn expected(self) -> Tally {
        let mut tally = Tally::default();
        for thread in 0..self.threads {
            (0..self.each).for_each(|number| tally.add(thread, number));
        }
        tally
    }
}
