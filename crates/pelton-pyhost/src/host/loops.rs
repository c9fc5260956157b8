//! The state that a loop's thread shares with the threads that submit work to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, ThreadId};

use pelton::Handle;
use pelton_sync::{PushError, Pushed, Receiver, Sender, queue};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::batch::{BatchState, Portion};
use super::call::Call;
use super::completion::{CANCEL, Completion, INTERRUPT, Tag};
use super::error::RefusalKind;
use super::foreign::Deliveries;
use super::lock_order::{self, Rank, Ranked};
use super::namespaces::Namespaces;
use super::waiters::Waiters;

/// A message in a loop's queue.
pub(crate) enum Message {
    Task(Completion),
    /// A part of a batch.
    Portion(Portion),
    Control(Control),
}

/// Messages that need no bound: there are never more of these than tasks and namespaces.
pub(crate) enum Control {
    /// Cancel the task with this number.
    Cancel(u64),
    /// The reader of this stream has made room.
    Room(Arc<super::stream::StreamState>),
    /// A function on another thread has returned something to be awaited.
    Await(Box<super::returned::Returned>),
    /// The last handle of this namespace was dropped.
    Forget(u64),
    /// Run this job with the interpreter lock held.
    Run(crate::native::outside::Job),
    /// Check whether there is anything left to do.
    Look,
    /// Cancel everything.
    CancelAll,
    /// Stop, even if there is work left.
    Stop,
}

/// Calls that a loop has refused, and why.
pub(crate) type Rest = (RefusalKind, Vec<Call>);

/// A task that is waiting for something while the loop runs others.
pub(crate) struct Waiting {
    pub(crate) completion: Completion,
    /// Its asyncio object: a task, or a future that something else completes.
    pub(crate) future: Py<PyAny>,
    /// The `TimerHandle` of its deadline.
    pub(crate) timer: Option<Py<PyAny>>,
    pub(crate) options: super::returned::ResultOptions,
}

/// How to wake a thread that waits for messages.
pub(crate) enum Wakes {
    /// A loop, which sleeps in its reactor.
    Loop(Handle),
    /// A worker, which is parked.
    Thread(Thread),
}

/// A thread that calls Python, and its current task.
#[derive(Debug, Default)]
pub(crate) struct Executor {
    /// Python's identifier of the thread.
    pub(crate) thread: AtomicU64,
    /// The address of the tag of the task whose function it calls, or 0. Changed with the interpreter lock held.
    pub(crate) task: AtomicUsize,
}

/// The shared state of a loop.
pub(crate) struct HostedLoop {
    pub(crate) index: usize,
    sender: Sender<Message>,
    /// The number of queued tasks, and its limit.
    queued: AtomicUsize,
    bound: usize,
    /// The maximum number of tasks that a loop starts in one turn.
    batch: usize,
    /// Wakes the thread. Set before it first runs, so before other threads see it.
    pub(crate) wakes: OnceLock<Wakes>,
    pub(crate) thread: OnceLock<ThreadId>,
    /// The keywords for creating tasks.
    pub(crate) task_keywords: OnceLock<Py<PyDict>>,
    /// New tasks are refused, and existing ones finish.
    pub(crate) closing: AtomicBool,
    /// Queued tasks are not started any more either.
    pub(crate) cancelling: AtomicBool,
    /// The thread has sent its last message.
    pub(crate) ended: AtomicBool,
    /// Waiting tasks, by number.
    pub(crate) waiting: Ranked<HashMap<u64, Waiting>>,
    /// Threads and futures that wait for tasks.
    pub(crate) waiters: Waiters,
    /// The namespaces that belong to this thread.
    pub(crate) namespaces: Namespaces,
    /// Ended tasks whose callbacks have not been called yet.
    pub(crate) deliveries: Deliveries,
    pub(crate) numbers: AtomicU64,
    /// Increases with everything that the loop starts; and whether the loop sleeps.
    pub(crate) activity: AtomicU64,
    pub(crate) asleep: AtomicBool,
    /// The number of tasks that the loop has taken out of the queue and not started.
    pub(crate) fetched: AtomicUsize,
    pub(crate) counters: Counters,
    /// The loops' threads first, then the threads for blocking functions, of all loops.
    pub(crate) executors: Arc<Ranked<Vec<Arc<Executor>>>>,
    pub(crate) executor: Arc<Executor>,
    /// The number of unfinished tasks on threads for blocking functions.
    pub(crate) on_workers: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) tasks: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) locks: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) namespaces: AtomicUsize,
}

impl std::fmt::Debug for HostedLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "loop {}", self.index)
    }
}

