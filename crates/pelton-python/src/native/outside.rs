//! Reaching a loop from any thread, without the interpreter lock.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use pyo3::prelude::*;

use crate::value::Object;

/// Something to be done on a loop's thread, with the interpreter lock.
pub(crate) type Job = Box<dyn FnOnce(Python<'_>) + Send>;

/// The way in to a loop.
pub(crate) trait Outside: Send + Sync {
    /// Has something done soon. Takes no lock that anybody holds for long. A loop that is gone does nothing.
    fn run(&self, job: Job);
}

thread_local! {
    /// The loop of a host that runs on this thread, by its address, and its way in.
    static HERE: RefCell<Option<(usize, Arc<dyn Outside>)>> = const { RefCell::new(None) };
}

/// Says which loop this thread runs.
pub(crate) fn set_here(its_loop: &Bound<'_, PyAny>, outside: Arc<dyn Outside>) {
    HERE.with(|here| *here.borrow_mut() = Some((its_loop.as_ptr().addr(), outside)));
}

/// The way in to the loop that runs on this thread.
pub(crate) fn of(its_loop: &Bound<'_, PyAny>) -> Arc<dyn Outside> {
    let address = its_loop.as_ptr().addr();
    let here = HERE.with(|here| match &*here.borrow() {
        Some((its_address, outside)) if *its_address == address => Some(outside.clone()),
        _ => None,
    });
    here.unwrap_or_else(|| Arc::new(Foreign(Object::new(its_loop))))
}

/// A loop that is no host's, as one that `asyncio.run` has made in a thread. What it is to do goes through a thread that waits
/// for the interpreter lock, and uses `call_soon_threadsafe`.
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
                    tracing::error!("no thread to reach asyncio's loops with: {error}");
                    None
                }
            }
        });
        if let Some(relay) = relay {
            // It runs as long as the process does.
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
                // It may have been closed meanwhile; then nobody waits for this any more.
                if let Err(error) = called {
                    tracing::debug!("a loop does not take what is to wake it up: {error}");
                }
            }
        });
    }
}

/// A job as Python can call it.
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
