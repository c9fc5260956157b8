//! The hot path of TLS: decrypting received data and encrypting written data.

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use super::stream::Stream;
use super::tls::{Protocol, Tls};
use super::writing::{self, Data};
use crate::known::{known, name};
use pelton_cpython::arguments::Argument;
use pelton_cpython::buffer::{Filling, present, with_memory_of};
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise, raised_a, raised_is};
use pelton_cpython::class::{FieldOnly, Method, This};
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::slot::Slot;
use pelton_cpython::{no_arguments, one_argument, one_named_argument};

/// How much encrypted data may be held back until the program's protocol returns.
const HELD_BACK: usize = 64 * 1024;

/// Size of the object to decrypt into when the amount of data is unknown.
const LEAST: usize = 4 * 1024;

/// Returns the protocol's methods.
pub(crate) fn protocol_methods() -> Vec<Method<Tls>> {
    let read = c"Decrypt received data and pass it to the application protocol.";
    vec![
        no_arguments!(Tls, c"_do_read", read_now, read),
        no_arguments!(Tls, c"_process_outgoing", process_outgoing, c"Send encrypted data."),
        one_argument!(Tls, c"_write_appdata", write_pieces, c"Encrypt and send several pieces of data."),
    ]
}

/// Returns the transport's methods.
pub(crate) fn transport_methods() -> Vec<Method<FieldOnly>> {
    vec![one_named_argument!(
        FieldOnly,
        c"write",
        |py| name!(py, data),
        write,
        c"write($self, data)\n--\n\nWrite some data, without blocking.",
    )]
}

/// Gives OpenSSL data that the transport has received. `MemoryBIO.write` copies the bytes and keeps the lock.
pub(crate) fn take_in(protocol: Protocol<'_, '_>, received: &[u8]) -> Result<()> {
    let py = protocol.py();
    let incoming = taken(py, &protocol.state()?.incoming)?;
    with_memory_of(py, received, |view| incoming.method_one(name!(py, write), view).map(drop))
}

/// Handles data that OpenSSL was given.
pub(crate) fn received(protocol: Protocol<'_, '_>) -> Result<()> {
    let py = protocol.py();
    let tls = protocol.state()?;
    if tls.phase.is(known().tls_states.wrapped.bind(py)) {
        read(protocol, tls)
    } else {
        protocol.method(name!(py, _received)).map(drop)
    }
}

/// Returns the object in a field. Raises if the program set it to `None`.
fn taken<'py>(py: Python<'py>, slot: &Slot) -> Result<Bound<'py, PyAny>> {
    present(slot.get(py), py, "the TLS connection is closed")
}

fn read_now(protocol: Protocol<'_, '_>) -> Result<()> {
    read(protocol, protocol.state()?)
}

/// Decrypts received data, unless reading is paused, and sends the data that this and the program produce.
fn read(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    let states = &known().tls_states;
    if !tls.phase.is(states.wrapped.bind(py)) && !tls.phase.is(states.flushing.bind(py)) {
        return Ok(());
    }
    if tls.inner.is_empty() {
        // asyncio's function, which this method overrides.
        return known().tls_inherited.do_read.bind(py).call_one(&protocol).map(drop);
    }
    read_and_send(protocol, tls).or_else(|Raised| failed(&protocol))
}

fn read_and_send(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    if !tls.app_reading_paused.get() {
        let outcome = if tls.buffered.get() { read_into(protocol, tls) } else { read_copy(protocol, tls) };
        tls.telling.set(false);
        if outcome.is_err() {
            // Still send the data written before the exception.
            let raised = PyErr::fetch(py);
            if let Err(Raised) = send(protocol, tls) {
                clear_raised(py);
            }
            raised.restore(py);
            return Err(Raised);
        }
        if is_empty(py, &tls.backlog)? {
            send(protocol, tls)?;
        } else {
            protocol.method(name!(py, _do_write))?;
        }
    }
    // Check whether to pause or resume the transport. asyncio's method does it.
    let size = pending(py, &tls.incoming)? as i64;
    let changes =
        if tls.receiving_paused.get() { size <= tls.incoming_low.get() } else { size >= tls.incoming_high.get() };
    if changes { protocol.method(name!(py, _control_ssl_reading)).map(drop) } else { Ok(()) }
}

/// Result of one call to OpenSSL.
enum Decrypted {
    /// Number of bytes.
    Some(usize),
    /// The peer sent close_notify.
    End,
    /// OpenSSL needs more received data.
    NotNow,
}

