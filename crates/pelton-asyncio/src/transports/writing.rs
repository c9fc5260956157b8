//! Sending: what a stream transport does on a write, and when its socket is writable.

use std::io;

use bytes::Bytes;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use super::connection::{self, Outcome, Sent};
use super::stream::{Stream, Transport};
use super::{closing, opening, socket_access};
use crate::known::{known, name};
use crate::readers::{self, Side};
use crate::sockets::syscalls::is_not_now;
use pelton_cpython::arguments::Argument;
use pelton_cpython::buffer::{View, shared_bytes};
use pelton_cpython::call::{Call, OrRaise, raise, raise_io, raised_a, take_ordinary};
use pelton_cpython::class::Method;
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::{no_arguments, one_named_argument};

const WRITING_FAILED: &str = "Fatal write error on socket transport";

pub(crate) fn methods() -> Vec<Method<Stream>> {
    let write_ready_doc = c"Send data from the write buffer.";
    vec![
        one_named_argument!(
            Stream,
            c"write",
            |py| name!(py, data),
            write,
            c"write($self, data)\n--\n\nWrite some data, without blocking."
        ),
        one_named_argument!(
            Stream,
            c"writelines",
            |py| name!(py, list_of_data),
            write_pieces,
            c"writelines($self, list_of_data)\n--\n\nWrite several pieces of data, without blocking.",
        ),
        // The names under which different versions of asyncio's transport call it.
        no_arguments!(Stream, c"_write_ready", write_ready, write_ready_doc),
        no_arguments!(Stream, c"_write_sendmsg", write_ready, write_ready_doc),
        no_arguments!(Stream, c"_write_send", write_ready, write_ready_doc),
    ]
}

/// Closes the connection because of the raised exception. `SystemExit` and `KeyboardInterrupt` propagate.
#[cold]
pub(crate) fn fatal(transport: &Bound<'_, PyAny>, message: &str) -> Result<()> {
    hand_over(transport, "_fatal_error", message)
}

/// Calls a method with the raised exception and a message.
pub(crate) fn hand_over(object: &Bound<'_, PyAny>, method: &str, message: &str) -> Result<()> {
    let py = object.py();
    let Some(error) = take_ordinary(py)? else { return Ok(()) };
    object.call_method1(method, (error, message)).or_raise(py).map(drop)
}

/// Data to write: a `bytes` object, or another one with a view.
pub(crate) struct Data<'py> {
    object: Bound<'py, PyAny>,
    view: Option<View<'py>>,
}

impl<'py> Data<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> Result<Data<'py>> {
        if object.is_instance_of::<PyBytes>() {
            return Ok(Data { object: object.clone(), view: None });
        }
        if !object.is_instance_of::<PyByteArray>() && !object.is_instance_of::<PyMemoryView>() {
            let name = object.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            let message = format!("data argument must be a bytes-like object, not '{name}'");
            return Err(raise::<PyTypeError>(object.py(), &message));
        }
        Ok(Data { object: object.clone(), view: Some(View::of(object)?) })
    }

    /// Calls `f`, which must not run Python code, with the bytes.
    #[inline]
    pub(crate) fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match &self.view {
            Some(view) => view.read(f),
            None => f(self.object.cast::<PyBytes>().map_or(&[], |bytes| bytes.as_bytes())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.read(<[u8]>::len)
    }

    /// Returns the unsent part for the queue. It refers to the object itself, or is a copy if the owner may change it. Objects of a
    /// class derived from `bytes` are copied too: they may refer to other objects, which the garbage collector would have to know, and
    /// their finalizers may run arbitrary code.
    pub(crate) fn keep(&self, sent: usize) -> Bytes {
        match self.object.cast_exact::<PyBytes>() {
            Ok(object) => shared_bytes(object).slice(sent..),
            Err(_) => self.read(|bytes| Bytes::copy_from_slice(&bytes[sent..])),
        }
    }
}

fn write<'py>(transport: Transport<'_, 'py>, data: Argument<'_, 'py>) -> Result<()> {
    write_data(transport, &data)
}

