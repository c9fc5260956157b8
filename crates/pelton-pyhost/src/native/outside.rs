//! Running jobs on a loop from any thread, without the interpreter lock.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use pyo3::prelude::*;

use crate::value::Object;

/// A job to run on a loop's thread with the interpreter lock held.
pub(crate) type Job = Box<dyn FnOnce(Python<'_>) + Send>;

/// A loop that accepts jobs from other threads.
pub(crate) trait Outside: Send + Sync {
    /// Runs a job soon. Takes no lock that is held for long. A closed loop drops the job.
    fn run(&self, job: Job);
}

thread_local! {
    /// The host's loop that runs on this thread, and its address.
    static HERE: RefCell<Option<(usize, Arc<dyn Outside>)>> = const { RefCell::new(None) };
}

/// Sets the loop that this thread runs.
pub(crate) fn set_here(its_loop: &Bound<'_, PyAny>, outside: Arc<dyn Outside>) {
    HERE.with(|here| *here.borrow_mut() = Some((its_loop.as_ptr().addr(), outside)));
}

/// Returns the way to run jobs on the loop of this thread.
pub(crate) fn of(its_loop: &Bound<'_, PyAny>) -> Arc<dyn Outside> {
    let address = its_loop.as_ptr().addr();
    let here = HERE.with(|here| match &*here.borrow() {
        Some((its_address, outside)) if *its_address == address => Some(outside.clone()),
        _ => None,
    });
    here.unwrap_or_else(|| Arc::new(Foreign(Object::new(its_loop))))
}

/// A loop that does not belong to a host, such as one created by `asyncio.run` in a thread. Jobs go through a
/// helper thread that waits for the interpreter lock and calls `call_soon_threadsafe`.
struct Foreign(Object);

impl Outside for Foreign {
    fn run(&self, job: Job) {
        static RELAY: OnceLock<Option<mpsc::Sender<(Object, Job)>>> = OnceLock::new();
        let relay = RELAY.get_or_init(|| {
            let (sender, receiver) = mpsc::channel();
            let thread = std::thread::Builder::new().name("pelton-relay".to_owned());
            match thread.spawn(move || relay(&receiver)) {
                Ok(_) => Some(sender),
                Err(error) => {
                    tracing::error!("start a thread that wakes asyncio's loops: {error}");
                    None
                }
            }
        });
        if let Some(relay) = relay {
            // The thread runs as long as the process.
            let _ = relay.send((self.0.clone(), job));
        }
    }
}

fn relay(jobs: &mpsc::Receiver<(Object, Job)>) {
    while let Ok(first) = jobs.recv() {
        Python::attach(|py| {
            for (its_loop, job) in std::iter::once(first).chain(jobs.try_iter()) {
                let called = Bound::new(py, Once(Mutex::new(Some(job))))
                    .and_then(|job| its_loop.bind(py).call_method1("call_soon_threadsafe", (job,)));
                // The loop may have been closed, in which case nothing waits for the job.
                if let Err(error) = called {
                    tracing::debug!("wake a loop by call_soon_threadsafe: {error}");
                }
            }
        });
    }
}

/// A job as a Python callable.
#[pyclass(frozen, module = "pelton")]
struct Once(Mutex<Option<Job>>);

#[pymethods]
impl Once {
    fn __call__(&self, py: Python<'_>) {
        let job = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = job {
            job(py);
        }
    }
}
