//! Worker threads for blocking functions, so that the loop keeps running.
//!
//! The loop looks up the function and converts its arguments. A worker calls it and converts the result. Awaitables
//! go back to the loop. Each worker creates its thread state once.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;

use super::TaskError;
use super::completion::{CANCEL, Completion};
use super::error::RefusalKind;
use super::execute::{self, Failure};
use super::interpreter;
use super::lock_order::{Rank, Ranked};
use super::loops::{Control, Executor, HostedLoop};
use super::returned::{self, Kind, ResultOptions, Returned};
use pelton_cpython::object::Owned;

/// A call for a worker.
pub(crate) struct Job {
    pub(crate) function: Py<PyAny>,
    pub(crate) args: Py<PyAny>,
    pub(crate) keywords: Option<Py<PyAny>>,
    pub(crate) options: ResultOptions,
    pub(crate) completion: Completion,
    pub(crate) home: Arc<HostedLoop>,
}

pub(crate) struct Workers {
    most: usize,
    /// Stack size of each thread.
    stack: usize,
    bound: usize,
    state: Ranked<State>,
    work: Condvar,
    executors: Arc<Ranked<Vec<Arc<Executor>>>>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Workers {
    pub(crate) fn new(
        (most, stack): (usize, usize),
        bound: usize,
        executors: Arc<Ranked<Vec<Arc<Executor>>>>,
    ) -> Arc<Workers> {
        let state = Ranked::new(Rank::Loop, State::default());
        Arc::new(Workers { most, stack, bound, state, work: Condvar::new(), executors })
    }

    /// Runs a job on a worker thread, or refuses it.
    pub(crate) fn run(self: &Arc<Workers>, job: Job) {
        job.home.on_workers.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let refusal = match () {
            () if state.closed => Some(RefusalKind::ShuttingDown),
            () if self.most == 0 || state.jobs.len() >= self.bound => Some(RefusalKind::Full),
            () => None,
        };
        if let Some(kind) = refusal {
            drop(state);
            return job.settle(Err(TaskError::Refused(kind)));
        }
        state.jobs.push_back(job);
        let start = state.idle < state.jobs.len() && state.threads < self.most;
        state.threads += usize::from(start);
        drop(state);
        self.work.notify_one();
        if start && let Err(error) = self.start_thread() {
            tracing::error!(%error, "start a thread for blocking Python functions");
            let mut state = self.state.lock();
            state.threads -= 1;
            // Without any thread, the jobs would never run.
            let jobs = if state.threads == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
            drop(state);
            for job in jobs {
                job.settle(Err(TaskError::Refused(RefusalKind::Full)));
            }
        }
    }

    fn start_thread(self: &Arc<Workers>) -> std::io::Result<()> {
        let workers = self.clone();
        let body = move || interpreter::attach(|py| workers.work(py));
        let thread = std::thread::Builder::new().name("pelton-python-worker".to_owned()).stack_size(self.stack);
        thread.spawn(body).map(drop)
    }

    fn work(&self, py: Python<'_>) {
        let executor = Arc::new(Executor::default());
        // SAFETY: this has no preconditions.
        executor.thread.store(unsafe { ffi::PyThread_get_thread_ident() } as u64, Ordering::Relaxed);
        self.executors.lock().push(executor.clone());
        while let Some(job) = py.detach(|| self.take()) {
            job.call(py, &executor);
        }
        self.executors.lock().retain(|other| !Arc::ptr_eq(other, &executor));
    }

    fn take(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            state = state.wait(|guard| self.work.wait(guard).unwrap_or_else(PoisonError::into_inner));
            state.idle -= 1;
        }
    }

    /// Refuses new jobs and lets the threads end. Returns the jobs that have not started.
    pub(crate) fn close(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.work.notify_all();
        jobs.into()
    }
}

impl Job {
    fn call(self, py: Python<'_>, executor: &Executor) {
        if self.completion.tag().is_wanted(CANCEL) {
            return self.settle(Err(TaskError::Cancelled));
        }
        if self.options.deadline.is_some_and(|deadline| deadline <= pelton_os::clock::now()) {
            return self.settle(Err(TaskError::TimedOut));
        }
        // SAFETY: the lock is held, as `py` shows, and the job owns references to all three.
        let returned = execute::executing(py, executor, self.completion.tag(), || unsafe {
            let keywords = self.keywords.as_ref().map_or(std::ptr::null_mut(), |keywords| keywords.as_ptr());
            Owned::returned(ffi::PyObject_Call(self.function.as_ptr(), self.args.as_ptr(), keywords))
        });
        let outcome = match returned {
            Ok(object) => {
                // SAFETY: `object` is an owned reference, and the lock is held.
                let kind = unsafe { returned::kind_of(object.as_ptr()) };
                if kind != Kind::Plain || self.completion.stream().is_some() {
                    // SAFETY: `into_ptr` gives away an owned reference.
                    let object = unsafe { Bound::<PyAny>::from_owned_ptr(py, object.into_ptr()).unbind() };
                    return self.hand_over(object);
                }
                // SAFETY: `object` is an owned reference, and the lock is held.
                unsafe { returned::convert(py, &object, self.options, &self.completion) }
            }
            Err(raised) => Err(Failure::from(raised).into_error(py, self.options.keep_exception)),
        };
        self.settle(outcome);
    }

    /// Passes an awaitable to the loop.
    fn hand_over(self, object: Py<PyAny>) {
        let Job { options, completion, home, .. } = self;
        home.control(Control::Await(Box::new(Returned { object, options, completion })));
        home.on_workers.fetch_sub(1, Ordering::Relaxed);
        home.look_if_closing();
    }

    pub(crate) fn settle(self, outcome: super::reply::Outcome) {
        let Job { completion, home, .. } = self;
        completion.settle(outcome);
        home.on_workers.fetch_sub(1, Ordering::Relaxed);
        home.look_if_closing();
    }
}
