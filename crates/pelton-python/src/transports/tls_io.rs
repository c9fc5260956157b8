//! What a TLS connection does for every message: decrypting what was received, encrypting what is written.

use std::ffi::c_void;
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::stream::Stream;
use super::tls::{self, Tls, tls};
use super::writing::{self, Data};
use crate::fields;
use crate::hidden;
use crate::known::known;
use crate::methods::{with_one, with_one_named, without_arguments};
use crate::object::{Owned, Raised, Result, raise, raise_text, resize_bytes};
use crate::types;

/// What may wait for the program's protocol to return before it is sent.
const HELD_BACK: usize = 64 * 1024;

/// The smallest object that data is decrypted into if it is not known how much there is.
const LEAST: usize = 4 * 1024;

/// The methods of the protocol, for a type to keep.
pub(crate) fn protocol_methods() -> *mut c_void {
    types::methods(vec![
        without_arguments!(c"_do_read", do_read, c"Decrypt what was received, and tell the program's protocol."),
        without_arguments!(c"_process_outgoing", process_outgoing, c"Send what is encrypted."),
        with_one!(c"_write_appdata", write_pieces, c"Encrypt several pieces of data, and send them."),
    ])
}

/// The methods of the transport, for a type to keep.
pub(crate) fn transport_methods() -> *mut c_void {
    types::methods(vec![with_one_named!(
        c"write",
        data,
        write,
        c"write($self, data)\n--\n\nWrite some data, without blocking.",
    )])
}

