//! Tasks: futures that run on the loop.
//!
//! [`Reactor::spawn`] runs a future on the loop, which polls it whenever it is woken. [`EventLoop::block_on`] runs the
//! loop until a future is ready. Futures need not be [`Send`]: a task stays on the thread of its loop and can share
//! data with callbacks. [`Handle::spawn`](crate::Handle::spawn) starts a task from another thread.
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
//! **In a turn**, a woken task is a tick: it shares one queue with [`next_tick`](Reactor::next_tick)s and posts. A task
//! that wakes itself waits for the next turn, so it cannot starve events.
//!
//! **While it is polled**, a task reaches its reactor with [`Reactor::with_current`]. So do [`sleep`] and the streams
//! of [`net`](crate::tasks::net). Dropping any of these needs no reactor and works anywhere on the thread.
//!
//! **When the loop ends**, its tasks are dropped first, on its own thread, even if [`Waker`](std::task::Waker)s of them
//! still exist.

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

#[allow(unused_imports, reason = "used by the documentation")]
use crate::EventLoop;
use crate::Reactor;

/// Spawns a task from inside another task. See [`Reactor::spawn`].
///
/// # Panics
///
/// If there is no [current](Reactor::with_current) reactor, that is, outside of tasks.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let place = Location::caller();
    current(|reactor| reactor.spawn_from(place, future))
}

/// Yields to everything else that is ready. The task continues as a tick of the next turn.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// The future of [`yield_now`].
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
        None => panic!("there is no current reactor: call this inside one of its tasks, or in Reactor::enter"),
    }
}
