//! Receiving: what a stream transport does when its socket is readable.

use std::io;

use pelton::Space;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::stream::{Stream, Transport};
use super::tls::Tls;
use super::writing::fatal;
use super::{closing, connection, socket_access, tls_io};
use crate::event_loop::state;
use crate::known::{known, name};
use crate::readers::{self, Side};
use crate::sockets::syscalls::is_not_now;
use pelton_cpython::buffer::{View, receive_expected, with_shared};
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise, raise_io, raised_a};
use pelton_cpython::class::{Method, This};
use pelton_cpython::no_arguments;
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::reserve;

/// A connection that received at least this much is likely to do so again. Receiving directly into a `bytes` object
/// then saves a copy.
const LARGE: usize = 32 * 1024;

/// After every shorter message the expected size decreases by one part in `FORGET`. It decreases slowly because a
/// large message may arrive in pieces.
const FORGET: usize = 8;

const READING_FAILED: &str = "Fatal read error on socket transport";
const DATA_FAILED: &str = "Fatal error: protocol.data_received() call failed.";
const END_FAILED: &str = "Fatal error: protocol.eof_received() call failed.";
const BUFFER_FAILED: &str = "Fatal error: protocol.buffer_updated() call failed.";

pub(crate) fn methods() -> Vec<Method<Stream>> {
    vec![no_arguments!(Stream, c"_read_ready", read_ready, c"Receive data and pass it to the protocol.")]
}

fn read_ready(transport: Transport<'_, '_>) -> Result<()> {
    let stream = transport.state()?;
    if stream.conn_lost.get() != 0 {
        return Ok(());
    }
    let Some(protocol) = stream.protocol.get(transport.py()) else { return Ok(()) };
    if let Some(tls) = This::<Tls>::exactly(&protocol) {
        receive_tls(transport, stream, tls)
    } else if stream.buffered.get() {
        receive_into(transport, stream, &protocol)
    } else {
        receive(transport, stream, &protocol)
    }
}

/// Receives data and passes it to the protocol's `data_received`.
fn receive<'py>(transport: Transport<'_, 'py>, stream: &Stream, protocol: &Bound<'py, PyAny>) -> Result<()> {
    let py = transport.py();
    if let Some(sock) = socket_access::replaced(py, stream)? {
        return receive_through(transport, stream, protocol, &sock);
    }
    let expected = stream.expected.get();
    let received = if expected < LARGE {
        with_shared(py, |buffer| {
            let count = connection::receive(py, stream, &mut [Space::from(&mut *buffer)])?;
            Ok(count.map(|count| (PyBytes::new(py, &buffer[..count]), None)))
        })?
    } else {
        // TCP delivers a message larger than its window in pieces, and receiving the first piece makes room for the next. On the same
        // machine the next piece is available as soon as the system call returns. So if less than expected arrived, this receives once
        // more. A program that echoes or forwards the message then saves a turn, a system call to send, and a wake-up of the receiver.
        receive_expected(py, expected, LARGE, |spaces| connection::receive(py, stream, spaces))?
    };
    let (data, failed_after) = match received {
        Ok(received) => received,
        Err(error) => return reading_failed(transport, &error),
    };
    let len = data.as_bytes().len();
    reserve::received(len);
    stream.expected.set(len.max(expected - expected / FORGET));
    if len == 0 {
        return ended(transport, stream, protocol);
    }
    if let Err(Raised) = protocol.method_one(name!(py, data_received), &data) {
        return fatal(&transport, DATA_FAILED);
    }
    match failed_after {
        Some(error) if stream.conn_lost.get() == 0 => reading_failed(transport, &error),
        _ => Ok(()),
    }
}

/// Receives by the socket's own method and passes the result to `data_received` unchanged.
#[cold]
fn receive_through<'py>(
    transport: Transport<'_, 'py>,
    stream: &Stream,
    protocol: &Bound<'py, PyAny>,
    sock: &Bound<'py, PyAny>,
) -> Result<()> {
    let data = match socket_access::receive(sock) {
        Ok(Ok(data)) => data,
        Ok(Err(error)) => return reading_failed(transport, &error),
        Err(Raised) => return fatal(&transport, READING_FAILED),
    };
    if !data.truth()? {
        return ended(transport, stream, protocol);
    }
    let told = protocol.method_one(name!(transport.py(), data_received), &data).map(drop);
    told.or_else(|Raised| fatal(&transport, DATA_FAILED))
}

