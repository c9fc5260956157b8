//! A thread for work that may wait for Python's lock, or that must not be done by a scheduler.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

type Errand = Box<dyn FnOnce() + Send>;

/// Runs some work soon, in order.
pub(crate) fn run(errand: impl FnOnce() + Send + 'static) {
    static SENDER: OnceLock<Mutex<Sender<Errand>>> = OnceLock::new();
    let sender = SENDER.get_or_init(|| {
        let (sender, receiver) = channel::<Errand>();
        let body = move || {
            for errand in receiver {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(errand)).is_err() {
                    tracing::error!("an errand panicked, which is a bug in pelton");
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("pelton-errands".to_owned()).spawn(body) {
            tracing::error!(%error, "start a thread for errands");
        }
        Mutex::new(sender)
    });
    // The thread lives as long as the process.
    let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(errand));
}