impl HostedLoop {
    pub(crate) fn new(
        index: usize,
        (bound, batch): (usize, usize),
        executors: Arc<Ranked<Vec<Arc<Executor>>>>,
    ) -> (Arc<HostedLoop>, Receiver<Message>) {
        let (sender, receiver) = queue();
        let executor = Arc::new(Executor::default());
        executors.lock().push(executor.clone());
        let shared = HostedLoop {
            index,
            sender,
            queued: AtomicUsize::new(0),
            bound,
            batch,
            wakes: OnceLock::new(),
            thread: OnceLock::new(),
            task_keywords: OnceLock::new(),
            closing: AtomicBool::new(false),
            cancelling: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waiting: Ranked::new(Rank::Loop, HashMap::new()),
            waiters: Waiters::new(),
            namespaces: Namespaces::default(),
            deliveries: Deliveries::new(),
            numbers: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            fetched: AtomicUsize::new(0),
            counters: Counters::default(),
            executors,
            executor,
            on_workers: AtomicUsize::new(0),
        };
        (Arc::new(shared), receiver)
    }

    /// Reserves room in the queue for up to `tasks` tasks. Returns how many fit.
    fn reserve(&self, tasks: usize) -> usize {
        let after = self.queued.fetch_add(tasks, Ordering::Relaxed) + tasks;
        let too_many = after.saturating_sub(self.bound).min(tasks);
        if too_many > 0 {
            self.queued.fetch_sub(too_many, Ordering::Relaxed);
        }
        tasks - too_many
    }

    /// Records that the loop has taken this many tasks out of the queue.
    pub(crate) fn taken(&self, tasks: usize) {
        self.queued.fetch_sub(tasks, Ordering::Relaxed);
    }

    /// Submits a task to the loop. Takes no lock.
    pub(crate) fn submit(&self, task: Completion) -> Result<(), (RefusalKind, Completion)> {
        if self.closing.load(Ordering::Relaxed) {
            return Err((RefusalKind::ShuttingDown, task));
        }
        if self.reserve(1) == 0 {
            return Err((RefusalKind::Full, task));
        }
        match self.sender.push_as(task, Message::Task) {
            Ok(pushed) => {
                self.wake_after(pushed);
                Ok(())
            }
            Err(PushError::Full(task) | PushError::Closed(task)) => {
                self.taken(1);
                Err((RefusalKind::ShuttingDown, task))
            }
        }
    }

    /// Submits as many calls as the loop accepts. Returns how many these are, and the others.
    pub(crate) fn submit_all(&self, mut calls: Vec<Call>, namespace: u64) -> (Arc<BatchState>, usize, Option<Rest>) {
        let closing = self.closing.load(Ordering::Relaxed);
        let accepted = if closing { 0 } else { self.reserve(calls.len()) };
        let kind = if closing { RefusalKind::ShuttingDown } else { RefusalKind::Full };
        let refused = calls.split_off(accepted);
        let shared = Arc::new(BatchState::new(calls, namespace));
        for start in (0..accepted).step_by(self.batch) {
            let portion = Portion::new(&shared, start, accepted.min(start + self.batch));
            match self.sender.push_as(portion, Message::Portion) {
                Ok(pushed) => self.wake_after(pushed),
                Err(PushError::Full(portion) | PushError::Closed(portion)) => {
                    // The loop has just ended. Return this portion and everything after it.
                    self.taken(accepted - start);
                    let mut rest = portion.take_back(accepted);
                    rest.extend(refused);
                    return (shared, start, Some((RefusalKind::ShuttingDown, rest)));
                }
            }
        }
        (shared, accepted, (!refused.is_empty()).then_some((kind, refused)))
    }

    /// Sends the loop a message that is not bounded.
    pub(crate) fn control(&self, control: Control) {
        // A loop that has ended needs no message.
        if let Ok(pushed) = self.sender.push(Message::Control(control)) {
            self.wake_after(pushed);
        }
    }

    #[inline]
    fn wake_after(&self, pushed: Pushed) {
        if pushed == Pushed::ReceiverSleeps {
            self.counters.wakeups.fetch_add(1, Ordering::Relaxed);
            match self.wakes.get() {
                Some(Wakes::Loop(handle)) => handle.wake(),
                Some(Wakes::Thread(thread)) => thread.unpark(),
                None => {}
            }
        }
    }

    /// Returns approximately how many tasks are waiting to be started.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns approximately how many tasks have no outcome yet.
    pub(crate) fn unfinished(&self) -> usize {
        let running = usize::from(self.executor.task.load(Ordering::Relaxed) != 0);
        let on_workers = self.on_workers.load(Ordering::Relaxed);
        self.queued() + self.fetched.load(Ordering::Relaxed) + running + self.waiting.lock().len() + on_workers
    }

