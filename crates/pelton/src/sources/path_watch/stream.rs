//! Changes of a path for `async` code.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{Change, PathWatchId, PathWatchOptions};
use crate::Reactor;
use crate::tasks::task::{Chore, Local};

/// How many changes may wait to be read. If there are more, they are replaced by one [`Change::Overflow`].
const MOST_WAITING: usize = 16_384;

#[derive(Default)]
struct Waiting {
    changes: VecDeque<Change>,
    waker: Option<Waker>,
    over: bool,
}

/// Held by the watch's callback, so it is dropped when the watch ends.
struct Sender(Rc<RefCell<Waiting>>);

impl Sender {
    fn wake(&self) {
        let waker = self.0.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.borrow_mut().over = true;
        self.wake();
    }
}

/// The changes at a path, one after the other, for `async` code. Dropping it ends the watch.
///
/// It is also a `futures` stream. At most 16,384 changes wait to be read. If there are more, they are replaced by one
/// [`Change::Overflow`].
///
/// ```
/// use pelton::{Change, PathChanges, Reactor};
/// # let directory = std::env::temp_dir().join(format!("pelton-changes-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
///
/// let mut reactor = Reactor::new()?;
/// reactor.block_on(async {
///     let mut changes = PathChanges::of(&directory)?;
///     std::fs::write(directory.join("new"), "")?;
///     assert!(matches!(changes.next().await, Some(Change::Created { path }) if path.ends_with("new")));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PathChanges {
    id: PathWatchId,
    waiting: Rc<RefCell<Waiting>>,
    local: Rc<Local>,
}

impl PathChanges {
    /// Watches a path. See [`Reactor::watch_path`].
    #[track_caller]
    pub fn of(path: impl AsRef<Path>) -> io::Result<PathChanges> {
        PathChanges::with(path, &PathWatchOptions::default())
    }

    /// Watches a path with [options](PathWatchOptions).
    #[track_caller]
    pub fn with(path: impl AsRef<Path>, options: &PathWatchOptions) -> io::Result<PathChanges> {
        let place = Location::caller();
        let begin = |reactor: &mut Reactor| {
            let waiting = Rc::new(RefCell::new(Waiting::default()));
            let sender = Sender(Rc::clone(&waiting));
            let callback = Box::new(move |_: &mut Reactor, changes: super::Changes| {
                let mut waiting = sender.0.borrow_mut();
                waiting.changes.extend(changes);
                if waiting.changes.len() > MOST_WAITING {
                    waiting.changes = VecDeque::from([Change::Overflow]);
                }
                drop(waiting);
                sender.wake();
            });
            let id = reactor.add_path_watch(place, path.as_ref(), options, callback)?;
            Ok(PathChanges { id, waiting, local: Rc::clone(&reactor.local) })
        };
        Reactor::with_current(begin).unwrap_or_else(|| {
            Err(io::Error::other(
                "there is no current reactor: call this inside one of its tasks, or in Reactor::enter",
            ))
        })
    }

    /// Waits for the next change. Returns `None` if the reactor has stopped. Dropping the future loses no change.
    pub async fn next(&mut self) -> Option<Change> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Returns the watch's id, for [`Reactor::label`].
    pub fn id(&self) -> PathWatchId {
        self.id
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<Change>> {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(change) = waiting.changes.pop_front() {
            return Poll::Ready(Some(change));
        }
        if waiting.over {
            return Poll::Ready(None);
        }
        waiting.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl futures_core::Stream for PathChanges {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        self.poll(context)
    }
}

impl Drop for PathChanges {
    fn drop(&mut self) {
        if !self.waiting.borrow().over {
            self.local.leave(Chore::UnwatchPath(self.id));
        }
    }
}

impl fmt::Debug for PathChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathChanges").field("id", &self.id).finish_non_exhaustive()
    }
}
