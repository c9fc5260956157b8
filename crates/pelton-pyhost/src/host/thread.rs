//! Handles of the threads that run Python.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::call::Call;
use super::completion::{Completion, Request, To};
use super::error::{RefusalKind, Refused};
use super::foreign::{Callback, Foreign, ForeignTask, RefusedTask, Submitted};
use super::loops::HostedLoop;
use super::namespace::Namespace;
use super::reply::{Outcome, Reply};
use super::{HostStats, interpreter, submit};
use crate::value::Value;

/// A thread that runs Python for a [`Host`](super::Host): one of its loops, or a [`Worker`](super::Worker).
///
/// [`Host::submit`](super::Host::submit) selects a loop by the calling thread. Programs whose callers move between
/// threads, such as those with an executor or a virtual machine of their own, select it themselves:
///
/// ```no_run
/// # use pelton_python::host::{Call, Config, Host};
/// let host = Host::start(Config::new().loops(4))?;
/// let session = 1_234;
/// let root = host.thread(session).submit(Call::new("math", "sqrt").arg(2.0))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PythonThread {
    pub(crate) home: Arc<HostedLoop>,
}

impl PythonThread {
    /// Returns the thread that this code runs on, if it belongs to a host.
    pub fn current() -> Option<PythonThread> {
        super::current_thread()
    }

    /// Submits a call.
    pub fn submit(&self, call: Call) -> Result<Reply, Refused> {
        submit::reply(&self.home, 0, call)
    }

    /// Submits a call without waiting for its outcome. Errors are logged.
    pub fn spawn(&self, call: Call) -> Result<(), Refused> {
        submit::spawn(&self.home, 0, call)
    }

    /// Submits a call whose outcome is passed to a closure: on this Python thread, without the interpreter lock,
    /// exactly once. If the thread has ended or was given up, another thread calls it, with
    /// [`LoopGone`](super::TaskError::LoopGone).
    pub fn submit_with(&self, call: Call, then: impl FnOnce(Outcome) + Send + 'static) -> Result<Submitted, Refused> {
        let task = Callback { result: Value::None, call: then };
        foreign(&self.home, 0, call, Box::new(task)).map_err(|RefusedTask { refused, .. }| refused)
    }

    /// Submits a call of another runtime, which converts its own data. A refusal returns both.
    pub fn submit_foreign(&self, call: Call, task: Box<dyn Foreign>) -> Result<Submitted, RefusedTask> {
        foreign(&self.home, 0, call, task)
    }

    /// Creates a namespace on this thread.
    pub fn namespace(&self) -> Namespace {
        Namespace::new(self.home.clone())
    }

    /// Interrupts the call that the thread is making right now, if any: raises `pelton.Interrupted` in it. Waits for
    /// the interpreter lock. Returns whether there was a call.
    pub fn interrupt(&self) -> bool {
        interpreter::interrupt(&self.home.executor)
    }

    /// Returns the statistics of the thread.
    pub fn stats(&self) -> HostStats {
        HostStats::of(&self.home)
    }

    /// Calls the callbacks of ended tasks. This thread does not hold the interpreter lock.
    pub(crate) fn flush(&self) {
        if self.home.deliveries.any() {
            self.home.deliveries.flush();
        }
    }

    /// Returns whether both are the same thread.
    pub fn is(&self, other: &PythonThread) -> bool {
        Arc::ptr_eq(&self.home, &other.home)
    }
}

/// Submits a foreign task.
pub(crate) fn foreign(
    home: &Arc<HostedLoop>,
    namespace: u64,
    call: Call,
    task: Box<dyn Foreign>,
) -> Result<Submitted, RefusedTask> {
    if home.closing.load(Ordering::Relaxed) {
        let refused = Refused { kind: RefusalKind::ShuttingDown, call: Box::new(call) };
        return Err(RefusedTask { refused, task });
    }
    register(home, Request::new(call, namespace), task)
}

/// Submits a foreign task to a thread that may not be the one of its namespace.
pub(crate) fn foreign_with(
    home: &Arc<HostedLoop>,
    (owner, namespace): (&Arc<HostedLoop>, u64),
    call: Call,
    task: Box<dyn Foreign>,
) -> Result<Submitted, RefusedTask> {
    if home.closing.load(Ordering::Relaxed) {
        let refused = Refused { kind: RefusalKind::ShuttingDown, call: Box::new(call) };
        return Err(RefusedTask { refused, task });
    }
    register(home, Request::with_namespace_of(owner, call, namespace), task)
}

fn register(home: &Arc<HostedLoop>, request: Request, task: Box<dyn Foreign>) -> Result<Submitted, RefusedTask> {
    let task = ForeignTask::register(request, task, home);
    match home.submit(Completion::new(To::Foreign(task.clone()))) {
        Ok(()) => Ok(Submitted { task }),
        Err((kind, completion)) => {
            let foreign = task.take_back();
            let call = completion.into_call();
            match (foreign, call) {
                (Some(task), Some(call)) => Err(RefusedTask { refused: Refused { kind, call: Box::new(call) }, task }),
                // The thread was given up just now, which has told the task.
                _ => Ok(Submitted { task }),
            }
        }
    }
}
