//! `pelton.StreamTransport`: a connected stream socket, TCP or Unix.
//!
//! It derives from `pelton._transports.BaseStreamTransport`, and that from asyncio's own transport, whose methods use the
//! fields here by name. The hidden object behind it also is what these methods find as `_buffer`.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject, visitproc};

use super::queue::WriteQueue;
use super::{stream_fields, stream_io};
use crate::known::known;
use crate::object::{Owned, Raised, Result, none, pointer, raise};
use crate::panic::guard;
use crate::types;

/// The state of a transport. References are owned, or null for `None`.
///
/// The rules are those of a loop's core: raw pointers, and no Rust reference across a call that could come back.
pub(crate) struct Stream {
    pub(crate) loop_: *mut PyObject,
    pub(crate) protocol: *mut PyObject,
    /// The socket object, which owns the descriptor: it is asked each time, since somebody may have closed it.
    pub(crate) sock: *mut PyObject,
    pub(crate) empty_waiter: *mut PyObject,
    pub(crate) queue: WriteQueue,
    /// The descriptor, as Python code is told; that of the socket object is what is used.
    pub(crate) fd: RawFd,
    /// Not 0 from when `connection_lost` is on its way; counts writes after that.
    pub(crate) conn_lost: i64,
    pub(crate) closing: bool,
    pub(crate) paused: bool,
    pub(crate) eof: bool,
    /// The protocol has its own buffer to receive into.
    pub(crate) buffered: bool,
}

#[repr(C)]
struct StreamObject {
    head: PyObject,
    stream: ManuallyDrop<Stream>,
}

/// Where the reference to its state is in a transport object.
static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// The type of that state.
static STATE_TYPE: AtomicPtr<PyTypeObject> = AtomicPtr::new(null_mut());

/// The object that a transport's state is in, a borrowed reference.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
pub(crate) unsafe fn state_object(transport: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: transports were made with a reference at this offset, which only `tp_new` sets and only the collector clears.
    unsafe {
        let object = *transport.byte_add(OFFSET.load(Ordering::Relaxed)).cast::<*mut PyObject>();
        if object.is_null() {
            let message = c"the transport has been taken apart by the garbage collector";
            return Err(raise(ffi::PyExc_RuntimeError, message));
        }
        Ok(object)
    }
}

/// The state of a transport.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
#[inline]
pub(crate) unsafe fn stream(transport: *mut PyObject) -> Result<*mut Stream> {
    // SAFETY: as the caller says.
    unsafe { Ok(state(state_object(transport)?)) }
}

unsafe fn state(object: *mut PyObject) -> *mut Stream {
    // SAFETY: the caller's object is of our type.
    unsafe { (&raw mut (*object.cast::<StreamObject>()).stream).cast() }
}

unsafe extern "C" fn new(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with our type or one derived from it. The slot is null in a new object, and takes over the
        // reference to the state, which is written before anything else is allocated.
        pointer(unsafe {
            (|| {
                let object = Owned::returned(ffi::PyType_GenericAlloc(STATE_TYPE.load(Ordering::Relaxed), 0))?;
                let stream = Stream {
                    loop_: null_mut(),
                    protocol: null_mut(),
                    sock: null_mut(),
                    empty_waiter: null_mut(),
                    queue: WriteQueue::default(),
                    fd: -1,
                    conn_lost: 0,
                    closing: false,
                    paused: false,
                    eof: false,
                    buffered: false,
                };
                ptr::write(state(object.as_ptr()), stream);
                let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
                let transport = Owned::returned(make(its_type, known().empty, null_mut()))?;
                *transport.as_ptr().byte_add(OFFSET.load(Ordering::Relaxed)).cast() = object.into_ptr();
                Ok(transport)
            })()
        })
    })
}

unsafe extern "C" fn traverse(object: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a live state. What waits to be sent is `bytes`, which refer to nothing.
    unsafe {
        let Stream { loop_, protocol, sock, empty_waiter, .. } = &*state(object);
        for field in [*loop_, *protocol, *sock, *empty_waiter] {
            let status = if field.is_null() { 0 } else { visit(field, argument) };
            if status != 0 {
                return status;
            }
        }
        0
    }
}

unsafe extern "C" fn clear(object: *mut PyObject) -> c_int {
    guard(0, || {
        // SAFETY: the collector calls it with a live state; all is taken out before it is let go of.
        unsafe {
            let stream = state(object);
            (*stream).conn_lost += 1;
            let fields = [
                &raw mut (*stream).loop_,
                &raw mut (*stream).protocol,
                &raw mut (*stream).sock,
                &raw mut (*stream).empty_waiter,
            ]
            .map(|field| ptr::replace(field, null_mut()));
            let queued = (*stream).queue.take();
            for reference in fields.into_iter().chain(queued) {
                ffi::Py_XDECREF(reference);
            }
        }
        0
    })
}

unsafe extern "C" fn dealloc(object: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it with a state that nobody has any more. After `clear` there are no references left in it.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            clear(object);
            ManuallyDrop::drop(&mut (*object.cast::<StreamObject>()).stream);
            let its_type = ffi::Py_TYPE(object);
            ffi::PyObject_GC_Del(object.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    });
}

/// `len(transport._buffer)`: how many bytes wait.
unsafe extern "C" fn queue_len(object: *mut PyObject) -> Py_ssize_t {
    // SAFETY: Python calls it with a live state.
    unsafe { (*state(object)).queue.len() as Py_ssize_t }
}

/// `transport._buffer.clear()`
unsafe extern "C" fn clear_queue(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live state; all is taken out before it is let go of.
        unsafe {
            for bytes in (*state(object)).queue.take() {
                ffi::Py_DECREF(bytes);
            }
        }
        none()
    })
}

fn make_state_type() -> Result<*mut PyTypeObject> {
    let methods = vec![types::without_arguments(c"clear", clear_queue, c"Forget everything that waits to be sent.")];
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
        (ffi::Py_sq_length, queue_len as *mut c_void),
        (ffi::Py_tp_methods, types::methods(methods)),
    ];
    // SAFETY: the functions are for objects of this size.
    unsafe { types::make(c"pelton._pelton.WriteQueue", null_mut(), size_of::<StreamObject>(), &slots) }
}

/// Makes the type.
///
/// # Safety
/// `base` is `pelton._transports.BaseStreamTransport`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    STATE_TYPE.store(make_state_type()?, Ordering::Relaxed);
    let slots = [
        (ffi::Py_tp_new, new as *mut c_void),
        (ffi::Py_tp_methods, stream_io::methods()),
        (ffi::Py_tp_getset, stream_fields::attributes()),
        (ffi::Py_tp_doc, c"A connected stream socket, as protocols see it.".as_ptr() as *mut c_void),
    ];
    // SAFETY: as the caller says.
    let (its_type, offset) = unsafe { types::make_with_hidden_field(c"pelton.StreamTransport", base, &slots)? };
    OFFSET.store(offset, Ordering::Relaxed);
    Ok(its_type)
}
