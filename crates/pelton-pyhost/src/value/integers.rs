//! Conversion of integers of more than 64 bits, through bytes, which works in all versions of Python.

use num_bigint::BigInt;
use pyo3::ffi::{self, PyObject};

use pelton_cpython::object::{Owned, Raised, Result};

/// Returns an upper bound for the number of bytes in two's complement.
///
/// # Safety
/// `number` is an `int`, and the interpreter lock is held.
pub(super) unsafe fn byte_length(number: *mut PyObject) -> Result<usize> {
    // SAFETY: the caller passes an `int`. The method is taken from the type `int`, so a subclass cannot override it.
    unsafe {
        let bits = call_int(c"bit_length", &[number])?;
        let bits = ffi::PyLong_AsSsize_t(bits.as_ptr());
        if bits < 0 { Err(Raised) } else { Ok(bits as usize / 8 + 1) }
    }
}

/// Converts a Python integer of at most `length` bytes, as returned by `byte_length`.
///
/// # Safety
/// As for `byte_length`.
pub(super) unsafe fn from_python(number: *mut PyObject, length: usize) -> Result<BigInt> {
    // SAFETY: the caller passes an `int`. `int.to_bytes` takes these arguments and returns `bytes`.
    unsafe {
        let length = Owned::returned(ffi::PyLong_FromSize_t(length))?;
        let order = Owned::returned(ffi::PyUnicode_InternFromString(c"little".as_ptr()))?;
        let signed = [number, length.as_ptr(), order.as_ptr(), ffi::Py_True()];
        let bytes = call_signed(c"to_bytes", &signed)?;
        let (start, length) = (ffi::PyBytes_AsString(bytes.as_ptr()), ffi::PyBytes_Size(bytes.as_ptr()));
        if start.is_null() {
            return Err(Raised);
        }
        Ok(BigInt::from_signed_bytes_le(std::slice::from_raw_parts(start.cast(), length as usize)))
    }
}

/// Converts an integer to Python.
///
/// # Safety
/// The interpreter lock is held.
pub(super) unsafe fn to_python(number: &BigInt) -> Result<Owned> {
    let bytes = number.to_signed_bytes_le();
    // SAFETY: the caller holds the lock. `int.from_bytes` takes these arguments.
    unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t);
        let bytes = Owned::returned(bytes)?;
        let order = Owned::returned(ffi::PyUnicode_InternFromString(c"little".as_ptr()))?;
        call_signed(c"from_bytes", &[bytes.as_ptr(), order.as_ptr(), ffi::Py_True()])
    }
}

/// Calls a method of the type `int`.
///
/// # Safety
/// The arguments are alive, and the interpreter lock is held.
unsafe fn call_int(name: &std::ffi::CStr, arguments: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the caller guarantees that the arguments are alive and holds the lock.
    unsafe {
        let method = Owned::returned(ffi::PyObject_GetAttrString((&raw mut ffi::PyLong_Type).cast(), name.as_ptr()))?;
        let pointer =
            ffi::PyObject_Vectorcall(method.as_ptr(), arguments.as_ptr(), arguments.len(), std::ptr::null_mut());
        Owned::returned(pointer)
    }
}

/// Calls a method of the type `int` with the last argument passed as `signed`.
///
/// # Safety
/// As for `call_int`; there is at least one argument.
unsafe fn call_signed(name: &std::ffi::CStr, arguments: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the caller guarantees that the arguments are alive, that there is at least one, and that the lock is
    // held.
    unsafe {
        let method = Owned::returned(ffi::PyObject_GetAttrString((&raw mut ffi::PyLong_Type).cast(), name.as_ptr()))?;
        let signed = Owned::returned(ffi::PyUnicode_InternFromString(c"signed".as_ptr()))?;
        let keywords = Owned::returned(ffi::PyTuple_Pack(1, signed.as_ptr()))?;
        let positional = arguments.len() - 1;
        Owned::returned(ffi::PyObject_Vectorcall(method.as_ptr(), arguments.as_ptr(), positional, keywords.as_ptr()))
    }
}
