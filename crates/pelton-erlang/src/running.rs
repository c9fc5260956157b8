//! The host of this virtual machine: starting it, its threads, and stopping it.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pelton_python::host::{Config, Host, Namespace, PythonThread, StartError, Worker};
use rustler::{Resource, ResourceArc};

use crate::module;
use crate::spaces::Spaces;

/// A running host, and the namespaces of the processes that use it.
pub(crate) struct Running {
    pub(crate) host: Host,
    pub(crate) spaces: ResourceArc<Spaces>,
}

static RUNNING: Mutex<Option<Arc<Running>>> = Mutex::new(None);

/// Returns the running host.
pub(crate) fn current() -> Option<Arc<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A thread of the host, as Erlang refers to it: a loop, or a worker.
pub(crate) struct ThreadRef {
    pub(crate) thread: PythonThread,
    pub(crate) running: Arc<Running>,
    /// The worker ends when this is dropped.
    pub(crate) worker: Mutex<Option<Worker>>,
    /// The namespace that belongs to the thread instead of to a process.
    pub(crate) own: Namespace,
    /// Calls run on one of the threads for blocking functions.
    pub(crate) pooled: bool,
}

#[rustler::resource_impl]
impl Resource for ThreadRef {}

impl ThreadRef {
    pub(crate) fn of_loop(running: &Arc<Running>, index: usize) -> ThreadRef {
        let thread = running.host.thread(index);
        let own = thread.namespace();
        ThreadRef { thread, running: running.clone(), worker: Mutex::new(None), own, pooled: false }
    }

    pub(crate) fn of_worker(running: &Arc<Running>) -> Result<ThreadRef, StartError> {
        let worker = running.host.worker()?;
        let (thread, own) = ((*worker).clone(), worker.namespace());
        Ok(ThreadRef { thread, running: running.clone(), worker: Mutex::new(Some(worker)), own, pooled: false })
    }

    /// The thread that waits, or the threads for blocking functions.
    pub(crate) fn for_answers(running: &Arc<Running>, waiting: Option<PythonThread>) -> ThreadRef {
        let pooled = waiting.is_none();
        let thread = waiting.unwrap_or_else(|| running.host.thread(0));
        let own = thread.namespace();
        ThreadRef { thread, running: running.clone(), worker: Mutex::new(None), own, pooled }
    }

    pub(crate) fn stop(&self) {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(worker);
    }
}

/// Threads for calls that answer questions of threads that do not belong to the host, each of which may ask again. They are
/// started on demand.
const MOST_BLOCKING: usize = 128;

/// Settings of a host.
pub(crate) struct Settings {
    pub(crate) loops: usize,
    pub(crate) queue_bound: usize,
    pub(crate) paths: Vec<String>,
    pub(crate) spin: Duration,
}

/// Starts the host. It takes as long as Python takes to start, so no scheduler calls it.
pub(crate) fn start(settings: Settings) -> Result<(), String> {
    share_python()?;
    let Settings { loops, queue_bound, paths, spin } = settings;
    let config = Config::new().loops(loops).queue_bound(queue_bound).spin(spin).workers(MOST_BLOCKING);
    let config = paths.into_iter().fold(config, Config::path);
    let host = Host::start(config).map_err(|error| error.to_string())?;
    module::install().map_err(|error| format!("install the package erlang: {error}"))?;
    let running = Running { host, spaces: Spaces::new() };
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(running));
    Ok(())
}

/// Stops the host. Returns how many calls were abandoned, and how many threads do not return.
pub(crate) fn stop(deadline: Duration) -> Option<(usize, usize)> {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    let remains = running.host.shutdown(deadline);
    Some((remains.abandoned, remains.stuck.len()))
}

/// Makes the symbols of the Python library visible to its extension modules.
///
/// The virtual machine loads native libraries privately, and the Python library with them. Extension modules of Python
/// are not linked with it and would not find it. Our own library stays loaded too, because threads run its code.
fn share_python() -> Result<(), String> {
    let keep = |symbol: *const libc::c_void, flags| {
        // SAFETY: `dladdr` fills in the structure, whose name is a C string that lives as long as the library.
        unsafe {
            let mut found: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(symbol, &mut found) == 0 || found.dli_fname.is_null() {
                return Err("find the Python library among the loaded ones".to_owned());
            }
            if libc::dlopen(found.dli_fname, flags).is_null() {
                let name = CStr::from_ptr(found.dli_fname).to_string_lossy();
                return Err(format!("load {name} for Python's extension modules"));
            }
            Ok(())
        }
    };
    keep(pyo3::ffi::Py_Initialize as *const libc::c_void, libc::RTLD_NOW | libc::RTLD_GLOBAL)?;
    keep(share_python as *const libc::c_void, libc::RTLD_NOW | libc::RTLD_NODELETE)
}
