//! Waiting with a deadline.

use std::cell::Cell;
use std::future::Future;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use pelton::{EventLoop, Exit, Reactor};

use crate::Log;

/// If a test waits longer than this for one event, it has failed.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The deadline for worker threads of a pool: pools use all processors, and so do other tests that run in parallel.
pub const POOL_DEADLINE: Duration = Duration::from_secs(30);

/// Runs the loop until it is stopped. Panics after [`DEADLINE`].
pub fn run(reactor: &mut EventLoop) -> Exit {
    let late = Rc::new(Cell::new(false));
    let flag = late.clone();
    reactor.after(DEADLINE, move |reactor| {
        flag.set(true);
        reactor.stop();
    });
    let exit = reactor.run().unwrap();
    assert!(!late.get(), "the loop was not stopped within {DEADLINE:?}");
    exit
}

/// Runs the loop until the condition holds. Panics after [`DEADLINE`].
pub fn run_until(reactor: &mut EventLoop, condition: impl FnMut(&mut Reactor) -> bool) {
    let late = reactor.after(DEADLINE, |reactor| reactor.stop());
    reactor.run_until(condition).unwrap_or_else(|error| panic!("not within {DEADLINE:?}: {error}"));
    assert!(reactor.cancel(late), "the condition was noticed only after {DEADLINE:?}");
}

/// Runs the loop until `act` has returned on another thread, and returns its result. Panics if `act` panics, or after
/// [`DEADLINE`].
///
/// A timer wakes the loop every millisecond meanwhile. Tests about lost wake-ups cannot use this.
pub fn run_with<T: Send + 'static>(reactor: &mut EventLoop, act: impl FnOnce() -> T + Send + 'static) -> T {
    let other = thread::spawn(act);
    // A sleeping loop must notice that the thread has ended.
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(reactor, |_| other.is_finished());
    reactor.cancel(waiting);
    other.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs the loop until the future is ready, and returns its output. Panics after [`DEADLINE`].
pub fn block_on<T>(reactor: &mut EventLoop, future: impl Future<Output = T>) -> T {
    let late = reactor.after(DEADLINE, |reactor| reactor.stop());
    let value = reactor.block_on(future).unwrap_or_else(|error| panic!("not within {DEADLINE:?}: {error}"));
    reactor.cancel(late);
    value
}

/// Runs one turn that does not wait.
pub fn poll(reactor: &mut EventLoop) {
    reactor.turn(Some(Duration::ZERO)).unwrap();
}

/// Counts the turns and the log entries within 30 milliseconds, for conditions that should cause next to none.
pub fn activity(reactor: &mut EventLoop, log: &Log) -> (u64, usize) {
    log.take();
    let before = reactor.stats().turns;
    let end = reactor.clock() + Duration::from_millis(30);
    while reactor.clock() < end {
        reactor.turn(Some(end - reactor.clock())).unwrap();
    }
    (reactor.stats().turns - before, log.len())
}

/// Waits, without a loop, until other threads have made the condition true. Panics after [`POOL_DEADLINE`].
pub fn wait_for(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + POOL_DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "not within {POOL_DEADLINE:?}");
        thread::yield_now();
    }
}

/// Calls `ask` every other millisecond until it returns a value, for state of another process that cannot be waited for. Panics
/// after [`DEADLINE`] and names what it waited for.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {DEADLINE:?} until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
