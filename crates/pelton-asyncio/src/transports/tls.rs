//! `SSLProtocol` and `SSLTransport`: TLS between a transport and a program's protocol.
//!
//! The protocol derives from `pelton._tls.BaseSSLProtocol`, which derives from asyncio's own. The inherited methods use
//! the fields here by name. OpenSSL is called through Python's `ssl.SSLObject`, created by the program's own context.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject, PyTypeObject};

use super::tls_io;
use crate::known::known;
use pelton_cpython::hidden::{self, Hidden, Layout};
use pelton_cpython::object::{Owned, Result, or_none, replace, status};
use pelton_cpython::panic::guard;
use pelton_cpython::types::{self, attribute};
use pelton_cpython::{flag, number, reference};

/// The state of a TLS protocol. References are owned, or null for `None`.
pub(crate) struct Tls {
    pub(crate) loop_: *mut PyObject,
    /// A member of `asyncio.sslproto.SSLProtocolState`.
    pub(crate) state: *mut PyObject,
    pub(crate) app_protocol: *mut PyObject,
    pub(crate) transport: *mut PyObject,
    /// Received data to decrypt, and encrypted data to send: two `ssl.MemoryBIO`.
    pub(crate) incoming: *mut PyObject,
    pub(crate) outgoing: *mut PyObject,
    pub(crate) ssl_object: *mut PyObject,
    /// The `_sslobj` that a plain `ssl.SSLObject` wraps. Null for other classes, whose methods must be called.
    pub(crate) inner: *mut PyObject,
    /// Data not encrypted yet: a `deque`.
    pub(crate) backlog: *mut PyObject,
    pub(crate) backlog_size: i64,
    /// Bytes that OpenSSL read from `incoming` without producing data: the start of a record.
    pub(crate) begun: usize,
    pub(crate) conn_lost: i64,
    pub(crate) incoming_high: i64,
    pub(crate) incoming_low: i64,
    pub(crate) outgoing_high: i64,
    pub(crate) outgoing_low: i64,
    /// The transport's write buffer is full.
    pub(crate) sending_paused: bool,
    /// The transport must not receive.
    pub(crate) receiving_paused: bool,
    pub(crate) app_reading_paused: bool,
    pub(crate) app_writing_paused: bool,
    /// The program's protocol provides the buffer to receive into.
    pub(crate) buffered: bool,
    /// The program's protocol is in a `data_received` call. Data that it writes is sent together after the call.
    pub(crate) telling: bool,
}

static LAYOUT: Layout = Layout::new();

// SAFETY: `references` lists every field that owns a reference.
unsafe impl Hidden for Tls {
    const NAME: &'static CStr = c"pelton._pelton.SSLState";
    type References = [*mut *mut PyObject; 9];

    fn layout() -> &'static Layout {
        &LAYOUT
    }

    fn empty() -> Tls {
        Tls {
            loop_: null_mut(),
            state: null_mut(),
            app_protocol: null_mut(),
            transport: null_mut(),
            incoming: null_mut(),
            outgoing: null_mut(),
            ssl_object: null_mut(),
            inner: null_mut(),
            backlog: null_mut(),
            backlog_size: 0,
            begun: 0,
            conn_lost: 0,
            incoming_high: 0,
            incoming_low: 0,
            outgoing_high: 0,
            outgoing_low: 0,
            sending_paused: false,
            receiving_paused: false,
            app_reading_paused: false,
            app_writing_paused: false,
            buffered: false,
            telling: false,
        }
    }

    unsafe fn references(this: *mut Tls) -> Self::References {
        // SAFETY: the caller guarantees that `this` is a live state. Taking addresses of fields reads nothing.
        unsafe {
            [
                &raw mut (*this).loop_,
                &raw mut (*this).state,
                &raw mut (*this).app_protocol,
                &raw mut (*this).transport,
                &raw mut (*this).incoming,
                &raw mut (*this).outgoing,
                &raw mut (*this).ssl_object,
                &raw mut (*this).inner,
                &raw mut (*this).backlog,
            ]
        }
    }
}

/// Returns the state of a TLS protocol.
///
/// # Safety
/// `protocol` is a live `SSLProtocol`.
#[inline]
pub(crate) unsafe fn tls(protocol: *mut PyObject) -> Result<*mut Tls> {
    // SAFETY: the caller guarantees that the protocol is alive and of this type.
    unsafe { hidden::state(protocol) }
}

