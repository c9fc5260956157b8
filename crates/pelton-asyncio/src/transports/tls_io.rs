//! The hot path of TLS: decrypting received data and encrypting written data.

use std::ffi::c_void;
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::stream::Stream;
use super::tls::{self, Tls, tls};
use super::writing::{self, Data};
use crate::known::known;
use pelton_cpython::fields;
use pelton_cpython::hidden;
use pelton_cpython::object::{Owned, Raised, Result, raise, raise_text, resize_bytes};
use pelton_cpython::types;
use pelton_cpython::{with_one, with_one_named, without_arguments};

/// How much encrypted data may be held back until the program's protocol returns.
const HELD_BACK: usize = 64 * 1024;

/// Size of the object to decrypt into when the amount of data is unknown.
const LEAST: usize = 4 * 1024;

/// Returns the table of the protocol's methods.
pub(crate) fn protocol_methods() -> *mut c_void {
    types::methods(vec![
        without_arguments!(c"_do_read", do_read, c"Decrypt received data and pass it to the application protocol."),
        without_arguments!(c"_process_outgoing", process_outgoing, c"Send encrypted data."),
        with_one!(c"_write_appdata", write_pieces, c"Encrypt and send several pieces of data."),
    ])
}

/// Returns the table of the transport's methods.
pub(crate) fn transport_methods() -> *mut c_void {
    types::methods(vec![with_one_named!(
        c"write",
        known().names.data,
        write,
        c"write($self, data)\n--\n\nWrite some data, without blocking.",
    )])
}

/// Handles data that the transport received. The memory is valid until the next receive.
///
/// # Safety
/// `protocol` is a live `SSLProtocol`. `start` points to `len` bytes that do not change while the interpreter lock
/// is held.
pub(crate) unsafe fn received(protocol: *mut PyObject, start: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller guarantees that `protocol` is alive and that `start` points to `len` bytes.
    // `MemoryBIO.write` copies the bytes and keeps the lock.
    unsafe {
        let tls = tls(protocol)?;
        let incoming = taken((*tls).incoming)?;
        {
            // Before Python 3.12, creating an object may run finalizers, and these may receive into the same memory.
            let _paused = CollectorPaused::begin();
            let view = ffi::PyMemoryView_FromMemory(start.cast(), len as Py_ssize_t, ffi::PyBUF_READ);
            let view = View(Owned::returned(view)?);
            call_one(&incoming, known().names.write, view.0.as_ptr()).map(drop)?;
        }
        if (*tls).state == known().tls_states.wrapped {
            read(protocol, tls)
        } else {
            call(protocol, known().names._received)
        }
    }
}

/// Returns a new reference to the object in a field. Raises if the program set it to `None`.
unsafe fn taken(field: *mut PyObject) -> Result<Owned> {
    // SAFETY: the callers pass the value of a field, which is null or an owned reference of a live state.
    unsafe {
        if field.is_null() {
            return Err(raise(ffi::PyExc_RuntimeError, c"the TLS connection is closed"));
        }
        Ok(Owned::new_reference(field))
    }
}

/// Suspends automatic garbage collection while this value lives.
struct CollectorPaused(bool);

impl CollectorPaused {
    /// # Safety
    /// The interpreter lock is held until the value is dropped.
    unsafe fn begin() -> CollectorPaused {
        // SAFETY: the caller guarantees that the lock is held.
        CollectorPaused(unsafe { ffi::PyGC_Disable() != 0 })
    }
}

impl Drop for CollectorPaused {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the caller of `begin` guarantees that the lock is still held.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// A `memoryview` of memory that it does not own and may outlive.
struct View(Owned);

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this value owns a reference to the view. If the lock was released meanwhile, other threads may have found
        // the view among the garbage collector's objects. Releasing it makes it unusable. This does not reach views that
        // were derived from it in the meantime.
        unsafe {
            if ffi::Py_REFCNT(self.0.as_ptr()) > 1
                && Owned::returned(ffi::PyObject_CallMethodNoArgs(self.0.as_ptr(), known().names.release)).is_err()
            {
                ffi::PyErr_WriteUnraisable(self.0.as_ptr());
            }
        }
    }
}

