//! Python objects that are looked up once, when the module is imported.
//!
//! These are statics and not module state, because the module raises `ImportError` when it is imported in a second
//! interpreter. The objects live as long as the process.

use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi::{PyObject, PyTypeObject};
use pyo3::prelude::*;

/// References that are never released.
pub(crate) struct Known {
    /// `asyncio.Future` and `asyncio.Task`.
    pub(crate) future: *mut PyObject,
    pub(crate) task: *mut PyObject,
    /// The original `socket.socket` class, and its original methods by name.
    pub(crate) socket: *mut PyObject,
    pub(crate) socket_methods: *mut PyObject,
    /// `asyncio.format_helpers.extract_stack`
    pub(crate) extract_stack: *mut PyObject,
    /// `pelton._loop.callback_failed(handle, exception)`
    pub(crate) callback_failed: *mut PyObject,
    /// `pelton._loop.callback_was_slow(handle, seconds)`
    pub(crate) callback_was_slow: *mut PyObject,
    /// `pelton._loop.BaseLoop.create_task`, for all but the common case.
    pub(crate) create_task: *mut PyObject,
    /// `_socket.socket`, the base class of all plain sockets, and its `fileno`.
    pub(crate) plain_socket: *mut PyTypeObject,
    pub(crate) fileno: *mut PyObject,
    /// `asyncio.trsock.TransportSocket`
    pub(crate) transport_socket: *mut PyObject,
    /// `asyncio.Transport`, and the `get_extra_info` that it inherits.
    pub(crate) transport_base: *mut PyObject,
    pub(crate) get_extra_info: *mut PyObject,
    /// `asyncio.BufferedProtocol`
    pub(crate) buffered_protocol: *mut PyObject,
    /// `asyncio.futures._set_result_unless_cancelled`
    pub(crate) set_result_unless_cancelled: *mut PyObject,
    /// Whether `Server._attach` takes the transport as an argument: since Python 3.13.
    pub(crate) servers_know_transports: bool,
    /// Functions of `pelton._transports` for rare cases.
    pub(crate) writes_after_loss: *mut PyObject,
    pub(crate) make_socket: *mut PyObject,
    pub(crate) describe_socket: *mut PyObject,
    pub(crate) lost_while_emptying: *mut PyObject,
    pub(crate) overrides: *mut PyObject,
    pub(crate) empty: *mut PyObject,
    pub(crate) zero: *mut PyObject,
    pub(crate) minus_one: *mut PyObject,
    /// `ssl.SSLObject`; null in a Python without TLS.
    pub(crate) ssl_object: *mut PyObject,
    /// `asyncio.sslproto.SSLAgainErrors`; null in a Python without TLS.
    pub(crate) ssl_again: *mut PyObject,
    pub(crate) tls_states: TlsStates,
    pub(crate) tls_inherited: TlsInherited,
    pub(crate) names: Names,
    /// The keyword names of calls with `loop` and `context`, and with `loop`, `context` and `name`.
    pub(crate) task_keywords: [*mut PyObject; 2],
    pub(crate) handle_type: *mut PyTypeObject,
    pub(crate) timer_type: *mut PyTypeObject,
    pub(crate) core_type: *mut PyTypeObject,
}

/// Members of `asyncio.sslproto.SSLProtocolState`.
pub(crate) struct TlsStates {
    pub(crate) wrapped: *mut PyObject,
    pub(crate) flushing: *mut PyObject,
}

/// Methods of `asyncio.sslproto.SSLProtocol` that ours override, for all but the common case.
pub(crate) struct TlsInherited {
    pub(crate) do_read: *mut PyObject,
    pub(crate) write_appdata: *mut PyObject,
}

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        /// Interned strings, compared by address first.
        #[allow(non_snake_case, reason = "these are Python's names")]
        pub(crate) struct Names {
            /// `loop`, a keyword in Rust.
            pub(crate) loop_: *mut PyObject,
            $(pub(crate) $name: *mut PyObject),*
        }

        impl Names {
            fn intern(py: Python<'_>) -> Names {
                let loop_ = pyo3::types::PyString::intern(py, "loop").into_ptr();
                Names { loop_, $($name: pyo3::types::PyString::intern(py, stringify!($name)).into_ptr()),* }
            }
        }
    };
}

