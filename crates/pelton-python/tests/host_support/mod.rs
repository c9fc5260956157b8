//! Shared by the tests of the host.

#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton_python::host::{Config, Host, Namespace, Outcome, Reply};

/// Deadline for everything that must finish.
pub const LONG: Duration = Duration::from_secs(60);

/// There can be one host in a process, so tests take turns.
static ONE: Mutex<()> = Mutex::new(());

/// A host, held by one test at a time.
pub struct Fixture {
    host: Host,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Fixture {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.host
    }
}

pub fn turn() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn start_with(config: Config) -> Fixture {
    let turn = turn();
    Fixture { host: Host::start(config).unwrap(), _turn: turn }
}

pub fn start() -> Fixture {
    start_with(Config::new())
}

/// Creates a namespace with these definitions.
pub fn with(host: &Host, source: &'static str) -> Namespace {
    let namespace = host.namespace();
    wait(namespace.exec(source).unwrap()).unwrap();
    namespace
}

/// Waits for an outcome, with a deadline.
#[track_caller]
pub fn wait(reply: Reply) -> Outcome {
    match reply.wait_timeout(LONG) {
        Ok(outcome) => outcome,
        Err(_) => panic!("no outcome after {LONG:?}"),
    }
}

/// Waits until a condition holds, with a deadline.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "not after {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
