//! `sock_recv`, `sock_accept` and similar methods: the immediate attempt, and waiting to receive.
//!
//! A program that uses `sock_recv` waits for the same socket again and again. So after a wait the engine keeps
//! watching the socket. The previous receive usually emptied it, so the next one waits without trying to receive
//! first. If data arrives while nothing waits for it, watching ends.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

use pelton::Time;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::event_loop::state::{self, LoopState};
use crate::handles::{handle, memory};
use crate::known::known;
use crate::readers::descriptors;
use crate::readers::{self, Side};
use crate::sockets::addresses::{self, Peer};
use crate::sockets::guards;
use crate::sockets::syscalls::{self, RECEIVE, is_not_now};
use crate::transports::opening;
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Raised, Result, check, fill_once, raise_io};

/// Maximum number of sockets checked each time before the loop sleeps, and the maximum sleep if there are more.
const CHECKED_AT_ONCE: usize = 64;
const NEXT_CHECK: Duration = Duration::from_millis(20);

/// Tells the Python side to use asyncio's own implementation.
unsafe fn not_here() -> Result<Owned> {
    // SAFETY: `NotImplemented` is always alive, and the callers hold the lock.
    unsafe { Ok(Owned::new_reference(ffi::Py_NotImplemented())) }
}

/// Returns the descriptor of a plain `socket.socket`; `None` for anything else: a TLS socket, another class, or
/// replaced methods.
unsafe fn plain(loop_: *mut PyObject, sock: *mut PyObject) -> Result<Option<i32>> {
    // SAFETY: the caller guarantees that both are alive.
    unsafe {
        if ffi::Py_TYPE(sock).cast() != known().socket
            || state::is_in_debug_mode(loop_)
            || !guards::methods_are_original()?
        {
            return Ok(None);
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock, known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())?;
        Ok((fd >= 0).then_some(fd as i32))
    }
}

/// The operations that can wait for a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Argument: a number of bytes. Result: `bytes`.
    Receive,
    /// Argument: a buffer. Result: a number of bytes.
    ReceiveInto,
    /// Argument: a number of bytes. Result: `bytes` and an address.
    ReceiveFrom,
    /// Argument: family and protocol of the new socket object. Result: that object and an address.
    Accept,
}

impl Operation {
    /// Number of operations.
    const COUNT: usize = 4;

    /// Returns the name of the method to call when the socket is ready.
    fn ready(self) -> *mut PyObject {
        let names = &known().names;
        match self {
            Operation::Receive => names._recv_ready,
            Operation::ReceiveInto => names._recv_into_ready,
            Operation::ReceiveFrom => names._recvfrom_ready,
            Operation::Accept => names._accept_ready,
        }
    }
}

/// What a loop keeps for all waits, because it is the same for each: the methods to call when a socket is ready,
/// and the context that they run in.
pub(crate) struct Waiting {
    ready: [*mut PyObject; Operation::COUNT],
    context: *mut PyObject,
}

impl Waiting {
    pub(crate) const EMPTY: Waiting = Waiting { ready: [null_mut(); Operation::COUNT], context: null_mut() };

    /// Returns all references, which are owned or null.
    pub(crate) fn references(&self) -> impl Iterator<Item = *mut PyObject> {
        self.ready.into_iter().chain([self.context])
    }
}

