//! Methods that report the state of a stream transport: `get_extra_info`, buffer size, flags, protocol and socket.

use std::os::fd::{AsRawFd, IntoRawFd};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::connection;
use super::stream::{Stream, Transport};
use crate::known::{known, name};
use crate::sockets::addresses::{self, Peer};
use pelton_cpython::arguments::{Call, is_called};
use pelton_cpython::call::{Call as _, OrRaise, raise};
use pelton_cpython::class::Method;
use pelton_cpython::object::Result;
use pelton_cpython::{keyword_arguments, no_arguments};

pub(crate) fn methods() -> Vec<Method<Stream>> {
    let size = c"Return the number of bytes in the write buffer.";
    vec![
        keyword_arguments!(Stream, c"get_extra_info", get_extra_info, c"Return optional transport information."),
        no_arguments!(Stream, c"get_write_buffer_size", buffer_size, size),
        no_arguments!(Stream, c"is_closing", is_closing, c"Return True if the transport is closing or closed."),
        no_arguments!(Stream, c"is_reading", is_reading, c"Return True if the transport is receiving."),
        no_arguments!(Stream, c"get_protocol", get_protocol, c"Return the protocol."),
    ]
}

fn buffer_size(transport: Transport<'_, '_>) -> Result<usize> {
    connection::queued(transport.py(), transport.state()?)
}

fn is_closing(transport: Transport<'_, '_>) -> Result<bool> {
    transport.state().map(|stream| stream.closing.get())
}

fn is_reading(transport: Transport<'_, '_>) -> Result<bool> {
    transport.state().map(|stream| !stream.closing.get() && !stream.paused.get())
}

fn get_protocol<'py>(transport: Transport<'_, 'py>) -> Result<Option<Bound<'py, PyAny>>> {
    transport.state().map(|stream| stream.protocol.get(transport.py()))
}

/// `get_extra_info(name, default=None)`
fn get_extra_info<'py>(transport: Transport<'_, 'py>, call: Call<'_, 'py>) -> Result<Option<Bound<'py, PyAny>>> {
    let py = transport.py();
    let stream = transport.state()?;
    let inherited = known().transport_base.bind(py).attribute(name!(py, get_extra_info))?;
    if !inherited.is(known().get_extra_info.bind(py)) {
        // The program has replaced asyncio's `get_extra_info`. Functions are bound to the transport. Other callables, such as mocks, are
        // called without it.
        let method = match inherited.get_type().getattr_opt("__get__").or_raise(py)? {
            Some(_) => inherited.call_method1("__get__", (&*transport, transport.get_type())).or_raise(py)?,
            None => inherited,
        };
        return call.pass_on(&method, None).map(Some);
    }
    if call.positional().len() > 2 {
        return Err(raise::<PyTypeError>(py, "get_extra_info() takes a name and a default"));
    }
    let mut given = [None, None];
    for (place, argument) in given.iter_mut().zip(call.positional()) {
        *place = Some(*argument);
    }
    for (keyword, value) in call.keywords() {
        if is_called(&keyword, "name") {
            given[0] = Some(value);
        } else if is_called(&keyword, "default") {
            given[1] = Some(value);
        } else {
            return Err(call.complain(py, "got an unexpected keyword argument", &keyword.to_string()));
        }
    }
    let [Some(name), default] = given else {
        return Err(call.complain(py, "missing required positional argument:", "name"));
    };
    let default = default.map(|default| default.to_owned());
    if stream.extra.is_empty() && name.is_exact_instance_of::<PyString>() {
        // Fast path: most callers want an address, or an entry that only TLS connections have.
        if is_called(&name, "peername") {
            return addresses::to_python(py, &stream.their_address.get()).map(Some);
        }
        if is_called(&name, "sockname") {
            return addresses::to_python(py, &stream.our_address.get()).map(Some);
        }
        if !is_called(&name, "socket") {
            return Ok(default);
        }
    }
    let extra = extra(py, stream)?;
    let value = extra.cast::<PyDict>().or_raise(py)?.get_item(name).or_raise(py)?;
    Ok(value.or(default))
}

/// Returns the socket object, and creates it at the first request. From then on the object owns the descriptor.
pub(crate) fn socket_object<'py>(py: Python<'py>, stream: &Stream) -> Result<Bound<'py, PyAny>> {
    let number = || stream.own.borrow().as_ref().map_or(-1, AsRawFd::as_raw_fd);
    loop {
        if let Some(sock) = stream.sock.get(py) {
            return Ok(sock);
        }
        let (fd, kind) = (number(), stream.kind.get());
        // It takes over the descriptor only when it succeeds.
        let sock = known().make_socket.bind(py).call1((kind.family, kind.protocol, fd)).or_raise(py)?;
        if number() == fd && stream.sock.is_empty() {
            if let Some(own) = stream.own.take() {
                let _ = own.into_raw_fd();
            }
            set_socket_object(stream, &sock);
            return Ok(sock);
        }
        // `make_socket` ran Python code, such as an audit hook, that requested the socket object too or closed
        // the transport. This object must not close the descriptor.
        sock.method(name!(py, detach))?;
    }
}

/// Sets the socket object, which owns the descriptor that the reactor borrows.
pub(crate) fn set_socket_object(stream: &Stream, sock: &Bound<'_, PyAny>) {
    let py = sock.py();
    let lent = stream.lent.borrow().as_ref().map(|lent| lent.rc().clone());
    if let Some(lent) = lent {
        if sock.is_instance(known().plain_socket.bind(py)).unwrap_or(false) {
            lent.set_socket(sock, known().fileno.bind(py));
        } else {
            // Its descriptor cannot be asked for without running Python code.
            lent.end(py);
        }
    }
    stream.sock.set(sock.clone());
}

/// Returns the dictionary behind `get_extra_info`, and creates it at the first request.
pub(crate) fn extra<'py>(py: Python<'py>, stream: &Stream) -> Result<Bound<'py, PyAny>> {
    if let Some(extra) = stream.extra.get(py) {
        return Ok(extra);
    }
    let extra = PyDict::new(py).into_any();
    fill(stream, &extra)?;
    Ok(stream.extra.fill(extra))
}

/// Adds the entries that every stream has to `extra`, a dictionary.
pub(crate) fn fill(stream: &Stream, extra: &Bound<'_, PyAny>) -> Result<()> {
    let py = extra.py();
    let extra = extra.cast::<PyDict>().or_raise(py)?;
    let sock = socket_object(py, stream)?;
    let sock = known().transport_socket.bind(py).call_one(&sock)?;
    extra.set_item(name!(py, socket), sock).or_raise(py)?;
    let ours = addresses::to_python(py, &stream.our_address.get())?;
    extra.set_item(name!(py, sockname), ours).or_raise(py)?;
    let theirs = stream.their_address.get();
    if !matches!(theirs, Peer::Other) && !extra.contains(name!(py, peername)).or_raise(py)? {
        extra.set_item(name!(py, peername), addresses::to_python(py, &theirs)?).or_raise(py)?;
    }
    Ok(())
}
