//! Refusing child processes from Python code.
//!
//! A fork copies only one of many threads. Locks that the others held stay locked in the child, including those of
//! the interpreter and the allocator. An exec replaces the program without any cleanup. Python raises audit events
//! for both, and a hook can refuse them by raising an exception.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use pyo3::ffi::PyObject;

use super::attached;
use crate::host::Exception;
use pelton_cpython::panic::guard;
use pelton_cpython::{call, lock};

/// Called for each event with its name, its arguments and the hook's data. Refuses the event by returning -1 with
/// an exception set.
type AuditHook = unsafe extern "C" fn(*const c_char, *mut PyObject, *mut c_void) -> c_int;

unsafe extern "C" {
    // Part of CPython's C API since 3.8; pyo3 does not declare it.
    fn PySys_AddAuditHook(hook: AuditHook, data: *mut c_void) -> c_int;
}

/// The events that Python raises.
const EVENTS: [&CStr; 9] = [
    c"os.fork",
    c"os.forkpty",
    c"os.exec",
    c"os.posix_spawn",
    c"os.spawn",
    c"os.system",
    c"os.startfile",
    c"pty.spawn",
    c"subprocess.Popen",
];

/// `subprocess` and `multiprocessing` use a function that raises no event. This replaces that function with one that
/// raises an event.
const UNANNOUNCED: &CStr = c"
import sys, _posixsubprocess

def fork_exec(*arguments):
    sys.audit('pelton.fork_exec')

_posixsubprocess.fork_exec = fork_exec
if 'subprocess' in sys.modules and hasattr(sys.modules['subprocess'], '_fork_exec'):
    sys.modules['subprocess']._fork_exec = fork_exec
";

/// Refuses from now on to let Python code in this process fork or execute programs: `os.fork`, `os.exec*`,
/// `os.posix_spawn`, `os.system`, `subprocess`, `multiprocessing` and everything built on them raise
/// `PermissionError`. This cannot be undone. Rust code is not affected.
///
/// This prevents mistakes. It is not a sandbox: malicious code can make system calls through `ctypes`.
///
/// Fails if Python is not running: start a [`Host`](crate::Host) first.
pub fn refuse_processes() -> Result<(), Exception> {
    static ONCE: Once = Once::new();
    attached("refuse processes", |py| {
        ONCE.call_once(|| {
            // SAFETY: the hook has the right signature and ignores its data. The lock is held, as `py` shows.
            let added = unsafe { PySys_AddAuditHook(hook, std::ptr::null_mut()) };
            debug_assert_eq!(added, 0, "only another audit hook can refuse it");
        });
        py.run(UNANNOUNCED, None, None)
    })
}

unsafe extern "C" fn hook(event: *const c_char, _: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: Python passes the event's name as a C string. The first letter rules out most events quickly.
    unsafe {
        if !matches!(*event as u8, b'o' | b'p' | b's') {
            return 0;
        }
        let event = CStr::from_ptr(event);
        if !EVENTS.contains(&event) && event != c"pelton.fork_exec" {
            return 0;
        }
        guard(-1, || {
            let what = event.to_string_lossy();
            let what = if what == "pelton.fork_exec" { "starting a process".into() } else { what };
            let text = format!("{what} is refused: this Python is part of a program, which a fork or exec would break");
            lock::held(|py| call::raise::<pyo3::exceptions::PyPermissionError>(py, &text));
            -1
        })
    }
}
