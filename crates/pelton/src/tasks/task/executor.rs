//! Spawns, polls and drops tasks.
//!
//! A task is one allocation, made by `async-task`, for the future, its state and its result. Waking a task, on any
//! thread, produces a `Runnable`, which is posted to the loop. A wake-up is therefore part of the single order of ticks
//! and posts, and it wakes a sleeping loop. Wake-ups are coalesced in two ways: a task that waits to run is not queued
//! again, and a loop that is awake is not woken.
//!
//! A task that is woken or spawned by another task is queued as a continuation, like those of promises. It runs in the
//! same turn if nothing was queued before it. Otherwise two tasks that wait for each other would need a system call per
//! step. A task that wakes itself waits for the next turn.
//!
//! Futures that are not `Send` must be dropped on their own thread, before the reactor is dropped. The reactor
//! therefore has a table of all tasks. At the end, after the queue is closed, it wakes each task once more. This
//! delivers its `Runnable` to the loop, which drops it.

use std::future::Future;
use std::panic::Location;
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
use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::panics::catch;
use crate::reactor::slots::Key;
use crate::threads::handle::PostError;
use crate::{Error, EventLoop, Fault, Handle, Reactor};

/// How long the end of a reactor waits for a thread that has just woken a task and is about to hand it over. This
/// normally takes nanoseconds, but a thread left behind by a fork never does it.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(1);

pin_project! {
    /// A task's future, which cleans up after itself.
    struct Work<F> {
        // `None` after it has ended.
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

/// Drops a future. A panic is reported like any other panic of the task, because this may run in the middle of
/// unrelated drops.
fn drop_future<F>(mut future: Pin<&mut Option<F>>, local: &Local) {
    if future.is_some()
        && let Err(panic) = catch(|| future.set(None))
    {
        local.panicked(panic);
    }
}

impl<F: Future> Future for Work<F> {
    type Output = Result<F::Output, TaskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Ready(Err(TaskError::Cancelled)) };
        let outcome = match catch(|| future.poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => {
                let message = panic.message();
                this.local.panicked(panic);
                Err(TaskError::Panicked { message })
            }
        };
        drop_future(this.future, this.local);
        Poll::Ready(outcome)
    }
}

impl Reactor {
    /// Runs `future` on the loop, starting with the next tick phase. It need not be [`Send`]. Await the handle for the
    /// result, keep it to cancel the task, or drop it.
    ///
    /// A panic is caught and reported like that of a callback. [Draining](Reactor::drain) does not wait for the task,
    /// unless it owns a [`Hold`](crate::Hold). When the loop ends, the task is dropped.
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

    /// Does the same as [`spawn`](Reactor::spawn), for layers on top that pass on their caller's location. Panics are
    /// reported with it.
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
            // A task that wakes itself lets everything else run first.
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
            // There will be no more turns.
            drop(runnable);
        } else {
            self.ticks.continuations.push(place, Closure::new(move |reactor: &mut Reactor| reactor.run_task(runnable)));
        }
        JoinHandle::new(task.fallible())
    }

    /// Returns the number of tasks.
    pub fn task_count(&self) -> usize {
        self.local.task_count()
    }

    /// Polls a task.
    fn run_task(&mut self, runnable: Runnable) {
        self.enter(|| runnable.run());
        // It was caught to report it to the code that awaits the task. Now it propagates to the code that catches the
        // panics of all callbacks.
        if let Some(panic) = self.local.take_panic() {
            panic.resume();
        }
    }

    /// Drops all tasks and everything else that is queued.
    pub(crate) fn drop_tasks(&mut self) {
        let mut waiting_since = None;
        while self.task_count() > 0 {
            // Queue those that are not queued yet.
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
            self.report(Fault::new("task", format_args!("a task panicked while being dropped: {}", panic.message())));
        }
    }
}

/// Queues a task that was woken by another task of the same loop as a continuation. Returns it if it was woken by
/// something else.
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

/// Posts a task to the loop, to be polled.
fn post(
    handle: &Handle,
    place: &'static Location<'static>,
    runnable: Runnable,
) -> Result<(), PostError<impl FnOnce(&mut Reactor) + Send + 'static>> {
    handle.post_from(place, move |reactor: &mut Reactor| reactor.run_task(runnable), None)
}

impl Handle {
    /// Runs the future made by `make` on the loop. The future stays there: only `make` and the result must be [`Send`].
    /// The handle can be awaited on any thread, with any executor.
    ///
    /// If the loop has stopped, or stops before there is a result, the result is [`TaskError::Cancelled`].
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
        // It can be dropped anywhere. Dropping it cancels the task that it has spawned on the loop.
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

/// Records that the future of `block_on` has been woken.
struct Woken {
    flag: AtomicBool,
    handle: Handle,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // On its own thread, the loop checks the flag before it sleeps.
        if !self.flag.swap(true, Ordering::AcqRel) && !self.handle.is_loop_thread() {
            // A loop that has ended does not run `block_on`.
            let _ = self.handle.post(|_| {});
        }
    }
}

impl EventLoop {
    /// Runs the loop until `future` is ready. The future may borrow from its environment. It is polled between turns,
    /// whenever it has been woken. Afterwards the loop can continue. Before this returns, it flushes the work that
    /// tasks and streams have queued, as far as that is possible at once.
    ///
    /// Returns [`Error::Stopped`] if the loop is stopped first, and [`Error::Nested`] inside a callback or task of
    /// another loop. A panic in the future propagates to the caller.
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
                    panic.resume();
                }
                if let Poll::Ready(value) = outcome {
                    self.flush_and_reap();
                    return Ok(value);
                }
            }
            // Like a task, it continues in the same turn with what it has triggered, unless it has woken itself.
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
