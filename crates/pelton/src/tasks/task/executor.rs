//! Running tasks: spawning, polling, dropping.
//!
//! A task is one allocation, made by `async-task`, of the future, its state and its result. Whoever wakes it, on whatever
//! thread, gets a `Runnable` to be run, and that is posted to the loop like anything else: so a wake-up has its place in the one
//! order of ticks and posts, wakes a loop that sleeps, and is coalesced with others both ways (a task that waits to be run is
//! not queued again; a loop that is awake is not woken).
//!
//! A task that another one wakes or spawns is a continuation instead, as what follows on a promise is: it runs in the same turn
//! if nothing was queued before it. Otherwise two tasks that wait for each other would cost a look at the kernel per step. One
//! that wakes itself waits for the next turn.
//!
//! Futures that are not `Send` must be dropped on their own thread, and before the reactor is. So there is a table of all tasks:
//! at the end, when the queue is closed, each is woken once more, which brings its `Runnable` to where the loop takes it from
//! and drops it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use async_task::{Runnable, ScheduleInfo, WithInfo};
use pelton_sync::Closure;
use pin_project_lite::pin_project;

use super::{JoinHandle, Local, TaskError};
use crate::reactor::callback::{CallbackKind, Site, message};
use crate::reactor::slots::Key;
use crate::threads::handle::PostError;
use crate::{Error, EventLoop, Fault, Handle, Reactor};

/// How long the end of a reactor waits for a thread that has just woken a task and is about to hand it over. That is a matter of
/// nanoseconds; but a thread that was left behind by a fork never does.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(1);

pin_project! {
    /// A task's future, which knows how to end.
    struct Work<F> {
        // `None` once it has ended.
        #[pin]
        future: Option<F>,
        local: Rc<Local>,
        key: Key,
    }

    impl<F> PinnedDrop for Work<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            drop_future(this.future.as_mut(), this.local);
            this.local.remove_task(*this.key);
        }
    }
}

/// Drops a future. If that panics, it is reported like any other panic of the task: it may happen in the middle of other
/// people's drops.
fn drop_future<F>(mut future: Pin<&mut Option<F>>, local: &Local) {
    if future.is_some()
        && let Err(panic) = catch_unwind(AssertUnwindSafe(|| future.set(None)))
    {
        local.panicked(panic);
    }
}

impl<F: Future> Future for Work<F> {
    type Output = Result<F::Output, TaskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Ready(Err(TaskError::Cancelled)) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => {
                let message = message(&panic);
                this.local.panicked(panic);
                Err(TaskError::Panicked { message })
            }
        };
        drop_future(this.future, this.local);
        Poll::Ready(outcome)
    }
}

impl Reactor {
    /// Runs `future` on the loop, beginning with the next tick phase. It need not be [`Send`]. Await the handle for its result,
    /// keep it to cancel the task, or drop it.
    ///
    /// A panic in it is caught and reported as those of callbacks are. [Draining](Reactor::drain) does not wait for it, unless it
    /// owns a [`Hold`](crate::Hold). When the loop ends, it is dropped.
    ///
    /// ```
    /// # use pelton::{Reactor, task};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// reactor.spawn(async move {
    ///     task::sleep(Duration::from_millis(1)).await;
    ///     handle.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.spawn_from(Location::caller(), future)
    }

    /// [`spawn`](Reactor::spawn) for layers on top, whose callers have given a place: a panic is reported with it.
    #[doc(hidden)]
    pub fn spawn_from<F>(&mut self, place: &'static Location<'static>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let key = self.local.add_task();
        let work = Work { future: Some(future), local: Rc::clone(&self.local), key };
        let handle = self.handle();
        let schedule = move |runnable: Runnable, info: ScheduleInfo| {
            // One that wakes itself lets everybody else go first.
            let posted =
                if info.woken_while_running { Some(runnable) } else { continue_with(&handle, place, runnable) };
            let Some(runnable) = posted else { return };
            if let Err(PostError::Gone(refused)) = post(&handle, place, runnable) {
                handle.shared.latest().woke_late(refused);
            }
        };
        let (runnable, task) = async_task::spawn_local(work, WithInfo(schedule));
        self.local.set_waker(key, runnable.waker());
        if self.is_over() {
            // No turn will follow.
            drop(runnable);
        } else {
            self.ticks.continuations.push(place, Closure::new(move |reactor: &mut Reactor| reactor.run_task(runnable)));
        }
        JoinHandle::new(task.fallible())
    }

    /// How many tasks there are.
    pub fn task_count(&self) -> usize {
        self.local.task_count()
    }

    /// Polls a task.
    fn run_task(&mut self, runnable: Runnable) {
        self.enter(|| runnable.run());
        // It was caught to tell whoever awaits the task; it goes on to where all panics of callbacks are caught.
        if let Some(panic) = self.local.take_panic() {
            resume_unwind(panic);
        }
    }

    /// Drops all tasks, along with what else was queued.
    pub(crate) fn drop_tasks(&mut self) {
        let mut waiting_since = None;
        while self.task_count() > 0 {
            // Those that are not queued yet are now.
            self.local.wakers().into_iter().for_each(Waker::wake);
            self.ticks.queue_continuations();
            let mut found = !self.ticks.is_empty();
            drop(self.ticks.take_queued());
            let woken = self.shared.take_woken_late();
            found |= !woken.is_empty();
            drop(woken);
            if found {
                waiting_since = None;
            } else if waiting_since.get_or_insert_with(Instant::now).elapsed() < HAND_OVER_WITHIN {
                thread::yield_now();
            } else {
                let tasks = self.task_count();
                self.report(Fault::new("task", format_args!("{tasks} tasks were left behind by a fork")));
                break;
            }
        }
        if let Some(panic) = self.local.take_panic() {
            self.report(Fault::new("task", format_args!("a task panicked when it was dropped: {}", message(&panic))));
        }
    }
}

