//! Tasks: futures that run on the loop.
//!
//! [`Reactor::spawn`] gives a future to the loop, which polls it whenever it is woken; [`EventLoop::block_on`] turns the loop
//! until a future is ready. Futures need not be [`Send`]: a task stays on the thread of its loop, and may share what is there
//! with callbacks. [`Handle::spawn`](crate::Handle::spawn) starts one from another thread.
//!
//! ```
//! use pelton::{Reactor, task};
//! use std::time::Duration;
//!
//! let mut reactor = Reactor::new()?;
//! let sum = reactor.block_on(async {
//!     let slow = task::spawn(async {
//!         task::sleep(Duration::from_millis(2)).await;
//!         40
//!     });
//!     slow.await.unwrap() + 2
//! })?;
//! assert_eq!(sum, 42);
//! # Ok::<(), pelton::Error>(())
//! ```
//!
//! **In a turn**, a task that was woken is a tick: it stands in one queue with [`next_tick`](Reactor::next_tick)s and posts, and
//! one that wakes itself waits for the next turn, so it cannot keep events from being looked at.
//!
//! **While it is polled**, a task reaches its reactor by [`Reactor::with_current`]; so do [`sleep`] and the streams of
//! [`net`](crate::tasks::net). Dropping any of these needs no reactor, and may be done anywhere on the thread.
//!
//! **When the loop ends**, its tasks are dropped first, on its own thread, whoever still has a [`Waker`](std::task::Waker) of
//! theirs.

mod executor;
mod interval;
mod join;
mod local;
mod sleep;
mod timeout;

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use interval::{Interval, Tick, interval};
pub use join::{JoinHandle, TaskError};
pub(crate) use local::{Chore, Local};
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout};

#[allow(unused_imports, reason = "named by the documentation")]
use crate::EventLoop;
use crate::Reactor;

/// Spawns a task from inside another, as [`Reactor::spawn`] does.
///
/// # Panics
///
/// If no reactor is [current](Reactor::with_current): outside of tasks.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let place = Location::caller();
    current(|reactor| reactor.spawn_from(place, future))
}

/// Lets everything else that waits have its turn: the rest of the task runs as a tick of the next one.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// What [`yield_now`] gives.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Calls `f` with the current reactor.
#[track_caller]
fn current<T>(f: impl FnOnce(&mut Reactor) -> T) -> T {
    match Reactor::with_current(f) {
        Some(value) => value,
        None => panic!("there is no current reactor: this has to be done inside a task of one, or in Reactor::enter"),
    }
}
