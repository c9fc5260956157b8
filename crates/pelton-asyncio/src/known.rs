//! Python objects that are looked up once, when the module is imported.
//!
//! These are statics and not module state, because the module raises `ImportError` when it is imported in a second
//! interpreter. The objects live as long as the process.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

/// References that are never released.
pub(crate) struct Known {
    /// `asyncio.Future` and `asyncio.Task`.
    pub(crate) future: Py<PyAny>,
    pub(crate) task: Py<PyAny>,
    /// The original `socket.socket` class, and its original methods by name.
    pub(crate) socket: Py<PyType>,
    pub(crate) socket_methods: Py<PyAny>,
    /// `pelton._loop.callback_was_slow(handle, seconds)`
    pub(crate) callback_was_slow: Py<PyAny>,
    /// `pelton._loop.BaseLoop.create_task`, for all but the common case.
    pub(crate) create_task: Py<PyAny>,
    /// `_socket.socket`, the base class of all plain sockets, and its `fileno`.
    pub(crate) plain_socket: Py<PyType>,
    pub(crate) fileno: Py<PyAny>,
    /// `asyncio.trsock.TransportSocket`
    pub(crate) transport_socket: Py<PyAny>,
    /// `asyncio.Transport`, and the `get_extra_info` that it inherits.
    pub(crate) transport_base: Py<PyAny>,
    pub(crate) get_extra_info: Py<PyAny>,
    /// `asyncio.BufferedProtocol`
    pub(crate) buffered_protocol: Py<PyAny>,
    /// `asyncio.futures._set_result_unless_cancelled`
    pub(crate) set_result_unless_cancelled: Py<PyAny>,
    /// Whether `Server._attach` takes the transport as an argument: since Python 3.13.
    pub(crate) servers_know_transports: bool,
    /// Functions of `pelton._transports` for rare cases.
    pub(crate) writes_after_loss: Py<PyAny>,
    pub(crate) make_socket: Py<PyAny>,
    pub(crate) describe_socket: Py<PyAny>,
    pub(crate) lost_while_emptying: Py<PyAny>,
    pub(crate) overrides: Py<PyAny>,
    pub(crate) empty: Py<PyTuple>,
    pub(crate) zero: Py<PyAny>,
    pub(crate) minus_one: Py<PyAny>,
    /// `ssl.SSLObject`; `None` in a Python without TLS.
    pub(crate) ssl_object: Option<Py<PyAny>>,
    /// `asyncio.sslproto.SSLAgainErrors`; `None` in a Python without TLS.
    pub(crate) ssl_again: Option<Py<PyAny>>,
    pub(crate) tls_states: TlsStates,
    pub(crate) tls_inherited: TlsInherited,
    pub(crate) names: Names,
    /// The keyword names of calls with `loop` and `context`, and with `loop`, `context` and `name`.
    pub(crate) task_keywords: [Py<PyTuple>; 2],
}

/// Members of `asyncio.sslproto.SSLProtocolState`.
pub(crate) struct TlsStates {
    pub(crate) wrapped: Py<PyAny>,
    pub(crate) flushing: Py<PyAny>,
}

/// Methods of `asyncio.sslproto.SSLProtocol` that ours override, for all but the common case.
pub(crate) struct TlsInherited {
    pub(crate) do_read: Py<PyAny>,
    pub(crate) write_appdata: Py<PyAny>,
}

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        /// Interned strings, compared by address first.
        #[allow(non_snake_case, reason = "these are Python's names")]
        pub(crate) struct Names {
            /// `loop`, a keyword in Rust.
            pub(crate) loop_: Py<PyString>,
            $(pub(crate) $name: Py<PyString>),*
        }

        impl Names {
            fn intern(py: Python<'_>) -> Names {
                let loop_ = pyo3::types::PyString::intern(py, "loop").unbind();
                Names { loop_, $($name: pyo3::types::PyString::intern(py, stringify!($name)).unbind()),* }
            }
        }
    };
}