/// Performs the operation if that is possible now. Also returns whether the socket has nothing more to receive for now.
unsafe fn perform(operation: Operation, fd: RawFd, with: *mut PyObject) -> io::Result<Result<(Owned, bool)>> {
    // SAFETY: the caller guarantees that the argument is alive. Its type is checked when it is converted. A view
    // keeps a buffer in place.
    unsafe {
        match operation {
            Operation::Receive => {
                let wanted = match fields::whole(with) {
                    Ok(wanted) => (wanted as usize).min(RECEIVE),
                    Err(Raised) => return Ok(Err(Raised)),
                };
                if wanted == 0 {
                    return Ok(
                        Owned::returned(ffi::PyBytes_FromStringAndSize(std::ptr::null(), 0)).map(|it| (it, false))
                    );
                }
                let data = syscalls::receive_bytes(fd, wanted)?;
                Ok(data.map(|data| {
                    let emptied = (ffi::PyBytes_Size(data.as_ptr()) as usize) < wanted;
                    (data, emptied)
                }))
            }
            Operation::ReceiveInto => {
                let mut view: ffi::Py_buffer = std::mem::zeroed();
                if ffi::PyObject_GetBuffer(with, &mut view, ffi::PyBUF_WRITABLE) < 0 {
                    return Ok(Err(Raised));
                }
                let room = view.len as usize;
                let count = if room == 0 {
                    Ok(0)
                } else {
                    syscalls::receive(fd, std::slice::from_raw_parts_mut(view.buf.cast(), room))
                };
                ffi::PyBuffer_Release(&mut view);
                let count = count?;
                Ok(Owned::returned(ffi::PyLong_FromSize_t(count)).map(|number| (number, count < room)))
            }
            Operation::ReceiveFrom => {
                let wanted = match fields::whole(with) {
                    Ok(wanted) => (wanted as usize).min(RECEIVE),
                    Err(Raised) => return Ok(Err(Raised)),
                };
                let (data, peer) = syscalls::receive_datagram(fd, wanted)?;
                Ok((|| {
                    let (data, address) = (data?, addresses::to_python(&peer)?);
                    Ok((Owned::returned(ffi::PyTuple_Pack(2, data.as_ptr(), address.as_ptr()))?, false))
                })())
            }
            Operation::Accept => {
                let Some((own, peer)) = syscalls::accept(fd)? else { return Err(io::ErrorKind::WouldBlock.into()) };
                Ok(accepted(own, &peer, with).map(|pair| (pair, false)))
            }
        }
    }
}

/// Returns the size of a buffer; `None` if it is not writable.
unsafe fn room_in(buffer: *mut PyObject) -> Option<usize> {
    // SAFETY: the caller guarantees that the buffer is alive. An acquired view is released.
    unsafe {
        let mut view: ffi::Py_buffer = std::mem::zeroed();
        if ffi::PyObject_GetBuffer(buffer, &mut view, ffi::PyBUF_WRITABLE) < 0 {
            ffi::PyErr_Clear();
            return None;
        }
        let room = view.len as usize;
        ffi::PyBuffer_Release(&mut view);
        Some(room)
    }
}

/// Creates a socket object for a connection, and returns it with the peer's address.
///
/// # Safety
/// `kind`, the family and the protocol, is alive.
pub(crate) unsafe fn accepted(own: OwnedFd, peer: &Peer, kind: *mut PyObject) -> Result<Owned> {
    // SAFETY: `PyTuple_GetItem` checks that `kind` is a tuple. `make_socket` takes over the descriptor only if it
    // succeeds.
    unsafe {
        let [family, protocol] = [0, 1].map(|index| ffi::PyTuple_GetItem(kind, index));
        if family.is_null() || protocol.is_null() {
            return Err(Raised);
        }
        let fd = Owned::returned(ffi::PyLong_FromLong(own.as_raw_fd().into()))?;
        let arguments = [family, protocol, fd.as_ptr()];
        let sock = ffi::PyObject_Vectorcall(known().make_socket, arguments.as_ptr(), 3, null_mut());
        let sock = Owned::returned(sock)?;
        let _ = own.into_raw_fd();
        let address = if matches!(peer, Peer::Other) {
            Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.getpeername))?
        } else {
            addresses::to_python(peer)?
        };
        Owned::returned(ffi::PyTuple_Pack(2, sock.as_ptr(), address.as_ptr()))
    }
}