/// The transport has received something, which is in memory until something else is received.
///
/// # Safety
/// `protocol` is a live `SSLProtocol`; there are so many bytes at `start`, which nobody changes without the interpreter lock.
pub(crate) unsafe fn received(protocol: *mut PyObject, start: *mut u8, len: usize) -> Result<()> {
    // SAFETY: as the caller says. What takes the bytes copies them, and does not let go of the lock.
    unsafe {
        let tls = tls(protocol)?;
        let incoming = taken((*tls).incoming)?;
        {
            // Before Python 3.12, making an object may run finalizers, and these may receive into the same memory.
            let _uncollected = Uncollected::begin();
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

/// A new reference to what a field has; an exception if somebody has set it to `None`.
unsafe fn taken(field: *mut PyObject) -> Result<Owned> {
    // SAFETY: a field is null or an owned reference.
    unsafe {
        if field.is_null() {
            return Err(raise(ffi::PyExc_RuntimeError, c"the TLS connection is gone"));
        }
        Ok(Owned::new_reference(field))
    }
}

/// While this lives, the garbage collector does not run by itself.
struct Uncollected(bool);

impl Uncollected {
    /// # Safety
    /// The interpreter lock is held until it is dropped.
    unsafe fn begin() -> Uncollected {
        // SAFETY: as the caller says.
        Uncollected(unsafe { ffi::PyGC_Disable() != 0 })
    }
}

impl Drop for Uncollected {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the lock is held, as the constructor requires.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// A `memoryview` of memory that it does not own, and that is not there for ever.
struct View(Owned);

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view is alive. The lock may have been let go of meanwhile, and the garbage collector knows the view: if
        // somebody has got at it that way, it is made useless.
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
    // SAFETY: the protocol is alive.
    unsafe { tls(protocol).and_then(|tls| read(protocol, tls)) }
}

/// Decrypts what there is, unless the program does not want to be told, and sends what that and the program give rise to.
unsafe fn read(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the protocol is alive, and so its state.
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
    // SAFETY: the protocol is alive, and so its state.
    unsafe {
        if !(*tls).app_reading_paused {
            let outcome = if (*tls).buffered { read_into(protocol, tls) } else { read_copy(protocol, tls) };
            (*tls).telling = false;
            if outcome.is_err() {
                // What was written before is sent all the same.
                return keeping_exception(|| send(protocol, tls));
            }
            if is_empty((*tls).backlog)? {
                send(protocol, tls)?;
            } else {
                call(protocol, known().names._do_write)?;
            }
        }
        // Whether the transport is to receive: asyncio's method changes that.
        let size = pending((*tls).incoming)? as i64;
        let changes = if (*tls).receiving_paused { size <= (*tls).incoming_low } else { size >= (*tls).incoming_high };
        if changes { call(protocol, known().names._control_ssl_reading) } else { Ok(()) }
    }
}

/// What one call of OpenSSL has come to.
enum Decrypted {
    /// So many bytes.
    Some(usize),
    /// The other side has said that there will be no more.
    End,
    /// It needs to receive more.
    NotNow,
}

/// Decrypts into memory: at most one record.
unsafe fn decrypt(tls: *mut Tls, into: *mut u8, room: usize) -> Result<Decrypted> {
    // SAFETY: the caller's memory has that much room, and is nobody else's while the lock is let go of. The view of it does not
    // outlive the call.
    unsafe {
        let view = ffi::PyMemoryView_FromMemory(into.cast(), room as Py_ssize_t, ffi::PyBUF_WRITE);
        let view = View(Owned::returned(view)?);
        match decrypt_into(tls, view.0.as_ptr())? {
            // Somebody has put something else in the place of OpenSSL.
            Decrypted::Some(count) if count > room => {
                Err(raise(ffi::PyExc_ValueError, c"more was read than there is room for"))
            }
            decrypted => Ok(decrypted),
        }
    }
}

unsafe fn decrypt_into(tls: *mut Tls, buffer: *mut PyObject) -> Result<Decrypted> {
    // SAFETY: all are alive; 0 stands for the length of the buffer.
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

/// Clears an exception that only means that OpenSSL has to receive more first.
unsafe fn again() -> Result<()> {
    // SAFETY: an exception is set.
    unsafe {
        if ffi::PyErr_ExceptionMatches(known().ssl_again) == 0 {
            return Err(Raised);
        }
        ffi::PyErr_Clear();
        Ok(())
    }
}

/// Decrypts what there is, and hands it to `data_received`.
unsafe fn read_copy(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the protocol is alive, and so its state. The object that is decrypted into is ours alone until it is complete.
    unsafe {
        loop {
            let waiting = pending((*tls).incoming)?;
            // Data is shorter than the records that it comes in.
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
                // It has been told of some by another protocol than it has now.
                return read_into(protocol, tls);
            }
        }
    }
}

/// Decrypts until there is nothing left, or no room. How much it was, and whether the other side has ended.
unsafe fn fill(tls: *mut Tls, start: *mut u8, room: usize, mut waiting: usize) -> Result<(usize, bool)> {
    let mut filled = 0;
    // SAFETY: the caller's memory has that much room, and the rest of it is what is passed on.
    unsafe {
        while filled < room {
            let outcome = decrypt(tls, start.add(filled), room - filled)?;
            let left = pending((*tls).incoming)?;
            match outcome {
                Decrypted::Some(count) => {
                    filled += count;
                    (*tls).begun = 0;
                    // A record that fits is taken in one piece. So there is none left that has begun to be, and to ask once more would
                    // only be to be told by an exception.
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

/// Decrypts into a buffer that the program's protocol offers.
unsafe fn read_into(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the protocol is alive, and so its state. A view of the protocol's own object keeps that in place.
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
                // There may be more, for which there was no room.
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

/// The other side has ended the connection, in order.
unsafe fn end(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: the protocol is alive.
    unsafe {
        call(protocol, known().names._call_eof_received)?;
        call(protocol, known().names._start_shutdown)
    }
}

unsafe fn process_outgoing(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: the protocol is alive.
    unsafe { tls(protocol).and_then(|tls| send(protocol, tls)) }
}

/// Sends what is encrypted, and tells the program's protocol if there is, or is no more, too much that waits.
unsafe fn send(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the protocol is alive, and so its state; what is called gets references of its own.
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
    // SAFETY: both are alive. The protocol is kept by a reference of our own.
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
        // SAFETY: it is alive.
        let name = unsafe { Bound::from_borrowed_ptr(py, data) }.get_type().name().map(|name| name.to_string());
        let message = format!("data: expecting a bytes-like instance, got {}", name.unwrap_or_default());
        // SAFETY: the exception classes are there as long as the interpreter is.
        raise_text(unsafe { ffi::PyExc_TypeError }, &message)
    })
}

unsafe fn write_pieces(protocol: *mut PyObject, pieces: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive. The list is ours, and keeps its items.
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

/// Encrypts a piece of data, if that is possible now.
unsafe fn write_one(protocol: *mut PyObject, tls: *mut Tls, data: *mut PyObject) -> Result<()> {
    // SAFETY: all are alive.
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
        // Before the handshake is over, after the end, and behind what waits already.
        let data = Owned::returned(ffi::PyTuple_Pack(1, data))?;
        let arguments = [protocol, data.as_ptr()];
        let written = known().tls_inherited.write_appdata;
        Owned::returned(ffi::PyObject_Vectorcall(written, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}

/// Sends what is encrypted, unless that is done anyway when the program's protocol returns.
unsafe fn send_unless_telling(protocol: *mut PyObject, tls: *mut Tls) -> Result<()> {
    // SAFETY: the protocol is alive, and so its state.
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
    // SAFETY: a protocol has both of its buffers from its constructor on.
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
    // SAFETY: it is alive, and is kept while it is asked.
    unsafe {
        let collection = Owned::new_reference(collection);
        match ffi::PyObject_Size(collection.as_ptr()) {
            -1 => Err(Raised),
            len => Ok(len == 0),
        }
    }
}

unsafe fn call_one(object: &Owned, method: *mut PyObject, argument: *mut PyObject) -> Result<Owned> {
    // SAFETY: all are alive.
    unsafe {
        let arguments = [object.as_ptr(), argument];
        Owned::returned(ffi::PyObject_VectorcallMethod(method, arguments.as_ptr(), 2, null_mut()))
    }
}

unsafe fn call_method(protocol: *mut PyObject, method: *mut PyObject, argument: *mut PyObject) -> Result<()> {
    // SAFETY: all are alive.
    unsafe { call_one(&Owned::new_reference(protocol), method, argument).map(drop) }
}

unsafe fn call(protocol: *mut PyObject, method: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive.
    unsafe { Owned::returned(ffi::PyObject_CallMethodNoArgs(protocol, method)).map(drop) }
}

/// Calls a function that a method of ours is in the place of.
unsafe fn inherited(protocol: *mut PyObject, function: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive.
    unsafe { Owned::returned(ffi::PyObject_CallOneArg(function, protocol)).map(drop) }
}

/// Does something while an exception is set, which stays whatever comes of that.
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

/// Ends the connection for what has been raised, unless it is to end more than that.
#[cold]
unsafe fn failed(protocol: *mut PyObject) -> Result<()> {
    // SAFETY: an exception is set; the protocol is alive.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_Exception) == 0 {
            return Err(Raised);
        }
        writing::hand_over(protocol, "_fatal_error", "Fatal error on SSL protocol")
    }
}
