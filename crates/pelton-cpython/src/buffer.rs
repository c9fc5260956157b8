//! Memory for received data, and the memory of Python's objects.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::slice;

use bytes::Bytes;
use pelton::Space;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::call::{raise, report_unraisable, returned, status};
use crate::object::{Raised, Result};

/// Maximum size of one receive, as in asyncio.
pub const RECEIVE: usize = 256 * 1024;

/// A buffer for received data until it is copied into an object of the right size.
///
/// With a new object of [`RECEIVE`] bytes for each message, shrunk afterwards, the C library would map and unmap memory each time.
///
/// It is page-aligned. The kernel copies with `rep movsb`. On AMD's Zen 3 and 4 that takes up to five times as long if the destination is a
/// few bytes further into a page than the source, and the source often starts at a page boundary.
#[repr(align(4096))]
struct ReceiveBuffer {
    memory: UnsafeCell<[u8; RECEIVE]>,
    in_use: Cell<bool>,
}

// SAFETY: it is only used with the interpreter lock held.
unsafe impl Sync for ReceiveBuffer {}

static SHARED: ReceiveBuffer = ReceiveBuffer { memory: UnsafeCell::new([0; RECEIVE]), in_use: Cell::new(false) };

/// Calls `f` with a buffer of [`RECEIVE`] bytes, which all share.
#[inline]
pub fn with_shared<R>(_: Python<'_>, f: impl FnOnce(&mut [u8]) -> R) -> R {
    struct InUse;
    impl Drop for InUse {
        fn drop(&mut self) {
            SHARED.in_use.set(false);
        }
    }
    if SHARED.in_use.replace(true) {
        return f(&mut vec![0; RECEIVE]);
    }
    let _in_use = InUse;
    // SAFETY: the lock is held, and the flag keeps everyone else from the memory until `f` returns.
    f(unsafe { &mut *SHARED.memory.get() })
}

/// Receives into a new `bytes` object of the expected size. An unused end is returned to the allocator. What does not fit goes to the
/// shared buffer first, so a message is never split because it is larger than the previous one.
///
/// `receive` receives into the spaces, one after the other, and returns how many bytes that were. It is called again if that was less than
/// expected but at least `again`, and may then fail without losing what was received: see the third part of the result.
pub fn receive_expected<'py>(
    py: Python<'py>,
    expected: usize,
    again: usize,
    mut receive: impl FnMut(&mut [Space<'_>]) -> Result<io::Result<usize>>,
) -> Result<io::Result<(Bound<'py, PyBytes>, Option<io::Error>)>> {
    // SAFETY: nothing else has seen the object until it is complete. The reactor fills the spaces from their beginnings.
    let data = unsafe { returned(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), expected as Py_ssize_t))? };
    // SAFETY: it is a `bytes` object of this size.
    let memory: &mut [MaybeUninit<u8>] =
        unsafe { slice::from_raw_parts_mut(ffi::PyBytes_AsString(data.as_ptr()).cast(), expected) };
    with_shared(py, |shared| {
        let rest = &mut shared[..RECEIVE.saturating_sub(expected)];
        let mut count = match receive(&mut [Space::from(&mut *memory), Space::from(&mut *rest)])? {
            Ok(count) => count,
            Err(error) => return Ok(Err(error)),
        };
        let mut failed = None;
        if (again..expected).contains(&count) {
            match receive(&mut [Space::from(&mut memory[count..]), Space::from(&mut *rest)])? {
                // The end of the stream will be reported again by the next receive.
                Ok(more) => count += more,
                Err(error) => failed = Some(error),
            }
        }
        if count <= expected {
            return resized(data, count).map(|data| Ok((data, failed)));
        }
        let more = &rest[..count - expected];
        let whole = PyBytes::new_with(py, count, |whole| {
            // SAFETY: the object was filled.
            whole[..expected].copy_from_slice(unsafe { memory.assume_init_ref() });
            whole[expected..].copy_from_slice(more);
            Ok(())
        });
        whole.map(|whole| Ok((whole, failed))).map_err(|error| {
            error.restore(py);
            Raised
        })
    })
}

