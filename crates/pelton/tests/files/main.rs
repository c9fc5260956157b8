//! Files and directories, compared with `std::fs`.

mod open;
mod operations;
mod steps;
mod whole;

use std::cell::Cell;
use std::io::{self};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton::fs::Operation;
use pelton::{EventLoop, PanicPolicy, Reactor};
use pelton_testing::run_until;

/// A temporary directory, removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pelton-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path.canonicalize().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the operation on this loop.
fn outcome<T: Send + 'static>(reactor: &mut EventLoop, operation: Operation<T>) -> io::Result<T> {
    let told = Rc::new(Cell::new(None));
    let tell = told.clone();
    operation.then(reactor, move |_, outcome| tell.set(Some(outcome))).unwrap();
    let mut outcome = None;
    run_until(reactor, |_| {
        // The condition may be checked again after it held.
        outcome = outcome.take().or(told.take());
        outcome.is_some()
    });
    outcome.unwrap()
}

fn done<T: Send + 'static>(reactor: &mut EventLoop, operation: Operation<T>) -> T {
    outcome(reactor, operation).unwrap()
}

fn new_loop() -> EventLoop {
    Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap()
}