pub(crate) fn write_data<'py>(transport: Transport<'_, 'py>, data: &Bound<'py, PyAny>) -> Result<()> {
    let py = transport.py();
    let stream = transport.state()?;
    let data = match Data::new(data) {
        Err(Raised) if raised_a::<PyBufferError>(py) => return fail_to_send(transport, stream),
        data => data?,
    };
    check_writable(py, stream, "write")?;
    if data.len() == 0 || !is_connected(py, stream)? {
        return Ok(());
    }
    if let Some(sock) = socket_access::replaced(py, stream)? {
        return write_through(transport, stream, &data, &sock);
    }
    match connection::send(py, stream, &data)? {
        Outcome::Done(Ok(Sent::Everything)) => Ok(()),
        Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
        Outcome::Done(Err(error)) => {
            raise_io(py, &error);
            fatal(&transport, WRITING_FAILED)
        }
        Outcome::OutOfReach => write_later(transport, stream, &data.keep(0)),
    }
}

/// Continues after some data was queued.
fn queued_some(transport: Transport<'_, '_>, stream: &Stream, queued: usize) -> Result<()> {
    stream.queued.set(queued);
    if !stream.unsent.replace(true) {
        opening::watch(transport, stream, Side::Writer)?;
    }
    // `pause_writing` is called if the buffer is above the high-water mark.
    if stream.protocol_paused.get() || queued as i64 <= stream.high_water.get() {
        return Ok(());
    }
    transport.method(name!(transport.py(), _maybe_pause_protocol)).map(drop)
}

/// Sends by the socket's own method, which a program has replaced. What that does not accept is queued.
#[cold]
fn write_through<'py>(
    transport: Transport<'_, 'py>,
    stream: &Stream,
    data: &Data<'py>,
    sock: &Bound<'py, PyAny>,
) -> Result<()> {
    let py = transport.py();
    let len = data.len();
    let mut sent = 0;
    if !stream.unsent.get() {
        sent = match socket_access::send(sock, &data.object, len) {
            Ok(Ok(sent)) if sent == len => return Ok(()),
            Ok(Ok(sent)) => sent,
            Ok(Err(_)) => 0,
            Err(Raised) => return fatal(&transport, WRITING_FAILED),
        };
        if stream.conn_lost.get() != 0 {
            // The method has closed the connection.
            return Ok(());
        }
    }
    match connection::queue(py, stream, data.keep(sent))? {
        Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
        Outcome::Done(Ok(Sent::Everything)) | Outcome::OutOfReach => Ok(()),
        Outcome::Done(Err(error)) => {
            raise_io(py, &error);
            fatal(&transport, WRITING_FAILED)
        }
    }
}

/// Makes the loop's thread write, because another thread runs the loop.
#[cold]
fn write_later(transport: Transport<'_, '_>, stream: &Stream, data: &[u8]) -> Result<()> {
    let py = transport.py();
    let Some(its_loop) = stream.its_loop.get(py) else { return Ok(()) };
    let write = transport.attribute(name!(py, write))?;
    its_loop.method_two(name!(py, call_soon_threadsafe), &write, &PyBytes::new(py, data)).map(drop)
}

/// Closes the connection because of a memoryview that is not contiguous, as asyncio does. No socket can send it.
#[cold]
fn fail_to_send(transport: Transport<'_, '_>, stream: &Stream) -> Result<()> {
    let py = transport.py();
    let error = PyErr::take(py);
    check_writable(py, stream, "write")?;
    if !is_connected(py, stream)? {
        return Ok(());
    }
    if let Some(error) = error {
        error.restore(py);
    }
    fatal(&transport, WRITING_FAILED)
}

/// Raises if write_eof() was called or a sendfile is in progress.
fn check_writable(py: Python<'_>, stream: &Stream, what: &str) -> Result<()> {
    if stream.eof.get() {
        return Err(raise::<PyRuntimeError>(py, &format!("Cannot call {what}() after write_eof()")));
    }
    if !stream.empty_waiter.is_empty() {
        return Err(raise::<PyRuntimeError>(py, &format!("unable to {what}; sendfile is in progress")));
    }
    Ok(())
}

