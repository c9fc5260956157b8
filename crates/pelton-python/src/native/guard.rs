//! No processes from Python code.
//!
//! A fork copies one thread out of many: whatever locks the others held stay locked in the child, the interpreter's and the
//! allocator's included. Executing a program in the place of this one ends it without a word. Python announces both by audit
//! events, and takes an exception there for a no.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use pyo3::ffi::{self, PyObject};

use super::attached;
use crate::host::Exception;
use crate::object::raise_text;
use crate::panic::guard;

/// Called for each event, with its name, its arguments and what was given with the hook. -1 and an exception: no.
type AuditHook = unsafe extern "C" fn(*const c_char, *mut PyObject, *mut c_void) -> c_int;

unsafe extern "C" {
    // Part of CPython's interface since 3.8 that PyO3 does not declare.
    fn PySys_AddAuditHook(hook: AuditHook, data: *mut c_void) -> c_int;
}

/// What Python announces.
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

/// What Python does without announcing it: what `subprocess` and `multiprocessing` are built on.
const UNANNOUNCED: &CStr = c"
import sys, _posixsubprocess

def fork_exec(*arguments):
    sys.audit('pelton.fork_exec')

_posixsubprocess.fork_exec = fork_exec
if 'subprocess' in sys.modules and hasattr(sys.modules['subprocess'], '_fork_exec'):
    sys.modules['subprocess']._fork_exec = fork_exec
";

/// Refuses, from now on and for good, to let Python code in this process fork or execute programs: `os.fork`, `os.exec*`,
/// `os.posix_spawn`, `os.system`, `subprocess`, `multiprocessing` and all that is made of these raise `PermissionError`. Rust
/// code is not concerned.
///
/// It keeps code from doing so by mistake. It is no sandbox: code that means harm can call the system by `ctypes`.
///
/// Fails if Python is not running: start a [`Host`](crate::Host) first.
pub fn refuse_processes() -> Result<(), Exception> {
    static ONCE: Once = Once::new();
    attached("refuse processes", |py| {
        ONCE.call_once(|| {
            // SAFETY: the function is one, and needs no data. The lock is held, as it has to be once Python runs.
            let added = unsafe { PySys_AddAuditHook(hook, std::ptr::null_mut()) };
            debug_assert_eq!(added, 0, "only another hook could object");
        });
        py.run(UNANNOUNCED, None, None)
    })
}

unsafe extern "C" fn hook(event: *const c_char, _: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: Python passes a string. Most events are others, and many; their first letter tells.
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
            raise_text(
                ffi::PyExc_PermissionError,
                &format!("{what} is refused: this Python is part of a program, which a fork or exec would break"),
            );
            -1
        })
    }
}
