//! The handle: access to a loop from other threads.

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

/// A closure from another thread.
pub(crate) struct Post {
    pub(crate) place: &'static Location<'static>,
    pub(crate) closure: SendClosure<Reactor>,
}

/// The loop's end of the post queue.
pub(crate) struct Posts {
    queue: Receiver<Post>,
    /// Whether other threads have been asked to wake the loop when they post.
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

    /// Pops the oldest post of a closed queue, even if its thread is still writing it.
    pub(crate) fn pop_rest(&mut self) -> Option<Post> {
        self.queue.pop_rest()
    }

    /// Returns how many posts have been taken in total.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.queue.taken()
    }

    /// Makes other threads wake the loop when they post. Returns `false` if one has already posted.
    pub(crate) fn wake_on_post(&mut self) -> bool {
        self.awaited = self.queue.sleep();
        self.awaited
    }

    /// Marks the loop as awake, so that nobody wakes it.
    pub(crate) fn loop_is_awake(&mut self) {
        if std::mem::take(&mut self.awaited) {
            self.queue.awake();
        }
    }

    /// Refuses all further posts.
    pub(crate) fn close(&mut self) {
        self.queue.close();
    }

    /// Switches to another queue in a forked child. Returns the posts left in this one.
    pub(crate) fn replace_by(&mut self, posts: Posts) -> Vec<Post> {
        std::mem::replace(self, posts).queue.abandon()
    }
}

/// The state that a reactor shares with its handles.
pub(crate) struct Shared {
    posts: Sender<Post>,
    /// How many posts may be waiting before [`Handle::try_post`] fails.
    bound: usize,
    waker: Waker,
    /// The thread that runs the reactor, identified by an address unique to it.
    thread: AtomicUsize,
    /// The number of [`Hold`]s.
    pub(crate) holds: AtomicUsize,
    /// Whether the reactor waits for the holds to be dropped.
    pub(crate) draining: AtomicBool,
    /// One per lane. See [`Shared::lane`].
    lanes: [Threads<Handle>; Lane::ALL.len()],
    /// Tasks that were woken after the queue was closed. They must be dropped on the loop's thread, which takes them
    /// from here. `None` once the loop has ended.
    woken_late: Mutex<WokenLate>,
    /// In a forked child, the replacement of this. See `Reactor::after_fork`.
    successor: OnceLock<Arc<Shared>>,
    /// The fork count of the process that it belongs to.
    forks: u64,
}

type WokenLate = Option<Vec<Box<dyn Send>>>;

/// Returns an address that is unique among live threads.
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

    /// Creates a new queue for all handles in a forked child.
    pub(crate) fn succeed(&self) -> (Arc<Shared>, Posts) {
        let lanes = Lane::ALL.map(|lane| self.lane(lane).succeed());
        let (successor, receiver) = Shared::with(self.bound, self.waker.clone(), lanes);
        successor.holds.store(self.holds.load(Ordering::Relaxed), Ordering::Relaxed);
        successor.draining.store(self.draining.load(Ordering::Relaxed), Ordering::Relaxed);
        let successor = self.successor.get_or_init(|| successor).clone();
        (successor, receiver)
    }

    /// Returns the instance to use: this one, or its replacement in a forked child.
    #[inline]
    pub(crate) fn latest(&self) -> &Shared {
        let mut latest = self;
        while let Some(successor) = latest.successor.get() {
            latest = successor;
        }
        latest
    }

    pub(crate) fn runs_here(&self) {
        // Written only when it changes, because posting threads read the same cache line.
        let here = this_thread();
        if self.thread.load(Ordering::Relaxed) != here {
            self.thread.store(here, Ordering::Relaxed);
        }
    }

    /// Returns how many posts have been made in total.
    #[inline]
    pub(crate) fn posted(&self) -> usize {
        self.posts.pushed()
    }

    /// Keeps a woken task that the queue has refused until the loop [drops](Shared::take_woken_late) it.
    pub(crate) fn woke_late(&self, task: impl Send + 'static) {
        match self.lock_woken_late().as_deref_mut() {
            Some(Some(tasks)) => tasks.push(Box::new(task)),
            // Left behind by a fork. The future must not be dropped on another thread, so leak it.
            Some(None) | None => std::mem::forget(task),
        }
    }

    /// Takes the tasks that were woken since the queue was closed, to drop them.
    pub(crate) fn take_woken_late(&self) -> Vec<Box<dyn Send>> {
        let mut tasks = self.lock_woken_late();
        tasks.as_deref_mut().and_then(Option::as_mut).map(std::mem::take).unwrap_or_default()
    }

    /// Marks the loop as ended.
    pub(crate) fn loop_is_gone(&self) {
        // Empty, unless a fork has left some behind.
        std::mem::forget(self.lock_woken_late().and_then(|mut tasks| tasks.take()));
    }

    /// Returns `None` in a forked child if a thread of the parent had locked it.
    fn lock_woken_late(&self) -> Option<MutexGuard<'_, WokenLate>> {
        if self.forks != fork::count() {
            return self.woken_late.try_lock().ok();
        }
        // No user code runs under the lock, so a panic leaves its data consistent.
        Some(self.woken_late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.posts.len()
    }

    pub(crate) fn lane(&self, lane: Lane) -> &Threads<Handle> {
        &self.lanes[lane as usize]
    }
}

