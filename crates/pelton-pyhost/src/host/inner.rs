//! Calls that a thread makes inside another call, while that one waits: see `native::nesting`.

use std::sync::Arc;

use pyo3::prelude::*;

use super::completion::{Completion, Request, To};
use super::current;
use super::foreign::{Foreign, ForeignTask, Submitted};
use super::loops::HostedLoop;
use super::thread::PythonThread;
use super::{Call, Namespace};

/// A call for a waiting thread.
#[derive(Debug)]
pub(crate) struct InnerTask {
    completion: Completion,
    home: Arc<HostedLoop>,
}

impl InnerTask {
    /// Submits it to the queue of its thread. If that refuses it, the task is told when it is dropped.
    pub(crate) fn submit(self) {
        drop(self.home.submit(self.completion));
    }
}

/// Returns the thread of a host that this code runs on.
pub(crate) fn current_thread() -> Option<PythonThread> {
    current::home().map(|home| PythonThread { home })
}

pub(crate) fn prepare_inner(
    thread: &PythonThread,
    namespace: Option<&Namespace>,
    call: Call,
    task: Box<dyn Foreign>,
) -> (InnerTask, Submitted) {
    let request = match namespace {
        None => Request::new(call, 0),
        Some(namespace) => {
            let registration = &namespace.registration;
            Request::with_namespace_of(&registration.home, call, registration.number)
        }
    };
    let task = ForeignTask::register(request, task, &thread.home);
    let completion = Completion::new(To::Foreign(task.clone()));
    (InnerTask { completion, home: thread.home.clone() }, Submitted { task })
}

/// Makes a call on this thread, inside the one that waits.
pub(crate) fn inner_call(py: Python<'_>, task: InnerTask) {
    let InnerTask { completion, home } = task;
    let Some(mut place) = current::inner_place() else { return };
    // The interrupted call has an exception pending only while it runs.
    debug_assert!(Arc::ptr_eq(&place.home, &home), "visitors submit to the thread that waits");
    // SAFETY: the lock is held, as `py` shows. Null: a loop on this thread cannot turn while it waits.
    unsafe { place.start(py, std::ptr::null_mut(), completion) };
}
