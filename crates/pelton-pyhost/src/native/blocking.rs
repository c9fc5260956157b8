//! Blocking a thread until a future completes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How often a blocked thread checks whether Python wants it to stop: signals, interrupted tasks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future until the deadline.
pub(crate) fn wait<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let result = wait_checking::<_, std::convert::Infallible>(future, deadline, None, || Ok(()));
    match result {
        Ok(output) => output,
        Err(never) => match never {},
    }
}

/// Like [`wait`], but calls `check` at intervals.
fn wait_checking<F: Future, E>(
    future: F,
    deadline: Option<Instant>,
    every: Option<Duration>,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<Option<F::Output>, E> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut next_check = every.map(|every| Instant::now() + every);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(Some(output));
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(None);
        }
        if let (Some(every), Some(at)) = (every, next_check)
            && at <= now
        {
            check()?;
            next_check = Some(now + every);
            continue;
        }
        match [deadline, next_check].into_iter().flatten().min() {
            Some(until) => std::thread::park_timeout(until - now),
            None => std::thread::park(),
        }
    }
}

/// Waits for a future on behalf of Python code, without the interpreter lock. Whatever interrupts Python code
/// interrupts the wait too. Refused on a thread that is running a loop: the wait would block the loop, and possibly the
/// very work that the future depends on.
pub(crate) fn wait_for_python<F>(
    py: Python<'_>,
    what: &str,
    instead: &str,
    timeout: Option<f64>,
    future: F,
) -> PyResult<Option<F::Output>>
where
    F: Future + Send,
    F::Output: Send,
{
    let deadline = match timeout {
        None => None,
        Some(seconds) => {
            let time = Duration::try_from_secs_f64(seconds.max(0.0));
            // A timeout beyond the range of the clock is no timeout.
            time.ok().and_then(|time| Instant::now().checked_add(time))
        }
    };
    if !py.import("asyncio")?.call_method0("_get_running_loop")?.is_none() && timeout != Some(0.0) {
        let text = format!("{what} would block the event loop of this thread: await {instead}");
        return Err(PyRuntimeError::new_err(text));
    }
    py.detach(|| wait_checking(future, deadline, Some(CHECK_INTERVAL), || Python::attach(raise_pending)))
}

/// Runs some Python code, so that pending asynchronous exceptions are raised.
fn raise_pending(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.eval(c"(lambda: None)()", None, None).map(drop)
}
