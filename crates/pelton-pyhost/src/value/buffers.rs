//! Bytes shared between Rust and Python without copying.
//!
//! A Rust slice must not change while it is borrowed, so memory that Python can write to must be copied. `bytes`
//! objects never change, and neither does memory that Rust shares with Python, so views of these are not copied.

use std::ffi::c_int;

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::Object;
use pelton_cpython::object::{Owned, Raised, Result, check};

/// Fewer bytes than this are copied, because keeping the object alive costs more.
const WORTH_SHARING: usize = 2_048;

/// The object behind a `memoryview` of Rust's bytes.
#[pyclass(frozen, module = "pelton")]
struct Buffer(Bytes);

#[pymethods]
impl Buffer {
    /// # Safety
    /// Python passes `view` to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let length = bytes.len() as ffi::Py_ssize_t;
        // SAFETY: the bytes live as long as the object, which the view keeps alive. The view is read-only.
        unsafe {
            let start = bytes.as_ptr().cast_mut().cast();
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) < 0 {
                return Err(PyErr::take(slf.py())
                    .unwrap_or_else(|| PyBufferError::new_err("cannot create a view of this buffer")));
            }
        }
        Ok(())
    }
}

/// Bytes of an immutable object.
struct Borrowed {
    /// Keeps the bytes alive.
    _object: Object,
    start: *const u8,
    length: usize,
}

// SAFETY: the bytes never change while the object lives, and any thread may drop an `Object`.
unsafe impl Send for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes live as long as the object, and never change.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// Creates a `memoryview` of bytes without copying them.
pub(super) fn to_python(py: Python<'_>, bytes: &Bytes) -> Result<Owned> {
    let raise = |error: PyErr| {
        error.restore(py);
        Raised
    };
    let buffer = Bound::new(py, Buffer(bytes.clone())).map_err(raise)?;
    // SAFETY: the lock is held, as `py` shows, and the object supports the buffer protocol.
    unsafe { Owned::returned(ffi::PyMemoryView_FromObject(buffer.as_ptr())) }
}

/// Returns the bytes of a `bytes` object.
///
/// # Safety
/// `object` is a `bytes` object, and the interpreter lock is held.
pub(super) unsafe fn from_bytes(object: *mut PyObject) -> Bytes {
    // SAFETY: the caller guarantees that it is a `bytes` object. Its bytes are contiguous and never change.
    unsafe {
        let start = ffi::PyBytes_AS_STRING(object).cast::<u8>();
        share(object, start, ffi::PyBytes_Size(object) as usize)
    }
}

/// # Safety
/// The bytes live as long as `object` and never change. The interpreter lock is held.
unsafe fn share(object: *mut PyObject, start: *const u8, length: usize) -> Bytes {
    if length == 0 {
        // The pointer may be null.
        return Bytes::new();
    }
    // SAFETY: the caller guarantees that the bytes live as long as the object and never change.
    unsafe {
        if length < WORTH_SHARING {
            return Bytes::copy_from_slice(std::slice::from_raw_parts(start, length));
        }
        Bytes::from_owner(Borrowed { _object: Object::from_pointer(object), start, length })
    }
}

/// A buffer view of an object. It may point into itself, so it is not moved.
pub(super) struct View(Box<ffi::Py_buffer>);

impl View {
    /// Acquires a view of an object that supports the buffer protocol.
    ///
    /// # Safety
    /// The object is alive, and the interpreter lock is held for as long as this value lives.
    pub(super) unsafe fn of(object: *mut PyObject) -> Result<View> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the caller guarantees that the object is alive. The flags allow views of all shapes.
        check(unsafe { ffi::PyObject_GetBuffer(object, &mut *view, ffi::PyBUF_FULL_RO) })?;
        Ok(View(view))
    }

    /// Returns the number of bytes.
    pub(super) fn length(&self) -> usize {
        self.0.len as usize
    }

    /// Returns the bytes. `base` is the object that owns them, or null if unknown. They are copied if they are
    /// writable or not contiguous.
    ///
    /// # Safety
    /// `base` is null or alive.
    pub(super) unsafe fn bytes(&self, py: Python<'_>, base: *mut PyObject) -> Result<Bytes> {
        // SAFETY: the caller guarantees that `base` is null or alive. The memory of `bytes` objects and of our own
        // type never changes while these objects live.
        unsafe {
            let is_contiguous = ffi::PyBuffer_IsContiguous(&*self.0, b'C' as std::ffi::c_char) != 0;
            let is_fixed = !base.is_null()
                && (ffi::PyBytes_CheckExact(base) != 0
                    || ffi::Py_TYPE(base) == <Buffer as pyo3::PyTypeInfo>::type_object_raw(py));
            if is_contiguous && is_fixed {
                return Ok(share(base, self.0.buf.cast(), self.length()));
            }
            let mut copy = vec![0_u8; self.length()];
            let order = b'C' as std::ffi::c_char;
            check(ffi::PyBuffer_ToContiguous(copy.as_mut_ptr().cast(), &*self.0, self.0.len, order))?;
            Ok(Bytes::from(copy))
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was acquired in `of`, whose caller guarantees that the lock is held.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}