names! {
    callback, fd, context, delay, when, name, data, list_of_data, protocol,
    _run, _run_once, _cancelled, _check_thread, _check_callback, slow_callback_duration, fileno,
    call_soon, call_at, call_soon_threadsafe,
    recv, recv_into, send, shutdown,
    detach, done, set_result, set_exception, _recv_ready, _recv_into_ready, _recvfrom_ready, _accept_ready, getpeername, _ensure_fd_no_transport,
    data_received, get_buffer, buffer_updated,
    _sslobj, read, write, pending, _received, _do_read, _do_write, _write_later,
    _control_ssl_reading, _control_app_writing, _call_eof_received, _start_shutdown,
    datagram_received, error_received, _protocol, _conn_lost, _paused, connection_made, eof_received, connection_lost, close, _attach, _detach, family, proto,
    get_extra_info, socket, sockname, peername, _start_reading, _read_ready, _write_ready, _call_connection_lost,
    _read_ready__on_eof, _maybe_pause_protocol, _maybe_resume_protocol,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Returns the objects that were looked up. Nothing in this crate can be called before the lookup.
#[inline]
pub(crate) fn known() -> &'static Known {
    KNOWN.get().expect("looked up before the classes are made")
}

/// An interned string.
macro_rules! name {
    ($py:expr, $name:ident) => {
        $crate::known::known().names.$name.bind($py)
    };
}

pub(crate) use name;

impl Known {
    pub(crate) fn look_up(py: Python<'_>, base: &Bound<'_, PyModule>) -> PyResult<()> {
        let asyncio = py.import("asyncio")?;
        let transports = py.import("pelton._transports")?;
        let sslproto = py.import("asyncio.sslproto")?;
        let states = sslproto.getattr("SSLProtocolState")?;
        let tls_base = sslproto.getattr("SSLProtocol")?;
        let without_tls = sslproto.getattr("ssl")?.is_none();
        let of_tls = |class: &Bound<'_, PyAny>, name: &str| -> PyResult<Option<Py<PyAny>>> {
            Ok(if without_tls { None } else { Some(class.getattr(name)?.unbind()) })
        };
        let keywords = |names: &[&str]| {
            let names = names.iter().map(|name| pyo3::types::PyString::intern(py, name));
            pyo3::types::PyTuple::new(py, names.collect::<Vec<_>>()).map(Bound::unbind)
        };
        let known = Known {
            task_keywords: [keywords(&["loop", "context"])?, keywords(&["loop", "context", "name"])?],
            future: asyncio.getattr("Future")?.unbind(),
            task: asyncio.getattr("Task")?.unbind(),
            socket: transports.getattr("SOCKET")?.cast_into::<PyType>()?.unbind(),
            socket_methods: transports.getattr("SOCKET_METHODS")?.unbind(),
            callback_was_slow: base.getattr("callback_was_slow")?.unbind(),
            create_task: base.getattr("BaseLoop")?.getattr("create_task")?.unbind(),
            plain_socket: py.import("_socket")?.getattr("socket")?.cast_into::<PyType>()?.unbind(),
            fileno: py.import("_socket")?.getattr("socket")?.getattr("fileno")?.unbind(),
            transport_socket: py.import("asyncio.trsock")?.getattr("TransportSocket")?.unbind(),
            transport_base: asyncio.getattr("Transport")?.unbind(),
            get_extra_info: transports.getattr("GET_EXTRA_INFO")?.unbind(),
            buffered_protocol: asyncio.getattr("BufferedProtocol")?.unbind(),
            set_result_unless_cancelled: py
                .import("asyncio.futures")?
                .getattr("_set_result_unless_cancelled")?
                .unbind(),
            servers_know_transports: py.version_info() >= (3, 13),
            writes_after_loss: transports.getattr("writes_after_loss")?.unbind(),
            make_socket: transports.getattr("make_socket")?.unbind(),
            describe_socket: transports.getattr("describe_socket")?.unbind(),
            lost_while_emptying: transports.getattr("lost_while_emptying")?.unbind(),
            overrides: transports.getattr("overrides")?.unbind(),
            empty: pyo3::types::PyTuple::empty(py).unbind(),
            ssl_object: of_tls(&sslproto.getattr("ssl")?, "SSLObject")?,
            ssl_again: of_tls(&sslproto, "SSLAgainErrors")?,
            tls_states: TlsStates {
                wrapped: states.getattr("WRAPPED")?.unbind(),
                flushing: states.getattr("FLUSHING")?.unbind(),
            },
            tls_inherited: TlsInherited {
                do_read: tls_base.getattr("_do_read")?.unbind(),
                write_appdata: tls_base.getattr("_write_appdata")?.unbind(),
            },
            zero: 0i32.into_pyobject(py)?.into_any().unbind(),
            minus_one: (-1i32).into_pyobject(py)?.into_any().unbind(),
            names: Names::intern(py),
        };
        // Another import of the module has found the same.
        let _ = KNOWN.set(known);
        Ok(())
    }
}