names! {
    callback, fd, context, delay, when, coro, name, data, list_of_data, protocol,
    _run, _run_once, _cancelled, _check_thread, _check_callback, slow_callback_duration, fileno,
    call_soon, call_at, call_soon_threadsafe,
    recv, recv_into, send, shutdown,
    detach, done, set_result, set_exception, _recv_ready, _recv_into_ready, _recvfrom_ready, _accept_ready, getpeername, _ensure_fd_no_transport,
    data_received, get_buffer, buffer_updated,
    _sslobj, read, write, pending, release, _received, _do_read, _do_write, _write_later,
    _control_ssl_reading, _control_app_writing, _call_eof_received, _start_shutdown,
    datagram_received, error_received, _protocol, _conn_lost, _paused, connection_made, eof_received, connection_lost, close, _attach, _detach, family, proto,
    default, get_extra_info, socket, sockname, peername, _start_reading, _read_ready, _write_ready, _call_connection_lost,
    _read_ready__on_eof, _maybe_pause_protocol, _maybe_resume_protocol,
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the objects that were looked up. Nothing in this crate can be called before the lookup.
#[inline]
pub(crate) fn known() -> &'static Known {
    let known = KNOWN.load(Ordering::Relaxed);
    debug_assert!(!known.is_null());
    // SAFETY: the pointer is set before the types are created whose methods use it, and it is never freed. Any
    // thread that has got such a type has acquired the lock since, which orders the store before this load.
    unsafe { &*known }
}

impl Known {
    pub(crate) fn look_up(py: Python<'_>, base: &Bound<'_, PyModule>, types: [*mut PyTypeObject; 3]) -> PyResult<()> {
        let asyncio = py.import("asyncio")?;
        let [handle_type, timer_type, core_type] = types;
        let transports = py.import("pelton._transports")?;
        let sslproto = py.import("asyncio.sslproto")?;
        let states = sslproto.getattr("SSLProtocolState")?;
        let tls_base = sslproto.getattr("SSLProtocol")?;
        let without_tls = sslproto.getattr("ssl")?.is_none();
        let of_tls = |class: &Bound<'_, PyAny>, name: &str| -> PyResult<*mut PyObject> {
            Ok(if without_tls { std::ptr::null_mut() } else { class.getattr(name)?.into_ptr() })
        };
        let keywords = |names: &[&str]| {
            let names = names.iter().map(|name| pyo3::types::PyString::intern(py, name));
            pyo3::types::PyTuple::new(py, names.collect::<Vec<_>>()).map(|names| names.into_ptr())
        };
        let known = Known {
            task_keywords: [keywords(&["loop", "context"])?, keywords(&["loop", "context", "name"])?],
            future: asyncio.getattr("Future")?.into_ptr(),
            task: asyncio.getattr("Task")?.into_ptr(),
            socket: transports.getattr("SOCKET")?.into_ptr(),
            socket_methods: transports.getattr("SOCKET_METHODS")?.into_ptr(),
            extract_stack: py.import("asyncio.format_helpers")?.getattr("extract_stack")?.into_ptr(),
            callback_failed: base.getattr("callback_failed")?.into_ptr(),
            callback_was_slow: base.getattr("callback_was_slow")?.into_ptr(),
            create_task: base.getattr("BaseLoop")?.getattr("create_task")?.into_ptr(),
            plain_socket: py.import("_socket")?.getattr("socket")?.into_ptr().cast(),
            fileno: py.import("_socket")?.getattr("socket")?.getattr("fileno")?.into_ptr(),
            transport_socket: py.import("asyncio.trsock")?.getattr("TransportSocket")?.into_ptr(),
            transport_base: asyncio.getattr("Transport")?.into_ptr(),
            get_extra_info: transports.getattr("GET_EXTRA_INFO")?.into_ptr(),
            buffered_protocol: asyncio.getattr("BufferedProtocol")?.into_ptr(),
            set_result_unless_cancelled: py
                .import("asyncio.futures")?
                .getattr("_set_result_unless_cancelled")?
                .into_ptr(),
            servers_know_transports: py.version_info() >= (3, 13),
            writes_after_loss: transports.getattr("writes_after_loss")?.into_ptr(),
            make_socket: transports.getattr("make_socket")?.into_ptr(),
            describe_socket: transports.getattr("describe_socket")?.into_ptr(),
            lost_while_emptying: transports.getattr("lost_while_emptying")?.into_ptr(),
            overrides: transports.getattr("overrides")?.into_ptr(),
            empty: pyo3::types::PyTuple::empty(py).into_ptr(),
            ssl_object: of_tls(&sslproto.getattr("ssl")?, "SSLObject")?,
            ssl_again: of_tls(&sslproto, "SSLAgainErrors")?,
            tls_states: TlsStates {
                wrapped: states.getattr("WRAPPED")?.into_ptr(),
                flushing: states.getattr("FLUSHING")?.into_ptr(),
            },
            tls_inherited: TlsInherited {
                do_read: tls_base.getattr("_do_read")?.into_ptr(),
                write_appdata: tls_base.getattr("_write_appdata")?.into_ptr(),
            },
            zero: 0i32.into_pyobject(py)?.into_ptr(),
            minus_one: (-1i32).into_pyobject(py)?.into_ptr(),
            names: Names::intern(py),
            handle_type,
            timer_type,
            core_type,
        };
        // SAFETY: the lock is held, and no loop exists before this is done.
        unsafe { crate::handles::contexts::look_up() }.map_err(|pelton_cpython::object::Raised| PyErr::fetch(py))?;
        KNOWN.store(Box::into_raw(Box::new(known)), Ordering::Relaxed);
        Ok(())
    }
}