/// Handles the end of the stream.
fn ended<'py>(transport: Transport<'_, 'py>, stream: &Stream, protocol: &Bound<'py, PyAny>) -> Result<()> {
    let py = transport.py();
    if stream.its_loop.get(py).is_none_or(|its_loop| state::is_in_debug_mode(&its_loop)) {
        // asyncio's own method logs it.
        return transport.method(name!(py, _read_ready__on_eof)).map(drop);
    }
    let Ok(keep_open) = protocol.method(name!(py, eof_received)) else { return fatal(&transport, END_FAILED) };
    match keep_open.truth() {
        Ok(false) => closing::close(transport),
        Err(Raised) => fatal(&transport, END_FAILED),
        // The transport can still write, but there is nothing left to receive.
        Ok(true) => {
            stream.with_loop(py, |_, state| readers::remove_number(py, state, stream.fd.get(), Side::Reader)).map(drop)
        }
    }
}

/// Receives into a buffer that the protocol provides.
fn receive_into<'py>(transport: Transport<'_, 'py>, stream: &Stream, protocol: &Bound<'py, PyAny>) -> Result<()> {
    let py = transport.py();
    let Ok((buffer, mut view)) = offered_buffer(protocol) else {
        return fatal(&transport, "Fatal error: protocol.get_buffer() call failed.");
    };
    let received = match socket_access::replaced(py, stream) {
        Ok(None) => view.write(|memory| connection::receive(py, stream, &mut [Space::from(memory)])),
        Ok(Some(sock)) => socket_access::receive_into(&sock, &buffer, view.len()),
        Err(Raised) => Err(Raised),
    };
    drop(view);
    let count = match received {
        Ok(Ok(0)) => return ended(transport, stream, protocol),
        Ok(Ok(count)) => count,
        Ok(Err(error)) => return reading_failed(transport, &error),
        Err(Raised) => return fatal(&transport, READING_FAILED),
    };
    reserve::received(count);
    let count = count.into_pyobject(py).or_raise(py)?;
    let told = protocol.method_one(name!(py, buffer_updated), &count).map(drop);
    told.or_else(|Raised| fatal(&transport, BUFFER_FAILED))
}

/// Receives data for a TLS protocol to decrypt.
fn receive_tls(transport: Transport<'_, '_>, stream: &Stream, protocol: This<'_, '_, Tls>) -> Result<()> {
    let py = transport.py();
    let received = match socket_access::replaced(py, stream)? {
        None => with_shared(py, |buffer| {
            let count = match connection::receive(py, stream, &mut [Space::from(&mut *buffer)])? {
                Ok(count) => count,
                Err(error) => return Ok(Err(error)),
            };
            reserve::received(count);
            Ok(Ok((count, if count == 0 { Ok(()) } else { tls_io::take_in(protocol, &buffer[..count]) })))
        })?,
        Some(sock) => match socket_access::receive_copy(&sock) {
            Ok(Ok(data)) => {
                let data = data.as_bytes();
                Ok((data.len(), if data.is_empty() { Ok(()) } else { tls_io::take_in(protocol, data) }))
            }
            Ok(Err(error)) => Err(error),
            Err(Raised) => return fatal(&transport, READING_FAILED),
        },
    };
    match received {
        Ok((0, _)) => ended(transport, stream, &protocol),
        Ok((_, taken)) => {
            let read = taken.and_then(|()| tls_io::received(protocol));
            read.or_else(|Raised| fatal(&transport, BUFFER_FAILED))
        }
        Err(error) => reading_failed(transport, &error),
    }
}

/// Returns the buffer that the protocol provides, and a view of it.
fn offered_buffer<'py>(protocol: &Bound<'py, PyAny>) -> Result<(Bound<'py, PyAny>, View<'py>)> {
    let py = protocol.py();
    let buffer = protocol.method_one(name!(py, get_buffer), known().minus_one.bind(py))?;
    let view = match View::writable(&buffer) {
        Ok(view) => view,
        Err(Raised) if !raised_a::<PyBufferError>(py) => return Err(Raised),
        Err(Raised) => {
            // Raise the same error as the socket's own method.
            clear_raised(py);
            return Err(raise::<PyTypeError>(py, "get_buffer() must return a read-write bytes-like object"));
        }
    };
    if view.is_empty() {
        return Err(raise::<PyRuntimeError>(py, "get_buffer() returned an empty buffer"));
    }
    Ok((buffer, view))
}

#[cold]
fn reading_failed(transport: Transport<'_, '_>, error: &io::Error) -> Result<()> {
    if is_not_now(error) {
        return Ok(());
    }
    raise_io(transport.py(), error);
    fatal(&transport, READING_FAILED)
}
