//! The thread that runs a loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use pelton_sync::Receiver;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::config::Config;
use super::current;
use super::error::StartError;
use super::inbox::Inbox;
use super::interpreter::{self, known};
use super::loops::{HostedLoop, Message, Wakes};
use super::workers::Workers;
use pelton_asyncio::hosting;

/// How long cancelled tasks may take to end when a loop was stopped.
const GRACE: Duration = Duration::from_millis(500);

/// The final report of a loop.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) index: usize,
    /// How many tasks did not end although they were cancelled, or were never started.
    pub(crate) abandoned: usize,
}

/// Starts a loop. Returns when it accepts work.
pub(crate) fn start(
    home: Arc<HostedLoop>,
    receiver: Receiver<Message>,
    workers: Arc<Workers>,
    config: &Config,
    ended: Sender<Ended>,
) -> Result<(), StartError> {
    let (started, start) = std::sync::mpsc::channel();
    let (batch, spin) = (config.batch, config.spin);
    let thread = std::thread::Builder::new().name(format!("pelton-python-{}", home.index)).stack_size(config.stack);
    thread.spawn(move || {
        let index = home.index;
        let abandoned = interpreter::attach(|py| {
            let place = current::become_thread_of(&home, workers);
            let inbox = Inbox::new(receiver, batch, spin, place);
            let abandoned = match make_loop(py, &home, inbox) {
                Ok(its_loop) => {
                    // A failure means that the host was dropped meanwhile.
                    let _ = started.send(Ok(()));
                    run(py, &home, its_loop)
                }
                Err(error) => {
                    let _ = started.send(Err(interpreter::describe(py, &error, false)));
                    0
                }
            };
            current::leave();
            abandoned
        });
        home.deliveries.close();
        let _ = ended.send(Ended { index, abandoned });
    })?;
    match start.recv() {
        Ok(started) => started.map_err(|exception| StartError::Python(Box::new(exception))),
        Err(_) => Err(StartError::Setting("the loop's thread has ended before it began")),
    }
}

fn make_loop<'py>(py: Python<'py>, home: &Arc<HostedLoop>, inbox: Inbox) -> PyResult<Bound<'py, PyAny>> {
    let its_loop = py.import("pelton")?.call_method0("new_event_loop")?;
    let _ = home.wakes.set(Wakes::Loop(hosting::set_intake(&its_loop, Box::new(inbox))?));
    // SAFETY: this has no preconditions.
    home.executor.thread.store(unsafe { ffi::PyThread_get_thread_ident() } as u64, Ordering::Relaxed);
    let _ = home.thread.set(std::thread::current().id());
    let keywords = PyDict::new(py);
    keywords.set_item("loop", &its_loop)?;
    // Eager tasks, which 3.11 does not have.
    if py.version_info() >= (3, 12) {
        keywords.set_item("eager_start", true)?;
    }
    let _ = home.task_keywords.set(keywords.unbind());
    crate::native::outside::set_here(&its_loop, home.clone());
    Ok(its_loop)
}

/// Runs a loop until it was told to stop and has nothing left to do. Returns how many tasks were abandoned.
fn run(py: Python<'_>, home: &Arc<HostedLoop>, its_loop: Bound<'_, PyAny>) -> usize {
    if let Err(error) = known().run.bind(py).call1((&its_loop,)) {
        error.write_unraisable(py, Some(&its_loop));
    }
    home.closing.store(true, Ordering::Relaxed);
    home.cancelling.store(true, Ordering::Relaxed);
    let queued = home.queued() + home.fetched.load(Ordering::Relaxed);
    let finished = known().finish.bind(py).call1((&its_loop, GRACE.as_secs_f64()));
    if let Err(error) = finished {
        error.write_unraisable(py, Some(&its_loop));
    }
    // Everything that the loop had queued was dropped with it.
    drop(its_loop);
    let left: Vec<_> = home.waiting.lock().drain().collect();
    let abandoned = left.len() + queued;
    drop(left);
    abandoned
}
