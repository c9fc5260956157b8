//! Bytes shared between Rust and Python without copying.
//!
//! A Rust slice must not change while it is borrowed, so memory that Python can write to must be copied. `bytes`
//! objects never change, and neither does memory that Rust shares with Python, so views of these are not copied.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

pub(super) use pelton_cpython::buffer::View;
use pelton_cpython::buffer::{SharedMemory, shared_bytes};
use pelton_cpython::object::Result;

/// Fewer bytes than this are copied, because keeping the object alive costs more.
const WORTH_SHARING: usize = 2_048;

/// Creates a `memoryview` of bytes without copying them.
pub(super) fn to_python<'py>(py: Python<'py>, bytes: &Bytes) -> PyResult<Bound<'py, PyMemoryView>> {
    PyMemoryView::from(SharedMemory::new(py, bytes.clone())?.as_any())
}

/// Returns the bytes of a `bytes` object.
pub(super) fn from_bytes(object: &Bound<'_, PyBytes>) -> Bytes {
    let bytes = object.as_bytes();
    if bytes.len() < WORTH_SHARING { Bytes::copy_from_slice(bytes) } else { shared_bytes(object) }
}

/// Returns the bytes of a view. `base` is the object that owns them, if it is known. They are copied if they are writable or not
/// contiguous.
pub(super) fn from_view(view: &View<'_>, base: Option<&Bound<'_, PyAny>>) -> Result<Bytes> {
    if let Some(base) = base
        && view.is_contiguous()
    {
        // A view of a part of the object is found by its position.
        if let Ok(bytes) = base.cast_exact::<PyBytes>()
            && let Some(range) = view.position_in(bytes.as_bytes())
        {
            return Ok(part(&from_bytes(bytes), range));
        }
        if let Ok(memory) = base.cast_exact::<SharedMemory>()
            && let Some(range) = view.position_in(memory.get().bytes())
        {
            return Ok(part(memory.get().bytes(), range));
        }
    }
    view.copy().map(Bytes::from)
}

/// Returns a part, which is copied if it is small.
fn part(bytes: &Bytes, range: std::ops::Range<usize>) -> Bytes {
    if range.len() < WORTH_SHARING { Bytes::copy_from_slice(&bytes[range]) } else { bytes.slice(range) }
}