unsafe extern "C" fn get_ssl_object(protocol: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live protocol.
    unsafe { tls(protocol).map_or(null_mut(), |tls| or_none((*tls).ssl_object)) }
}

unsafe extern "C" fn set_ssl_object(protocol: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    guard(-1, || {
        // SAFETY: Python calls it with a live protocol, and with a live value or null to delete the attribute.
        status(unsafe {
            (|| {
                let plain = !value.is_null() && ffi::Py_TYPE(value).cast() == known().ssl_object;
                let inner = if plain {
                    Some(Owned::returned(ffi::PyObject_GetAttr(value, known().names._sslobj))?)
                } else {
                    None
                };
                let tls = tls(protocol)?;
                replace(&raw mut (*tls).ssl_object, value);
                replace(&raw mut (*tls).inner, inner.as_ref().map_or(null_mut(), Owned::as_ptr));
                Ok(())
            })()
        })
    })
}

fn attributes() -> *mut c_void {
    types::attributes(vec![
        reference!(c"_loop", tls, loop_),
        reference!(c"_state", tls, state),
        reference!(c"_app_protocol", tls, app_protocol),
        reference!(c"_transport", tls, transport),
        reference!(c"_incoming", tls, incoming),
        reference!(c"_outgoing", tls, outgoing),
        reference!(c"_write_backlog", tls, backlog),
        number!(c"_write_buffer_size", tls, backlog_size),
        number!(c"_conn_lost", tls, conn_lost),
        number!(c"_incoming_high_water", tls, incoming_high),
        number!(c"_incoming_low_water", tls, incoming_low),
        number!(c"_outgoing_high_water", tls, outgoing_high),
        number!(c"_outgoing_low_water", tls, outgoing_low),
        flag!(c"_ssl_writing_paused", tls, sending_paused),
        flag!(c"_ssl_reading_paused", tls, receiving_paused),
        flag!(c"_app_reading_paused", tls, app_reading_paused),
        flag!(c"_app_writing_paused", tls, app_writing_paused),
        flag!(c"_app_protocol_is_buffer", tls, buffered),
        attribute(c"_sslobj", get_ssl_object, Some(set_ssl_object)),
    ])
}

/// Creates the type of the protocol.
///
/// # Safety
/// `base` is `pelton._tls.BaseSSLProtocol`.
pub(crate) unsafe fn make_protocol_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_methods, tls_io::protocol_methods()),
        (ffi::Py_tp_getset, attributes()),
        (ffi::Py_tp_doc, c"TLS, as a transport sees it.".as_ptr() as *mut c_void),
    ];
    // SAFETY: the caller guarantees that `base` is that class, made in Python. The slots are functions for this type.
    unsafe { hidden::make_type::<Tls>(c"pelton._pelton.SSLProtocol", base, &slots, &[]) }
}

/// Offset of a TLS transport's reference to its protocol.
static TRANSPORT_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Returns the protocol of a TLS transport as a borrowed reference; `None` if it has none or one of another type.
///
/// # Safety
/// `transport` is a live `SSLTransport`.
pub(crate) unsafe fn protocol_of(transport: *mut PyObject) -> Option<*mut PyObject> {
    // SAFETY: the caller guarantees that the transport is of this type. Such objects have a reference or null at
    // this offset.
    unsafe {
        let protocol = *transport.byte_add(TRANSPORT_OFFSET.load(Ordering::Relaxed)).cast::<*mut PyObject>();
        (!protocol.is_null() && hidden::is_exactly::<Tls>(protocol)).then_some(protocol)
    }
}

/// Creates the type of the transport. asyncio's methods use its one field as `_ssl_protocol`.
///
/// # Safety
/// `base` is `pelton._tls.BaseSSLTransport`.
pub(crate) unsafe fn make_transport_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_methods, tls_io::transport_methods()),
        (ffi::Py_tp_doc, c"A connection with TLS, as protocols see it.".as_ptr() as *mut c_void),
    ];
    // SAFETY: the caller guarantees that `base` is that class, made in Python. The slots are functions for this type.
    unsafe {
        let name = c"pelton._pelton.SSLTransport";
        let (its_type, offset) = types::make_with_field(name, base, c"_ssl_protocol", &slots)?;
        TRANSPORT_OFFSET.store(offset, Ordering::Relaxed);
        Ok(its_type)
    }
}
