//! The way in from other threads.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pelton_os::fork;
use pelton_sync::{PushError, Pushed, Receiver, SendClosure, Sender, queue};

use crate::Reactor;
use crate::reactor::lifecycle::Hold;
use crate::threads::lane::{Lane, LaneSettings, Threads};
use crate::threads::reply::{Reply, reply};

/// Work from another thread.
pub(crate) struct Post {
    pub(crate) place: &'static Location<'static>,
    pub(crate) closure: SendClosure<Reactor>,
}

/// The loop's end of the queue of posts.
pub(crate) struct Posts {
    queue: Receiver<Post>,
    /// Whether other threads have been told to wake the loop when they post.
    awaited: bool,
}

impl Posts {
    fn new(queue: Receiver<Post>) -> Posts {
        Posts { queue, awaited: false }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Post> {
        self.queue.pop()
    }

    /// Takes the oldest post out of a queue that is closed, also if its thread is still writing it.
    pub(crate) fn pop_rest(&mut self) -> Option<Post> {
        self.queue.pop_rest()
    }

    /// How many were ever taken out.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.queue.taken()
    }

    /// Makes other threads wake the loop when they post. `false` if one has posted already.
    pub(crate) fn wake_on_post(&mut self) -> bool {
        self.awaited = self.queue.sleep();
        self.awaited
    }

    /// The loop is awake: nobody has to wake it.
    pub(crate) fn loop_is_awake(&mut self) {
        if std::mem::take(&mut self.awaited) {
            self.queue.awake();
        }
    }

    /// Refuses all further posts.
    pub(crate) fn close(&mut self) {
        self.queue.close();
    }

    /// Goes on with another queue, in a forked child. Gives what waits in this one.
    pub(crate) fn replace_by(&mut self, posts: Posts) -> Vec<Post> {
        std::mem::replace(self, posts).queue.abandon()
    }
}

/// What a reactor shares with its handles.
pub(crate) struct Shared {
    posts: Sender<Post>,
    /// How many posts may wait before [`Handle::try_post`] is refused.
    bound: usize,
    waker: Waker,
    /// The thread that runs the reactor, by an address that only it has.
    thread: AtomicUsize,
    /// How many [`Hold`]s there are.
    pub(crate) holds: AtomicUsize,
    /// Whether the reactor waits for the holds to go.
    pub(crate) draining: AtomicBool,
    /// One per lane: [`Shared::lane`].
    lanes: [Threads<Handle>; Lane::ALL.len()],
    /// Tasks that were woken after the queue was closed. They must be dropped on the loop's thread, which takes them from
    /// here. `None` once there is no loop to do that.
    woken_late: Mutex<WokenLate>,
    /// In a forked child, what has taken the place of this: see `Reactor::after_fork`.
    successor: OnceLock<Arc<Shared>>,
    /// The process it belongs to, as a number of forks.
    forks: u64,
}

type WokenLate = Option<Vec<Box<dyn Send>>>;