/// Has the loop poll a task that was woken by another one of the same loop. Gives it back if it was not.
fn continue_with(handle: &Handle, place: &'static Location<'static>, runnable: Runnable) -> Option<Runnable> {
    let mut waiting = Some(runnable);
    Reactor::with_current(|reactor| {
        if Arc::ptr_eq(&reactor.shared, &handle.shared)
            && let Some(runnable) = waiting.take()
        {
            let closure = Closure::new(move |reactor: &mut Reactor| reactor.run_task(runnable));
            reactor.ticks.continuations.push(place, closure);
        }
    });
    waiting
}

/// Has the loop poll a task.
fn post(
    handle: &Handle,
    place: &'static Location<'static>,
    runnable: Runnable,
) -> Result<(), PostError<impl FnOnce(&mut Reactor) + Send + 'static>> {
    handle.post_from(place, move |reactor: &mut Reactor| reactor.run_task(runnable), None)
}

impl Handle {
    /// Runs the future that `make` makes on the loop, where both stay: only `make` and the result have to be [`Send`]. The
    /// handle can be awaited on any thread, with any executor.
    ///
    /// If the loop has stopped, or stops before there is a result, that is [`TaskError::Cancelled`].
    ///
    /// ```
    /// # use pelton::{Reactor, task};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// let other = std::thread::spawn(move || {
    ///     handle.spawn(|| async {
    ///         let not_send = std::rc::Rc::new(7);
    ///         task::sleep(Duration::from_millis(1)).await;
    ///         *not_send
    ///     })
    /// });
    /// let task = other.join().unwrap();
    /// assert_eq!(reactor.block_on(task)?, Ok(7));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<T, F>(&self, make: impl FnOnce() -> F + Send + 'static) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (handle, place) = (self.clone(), Location::caller());
        // May be dropped anywhere, and cancels what it has spawned on the loop when it is.
        let errand = async move {
            let spawn = |reactor: &mut Reactor| reactor.spawn_from(place, async move { make().await }).cancel_on_drop();
            match Reactor::with_current(spawn) {
                Some(task) => task.await,
                None => Err(TaskError::Cancelled),
            }
        };
        let schedule = move |runnable: Runnable| drop(post(&handle, place, runnable));
        let (runnable, task) = async_task::spawn(errand, schedule);
        runnable.schedule();
        JoinHandle::new(task.fallible())
    }
}

/// Says that the future that is blocked on has been woken.
struct Woken {
    flag: AtomicBool,
    handle: Handle,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // On its own thread the loop looks before it sleeps.
        if !self.flag.swap(true, Ordering::AcqRel) && !self.handle.is_loop_thread() {
            // A loop that is gone blocks on nothing.
            let _ = self.handle.post(|_| {});
        }
    }
}

impl EventLoop {
    /// Turns the loop until `future` is ready. It may borrow what is around it, and is polled between turns, whenever it has been
    /// woken. Afterwards the loop can go on; what tasks and streams have left to be done by then, and can be done at once, is.
    ///
    /// [`Error::Stopped`] if the loop is told to stop first, [`Error::Nested`] inside a callback or task of another loop. A panic in the
    /// future goes on to the caller.
    ///
    /// ```
    /// # use pelton::{Reactor, task};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let word = String::from("water");
    /// let length = reactor.block_on(async {
    ///     task::sleep(Duration::from_millis(1)).await;
    ///     word.len()
    /// })?;
    /// assert_eq!(length, 5);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, Error> {
        let site = Site { kind: CallbackKind::Tick, place: Location::caller(), source: None };
        let _turning = self.begin_turning()?;
        if self.stopped() {
            return Err(Error::Stopped);
        }
        self.check_not_forked()?;
        let woken = Arc::new(Woken { flag: AtomicBool::new(true), handle: self.handle() });
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        self.ticks.begin_turn();
        loop {
            if woken.flag.swap(false, Ordering::AcqRel) {
                let mut outcome = Poll::Pending;
                let poll = |reactor: &mut Reactor| {
                    outcome = reactor.enter(|| future.as_mut().poll(&mut context));
                };
                if let Err(panic) = self.call(site, poll) {
                    resume_unwind(panic);
                }
                if let Poll::Ready(value) = outcome {
                    self.flush_and_reap();
                    return Ok(value);
                }
            }
            // It goes on in the same turn with what it has led to, as a task would. One that wakes itself does not.
            let mut has_led_on = false;
            while !woken.flag.load(Ordering::Acquire) && self.run_continuation() {
                has_led_on = true;
            }
            if !(has_led_on && woken.flag.load(Ordering::Acquire)) {
                self.turn_until(|_| woken.flag.load(Ordering::Acquire))?;
                self.ticks.begin_turn();
            }
        }
    }
}
