//! Forwards Python's logging to `tracing`.
//!
//! A handler on Python's root logger gets every record. It extracts the fields, releases the interpreter lock and emits
//! an event. So a subscriber may take its time, take locks, and even call Python. The handler itself takes no lock.

use std::cell::Cell;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing_core::{Event, Level, dispatcher, field};

use super::attached;
use super::callsites::metadata;
use crate::host::Exception;

/// Forwards Python's log records from `level` on to `tracing`. The target is the logger's name. Events have the
/// message and the fields `file`, `line` and, if there is one, `exception` with the traceback.
///
/// Sets the level of Python's root logger; its other handlers stay. A second call changes the level. Fails if
/// Python is not running: start a [`Host`](crate::Host) first.
pub fn forward_logging(level: Level) -> Result<(), Exception> {
    attached("forward Python's logging", |py| install(py, level))
}

/// The handler. `forward` is the function that receives each record.
const HANDLER: &std::ffi::CStr = c"
import logging

class Handler(logging.Handler):
    def handle(self, record):
        # Without the lock that other handlers take: tracing does not need it.
        wanted = self.filter(record)
        if isinstance(wanted, logging.LogRecord):
            record = wanted
        if wanted:
            self.emit(record)
        return wanted

    def emit(self, record):
        try:
            exception = record.exc_text
            if exception is None and record.exc_info:
                exception = logging.Formatter().formatException(record.exc_info)
            forward(record.name, record.levelno, record.getMessage(), record.pathname, record.lineno, exception)
        except Exception:
            self.handleError(record)

root = logging.getLogger()
if not any(type(handler).__module__ == __name__ for handler in root.handlers):
    root.addHandler(Handler())
root.setLevel(level)
";

fn install(py: Python<'_>, level: Level) -> PyResult<()> {
    let number = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        _ => 1,
    };
    let names = PyDict::new(py);
    names.set_item("__name__", "pelton._logging")?;
    names.set_item("level", number)?;
    names.set_item("forward", pyo3::wrap_pyfunction!(forward, py)?)?;
    py.run(HANDLER, Some(&names), None)
}

thread_local! {
    /// Whether this thread is forwarding a record.
    static FORWARDING: Cell<bool> = const { Cell::new(false) };
}

/// Converts an object to text; surrogates are replaced.
fn text(object: &Bound<'_, PyAny>) -> String {
    object.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[pyfunction]
fn forward(
    name: &Bound<'_, PyAny>,
    level: i64,
    message: &Bound<'_, PyAny>,
    path: &Bound<'_, PyAny>,
    line: i64,
    exception: Option<Bound<'_, PyAny>>,
) {
    // Without this check, a subscriber that logs through Python would recurse.
    if FORWARDING.replace(true) {
        return;
    }
    let _forwarding = Forwarding;
    let level = match level {
        40.. => Level::ERROR,
        30.. => Level::WARN,
        20.. => Level::INFO,
        10.. => Level::DEBUG,
        _ => Level::TRACE,
    };
    let (py, name, message, path) = (name.py(), text(name), text(message), text(path));
    let exception = exception.map(|exception| text(&exception));
    py.detach(|| emit(&name, level, &message, &path, line, exception.as_deref()));
}

struct Forwarding;

impl Drop for Forwarding {
    fn drop(&mut self) {
        FORWARDING.set(false);
    }
}

fn emit(name: &str, level: Level, message: &str, path: &str, line: i64, exception: Option<&str>) {
    if level > tracing_core::LevelFilter::current() {
        return;
    }
    let metadata = metadata(name, level);
    if !dispatcher::get_default(|subscriber| subscriber.enabled(metadata)) {
        return;
    }
    let message = format_args!("{message}");
    let values: [Option<&dyn field::Value>; 4] =
        [Some(&message), Some(&path), Some(&line), exception.as_ref().map(|text| text as &dyn field::Value)];
    Event::dispatch(metadata, &metadata.fields().value_set_all(&values));
}