/// Returns whether there is still a connection. If not, counts the write, and logs the fifth and later ones, as
/// asyncio does.
fn is_connected(py: Python<'_>, stream: &Stream) -> Result<bool> {
    /// `asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES`
    const QUIETLY: i64 = 5;
    let count = stream.conn_lost.get();
    if count == 0 {
        return Ok(true);
    }
    stream.conn_lost.set(count + 1);
    if count >= QUIETLY {
        known().writes_after_loss.bind(py).call_none()?;
    }
    Ok(false)
}

fn write_pieces<'py>(transport: Transport<'_, 'py>, lines: Argument<'_, 'py>) -> Result<()> {
    let py = transport.py();
    let stream = transport.state()?;
    check_writable(py, stream, "writelines")?;
    let mut pieces = Vec::new();
    for line in lines.try_iter().or_raise(py)?.collect::<PyResult<Vec<_>>>().or_raise(py)? {
        let piece = Data::new(&line)?;
        if piece.len() > 0 {
            pieces.push(piece.keep(0));
        }
    }
    if pieces.is_empty() || !is_connected(py, stream)? {
        return Ok(());
    }
    if let Some(sock) = socket_access::replaced(py, stream)? {
        let joined = PyBytes::new(py, &pieces.concat());
        return write_through(transport, stream, &Data::new(&joined)?, &sock);
    }
    match connection::send_pieces(py, stream, &pieces)? {
        Outcome::Done(Ok(Sent::Everything)) => Ok(()),
        Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
        Outcome::Done(Err(error)) => writing_failed(transport, &error),
        Outcome::OutOfReach => write_later(transport, stream, &pieces.concat()),
    }
}

/// Called after the reactor has sent some of the queue, or has failed to.
fn write_ready(transport: Transport<'_, '_>) -> Result<()> {
    let stream = transport.state()?;
    if stream.conn_lost.get() != 0 || !stream.unsent.get() {
        return Ok(());
    }
    match connection::with(transport.py(), stream, |io| io.take_send_error().map_or(Ok(()), Err))?.result() {
        Err(error) if is_not_now(&error) => Ok(()),
        Err(error) => writing_failed(transport, &error),
        Ok(()) => sent_some(transport, stream),
    }
}

/// Continues after some or all of the buffer was sent.
fn sent_some(transport: Transport<'_, '_>, stream: &Stream) -> Result<()> {
    let py = transport.py();
    let mut queued = connection::queued(py, stream)?;
    // asyncio's buffer is empty from here on.
    stream.unsent.set(queued > 0);
    if stream.protocol_paused.get() && queued as i64 <= stream.low_water.get() {
        // The protocol may write from this call.
        transport.method(name!(py, _maybe_resume_protocol))?;
        queued = connection::queued(py, stream)?;
    }
    if queued > 0 {
        return Ok(());
    }
    let removed =
        stream.with_loop(py, |_, state| readers::remove_number(py, state, stream.fd.get(), Side::Writer).map(drop))?;
    if removed.is_none() {
        return Ok(());
    }
    let none = py.None().into_bound(py);
    if let Some(waiter) = stream.empty_waiter.get(py) {
        waiter.method_one(name!(py, set_result), &none)?;
    }
    if stream.closing.get() {
        return closing::call_connection_lost(transport, &none);
    }
    if !stream.eof.get() {
        return Ok(());
    }
    if let Some(sock) = socket_access::replaced(py, stream)? {
        let how = libc::SHUT_WR.into_pyobject(py).or_raise(py)?;
        return sock.method_one(name!(py, shutdown), &how).map(drop);
    }
    match connection::with(py, stream, |io| io.finish_now())? {
        // The program has closed the socket.
        Outcome::Done(Err(error)) if error.raw_os_error() != Some(libc::EBADF) => Err(raise_io(py, &error)),
        _ => Ok(()),
    }
}

#[cold]
fn writing_failed(transport: Transport<'_, '_>, error: &io::Error) -> Result<()> {
    raise_io(transport.py(), error);
    hand_over(&transport, "_writing_failed", WRITING_FAILED)
}
