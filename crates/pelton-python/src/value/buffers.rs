//! Bytes that both sides see, without copying them.
//!
//! A Rust slice must not change while it is borrowed, so memory that Python may write to can only be copied. `bytes` never
//! change, nor does what Rust itself has lent to Python: a view of either is shared.

use std::ffi::c_int;

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::Object;
use crate::object::{Owned, Raised, Result, check};

/// Fewer bytes than this are copied: to keep the object alive costs more.
const WORTH_SHARING: usize = 2_048;

/// What Python has a `memoryview` of.
#[pyclass(frozen, module = "pelton")]
struct Buffer(Bytes);

#[pymethods]
impl Buffer {
    /// # Safety
    /// `view` is what Python wants to have filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let length = bytes.len() as ffi::Py_ssize_t;
        // SAFETY: the bytes live as long as the object, which the view keeps alive; it is marked as not to be written to.
        unsafe {
            let start = bytes.as_ptr().cast_mut().cast();
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) < 0 {
                return Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("no view of it")));
            }
        }
        Ok(())
    }
}

/// Bytes of an object that cannot change.
struct Shared {
    /// Keeps the bytes where they are.
    _object: Object,
    start: *const u8,
    length: usize,
}

// SAFETY: the bytes never change, and the object stays alive; any thread may drop it.
unsafe impl Send for Shared {}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: they are there as long as the object is, and never change.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// A `memoryview` of bytes, which are not copied.
pub(super) fn to_python(py: Python<'_>, bytes: &Bytes) -> Result<Owned> {
    let raise = |error: PyErr| {
        error.restore(py);
        Raised
    };
    let buffer = Bound::new(py, Buffer(bytes.clone())).map_err(raise)?;
    // SAFETY: it is an object that has a buffer.
    unsafe { Owned::returned(ffi::PyMemoryView_FromObject(buffer.as_ptr())) }
}

/// The bytes of a `bytes` object.
///
/// # Safety
/// `object` is one, and the interpreter lock is held.
pub(super) unsafe fn from_bytes(object: *mut PyObject) -> Bytes {
    // SAFETY: it is `bytes`, which are in one piece and never change.
    unsafe {
        let start = ffi::PyBytes_AS_STRING(object).cast::<u8>();
        share(object, start, ffi::PyBytes_Size(object) as usize)
    }
}

/// # Safety
/// The bytes are there as long as `object` is, and never change. The interpreter lock is held.
unsafe fn share(object: *mut PyObject, start: *const u8, length: usize) -> Bytes {
    if length == 0 {
        // There may be no memory at all then.
        return Bytes::new();
    }
    // SAFETY: as the caller says.
    unsafe {
        if length < WORTH_SHARING {
            return Bytes::copy_from_slice(std::slice::from_raw_parts(start, length));
        }
        Bytes::from_owner(Shared { _object: Object::from_pointer(object), start, length })
    }
}

/// What is asked about an object before its bytes are taken. It may point into itself, so it stays where it is.
pub(super) struct View(Box<ffi::Py_buffer>);

impl View {
    /// The view of an object that has a buffer.
    ///
    /// # Safety
    /// It is alive, and the interpreter lock is held for as long as this value lives.
    pub(super) unsafe fn of(object: *mut PyObject) -> Result<View> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: as the caller says; views of all shapes are asked for.
        check(unsafe { ffi::PyObject_GetBuffer(object, &mut *view, ffi::PyBUF_FULL_RO) })?;
        Ok(View(view))
    }

    /// How many bytes there are.
    pub(super) fn length(&self) -> usize {
        self.0.len as usize
    }

    /// The bytes, of which `base` is the object that owns them; null if that is not known. They are copied if it may write
    /// to them, or if they are not one after the other.
    ///
    /// # Safety
    /// `base` is null or alive.
    pub(super) unsafe fn bytes(&self, py: Python<'_>, base: *mut PyObject) -> Result<Bytes> {
        // SAFETY: `base` is as the caller says, and views of `bytes` and of our own type are of memory that never changes
        // while these objects live.
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
        // SAFETY: the view is ours, and the lock is held, as was promised when it was made.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}