unsafe fn do_read(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the protocol alive during the call.
    unsafe { tls(protocol).and_then(|tls| read(protocol, tls)) }
}

/// Decrypts received data, unless reading is paused, and sends the data that this and the program produce.
unsafe fn read(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state.
    unsafe {
        let states = &known().tls_states;
        if (*tls).state != states.wrapped && (*tls).state != states.flushing {
            return Ok(());
        }
        if (*tls).inner.is_null() {
            return inherited(protocol, known().tls_inherited.do_read);
        }
        let outcome = read_and_send(protocol, tls);
        outcome.or_else(|Raised| failed(protocol))
    }
}

unsafe fn read_and_send(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state.
    unsafe {
        if !(*tls).app_reading_paused {
            let outcome = if (*tls).buffered { read_into(protocol, tls) } else { read_copy(protocol, tls) };
            (*tls).telling = false;
            if outcome.is_err() {
                // Still send the data written before the exception.
                return keeping_exception(|| send(protocol, tls));
            }
            if is_empty((*tls).backlog)? {
                send(protocol, tls)?;
            } else {
                call(protocol, known().names._do_write)?;
            }
        }
        // Check whether to pause or resume the transport. asyncio's method does it.
        let size = pending((*tls).incoming)? as i64;
        let changes = if (*tls).receiving_paused { size <= (*tls).incoming_low } else { size >= (*tls).incoming_high };
        if changes { call(protocol, known().names._control_ssl_reading) } else { Ok(()) }
    }
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

/// Decrypts at most one record into memory.
unsafe fn decrypt(tls: *mut Tls, into: *mut u8, room: usize) -> Result<Decrypted> {
    // SAFETY: the caller guarantees that `into` has `room` bytes and that nothing else uses them, even while the
    // lock is released. `View` makes the view unusable before this returns.
    unsafe {
        let view = ffi::PyMemoryView_FromMemory(into.cast(), room as Py_ssize_t, ffi::PyBUF_WRITE);
        let view = View(Owned::returned(view)?);
        match decrypt_into(tls, view.0.as_ptr())? {
            // The program replaced OpenSSL's method.
            Decrypted::Some(count) if count > room => {
                Err(raise(ffi::PyExc_ValueError, c"read() returned more bytes than the buffer holds"))
            }
            decrypted => Ok(decrypted),
        }
    }
}

unsafe fn decrypt_into(tls: *mut Tls, buffer: *mut PyObject) -> Result<Decrypted> {
    // SAFETY: `taken` returns an owned reference, and the caller guarantees that `buffer` is alive. The argument 0
    // means the length of the buffer.
    unsafe {
        let inner = taken((*tls).inner)?;
        let arguments = [inner.as_ptr(), known().zero, buffer];
        let count = ffi::PyObject_VectorcallMethod(known().names.read, arguments.as_ptr(), 3, null_mut());
        match Owned::returned(count) {
            Ok(count) => match fields::whole(count.as_ptr())? {
                0 => Ok(Decrypted::End),
                count => Ok(Decrypted::Some(count as usize)),
            },
            Err(Raised) => again().map(|()| Decrypted::NotNow),
        }
    }
}

/// Clears an exception that means that OpenSSL must receive more first.
unsafe fn again() -> Result<()> {
    // SAFETY: the caller guarantees that an exception is set and that the lock is held.
    unsafe {
        if ffi::PyErr_ExceptionMatches(known().ssl_again) == 0 {
            return Err(Raised);
        }
        ffi::PyErr_Clear();
        Ok(())
    }
}

/// Decrypts received data and passes it to `data_received`.
unsafe fn read_copy(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state. Nothing else has seen
    // the object that is decrypted into until it is complete.
    unsafe {
        loop {
            let waiting = pending((*tls).incoming)?;
            // Plaintext is never longer than its records.
            let room = waiting + (*tls).begun;
            let room = if room == 0 { LEAST } else { room };
            let data = Owned::returned(ffi::PyBytes_FromStringAndSize(std::ptr::null(), room as Py_ssize_t))?;
            let start = ffi::PyBytes_AsString(data.as_ptr()).cast::<u8>();
            let (filled, ended) = fill(tls, start, room, waiting)?;
            if filled > 0 {
                let data = resize_bytes(data, filled)?;
                let app_protocol = taken((*tls).app_protocol)?;
                (*tls).telling = true;
                call_one(&app_protocol, known().names.data_received, data.as_ptr()).map(drop)?;
                (*tls).telling = false;
            }
            if ended {
                return end(protocol);
            }
            if filled < room || (*tls).app_reading_paused || (*tls).inner.is_null() {
                return Ok(());
            }
            if (*tls).buffered {
                // `data_received` replaced the protocol with a buffered one.
                return read_into(protocol, tls);
            }
        }
    }
}

/// Decrypts until no data or no room is left. Returns the number of bytes, and whether the peer ended the connection.
unsafe fn fill(tls: *mut Tls, start: *mut u8, room: usize, mut waiting: usize) -> Result<(usize, bool)> {
    let mut filled = 0;
    // SAFETY: the caller guarantees that `start` has `room` bytes. Each call gets the part that is not filled yet.
    unsafe {
        while filled < room {
            let outcome = decrypt(tls, start.add(filled), room - filled)?;
            let left = pending((*tls).incoming)?;
            match outcome {
                Decrypted::Some(count) => {
                    filled += count;
                    (*tls).begun = 0;
                    // A record that fits is decrypted whole, so with nothing pending no record is incomplete.
                    // Another call would only raise.
                    if filled < room && left == 0 {
                        break;
                    }
                }
                Decrypted::End => return Ok((filled, true)),
                Decrypted::NotNow => {
                    (*tls).begun += waiting.saturating_sub(left);
                    break;
                }
            }
            waiting = left;
        }
        Ok((filled, false))
    }
}

/// Decrypts into a buffer that the program's protocol provides.
unsafe fn read_into(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state. The memoryview keeps
    // the program's buffer in place.
    unsafe {
        let app_protocol = taken((*tls).app_protocol)?;
        let hint = Owned::returned(ffi::PyLong_FromSize_t(pending((*tls).incoming)?))?;
        let buffer = call_one(&app_protocol, known().names.get_buffer, hint.as_ptr())?;
        let buffer = Owned::returned(ffi::PyMemoryView_FromObject(buffer.as_ptr()))?;
        let room = ffi::PyObject_Size(buffer.as_ptr());
        let (mut filled, mut ended) = (0, false);
        while filled < room {
            let rest = match filled {
                0 => Owned::new_reference(buffer.as_ptr()),
                _ => Owned::returned(ffi::PySequence_GetSlice(buffer.as_ptr(), filled, room))?,
            };
            match decrypt_into(tls, rest.as_ptr())? {
                Decrypted::Some(count) => filled += count as Py_ssize_t,
                Decrypted::End => ended = true,
                Decrypted::NotNow => break,
            }
            if ended || (filled < room && pending((*tls).incoming)? == 0) {
                break;
            }
        }
        (*tls).begun = 0;
        drop(buffer);
        if filled > 0 {
            if filled == room {
                // There may be more data than fitted.
                let event_loop = taken((*tls).loop_)?;
                let again = Owned::returned(ffi::PyObject_GetAttr(protocol, known().names._do_read))?;
                drop(call_one(&event_loop, known().names.call_soon, again.as_ptr())?);
            }
            let count = Owned::returned(ffi::PyLong_FromSsize_t(filled))?;
            (*tls).telling = true;
            call_one(&app_protocol, known().names.buffer_updated, count.as_ptr()).map(drop)?;
            (*tls).telling = false;
        }
        if ended { end(protocol) } else { Ok(()) }
    }
}

/// Handles an orderly end of the connection by the peer.
unsafe fn end(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive.
    unsafe {
        call(protocol, known().names._call_eof_received)?;
        call(protocol, known().names._start_shutdown)
    }
}

unsafe fn process_outgoing(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the protocol alive during the call.
    unsafe { tls(protocol).and_then(|tls| send(protocol, tls)) }
}

/// Sends encrypted data, and calls `pause_writing` or `resume_writing` if a water mark was crossed.
unsafe fn send(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state. Objects from its fields
    // are called through references of their own.
    unsafe {
        let mut size = (*tls).backlog_size;
        if (*tls).sending_paused {
            size += pending((*tls).outgoing)? as i64;
        } else {
            let outgoing = taken((*tls).outgoing)?;
            let data = ffi::PyObject_CallMethodNoArgs(outgoing.as_ptr(), known().names.read);
            let data = Owned::returned(data)?;
            if ffi::PyObject_Size(data.as_ptr()) > 0 && !(*tls).transport.is_null() {
                let transport = Owned::new_reference((*tls).transport);
                if hidden::is_exactly::<Stream>(transport.as_ptr()) {
                    writing::write_data(transport.as_ptr(), data.as_ptr())?;
                } else {
                    drop(call_one(&transport, known().names.write, data.as_ptr())?);
                }
            }
        }
        let changes =
            if (*tls).app_writing_paused { size <= (*tls).outgoing_low } else { size >= (*tls).outgoing_high };
        if changes { call(protocol, known().names._control_app_writing) } else { Ok(()) }
    }
}

unsafe fn write(transport: *mut PyObject, data: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport and the data alive during the call. The protocol is kept alive by an owned
    // reference.
    unsafe {
        if ffi::PyBytes_Check(data) == 0 && ffi::PyByteArray_Check(data) == 0 && ffi::PyMemoryView_Check(data) == 0 {
            return Err(not_bytes(data));
        }
        let Some(protocol) = tls::protocol_of(transport) else { return Ok(()) };
        let protocol = Owned::new_reference(protocol);
        let tls = tls(protocol.as_ptr())?;
        write_one(protocol.as_ptr(), tls, data)?;
        send_unless_telling(protocol.as_ptr(), tls)
    }
}

#[cold]
unsafe fn not_bytes(data: *mut PyObject) -> Raised {
    Python::attach(|py| {
        // SAFETY: the caller guarantees that `data` is alive.
        let name = unsafe { Bound::from_borrowed_ptr(py, data) }.get_type().name().map(|name| name.to_string());
        let message = format!("data: expecting a bytes-like instance, got {}", name.unwrap_or_default());
        // SAFETY: exception classes live as long as the interpreter.
        raise_text(unsafe { ffi::PyExc_TypeError }, &message)
    })
}

unsafe fn write_pieces(protocol: *mut PyObject, pieces: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the protocol and the argument alive during the call. The list is new, and each item is
    // used through an owned reference.
    unsafe {
        let tls = tls(protocol)?;
        let pieces = Owned::returned(ffi::PySequence_List(pieces))?;
        for index in 0..ffi::PyList_GET_SIZE(pieces.as_ptr()) {
            let piece = Owned::new_reference(ffi::PyList_GET_ITEM(pieces.as_ptr(), index));
            write_one(protocol, tls, piece.as_ptr())?;
        }
        send_unless_telling(protocol, tls)
    }
}

/// Encrypts a piece of data if that is possible now.
unsafe fn write_one(protocol: *mut PyObject, tls: *mut Tls, data: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol and the data are alive and that `tls` is the protocol's state.
    unsafe {
        let len = Data::new(data)?.bytes().len();
        if len == 0 {
            return Ok(());
        }
        let states = &known().tls_states;
        if (*tls).state == states.wrapped && !(*tls).inner.is_null() && is_empty((*tls).backlog)? {
            let inner = taken((*tls).inner)?;
            return match call_one(&inner, known().names.write, data) {
                Ok(written) if fields::whole(written.as_ptr())? as usize == len => Ok(()),
                Ok(written) => {
                    let rest = Owned::returned(ffi::PyMemoryView_FromObject(data))?;
                    let written = ffi::PyLong_AsSsize_t(written.as_ptr());
                    let rest = Owned::returned(ffi::PySequence_GetSlice(rest.as_ptr(), written, len as Py_ssize_t))?;
                    call_method(protocol, known().names._write_later, rest.as_ptr())
                }
                Err(Raised) => match again() {
                    Ok(()) => call_method(protocol, known().names._write_later, data),
                    Err(Raised) => failed(protocol),
                },
            };
        }
        // During the handshake, after the end, and behind data that is already queued.
        let data = Owned::returned(ffi::PyTuple_Pack(1, data))?;
        let arguments = [protocol, data.as_ptr()];
        let written = known().tls_inherited.write_appdata;
        Owned::returned(ffi::PyObject_Vectorcall(written, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}

/// Sends encrypted data, unless that will happen when the program's protocol returns.
unsafe fn send_unless_telling(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that `tls` is its state.
    unsafe {
        if (*tls).state != known().tls_states.wrapped
            || ((*tls).telling && pending((*tls).outgoing)? < HELD_BACK && (*tls).backlog_size == 0)
        {
            return Ok(());
        }
        send(protocol, tls).or_else(|Raised| failed(protocol))
    }
}

/// `bio.pending`
unsafe fn pending(bio: *mut PyObject) -> Result<usize> {
    // SAFETY: the callers pass the value of a field, which is null or an owned reference of a live state.
    unsafe {
        if bio.is_null() {
            return Ok(0);
        }
        let bio = Owned::new_reference(bio);
        let pending = Owned::returned(ffi::PyObject_GetAttr(bio.as_ptr(), known().names.pending))?;
        Ok(fields::whole(pending.as_ptr())? as usize)
    }
}

unsafe fn is_empty(collection: *mut PyObject) -> Result<bool> {
    if collection.is_null() {
        return Ok(true);
    }
    // SAFETY: the callers pass the value of a field, an owned reference of a live state. Another reference keeps it
    // alive during the call.
    unsafe {
        let collection = Owned::new_reference(collection);
        match ffi::PyObject_Size(collection.as_ptr()) {
            -1 => Err(Raised),
            len => Ok(len == 0),
        }
    }
}

unsafe fn call_one(object: &Owned, method: *mut PyObject, argument: *mut PyObject) -> Result<Owned> {
    // SAFETY: `object` is an owned reference, method names are never freed, and the callers guarantee that
    // `argument` is alive.
    unsafe {
        let arguments = [object.as_ptr(), argument];
        Owned::returned(ffi::PyObject_VectorcallMethod(method, arguments.as_ptr(), 2, null_mut()))
    }
}

unsafe fn call_method(protocol: *mut PyObject, method: *mut PyObject, argument: *mut PyObject) -> Result<()> {
    // SAFETY: the callers guarantee that protocol and argument are alive; method names are never freed.
    unsafe { call_one(&Owned::new_reference(protocol), method, argument).map(drop) }
}

unsafe fn call(protocol: *mut PyObject, method: *mut PyObject) -> Result<()> {
    // SAFETY: the callers guarantee that the protocol is alive; method names are never freed.
    unsafe { Owned::returned(ffi::PyObject_CallMethodNoArgs(protocol, method)).map(drop) }
}

/// Calls asyncio's function that a method here overrides.
unsafe fn inherited(protocol: *mut PyObject, function: *mut PyObject) -> Result<()> {
    // SAFETY: the callers guarantee that the protocol is alive; the inherited functions are never freed.
    unsafe { Owned::returned(ffi::PyObject_CallOneArg(function, protocol)).map(drop) }
}

/// Runs `body` while an exception is set, and restores that exception whatever the result.
#[cold]
unsafe fn keeping_exception(body: impl FnOnce() -> Result<()>) -> Result<()> {
    Python::attach(|py| {
        let raised = PyErr::take(py);
        if let Err(Raised) = body() {
            drop(PyErr::take(py));
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
        Err(Raised)
    })
}

/// Closes the connection because of the raised exception. Exceptions that are not an `Exception` propagate.
#[cold]
unsafe fn failed(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the protocol is alive and that an exception is set.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_Exception) == 0 {
            return Err(Raised);
        }
        writing::hand_over(protocol, "_fatal_error", "Fatal error on SSL protocol")
    }
}
