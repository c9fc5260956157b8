//! The interpreter: starting it, importing the package embedded in the program, and objects that are looked up once.
//!
//! The interpreter is started once per process and never finalized, because Python cannot restart with all extension
//! modules loaded. After a shutdown, another host can be started. It finds the interpreter as the previous one left it.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

use super::config::Config;
use super::error::{Exception, StartError};
use super::lock_order::{self, Rank};
use crate::value::Object;

/// The modules of the package, by name.
const SOURCES: [(&str, &str); 8] = [
    ("pelton", include_str!("../../../../python/pelton/__init__.py")),
    ("pelton._datagrams", include_str!("../../../../python/pelton/_datagrams.py")),
    ("pelton._loop", include_str!("../../../../python/pelton/_loop.py")),
    ("pelton._pipes", include_str!("../../../../python/pelton/_pipes.py")),
    ("pelton._policy", include_str!("../../../../python/pelton/_policy.py")),
    ("pelton._tls", include_str!("../../../../python/pelton/_tls.py")),
    ("pelton._transports", include_str!("../../../../python/pelton/_transports.py")),
    ("pelton._host", include_str!("python/host.py")),
];

const IMPORTER: &str = include_str!("python/importer.py");

/// Objects that are looked up once. The references are never released.
pub(crate) struct HostKnown {
    /// `asyncio.Task`
    pub(crate) task: Py<PyAny>,
    /// `asyncio.current_task`
    current_task: Py<PyAny>,
    /// `sys.modules`
    pub(crate) modules: Py<PyDict>,
    /// `builtins.__dict__`
    pub(crate) builtins: Py<PyDict>,
    /// Functions of `pelton._host`.
    pub(crate) describe: Py<PyAny>,
    pub(crate) wait_for: Py<PyAny>,
    pub(crate) stream: Py<PyAny>,
    pub(crate) run: Py<PyAny>,
    pub(crate) finish: Py<PyAny>,
    pub(crate) stack_of: Py<PyAny>,
    pub(crate) complete: Py<PyAny>,
    interrupted: Py<PyAny>,
}

static KNOWN: OnceLock<HostKnown> = OnceLock::new();

/// Returns the objects that were looked up when the first host was started.
#[inline]
pub(crate) fn known() -> &'static HostKnown {
    KNOWN.get().expect("set when the first host starts")
}

/// Acquires the interpreter lock, on a thread that may already hold it.
pub(crate) fn attach<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    lock_order::check(Rank::Interpreter);
    Python::attach(f)
}

/// Starts the interpreter unless it is running, and prepares it.
pub(crate) fn prepare(config: &Config) -> Result<(), StartError> {
    // This installs no signal handlers: signals belong to the program.
    Python::initialize();
    attach(|py| {
        let failed = |error: PyErr| StartError::Python(Box::new(describe_plainly(py, &error)));
        install_importer(py).map_err(failed)?;
        let host = py.import("pelton._host").map_err(failed)?;
        crate::native::install(py).map_err(failed)?;
        if KNOWN.get().is_none() {
            let known = look_up(py, &host).map_err(failed)?;
            // Another thread may have set the same.
            let _ = KNOWN.set(known);
        }
        if let Some(environment) = &config.environment {
            activate(&host, environment)?;
        }
        let paths: Vec<&Path> = config.paths.iter().map(AsRef::as_ref).collect();
        host.call_method1(
            "prepare",
            (paths.iter().map(|path| path.as_os_str()).collect::<Vec<_>>(), &config.arguments),
        )
        .map_err(failed)?;
        Ok(())
    })
}

fn activate(host: &Bound<'_, PyModule>, environment: &Path) -> Result<(), StartError> {
    let failed = |problem: String| StartError::Environment { path: environment.display().to_string(), problem };
    let absolute = std::path::absolute(environment).map_err(|error| failed(error.to_string()))?;
    let problem = host.call_method1("activate", (absolute.as_os_str(),)).map_err(|error| failed(error.to_string()))?;
    if problem.is_none() { Ok(()) } else { Err(failed(problem.to_string())) }
}