/// Performs the operation now or when the socket is ready. Returns its result, a future for it, or `NotImplemented`.
unsafe fn begin(loop_: *mut PyObject, sock: *mut PyObject, with: *mut PyObject, operation: Operation) -> Result<Owned> {
    // SAFETY: the caller guarantees that all are alive.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        let Some(fd) = plain(loop_, sock)? else { return not_here() };
        if matches!(operation, Operation::Receive | Operation::ReceiveFrom)
            && (ffi::PyLong_CheckExact(with) == 0 || fields::whole(with)? < 0)
        {
            return not_here();
        }
        let room = match operation {
            Operation::Receive => fields::whole(with)? as usize,
            Operation::ReceiveInto => match room_in(with) {
                Some(room) => room,
                // asyncio's own implementation raises the right error.
                None => return not_here(),
            },
            Operation::ReceiveFrom | Operation::Accept => 1,
        };
        if operation == Operation::Accept && guards::is_audited() {
            return not_here();
        }
        let waits = readers::keeps(core, fd, sock)?;
        // As with Python's own sockets, receiving zero bytes does not wait.
        if waits != readers::Kept::Emptied || room == 0 {
            match perform(operation, fd, with) {
                Ok(done) => return done.map(|(done, _)| done),
                Err(error) if is_not_now(&error) => {}
                Err(error) => return Err(raise_io(&error)),
            }
        }
        if waits == readers::Kept::Not {
            descriptors::refuse_transports(loop_, sock)?;
        }
        let future = crate::event_loop::scheduling::create_future(loop_)?;
        let context = match (*core).waiting.context {
            null if null.is_null() => {
                fill_once(&raw mut (*core).waiting.context, Owned::returned(ffi::PyContext_New())?)
            }
            context => Owned::new_reference(context),
        };
        let place = operation as usize;
        let method = match (*core).waiting.ready[place] {
            null if null.is_null() => {
                let method = Owned::returned(ffi::PyObject_GetAttr(loop_, operation.ready()))?;
                fill_once(&raw mut (*core).waiting.ready[place], method)
            }
            method => Owned::new_reference(method),
        };
        let arguments = [future.as_ptr(), sock, with];
        let handle = handle::new(loop_, method.as_ptr(), &arguments, context.as_ptr())?;
        memory::track(handle.as_ptr());
        readers::wait(core, fd, sock, handle)?;
        Ok(future)
    }
}

/// Returns whether the socket that a handle waits for still has this descriptor.
///
/// # Safety
/// `handle` is alive and was created by `begin`.
pub(crate) unsafe fn is_open(handle: *mut PyObject, fd: RawFd) -> Result<bool> {
    // SAFETY: the second argument of such a handle is the socket. If the handle was cancelled, it is null, and
    // nothing waits for the socket.
    unsafe {
        let Some(sock) = Owned::taken(ffi::Py_XNewRef((*handle::fields(handle)).arguments[2])) else { return Ok(true) };
        let number = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.fileno))?;
        Ok(fields::whole(number.as_ptr())? == i64::from(fd))
    }
}

/// Called before the loop sleeps. Makes operations fail whose sockets were closed meanwhile; the system does not
/// report that, and they would wait forever. Returns when to check again, if not all were checked.
///
/// # Safety
/// `core` belongs to a live loop that is not parked; no Rust reference into it is held.
pub(crate) unsafe fn check_closed(core: *mut LoopState, now: Time) -> Result<Option<Time>> {
    // SAFETY: the caller guarantees that the core is alive.
    unsafe {
        let unchecked = (*core).readers.unchecked((*core).counters.callbacks);
        let mut found = false;
        for _ in 0..unchecked.min(CHECKED_AT_ONCE) {
            let Some(fd) = (*core).readers.next_unchecked() else { break };
            found |= readers::fail_if_closed(core, fd)?;
        }
        if found {
            return Ok(Some(Time::ZERO));
        }
        let all_checked = (*core).readers.unchecked((*core).counters.callbacks) == 0;
        Ok((!all_checked).then(|| now + NEXT_CHECK))
    }
}

/// Finishes an operation whose socket is ready.
unsafe fn finish(loop_: *mut PyObject, [future, sock, with]: [*mut PyObject; 3], operation: Operation) -> Result<()> {
    // SAFETY: the callers guarantee that loop and arguments are alive. `perform` checks the type of `with`.
    unsafe {
        let core = state::of(loop_)?;
        // Check before receiving, because data received for a cancelled future would be lost.
        if is_done(future)? {
            return Ok(());
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock, known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())? as i32;
        let done = perform(operation, fd, with);
        if let Err(error) = &done
            && is_not_now(error)
        {
            return Ok(());
        }
        let emptied = matches!(&done, Ok(Ok((_, true))));
        // The exception must be taken before anything else is called.
        let done = done.map(|done| done.map_err(|Raised| Python::attach(PyErr::fetch)));
        if fd >= 0 {
            let reader = readers::keep(core, fd, sock, emptied)?;
            ffi::Py_XDECREF(reader);
        }
        match done {
            Ok(Ok((result, _))) => {
                let arguments = [future, result.as_ptr()];
                let name = known().names.set_result;
                Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
            }
            Ok(Err(raised)) => set_exception(future, raised),
            Err(error) => {
                let Raised = raise_io(&error);
                set_exception(future, Python::attach(PyErr::fetch))
            }
        }
    }
}