/// Decrypts at most one record into a buffer.
fn decrypt_into<'py>(tls: &Tls, buffer: &Bound<'py, PyAny>) -> Result<Decrypted> {
    let py = buffer.py();
    // The argument 0 means the length of the buffer.
    match taken(py, &tls.inner)?.method_two(name!(py, read), known().zero.bind(py), buffer) {
        Ok(count) => match count.whole()? {
            0 => Ok(Decrypted::End),
            count => Ok(Decrypted::Some(count as usize)),
        },
        Err(Raised) => again(py).map(|()| Decrypted::NotNow),
    }
}

/// Clears an exception that means that OpenSSL must receive more first.
fn again(py: Python<'_>) -> Result<()> {
    if !known().ssl_again.as_ref().is_some_and(|again| raised_is(again.bind(py))) {
        return Err(Raised);
    }
    clear_raised(py);
    Ok(())
}

/// Decrypts received data and passes it to `data_received`.
fn read_copy(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    loop {
        let waiting = pending(py, &tls.incoming)?;
        // Plaintext is never longer than its records.
        let room = waiting + tls.begun.get();
        let mut data = Filling::new(py, if room == 0 { LEAST } else { room })?;
        let ended = fill(py, tls, &mut data, waiting)?;
        let is_full = data.is_full();
        if data.filled() > 0 {
            let data = data.finish()?;
            let app_protocol = taken(py, &tls.app_protocol)?;
            tls.telling.set(true);
            app_protocol.method_one(name!(py, data_received), &data)?;
            tls.telling.set(false);
        }
        if ended {
            return end(&protocol);
        }
        if !is_full || tls.app_reading_paused.get() || tls.inner.is_empty() {
            return Ok(());
        }
        if tls.buffered.get() {
            // `data_received` replaced the protocol with a buffered one.
            return read_into(protocol, tls);
        }
    }
}

/// Decrypts until no data or no room is left. Returns whether the peer ended the connection.
fn fill<'py>(py: Python<'py>, tls: &Tls, data: &mut Filling<'py>, mut waiting: usize) -> Result<bool> {
    while !data.is_full() {
        let mut ended = false;
        let count = data.fill(|rest| {
            Ok(match decrypt_into(tls, rest)? {
                Decrypted::Some(count) => Some(count),
                Decrypted::End => {
                    ended = true;
                    None
                }
                Decrypted::NotNow => None,
            })
        })?;
        let left = pending(py, &tls.incoming)?;
        match count {
            Some(_) => {
                tls.begun.set(0);
                // A record that fits is decrypted whole, so with nothing pending no record is incomplete.
                // Another call would only raise.
                if !data.is_full() && left == 0 {
                    break;
                }
            }
            None if ended => return Ok(true),
            None => {
                tls.begun.set(tls.begun.get() + waiting.saturating_sub(left));
                break;
            }
        }
        waiting = left;
    }
    Ok(false)
}

/// Decrypts into a buffer that the program's protocol provides.
fn read_into(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    let app_protocol = taken(py, &tls.app_protocol)?;
    let hint = pending(py, &tls.incoming)?.into_pyobject(py).or_raise(py)?;
    let buffer = app_protocol.method_one(name!(py, get_buffer), &hint)?;
    let buffer = PyMemoryView::from(&buffer).or_raise(py)?;
    let room = buffer.length()?;
    let (mut filled, mut ended) = (0, false);
    while filled < room {
        let rest = match filled {
            0 => buffer.clone().into_any(),
            _ => slice(&buffer, filled, room)?,
        };
        match decrypt_into(tls, &rest)? {
            Decrypted::Some(count) => filled += count,
            Decrypted::End => ended = true,
            Decrypted::NotNow => break,
        }
        if ended || (filled < room && pending(py, &tls.incoming)? == 0) {
            break;
        }
    }
    tls.begun.set(0);
    drop(buffer);
    if filled > 0 {
        if filled == room {
            // There may be more data than fitted.
            let again = protocol.attribute(name!(py, _do_read))?;
            taken(py, &tls.its_loop)?.method_one(name!(py, call_soon), &again)?;
        }
        let count = filled.into_pyobject(py).or_raise(py)?;
        tls.telling.set(true);
        app_protocol.method_one(name!(py, buffer_updated), &count)?;
        tls.telling.set(false);
    }
    if ended { end(&protocol) } else { Ok(()) }
}

/// `sequence[from:to]`
fn slice<'py>(sequence: &Bound<'py, PyAny>, from: usize, to: usize) -> Result<Bound<'py, PyAny>> {
    let py = sequence.py();
    sequence.get_item(pyo3::types::PySlice::new(py, from as isize, to as isize, 1)).or_raise(py)
}

/// Handles an orderly end of the connection by the peer.
fn end(protocol: &Bound<'_, PyAny>) -> Result<()> {
    let py = protocol.py();
    protocol.method(name!(py, _call_eof_received))?;
    protocol.method(name!(py, _start_shutdown)).map(drop)
}