/// Shrinks a `bytes` object that no other code has seen yet, and whose beginning is filled.
fn resized(bytes: Bound<'_, PyAny>, len: usize) -> Result<Bound<'_, PyBytes>> {
    // Part of the documented C API; pyo3 does not declare it.
    unsafe extern "C" {
        fn _PyBytes_Resize(bytes: *mut *mut PyObject, len: Py_ssize_t) -> c_int;
    }
    let py = bytes.py();
    let mut bytes = bytes.into_ptr();
    // SAFETY: the callers pass the only reference to the object. On failure `_PyBytes_Resize` has released the object.
    unsafe {
        if ffi::PyBytes_Size(bytes) as usize != len {
            status(_PyBytes_Resize(&mut bytes, len as Py_ssize_t))?;
        }
        returned(py, bytes).map(|bytes| bytes.cast_into_unchecked())
    }
}

/// A view of the memory of an object. The memory stays in place until this is dropped.
pub struct View<'py> {
    view: Box<ffi::Py_buffer>,
    py: Python<'py>,
}

impl<'py> View<'py> {
    /// Acquires a view of contiguous memory.
    pub fn of(object: &Bound<'py, PyAny>) -> Result<View<'py>> {
        View::with(object, ffi::PyBUF_SIMPLE)
    }

    /// Acquires a view of contiguous memory that can be written to.
    pub fn writable(object: &Bound<'py, PyAny>) -> Result<View<'py>> {
        View::with(object, ffi::PyBUF_WRITABLE)
    }

    /// Acquires a view of memory of any shape.
    pub fn of_any_shape(object: &Bound<'py, PyAny>) -> Result<View<'py>> {
        View::with(object, ffi::PyBUF_FULL_RO)
    }

    fn with(object: &Bound<'py, PyAny>, flags: c_int) -> Result<View<'py>> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive and the lock is held, as its type shows. The view may point into itself, so it is boxed.
        status(unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) })?;
        Ok(View { view, py: object.py() })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.view.len as usize
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Returns whether the memory is contiguous.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the view was acquired.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.view, b'C' as std::ffi::c_char) != 0 }
    }

    /// Calls `f`, which must not run Python code, with the bytes of contiguous memory. Python code cannot change them meanwhile.
    #[inline]
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        if self.is_empty() {
            return f(&[]);
        }
        // SAFETY: the view keeps the memory in place. The lock is held, and not released before `f` returns.
        f(unsafe { slice::from_raw_parts(self.view.buf.cast_const().cast(), self.len()) })
    }

    /// Calls `f`, which must not run Python code, with the memory of a view that can be written to.
    pub fn write<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        if self.is_empty() || self.view.readonly != 0 {
            return f(&mut []);
        }
        // SAFETY: as for `read`; the memory is writable.
        f(unsafe { slice::from_raw_parts_mut(self.view.buf.cast(), self.len()) })
    }

    /// Returns a copy of the bytes, of any shape.
    pub fn copy(&self) -> Result<Vec<u8>> {
        let mut copy = vec![0_u8; self.len()];
        let order = b'C' as std::ffi::c_char;
        // SAFETY: the view was acquired, and the copy has room for it.
        status(unsafe { ffi::PyBuffer_ToContiguous(copy.as_mut_ptr().cast(), &*self.view, self.view.len, order) })?;
        Ok(copy)
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let _ = self.py;
        // SAFETY: the view was acquired, and the lock is held for as long as it lives.
        unsafe { ffi::PyBuffer_Release(&mut *self.view) };
    }
}

/// A `bytes` object that Rust code refers to.
struct Kept(Py<PyBytes>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        let object = self.0.as_ptr();
        // SAFETY: the object is immutable, and its memory stays in place while there is a reference to it. No lock is needed to read it.
        unsafe { slice::from_raw_parts(ffi::PyBytes_AS_STRING(object).cast(), ffi::Py_SIZE(object) as usize) }
    }
}

/// Returns the contents of a `bytes` object, not of a derived class, without copying them. PyO3 drops the reference with the lock held.
pub fn shared_bytes(object: &Bound<'_, PyBytes>) -> Bytes {
    Bytes::from_owner(Kept(object.clone().unbind()))
}

/// A `memoryview` of memory that it does not own, for one call.
struct Borrowed<'py>(Bound<'py, PyAny>);

impl Drop for Borrowed<'_> {
    /// If the lock was released meanwhile, other threads may have found the view among the garbage collector's objects. Releasing it makes
    /// it unusable. This does not reach views that were derived from it in the meantime.
    fn drop(&mut self) {
        // SAFETY: the object is alive.
        let is_shared = unsafe { ffi::Py_REFCNT(self.0.as_ptr()) > 1 };
        if is_shared && self.0.call_method0("release").is_err() {
            report_unraisable(self.0.py());
        }
    }
}

