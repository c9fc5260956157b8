//! Calls that are served while their thread waits.
//!
//! Rust code that Python called may have to wait for another runtime, whose answer may depend on calls to Python. If those
//! calls had to wait for the same thread, both would wait for ever. So the waiting thread makes them itself, on top of
//! the call that waits: nothing is unwound, and nothing runs twice.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;

use crate::host::{Call, Foreign, Namespace, PythonThread, RefusedTask, Submitted};
use crate::host::{inner_call, prepare_inner};

/// How many waits may be on a thread's stack, each inside a call that the previous one served.
const DEEPEST: u32 = 64;

/// How often a waiting thread checks whether Python wants it to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Waits for an answer and serves calls meanwhile: the waiting end. [`Visitor`] is the other.
///
/// ```no_run
/// use pelton_python::native::nesting;
/// # use pyo3::prelude::*;
///
/// fn ask(py: Python<'_>) -> PyResult<i64> {
///     let (wait, visitor) = nesting::wait_and_serve()?;
///     std::thread::spawn(move || {
///         // Before it answers, the other thread may submit calls with `visitor.submit_foreign`.
///         visitor.answer(42);
///     });
///     Ok(wait.wait(py, None)?.unwrap_or(0))
/// }
/// ```
#[derive(Debug)]
pub struct Wait<T> {
    shared: Arc<Shared<T>>,
}

/// Answers a thread that waits, and has calls served by it. Clones are handles of the same wait.
#[derive(Debug)]
pub struct Visitor<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Visitor<T> {
    fn clone(&self) -> Visitor<T> {
        Visitor { shared: self.shared.clone() }
    }
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// The waiting thread, if it is one of a host.
    thread: Option<PythonThread>,
}

#[derive(Debug)]
struct State<T> {
    answer: Option<T>,
    calls: VecDeque<crate::host::InnerTask>,
    /// The thread does not wait any more.
    over: bool,
}

impl<T> Shared<T> {
    /// Locks. Code under this lock neither panics nor touches Python.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a wait on this thread. Raises `RecursionError` beyond 64 waits on one stack.
pub fn wait_and_serve<T: Send>() -> PyResult<(Wait<T>, Visitor<T>)> {
    if DEPTH.get() >= DEEPEST {
        return Err(PyRecursionError::new_err(format!("more than {DEEPEST} nested calls between Python and its host")));
    }
    let state = State { answer: None, calls: VecDeque::new(), over: false };
    let shared =
        Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), thread: crate::host::current_thread() });
    Ok((Wait { shared: shared.clone() }, Visitor { shared }))
}

impl<T: Send> Wait<T> {
    /// Waits for the answer, without the interpreter lock, and makes the calls that arrive meanwhile. Returns `None` if
    /// there is no answer after `timeout`. Whatever interrupts Python code interrupts the wait too.
    pub fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<T>> {
        DEPTH.set(DEPTH.get() + 1);
        let _depth = Depth;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match py.detach(|| self.next(deadline)) {
                Next::Answer(answer) => return Ok(Some(answer)),
                Next::Call(task) => inner_call(py, task),
                Next::Check => raise_pending(py)?,
                Next::Late => return Ok(None),
            }
        }
    }

    fn next(&self, deadline: Option<Instant>) -> Next<T> {
        if let Some(thread) = &self.shared.thread {
            thread.flush();
        }
        let check = Instant::now() + CHECK_INTERVAL;
        let mut state = self.shared.lock();
        loop {
            // Calls first: the answer may have been given without waiting for them.
            if let Some(task) = state.calls.pop_front() {
                return Next::Call(task);
            }
            if let Some(answer) = state.answer.take() {
                return Next::Answer(answer);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Next::Late;
            }
            if check <= now {
                return Next::Check;
            }
            let until = deadline.map_or(check, |deadline| deadline.min(check));
            let waited = self.shared.changed.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

enum Next<T> {
    Answer(T),
    Call(crate::host::InnerTask),
    Check,
    Late,
}

struct Depth;

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        let calls = {
            let mut state = self.shared.lock();
            state.over = true;
            std::mem::take(&mut state.calls)
        };
        // They go to the queue of the thread, as if the wait had ended before.
        for task in calls {
            task.submit();
        }
    }
}

impl<T> Visitor<T> {
    /// Ends the wait. Returns whether there was one: the first answer counts.
    pub fn answer(&self, answer: T) -> bool {
        let mut state = self.shared.lock();
        let first = !state.over && state.answer.is_none();
        if first {
            state.answer = Some(answer);
        }
        drop(state);
        self.shared.changed.notify_one();
        first
    }

    /// Returns the waiting thread, if it is one of a host. Only such a thread serves calls.
    pub fn thread(&self) -> Option<&PythonThread> {
        self.shared.thread.as_ref()
    }

    /// Has a call made by the waiting thread, or submits it to the queue of that thread if the wait is over. Without a
    /// namespace, `__main__` is Python's own. Awaitable results are refused with a `RuntimeError` on the thread of a
    /// loop, which cannot turn meanwhile.
    ///
    /// # Panics
    ///
    /// Panics if the waiting thread does not belong to a host.
    pub fn submit_foreign(
        &self,
        namespace: Option<&Namespace>,
        call: Call,
        task: Box<dyn Foreign>,
    ) -> Result<Submitted, RefusedTask> {
        let thread = self.shared.thread.as_ref().expect("only threads of a host serve calls");
        let mut state = self.shared.lock();
        if state.over {
            drop(state);
            return match namespace {
                Some(namespace) => namespace.submit_foreign_on(thread, call, task),
                None => thread.submit_foreign(call, task),
            };
        }
        let (task, submitted) = prepare_inner(thread, namespace, call, task);
        state.calls.push_back(task);
        drop(state);
        self.shared.changed.notify_one();
        Ok(submitted)
    }
}

/// Runs some Python code, so that pending asynchronous exceptions are raised.
fn raise_pending(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.eval(c"(lambda: None)()", None, None).map(drop)
}