/// An address that no other live thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Shared {
    pub(crate) fn new(bound: usize, waker: Waker, lanes: [LaneSettings; Lane::ALL.len()]) -> (Arc<Shared>, Posts) {
        Shared::with(bound, waker, Lane::ALL.map(|lane| Threads::of(lane, lanes[lane as usize])))
    }

    fn with(bound: usize, waker: Waker, lanes: [Threads<Handle>; Lane::ALL.len()]) -> (Arc<Shared>, Posts) {
        let (posts, receiver) = queue();
        let shared = Shared {
            posts,
            bound,
            waker,
            thread: AtomicUsize::new(this_thread()),
            holds: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            lanes,
            woken_late: Mutex::new(Some(Vec::new())),
            successor: OnceLock::new(),
            forks: fork::count(),
        };
        (Arc::new(shared), Posts::new(receiver))
    }

    /// In a forked child: a new queue for everybody who has a handle.
    pub(crate) fn succeed(&self) -> (Arc<Shared>, Posts) {
        let lanes = Lane::ALL.map(|lane| self.lane(lane).succeed());
        let (successor, receiver) = Shared::with(self.bound, self.waker.clone(), lanes);
        successor.holds.store(self.holds.load(Ordering::Relaxed), Ordering::Relaxed);
        successor.draining.store(self.draining.load(Ordering::Relaxed), Ordering::Relaxed);
        let successor = self.successor.get_or_init(|| successor).clone();
        (successor, receiver)
    }

    /// The one to use: this, but for a forked child.
    #[inline]
    pub(crate) fn latest(&self) -> &Shared {
        let mut latest = self;
        while let Some(successor) = latest.successor.get() {
            latest = successor;
        }
        latest
    }

    pub(crate) fn runs_here(&self) {
        // Written only when it changes: those who post read from the same cache line.
        let here = this_thread();
        if self.thread.load(Ordering::Relaxed) != here {
            self.thread.store(here, Ordering::Relaxed);
        }
    }

    /// How many posts there have been.
    #[inline]
    pub(crate) fn posted(&self) -> usize {
        self.posts.pushed()
    }

    /// Keeps a woken task that the queue has refused until the loop [drops](Shared::take_woken_late) it.
    pub(crate) fn woke_late(&self, task: impl Send + 'static) {
        match self.lock_woken_late().as_deref_mut() {
            Some(Some(tasks)) => tasks.push(Box::new(task)),
            // Left behind by a fork: the future is not ours to drop on another thread than its own.
            Some(None) | None => std::mem::forget(task),
        }
    }

    /// The tasks that were woken since the queue was closed, to be dropped.
    pub(crate) fn take_woken_late(&self) -> Vec<Box<dyn Send>> {
        let mut tasks = self.lock_woken_late();
        tasks.as_deref_mut().and_then(Option::as_mut).map(std::mem::take).unwrap_or_default()
    }

    /// There is no loop any more.
    pub(crate) fn loop_is_gone(&self) {
        // Empty, unless a fork has left some behind.
        std::mem::forget(self.lock_woken_late().and_then(|mut tasks| tasks.take()));
    }

    /// `None` in a forked child, if a thread of the parent had it locked.
    fn lock_woken_late(&self) -> Option<MutexGuard<'_, WokenLate>> {
        if self.forks != fork::count() {
            return self.woken_late.try_lock().ok();
        }
        // No user code runs under the lock, so what a panic left behind is whole.
        Some(self.woken_late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.posts.len()
    }

    pub(crate) fn lane(&self, lane: Lane) -> &Threads<Handle> {
        &self.lanes[lane as usize]
    }
}

/// The way into a reactor from other threads: may be cloned, sent and shared freely.
///
/// Once the reactor is told to [stop](Reactor::stop), or is dropped, everything is refused. Closures that were posted and did
/// not run are dropped on the loop's thread, and their replies are [lost](crate::Lost).
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// Why a post was refused. The closure comes back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError<F> {
    /// As many posts as the [builder](crate::Builder::post_bound) allows are waiting for the loop.
    #[error("post to the loop: its queue is full")]
    Full(F),
    /// The reactor has stopped, or is gone.
    #[error("post to the loop: it has stopped")]
    Gone(F),
}

impl<F> PostError<F> {
    /// The closure that was refused.
    pub fn into_inner(self) -> F {
        match self {
            PostError::Full(closure) | PostError::Gone(closure) => closure,
        }
    }
}

impl<F> fmt::Debug for PostError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PostError::Full(_) => "Full(..)",
            PostError::Gone(_) => "Gone(..)",
        })
    }
}

