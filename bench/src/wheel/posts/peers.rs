//! The peers' ways into a loop.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use crossbeam_queue::SegQueue;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use super::{Posting, Tally};
use crate::harness::Readings;
use crate::wheel::breaker::{Breaker, ready};

pub const MPSC: &str = "tokio mpsc recv";
pub const MPSC_MANY: &str = "tokio mpsc recv_many";
pub const MUTEX: &str = "Mutex<Vec> + eventfd";
pub const SEG_QUEUE: &str = "SegQueue + eventfd";

/// How many closures `recv_many` may take at once: about what a busy turn finds.
const BATCH: usize = 1024;

type Job = Box<dyn FnOnce(&mut Tally) + Send>;

fn job(thread: u64, number: u64) -> Job {
    Box::new(move |tally| tally.add(thread, number))
}

/// Returns a runtime with I/O enabled, as a loop needs it: without I/O it would wait on a condition variable.
pub fn tokio_loop() -> Result<Runtime> {
    Builder::new_current_thread().enable_io().build().context("build a tokio runtime")
}

pub fn mpsc(load: Posting) -> Result<Readings> {
    let runtime = tokio_loop()?;
    let (sender, mut receiver) = unbounded_channel::<Job>();
    load.race(
        |thread, number| assert!(sender.send(job(thread, number)).is_ok(), "the loop has gone"),
        || {
            runtime.block_on(async {
                let mut tally = Tally::default();
                while tally.count < load.total() {
                    let job = receiver.recv().await.context("all senders have gone")?;
                    job(&mut tally);
                }
                Ok(tally)
            })
        },
    )
}

pub fn mpsc_many(load: Posting) -> Result<Readings> {
    let runtime = tokio_loop()?;
    let (sender, mut receiver) = unbounded_channel::<Job>();
    load.race(
        |thread, number| assert!(sender.send(job(thread, number)).is_ok(), "the loop has gone"),
        || {
            runtime.block_on(async {
                let (mut tally, mut batch) = (Tally::default(), Vec::with_capacity(BATCH));
                while tally.count < load.total() {
                    receiver.recv_many(&mut batch, BATCH).await;
                    batch.drain(..).for_each(|job| job(&mut tally));
                }
                Ok(tally)
            })
        },
    )
}

/// Swaps the vector for an empty one and runs it outside the lock; a thread that finds it empty wakes the loop.
pub fn mutex_vec(load: Posting) -> Result<Readings> {
    let breaker = Breaker::new()?;
    let queue = Mutex::new(Vec::<Job>::new());
    load.race(
        |thread, number| {
            let job = job(thread, number);
            let was_empty = {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.push(job);
                queue.len() == 1
            };
            if was_empty {
                breaker.wake();
            }
        },
        || {
            let (mut tally, mut taken, mut ready) = (Tally::default(), Vec::new(), ready());
            while tally.count < load.total() {
                breaker.sleep(&mut ready)?;
                std::mem::swap(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner), &mut taken);
                taken.drain(..).for_each(|job| job(&mut tally));
            }
            Ok(tally)
        },
    )
}

/// A lock-free queue, and a flag that the loop sets before it sleeps: only a thread that sees it wakes the loop.
pub fn seg_queue(load: Posting) -> Result<Readings> {
    let breaker = Breaker::new()?;
    let queue = SegQueue::<Job>::new();
    let about_to_sleep = AtomicBool::new(false);
    load.race(
        |thread, number| {
            queue.push(job(thread, number));
            // The push moves the queue's tail, and the loop reads that tail after setting the flag, all sequentially consistent:
            // either this thread sees the flag or the loop sees the job.
            if about_to_sleep.load(SeqCst) && about_to_sleep.swap(false, SeqCst) {
                breaker.wake();
            }
        },
        || {
            let (mut tally, mut ready) = (Tally::default(), ready());
            while tally.count < load.total() {
                while let Some(job) = queue.pop() {
                    job(&mut tally);
                }
                if tally.count == load.total() {
                    break;
                }
                about_to_sleep.store(true, SeqCst);
                if queue.is_empty() || !about_to_sleep.swap(false, SeqCst) {
                    breaker.sleep(&mut ready)?;
                }
            }
            Ok(tally)
        },
    )
}