fn process_outgoing(protocol: Protocol<'_, '_>) -> Result<()> {
    send(protocol, protocol.state()?)
}

/// Sends encrypted data, and calls `pause_writing` or `resume_writing` if a water mark was crossed.
fn send(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    let mut size = tls.backlog_size.get();
    if tls.sending_paused.get() {
        size += pending(py, &tls.outgoing)? as i64;
    } else {
        let data = taken(py, &tls.outgoing)?.method(name!(py, read))?;
        if data.length()? > 0
            && let Some(transport) = tls.transport.get(py)
        {
            match This::<Stream>::exactly(&transport) {
                Some(transport) => writing::write_data(transport, &data)?,
                None => drop(transport.method_one(name!(py, write), &data)?),
            }
        }
    }
    let changes =
        if tls.app_writing_paused.get() { size <= tls.outgoing_low.get() } else { size >= tls.outgoing_high.get() };
    if changes { protocol.method(name!(py, _control_app_writing)).map(drop) } else { Ok(()) }
}

fn write<'py>(transport: This<'_, 'py, FieldOnly>, data: Argument<'_, 'py>) -> Result<()> {
    let py = transport.py();
    if !data.is_instance_of::<PyBytes>()
        && !data.is_instance_of::<PyByteArray>()
        && !data.is_instance_of::<PyMemoryView>()
    {
        let name = data.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        return Err(raise::<PyTypeError>(py, &format!("data: expecting a bytes-like instance, got {name}")));
    }
    let Some(protocol) = transport.field() else { return Ok(()) };
    // The program may have replaced it by one of another type.
    let Some(protocol) = This::<Tls>::exactly(&protocol) else { return Ok(()) };
    let tls = protocol.state()?;
    write_one(protocol, tls, &data)?;
    send_unless_telling(protocol, tls)
}

fn write_pieces<'py>(protocol: Protocol<'_, 'py>, pieces: Argument<'_, 'py>) -> Result<()> {
    let py = protocol.py();
    let tls = protocol.state()?;
    for piece in pieces.try_iter().or_raise(py)?.collect::<PyResult<Vec<_>>>().or_raise(py)? {
        write_one(protocol, tls, &piece)?;
    }
    send_unless_telling(protocol, tls)
}

/// Encrypts a piece of data if that is possible now.
fn write_one<'py>(protocol: Protocol<'_, 'py>, tls: &Tls, data: &Bound<'py, PyAny>) -> Result<()> {
    let py = protocol.py();
    let len = Data::new(data)?.len();
    if len == 0 {
        return Ok(());
    }
    if tls.phase.is(known().tls_states.wrapped.bind(py))
        && let Some(inner) = tls.inner.get(py)
        && is_empty(py, &tls.backlog)?
    {
        return match inner.method_one(name!(py, write), data) {
            Ok(written) => {
                let written = written.whole()? as usize;
                if written == len {
                    return Ok(());
                }
                let rest = PyMemoryView::from(data).or_raise(py)?;
                let rest = slice(&rest, written, len)?;
                protocol.method_one(name!(py, _write_later), &rest).map(drop)
            }
            Err(Raised) => match again(py) {
                Ok(()) => protocol.method_one(name!(py, _write_later), data).map(drop),
                Err(Raised) => failed(&protocol),
            },
        };
    }
    // During the handshake, after the end, and behind data that is already queued.
    let write = known().tls_inherited.write_appdata.bind(py);
    write.call1((&*protocol, (data,))).or_raise(py).map(drop)
}

/// Sends encrypted data, unless that will happen when the program's protocol returns.
fn send_unless_telling(protocol: Protocol<'_, '_>, tls: &Tls) -> Result<()> {
    let py = protocol.py();
    if !tls.phase.is(known().tls_states.wrapped.bind(py))
        || (tls.telling.get() && pending(py, &tls.outgoing)? < HELD_BACK && tls.backlog_size.get() == 0)
    {
        return Ok(());
    }
    send(protocol, tls).or_else(|Raised| failed(&protocol))
}

/// `bio.pending`
fn pending(py: Python<'_>, bio: &Slot) -> Result<usize> {
    let Some(bio) = bio.get(py) else { return Ok(0) };
    Ok(bio.attribute(name!(py, pending))?.whole()? as usize)
}

fn is_empty(py: Python<'_>, collection: &Slot) -> Result<bool> {
    collection.get(py).map_or(Ok(true), |collection| Ok(collection.length()? == 0))
}

/// Closes the connection because of the raised exception. Exceptions that are not an `Exception` propagate.
#[cold]
fn failed(protocol: &Bound<'_, PyAny>) -> Result<()> {
    if !raised_a::<PyException>(protocol.py()) {
        return Err(Raised);
    }
    writing::hand_over(protocol, "_fatal_error", "Fatal error on SSL protocol")
}