impl Handle {
    /// Runs `f` on the loop, in its next tick phase. Takes no lock, and allocates nothing if `f` captures at most 24
    /// bytes. However many threads post however often, the loop is woken at most once per turn.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// let other = std::thread::spawn(move || handle.post(|reactor| reactor.stop()).is_ok());
    /// reactor.run()?;
    /// assert!(other.join().unwrap());
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn post<F: FnOnce(&mut Reactor) + Send + 'static>(&self, f: F) -> Result<(), PostError<F>> {
        self.post_from(Location::caller(), f, None)
    }

    /// Like [`post`](Handle::post), but refused if as many posts as the [builder](crate::Builder::post_bound) allows are
    /// waiting to be picked up: so producers that outrun the loop notice.
    #[track_caller]
    pub fn try_post<F: FnOnce(&mut Reactor) + Send + 'static>(&self, f: F) -> Result<(), PostError<F>> {
        self.post_from(Location::caller(), f, Some(self.shared.bound))
    }

    pub(crate) fn post_from<F: FnOnce(&mut Reactor) + Send + 'static>(
        &self,
        place: &'static Location<'static>,
        f: F,
        bound: Option<usize>,
    ) -> Result<(), PostError<F>> {
        let shared = self.shared.latest();
        let post = |f| Post { place, closure: SendClosure::new(f) };
        let pushed = match bound {
            None => shared.posts.push_as(f, post),
            Some(bound) => shared.posts.try_push_as(f, bound, post),
        };
        match pushed {
            Ok(Pushed::ReceiverAwake) => Ok(()),
            Ok(Pushed::ReceiverSleeps) => {
                shared.waker.wake_by_ref();
                Ok(())
            }
            Err(PushError::Full(f)) => Err(PostError::Full(f)),
            Err(PushError::Closed(f)) => Err(PostError::Gone(f)),
        }
    }

    /// Runs `f` on the loop and gives its result as a [`Reply`]. The reply is [lost](crate::Lost) if the loop stops, or `f`
    /// panics, before there is a result.
    #[track_caller]
    pub fn post_with_reply<T, F>(&self, f: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Reactor) -> T + Send + 'static,
    {
        let (replier, answer) = reply();
        // If it is refused, the replier is dropped, and the reply is lost.
        let _ = self.post(move |reactor: &mut Reactor| replier.give(f(reactor)));
        answer
    }

    /// Runs `f` at once where that is possible: on the loop's thread, in code that the reactor was
    /// [lent](Reactor::enter) to. Posts it otherwise.
    ///
    /// Inside a callback, which has the reactor to itself, say [`Reactor::schedule`].
    #[track_caller]
    pub fn schedule<F: FnOnce(&mut Reactor) + Send + 'static>(&self, f: F) -> Result<(), PostError<F>> {
        let mut f = Some(f);
        if self.is_loop_thread() && !self.has_stopped() {
            Reactor::with_current(|reactor| {
                // Another reactor of this thread may be the current one.
                if Arc::ptr_eq(&reactor.shared, &self.shared)
                    && let Some(f) = f.take()
                {
                    f(reactor);
                }
            });
        }
        match f {
            None => Ok(()),
            Some(f) => self.post_from(Location::caller(), f, None),
        }
    }

    /// Stops the loop, as [`Reactor::stop`] does.
    #[track_caller]
    pub fn stop(&self) {
        // A loop that is gone has stopped.
        let _ = self.post(|reactor| reactor.stop());
    }

    /// Lets the loop finish what is in progress, then stops it, as [`Reactor::drain`] does.
    #[track_caller]
    pub fn drain(&self, deadline: Duration) {
        // A loop that is gone has nothing in progress.
        let _ = self.post(move |reactor| reactor.drain(deadline));
    }

    /// Says that something is in progress that [draining](Reactor::drain) should wait for.
    pub fn hold(&self) -> Hold {
        Hold::new(self.clone())
    }

    /// Whether the loop was told to [stop](Reactor::stop), or is gone: everything is refused.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// assert!(!handle.has_stopped());
    /// reactor.stop();
    /// assert!(handle.has_stopped());
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn has_stopped(&self) -> bool {
        self.shared.latest().posts.is_closed()
    }

    /// Whether this is the thread that runs the loop.
    pub fn is_loop_thread(&self) -> bool {
        self.shared.latest().thread.load(Ordering::Relaxed) == this_thread()
    }

    /// About how many posts wait to be picked up.
    pub fn pending_posts(&self) -> usize {
        self.shared.latest().waiting()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("pending_posts", &self.pending_posts()).finish_non_exhaustive()
    }
}