/// Gives other threads access to a reactor. Can be cloned, sent and shared.
///
/// Everything is refused once the reactor is [stopped](Reactor::stop) or dropped. Posted closures that have not run are
/// dropped on the loop's thread, and their replies are [lost](crate::Lost).
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// The error returned when a closure cannot be posted. It gives the closure back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError<F> {
    /// The number of waiting posts has reached the [bound](crate::Builder::post_bound).
    #[error("post to the loop: its queue is full")]
    Full(F),
    /// The reactor has stopped or was dropped.
    #[error("post to the loop: it has stopped")]
    Gone(F),
}

impl<F> PostError<F> {
    /// Returns the closure.
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
    /// Runs `f` on the loop, in its next tick phase. Takes no lock, and does not allocate if `f` captures at most 24
    /// bytes. The loop is woken at most once per turn, regardless of the number of posts and threads.
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

    /// Posts `f`, but fails if the number of waiting posts has reached the [bound](crate::Builder::post_bound).
    /// Producers that outrun the loop notice this way. See [`post`](Handle::post).
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

    /// Runs `f` on the loop and returns its result as a [`Reply`]. The reply is [lost](crate::Lost) if the loop stops
    /// or `f` panics before there is a result.
    #[track_caller]
    pub fn post_with_reply<T, F>(&self, f: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Reactor) -> T + Send + 'static,
    {
        let (replier, answer) = reply();
        // If the post is refused, the replier is dropped, and the reply is lost.
        let _ = self.post(move |reactor: &mut Reactor| replier.give(f(reactor)));
        answer
    }

    /// Runs `f` at once if possible, that is, on the loop's thread in code that has [entered](Reactor::enter) the
    /// reactor. Otherwise posts it.
    ///
    /// In a callback, which has the reactor itself, use [`Reactor::schedule`].
    #[track_caller]
    pub fn schedule<F: FnOnce(&mut Reactor) + Send + 'static>(&self, f: F) -> Result<(), PostError<F>> {
        let mut f = Some(f);
        if !self.has_stopped() {
            self.with_reactor(|reactor| f.take().map(|f| f(reactor)));
        }
        match f {
            None => Ok(()),
            Some(f) => self.post_from(Location::caller(), f, None),
        }
    }

    /// Stops the loop. See [`Reactor::stop`].
    #[track_caller]
    pub fn stop(&self) {
        // A loop that has ended is stopped.
        let _ = self.post(|reactor| reactor.stop());
    }

    /// Lets the loop finish its work in progress, then stops it. See [`Reactor::drain`].
    #[track_caller]
    pub fn drain(&self, deadline: Duration) {
        // A loop that has ended has no work in progress.
        let _ = self.post(move |reactor| reactor.drain(deadline));
    }

    /// Wakes the loop if it sleeps, and otherwise ends its next sleep. Nothing is posted: a [guest](crate::Guest) is woken
    /// this way if another thread has queued work for it. This is a system call each time, so threads should call it only
    /// if the guest is asleep, which its lock can tell them.
    pub fn wake(&self) {
        self.shared.latest().waker.wake_by_ref();
    }

    /// Marks work as in progress, so that [draining](Reactor::drain) waits for it.
    pub fn hold(&self) -> Hold {
        Hold::new(self.clone())
    }

    /// Returns whether the loop was [stopped](Reactor::stop) or has ended. If so, everything is refused.
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

    /// Returns whether this is the thread that runs the loop.
    pub fn is_loop_thread(&self) -> bool {
        self.shared.latest().thread.load(Ordering::Relaxed) == this_thread()
    }

    /// Returns approximately how many posts are waiting for the loop.
    pub fn pending_posts(&self) -> usize {
        self.shared.latest().waiting()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("pending_posts", &self.pending_posts()).finish_non_exhaustive()
    }
}