fn install_importer(py: Python<'_>) -> PyResult<()> {
    let sources = PyDict::new(py);
    for (name, source) in SOURCES {
        sources.set_item(name, source)?;
    }
    let native = PyCFunction::new_closure(py, None, None, |arguments: &Bound<'_, PyTuple>, _| {
        let module = PyModule::new(arguments.py(), "pelton._pelton")?;
        pelton_asyncio::fill_module(&module)?;
        Ok::<_, PyErr>(module.unbind())
    })?;
    let globals = PyDict::new(py);
    globals.set_item("__name__", "pelton._importer")?;
    globals.set_item("SOURCES", sources)?;
    globals.set_item("NATIVE", native)?;
    let code = std::ffi::CString::new(IMPORTER)
        .map_err(|_| PyRuntimeError::new_err("the importer's source contains a null byte"))?;
    py.run(&code, Some(&globals), None)
}

fn look_up(py: Python<'_>, host: &Bound<'_, PyModule>) -> PyResult<HostKnown> {
    let asyncio = py.import("asyncio")?;
    let get = |name: &str| host.getattr(name).map(Bound::unbind);
    Ok(HostKnown {
        task: asyncio.getattr("Task")?.unbind(),
        current_task: asyncio.getattr("current_task")?.unbind(),
        modules: py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind(),
        builtins: py.import("builtins")?.dict().unbind(),
        describe: get("describe")?,
        wait_for: get("wait_for")?,
        stream: get("stream")?,
        run: get("run")?,
        finish: get("finish")?,
        stack_of: get("stack_of")?,
        complete: get("complete")?,
        interrupted: get("Interrupted")?,
    })
}

/// Raises `pelton.Interrupted` in another thread the next time it runs Python code.
pub(crate) fn raise_in(py: Python<'_>, thread: u64) -> bool {
    // SAFETY: the lock is held, as `py` shows. The number of a thread that no longer exists has no effect.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, known().interrupted.bind(py).as_ptr()) == 1 }
}

/// Interrupts the call that a thread is making, if any. Returns whether there is one.
pub(crate) fn interrupt(executor: &super::loops::Executor) -> bool {
    attach(|py| {
        let tag = executor.task.load(Ordering::Relaxed) as *const super::completion::Tag;
        if tag.is_null() {
            return false;
        }
        // SAFETY: the address is removed, with the lock held, before the tag is dropped. This thread has the lock.
        unsafe { (*tag).want(super::completion::INTERRUPT) };
        raise_in(py, executor.thread.load(Ordering::Relaxed))
    })
}

/// Withdraws an interruption that has not been raised yet.
pub(crate) fn take_back_interrupt(_: Python<'_>, thread: u64) {
    // SAFETY: as in `raise_in`. Null withdraws the exception.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, std::ptr::null_mut()) };
}

/// Returns whether `future` is the task that its loop is running.
pub(crate) fn is_current_task(py: Python<'_>, future: *mut PyObject) -> bool {
    // SAFETY: the callers own a reference to the future, and the lock is held, as `py` shows.
    let future = unsafe { Bound::<PyAny>::from_borrowed_ptr(py, future) };
    let current = future.call_method0("get_loop").and_then(|its_loop| known().current_task.bind(py).call1((its_loop,)));
    current.is_ok_and(|current| current.is(&future))
}

/// Converts an exception.
#[cold]
pub(crate) fn describe(py: Python<'_>, error: &PyErr, keep: bool) -> Exception {
    let value = error.value(py);
    // Before 3.12 the traceback of a new exception is stored beside it and not yet in it.
    if py.version_info() < (3, 12)
        && let Some(traceback) = error.traceback(py)
    {
        // This can only fail for an object of the wrong type.
        let _ = value.setattr(pyo3::intern!(py, "__traceback__"), traceback);
    }
    let described =
        known().describe.bind(py).call1((value,)).and_then(|text| text.extract::<(String, String, String)>());
    let mut exception = match described {
        Ok((type_name, message, traceback)) => Exception { type_name, message, traceback, object: None },
        // Out of memory, stack overflow or an interruption: report at least the class.
        Err(_) => describe_plainly(py, error),
    };
    exception.object = keep.then(|| Object::new(value));
    exception
}

fn describe_plainly(py: Python<'_>, error: &PyErr) -> Exception {
    let type_name = error.get_type(py).name().map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    let message = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned());
    Exception { type_name, message, traceback: String::new(), object: None }
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    #[test]
    fn every_module_of_the_package_is_embedded() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/pelton");
        for entry in std::fs::read_dir(package).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // `__main__` is run, never imported.
            let Some(module) = name.strip_suffix(".py").filter(|module| *module != "__main__") else { continue };
            let full = if module == "__init__" { "pelton".to_owned() } else { format!("pelton.{module}") };
            assert!(SOURCES.iter().any(|(name, _)| *name == full), "{full} is missing");
        }
    }
}