/// Suspends automatic garbage collection while this value lives.
struct CollectorPaused(bool);

impl Drop for CollectorPaused {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the creator of this value holds the lock until it is dropped.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Calls `f` with a read-only `memoryview` of bytes. `f` must call only functions that copy the bytes and keep the lock.
pub fn with_memory_of<'py, R>(
    py: Python<'py>,
    bytes: &[u8],
    f: impl FnOnce(&Bound<'py, PyAny>) -> Result<R>,
) -> Result<R> {
    // Before Python 3.12, creating an object may run finalizers, and these may receive into the same memory.
    // SAFETY: the lock is held.
    let _paused = CollectorPaused(unsafe { ffi::PyGC_Disable() != 0 });
    let len = bytes.len() as Py_ssize_t;
    // SAFETY: the memory outlives the view, which is unusable after this.
    let view = unsafe { ffi::PyMemoryView_FromMemory(bytes.as_ptr().cast_mut().cast(), len, ffi::PyBUF_READ) };
    // SAFETY: it is an owned reference, or null.
    let view = Borrowed(unsafe { returned(py, view)? });
    f(&view.0)
}

/// A `bytes` object that is being filled by calls into Python.
pub struct Filling<'py> {
    object: Bound<'py, PyAny>,
    room: usize,
    filled: usize,
}

impl<'py> Filling<'py> {
    /// Creates an object with room for this many bytes.
    pub fn new(py: Python<'py>, room: usize) -> Result<Filling<'py>> {
        // SAFETY: the lock is held.
        let object = unsafe { returned(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), room as Py_ssize_t))? };
        Ok(Filling { object, room, filled: 0 })
    }

    /// Returns how many bytes are filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Returns whether there is no room left.
    pub fn is_full(&self) -> bool {
        self.filled == self.room
    }

    /// Calls `fill` with a writable `memoryview` of the rest. It returns how many bytes it has written, or `None` for none.
    pub fn fill(&mut self, fill: impl FnOnce(&Bound<'py, PyAny>) -> Result<Option<usize>>) -> Result<Option<usize>> {
        let (py, rest) = (self.object.py(), self.room - self.filled);
        // SAFETY: nothing else has seen the object. The view is of the part that is not filled yet, and unusable after this.
        let view = unsafe {
            let start = ffi::PyBytes_AsString(self.object.as_ptr()).add(self.filled);
            Borrowed(returned(py, ffi::PyMemoryView_FromMemory(start, rest as Py_ssize_t, ffi::PyBUF_WRITE))?)
        };
        let count = fill(&view.0)?;
        if let Some(count) = count {
            if count > rest {
                let message = "read() returned more bytes than the buffer holds";
                return Err(raise::<pyo3::exceptions::PyValueError>(py, message));
            }
            self.filled += count;
        }
        Ok(count)
    }

    /// Returns the object with what was filled.
    pub fn finish(self) -> Result<Bound<'py, PyBytes>> {
        resized(self.object, self.filled)
    }
}

/// Raises if something that a program may set to `None` is missing.
pub fn present<'py>(object: Option<Bound<'py, PyAny>>, py: Python<'py>, message: &str) -> Result<Bound<'py, PyAny>> {
    object.ok_or_else(|| raise::<PyRuntimeError>(py, message))
}

/// The object behind a `memoryview` of Rust's bytes, which never change.
#[pyclass(frozen, module = "pelton", name = "Buffer")]
pub struct SharedMemory(Bytes);

impl SharedMemory {
    /// Shares bytes.
    pub fn new(py: Python<'_>, bytes: Bytes) -> PyResult<Bound<'_, SharedMemory>> {
        Bound::new(py, SharedMemory(bytes))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

#[pymethods]
impl SharedMemory {
    /// # Safety
    /// Python passes `view` to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let length = bytes.len() as Py_ssize_t;
        // SAFETY: the bytes live as long as the object, which the view keeps alive. The view is read-only.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.as_ptr().cast_mut().cast(), length, 1, flags) };
        status(filled).map(drop).map_err(PyErr::from)
    }
}

impl View<'_> {
    /// Returns which part of these bytes this is a view of, if it is one.
    pub fn position_in(&self, bytes: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (self.view.buf.addr()).checked_sub(bytes.as_ptr().addr())?;
        let end = start.checked_add(self.len())?;
        (end <= bytes.len()).then_some(start..end)
    }
}
