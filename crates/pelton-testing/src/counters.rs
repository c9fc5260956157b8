//! Counts live values, open descriptors and faults.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton::Reactor;

/// Counts how many [`Counted`] values exist. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct Alive(Arc<AtomicUsize>);

impl Alive {
    /// The current number.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A value that [`Alive`] counts. To count values of a type, put one inside.
#[derive(Debug)]
pub struct Counted(Alive);

impl Counted {
    /// Creates a value that is counted until it is dropped. Its clones are counted, too.
    pub fn new(alive: &Alive) -> Counted {
        alive.0.fetch_add(1, Ordering::SeqCst);
        Counted(alive.clone())
    }
}

impl Clone for Counted {
    fn clone(&self) -> Counted {
        Counted::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts the panics that the reactor reports from now on. Replaces its `on_fault` hook.
pub fn count_faults(reactor: &mut Reactor) -> Rc<Cell<usize>> {
    let faults = Rc::new(Cell::new(0));
    let count = faults.clone();
    reactor.on_fault(move |_, _| count.set(count.get() + 1));
    faults
}

/// The number of open descriptors of this process, on Linux; 0 elsewhere.
pub fn descriptors() -> usize {
    if cfg!(target_os = "linux") { std::fs::read_dir("/proc/self/fd").unwrap().count() } else { 0 }
}

/// Returns how many descriptors the kernel watches for this loop. `None` if it cannot tell: only epoll can.
pub fn registered(reactor: &pelton::EventLoop) -> Option<usize> {
    use std::os::fd::AsRawFd;
    let poller = reactor.as_fd()?.as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{poller}")).ok()?;
    Some(text.lines().filter(|line| line.starts_with("tfd:")).count())
}