/// Defines the two methods of an operation: the one that starts it, and the one called when the socket is ready.
macro_rules! operation {
    ($operation:expr, $begin:ident, $ready:ident) => {
        pub(crate) unsafe fn $begin(loop_: *mut PyObject, [sock, with]: [*mut PyObject; 2]) -> Result<Owned> {
            // SAFETY: Python calls it with a live loop and live arguments.
            unsafe { begin(loop_, sock, with, $operation) }
        }

        pub(crate) unsafe fn $ready(loop_: *mut PyObject, arguments: [*mut PyObject; 3]) -> Result<()> {
            // SAFETY: Python calls it with a live loop and live arguments.
            unsafe { finish(loop_, arguments, $operation) }
        }
    };
}

operation!(Operation::Receive, recv, recv_ready);
operation!(Operation::ReceiveInto, recv_into, recv_into_ready);
operation!(Operation::ReceiveFrom, recvfrom, recvfrom_ready);
operation!(Operation::Accept, accept, accept_ready);

unsafe fn is_done(future: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller guarantees that the future is alive.
    unsafe {
        let done = Owned::returned(ffi::PyObject_CallMethodNoArgs(future, known().names.done))?;
        fields::truth(done.as_ptr())
    }
}

#[cold]
unsafe fn set_exception(future: *mut PyObject, raised: PyErr) -> Result<()> {
    // SAFETY: the caller keeps the future alive, and `raised` owns the exception.
    Python::attach(|py| unsafe {
        let arguments = [future, raised.value(py).as_ptr()];
        let name = known().names.set_exception;
        Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
    })
}

/// `_stop_waiting(fd, future)`: gives up the `sock_recv` or similar operation that waits for this future.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn stop_waiting(loop_: *mut PyObject, [fd, future]: [*mut PyObject; 2]) -> Result<()> {
    // SAFETY: the caller guarantees that loop and arguments are alive.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as i32;
        let (reader, _) = (*core).readers.of(fd);
        if reader.is_null() || handle::first_argument(reader) != future || (*core).closed {
            return Ok(());
        }
        let reader = Owned::taken(readers::set(core, fd, Side::Reader, null_mut())?);
        reader.map_or(Ok(()), |reader| handle::cancel(reader.as_ptr()))
    }
}

/// `_send(sock, data)`: `None` if everything was sent, else the number of bytes sent, or `NotImplemented`.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn send(loop_: *mut PyObject, [sock, data]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: the caller guarantees that loop and arguments are alive. The view keeps the data in place.
    unsafe {
        let Some(fd) = plain(loop_, sock)? else { return not_here() };
        let mut view: ffi::Py_buffer = std::mem::zeroed();
        check(ffi::PyObject_GetBuffer(data, &mut view, ffi::PyBUF_SIMPLE))?;
        let data: &[u8] = match view.len {
            0 => &[],
            len => std::slice::from_raw_parts(view.buf.cast::<c_void>().cast(), len as usize),
        };
        let (sent, len) = (syscalls::send(fd, data), data.len());
        ffi::PyBuffer_Release(&mut view);
        match sent {
            Ok(sent) if sent == len => Ok(Owned::new_reference(ffi::Py_None())),
            Ok(sent) => Owned::returned(ffi::PyLong_FromSize_t(sent)),
            Err(error) if is_not_now(&error) => Owned::returned(ffi::PyLong_FromSize_t(0)),
            Err(error) => Err(raise_io(&error)),
        }
    }
}

/// `_connect(fd, address)`: `None` if the attempt is in progress, else 0 or an error number. `NotImplemented` if
/// the address needs name resolution or sockets are guarded.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn connect(_: *mut PyObject, [fd, address]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: the caller guarantees that the arguments are alive.
    unsafe {
        let fd = fields::whole(fd)? as RawFd;
        if guards::is_guarded()? {
            return not_here();
        }
        let Some(address) = addresses::literal(address)? else { return not_here() };
        let connecting = syscalls::connect(fd, address).map_err(|error| raise_io(&error))?;
        opening::outcome(&connecting)
    }
}
