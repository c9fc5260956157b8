//! Tasks: futures on the loop.

#![forbid(unsafe_code)]

mod blocking;
mod dropping;
mod faults;
mod handles;
mod many;
mod sleeping;
mod threads;
mod waking;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

/// A future that any thread can complete.
#[derive(Clone, Default)]
struct Gate(Rc<RefCell<(bool, Vec<Waker>)>>);

impl Gate {
    fn open(&self) {
        let mut gate = self.0.borrow_mut();
        gate.0 = true;
        let waiting = std::mem::take(&mut gate.1);
        drop(gate);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn wakers(&self) -> Vec<Waker> {
        self.0.borrow().1.clone()
    }
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut gate = self.0.borrow_mut();
        if gate.0 {
            return Poll::Ready(());
        }
        gate.1.push(context.waker().clone());
        Poll::Pending
    }
}

/// Records on which threads it was dropped.
#[derive(Clone, Default)]
struct Drops(Arc<std::sync::Mutex<Vec<ThreadId>>>);

impl Drops {
    fn witness(&self) -> Witness {
        Witness(self.clone())
    }

    fn threads(&self) -> Vec<ThreadId> {
        self.0.lock().unwrap().clone()
    }
}

struct Witness(Drops);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().push(thread::current().id());
    }
}