    /// Returns whether the thread has ended, so that it sends no message any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn cancel(&self, tag: &Tag) {
        if let Some(number) = tag.want(CANCEL) {
            self.control(Control::Cancel(number));
        }
    }

    /// Raises an exception in the thread that is running a task. Returns `false` if none is.
    pub(crate) fn interrupt(&self, tag: &Tag) -> bool {
        lock_order::check(Rank::Interpreter);
        let number = tag.want(INTERRUPT);
        Python::attach(|py| {
            let address = std::ptr::from_ref(tag).addr();
            let executors: Vec<Arc<Executor>> = self.executors.lock().clone();
            let running = executors.iter().find(|executor| executor.task.load(Ordering::Relaxed) == address);
            let thread = match (running, number) {
                (Some(executor), _) => executor.thread.load(Ordering::Relaxed),
                (None, Some(number)) if self.is_current(py, number) => self.executor.thread.load(Ordering::Relaxed),
                _ => return false,
            };
            super::interpreter::raise_in(py, thread)
        })
    }

    /// Returns whether the loop is running the task with this number.
    fn is_current(&self, py: Python<'_>, number: u64) -> bool {
        let Some(future) = self.waiting.lock().get(&number).map(|waiting| waiting.future.as_ptr()) else {
            return false;
        };
        // The interpreter lock is held, so the future is still alive.
        super::interpreter::is_current_task(py, future)
    }

    /// Checks that this is not the loop's own thread, which must not wait for its own tasks.
    ///
    /// # Panics
    ///
    /// Panics on the loop's own thread.
    pub(crate) fn refuse_to_wait(&self) {
        let here = self.thread.get() == Some(&std::thread::current().id());
        assert!(!here, "waiting for a task on the thread of its own loop would take for ever");
    }
}

impl crate::native::outside::Outside for HostedLoop {
    fn run(&self, job: crate::native::outside::Job) {
        self.control(Control::Run(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::batch::Batch;
    use crate::host::submit;

    fn calls(count: usize) -> Vec<Call> {
        (0..count).map(|number| Call::new("module", "function").arg(number as i64)).collect()
    }

    fn home(bound: usize, batch: usize) -> (Arc<HostedLoop>, Receiver<Message>) {
        HostedLoop::new(0, (bound, batch), Arc::new(Ranked::new(Rank::Loop, Vec::new())))
    }

    fn numbers(calls: &[Call]) -> Vec<i64> {
        calls.iter().map(|call| call.args[0].as_int().unwrap()).collect()
    }

    #[test]
    fn a_loop_that_ends_just_then_gives_a_batch_back() {
        let (home, receiver) = home(8, 2);
        drop(receiver);
        let refused = submit::batch(&home, 0, calls(10)).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::ShuttingDown);
        assert_eq!(numbers(&refused.rest), Vec::from_iter(0..10), "those that had no room among them, all in order");
        assert_eq!((refused.accepted.len(), refused.accepted.left()), (0, 0));
        assert!(refused.accepted.wait().is_empty());
        assert_eq!(home.queued(), 0, "and the room that they had");
        let refused = submit::reply(&home, 0, calls(1).remove(0)).unwrap_err();
        assert_eq!((refused.kind, home.queued()), (RefusalKind::ShuttingDown, 0));
    }

    #[test]
    fn a_task_that_is_dropped_says_that_the_loop_is_gone() {
        let (home, mut receiver) = home(8, 2);
        let [one, other] = [(); 2].map(|()| submit::reply(&home, 0, calls(1).remove(0)).unwrap());
        drop(receiver.pop());
        let outcome = one.try_take().expect("there is an outcome");
        assert!(matches!(outcome, Err(crate::host::TaskError::LoopGone)));
        // So do tasks that are still queued when it ends.
        drop(receiver);
        assert!(matches!(other.try_take().expect("there too"), Err(crate::host::TaskError::LoopGone)));
    }

    #[test]
    fn what_a_loop_had_got_of_a_batch_before_is_its_own() {
        let (home, mut receiver) = home(8, 2);
        let shared = Arc::new(BatchState::new(calls(6), 0));
        assert!(home.sender.push(Message::Portion(Portion::new(&shared, 0, 2))).is_ok());
        // As `submit_all` does with a returned portion.
        let rest = Portion::new(&shared, 2, 4).take_back(6);
        assert_eq!(numbers(&rest), [2, 3, 4, 5]);
        let batch = Batch::new(shared, 2, home);
        assert_eq!((batch.len(), batch.left()), (2, 2));
        let Some(Message::Portion(mut portion)) = receiver.pop() else { panic!("it was pushed") };
        portion.pop().unwrap().settle(Ok(crate::Value::Int(1)));
        drop(portion);
        let outcomes = batch.wait();
        assert_eq!(*outcomes[0].as_ref().unwrap(), crate::Value::Int(1));
        assert!(matches!(outcomes[1..], [Err(crate::host::TaskError::LoopGone)]));
    }
}
