//! Creating stream transports: for accepted connections, for outgoing connections, and for sockets that the program
//! connected.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::null_mut;

use pelton::{Accepted, Address};
use pyo3::ffi::{self, PyMethodDef, PyObject};

use super::extra_info;
use super::stream::{Connected, Kind, Stream, stream};
use crate::event_loop::scheduling;
use crate::event_loop::state;
use crate::known::known;
use crate::readers::{self, Lent, Side};
use crate::sockets::addresses::{self, Peer};
use crate::sockets::syscalls::{self, Connecting, End, is_not_now};
use crate::sockets::{guards, operations};
use pelton_cpython::fields;
use pelton_cpython::hidden;
use pelton_cpython::object::{Owned, Raised, Result, check, raise, raise_io, replace};
use pelton_cpython::{with_one_named, with_several, without_arguments};

pub(crate) fn methods() -> Vec<PyMethodDef> {
    vec![
        with_several!(c"_open", open_socket, c"Start with a connected socket."),
        without_arguments!(c"_start_reading", start_reading, c"Start receiving."),
        with_one_named!(
            c"set_protocol",
            known().names.protocol,
            set_protocol,
            c"set_protocol($self, protocol)\n--\n\nSet a new protocol.",
        ),
    ]
}

/// `transport._open(loop, sock, protocol, waiter, extra, server)`: called by the constructor.
unsafe fn open_socket(
    transport: *mut PyObject,
    [loop_, sock, protocol, waiter, extra, server]: [*mut PyObject; 6],
) -> Result<()> {
    // SAFETY: Python keeps the transport and all arguments alive during the call.
    unsafe {
        if !state::is_loop(loop_) {
            return Err(raise(ffi::PyExc_TypeError, c"a stream transport requires a pelton.Loop"));
        }
        let stream = stream(transport)?;
        if (*stream).connection.is_some() {
            return Err(raise(ffi::PyExc_RuntimeError, c"the transport is open already"));
        }
        let known = known();
        let overrides = if ffi::Py_TYPE(sock).cast() == known.socket {
            false
        } else {
            let overrides = Owned::returned(ffi::PyObject_CallOneArg(known.overrides, sock))?;
            fields::truth(overrides.as_ptr())?
        };
        if overrides || ffi::PyObject_TypeCheck(sock, known.plain_socket) == 0 {
            let message = c"a stream transport requires a socket that does not override methods";
            return Err(raise(ffi::PyExc_TypeError, message));
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock, known.names.fileno))?;
        let fd = fields::whole(fd.as_ptr())? as c_int;
        if fd < 0 {
            return Err(raise_io(&io::Error::from_raw_os_error(libc::EBADF)));
        }
        let plain = ffi::Py_TYPE(sock).cast() == known.socket && guards::methods_are_original()?;
        // Other classes may define their own addresses.
        let address = |end| if plain { syscalls::address(fd, end) } else { Peer::Other };
        (*stream).our_address = address(End::Ours);
        (*stream).their_address = address(End::Theirs);
        replace(&raw mut (*stream).sock, sock);
        if extra != ffi::Py_None() {
            extra_info::fill(stream, extra)?;
            replace(&raw mut (*stream).extra, extra);
        }
        let attribute = |name| {
            let value = Owned::returned(ffi::PyObject_GetAttr(sock, name))?;
            Ok(fields::whole(value.as_ptr())? as c_int)
        };
        (*stream).kind = Kind { family: attribute(known.names.family)?, protocol: attribute(known.names.proto)? };
        open(transport, stream, fd, [loop_, protocol, waiter, server])
    }
}

/// `loop._open_stream(fd, family, protocol, waiter)`: creates a transport for a connected TCP socket and takes over
/// the descriptor.
pub(crate) unsafe fn open_descriptor(
    loop_: *mut PyObject,
    [fd, family, protocol, waiter]: [*mut PyObject; 4],
) -> Result<Owned> {
    // SAFETY: Python keeps the loop and all arguments alive during the call. `pelton._loop` passes a descriptor
    // that `connect` returned and that nothing else owns.
    unsafe {
        let fd = fields::whole(fd)?;
        if !(0..=c_int::MAX.into()).contains(&fd) {
            return Err(raise(ffi::PyExc_ValueError, c"the descriptor is out of range"));
        }
        let own = OwnedFd::from_raw_fd(fd as c_int);
        let kind = Kind { family: fields::whole(family)? as c_int, protocol: libc::IPPROTO_TCP };
        let peer = syscalls::address(own.as_raw_fd(), End::Theirs);
        open_own(own, kind, peer, [loop_, protocol, waiter, ffi::Py_None()])
    }
}

/// Creates a transport for a connected descriptor.
unsafe fn open_own(own: OwnedFd, kind: Kind, peer: Peer, others: [*mut PyObject; 4]) -> Result<Owned> {
    // SAFETY: the caller guarantees that `others` are alive. `Stream` is the state of this type.
    unsafe {
        let transport = hidden::allocate::<Stream>(hidden::object_type::<Stream>())?;
        let stream = stream(transport.as_ptr())?;
        let fd = own.as_raw_fd();
        (*stream).kind = kind;
        (*stream).our_address = syscalls::address(fd, End::Ours);
        (*stream).their_address = peer;
        (*stream).own = Some(own);
        open(transport.as_ptr(), stream, fd, others)?;
        Ok(transport)
    }
}

/// Starts a transport whose socket is in place.
unsafe fn open(
    transport: *mut PyObject,
    stream: *mut Stream,
    fd: c_int,
    [loop_, protocol, waiter, server]: [*mut PyObject; 4],
) -> Result<()> {
    // SAFETY: the caller guarantees that all are alive and holds references to them.
    unsafe {
        (*stream).fd = fd;
        replace(&raw mut (*stream).loop_, loop_);
        if matches!((*stream).our_address, Peer::Other) || matches!((*stream).their_address, Peer::Other) {
            // Address families that only Python can represent.
            let sock = extra_info::socket_object(stream)?;
            let extra = Owned::returned(ffi::PyObject_CallOneArg(known().describe_socket, sock.as_ptr()))?;
            if !(*stream).extra.is_null() {
                let given = Owned::new_reference((*stream).extra);
                check(ffi::PyDict_Merge(given.as_ptr(), extra.as_ptr(), 0))?;
                let name = known().names.sockname;
                let ours = Owned::new_reference(ffi::PyDict_GetItemWithError(extra.as_ptr(), name));
                check(ffi::PyDict_SetItem(given.as_ptr(), name, ours.as_ptr()))?;
            } else {
                (*stream).extra = extra.into_ptr();
            }
        }
        let lent = Lent::new(fd);
        if !(*stream).sock.is_null() && ffi::PyObject_TypeCheck((*stream).sock, known().plain_socket) != 0 {
            lent.set_socket((*stream).sock);
        }
        let core = state::of(loop_)?;
        (*stream).connection = Some(Connected { id: readers::adopt(core, fd, &lent)?, core });
        (*stream).lent = Some(lent);
        set_protocol(transport, protocol)?;
        if server != ffi::Py_None() {
            let arguments = [server, transport];
            let count = if known().servers_know_transports { 2 } else { 1 };
            let name = known().names._attach;
            drop(Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), count, null_mut()))?);
            replace(&raw mut (*stream).server, server);
        }
        remember(loop_, transport, fd)?;
        if (*stream).kind.is_tcp() {
            // On some systems this fails if the peer has already disconnected. Reading will report that.
            let _ = syscalls::set_no_delay(fd);
        }
        (*stream).gone = false;
        let made = Owned::returned(ffi::PyObject_GetAttr(protocol, known().names.connection_made))?;
        scheduling::soon(loop_, made.as_ptr(), &[transport])?;
        // After `connection_made`.
        let reading = Owned::returned(ffi::PyObject_GetAttr(transport, known().names._start_reading))?;
        scheduling::soon(loop_, reading.as_ptr(), &[])?;
        if waiter != ffi::Py_None() {
            scheduling::soon(loop_, known().set_result_unless_cancelled, &[waiter, ffi::Py_None()])?;
        }
        Ok(())
    }
}

/// Adds a weak reference to `loop._transports`, where `add_reader` and similar methods check for it.
unsafe fn remember(loop_: *mut PyObject, transport: *mut PyObject, fd: c_int) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive.
    unsafe {
        let core = state::of(loop_)?;
        if (*core).transports.is_null() {
            return Ok(());
        }
        let transports = Owned::new_reference((*core).transports);
        let fd = Owned::returned(ffi::PyLong_FromLong(fd.into()))?;
        let reference = Owned::returned(ffi::PyWeakref_NewRef(transport, null_mut()))?;
        check(ffi::PyDict_SetItem(transports.as_ptr(), fd.as_ptr(), reference.as_ptr()))
    }
}

unsafe fn set_protocol(transport: *mut PyObject, protocol: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport and the protocol alive during the call.
    unsafe {
        let buffered = ffi::PyObject_IsInstance(protocol, known().buffered_protocol);
        check(buffered)?;
        let stream = stream(transport)?;
        (*stream).buffered = buffered == 1;
        (*stream).connected = true;
        replace(&raw mut (*stream).protocol, protocol);
        Ok(())
    }
}

unsafe fn start_reading(transport: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport alive during the call. It owns a reference to its loop until it is closed,
    // and a missing loop is checked.
    unsafe {
        let stream = stream(transport)?;
        if (*stream).closing || (*stream).paused || (*stream).loop_.is_null() {
            return Ok(());
        }
        watch(transport, stream, Side::Reader)
    }
}

/// Calls the transport when its socket is ready.
///
/// # Safety
/// `stream` is the state of `transport`, which is alive.
pub(crate) unsafe fn watch(transport: *mut PyObject, stream: *mut Stream, side: Side) -> Result<()> {
    // SAFETY: the caller guarantees that `transport` is alive and that `stream` is its state.
    unsafe {
        if (*stream).loop_.is_null() {
            return Err(raise(ffi::PyExc_RuntimeError, c"the transport has no event loop"));
        }
        let loop_ = Owned::new_reference((*stream).loop_);
        let name = if side == Side::Reader { known().names._read_ready } else { known().names._write_ready };
        let ready = Owned::returned(ffi::PyObject_GetAttr(transport, name))?;
        readers::add_number(loop_.as_ptr(), (*stream).fd, side, ready.as_ptr(), &[]).map(drop)
    }
}

/// `loop._accept_streams(fd, family, number, protocol_factory, server, most)`: accepts pending connections, at most
/// `most`. Returns false if the reactor does not have the listener.
pub(crate) unsafe fn accept(
    loop_: *mut PyObject,
    [listener, family, number, factory, server, most]: [*mut PyObject; 6],
) -> Result<bool> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe {
        let listener = fields::whole(listener)? as c_int;
        let kind = Kind { family: fields::whole(family)? as c_int, protocol: fields::whole(number)? as c_int };
        let most = fields::whole(most)?;
        let core = state::of(loop_)?;
        if !readers::has_listener(core, listener) {
            return Ok(false);
        }
        // Accept everything before creating the first protocol. Its factory may close the listener.
        let mut connections = Vec::new();
        let failed = readers::with_listener(core, listener, |reactor, id| {
            for _ in 0..most {
                connections.push(reactor.accept(id)?);
            }
            Ok(())
        })?;
        for Accepted { socket, from } in connections {
            let Ok(own) = socket.into_fd() else { continue };
            accepted(own, kind, peer(from), [loop_, factory, server])?;
        }
        match failed {
            Err(error) if !is_over_for_now(&error) => Err(raise_io(&error)),
            _ => Ok(true),
        }
    }
}

/// `loop._accept_one(fd, kind)`: accepts a connection, for which TLS is started in Python. Returns a socket object and an address,
/// `None` if there is none now, and `NotImplemented` if the reactor does not have the listener.
pub(crate) unsafe fn accept_one(loop_: *mut PyObject, [listener, kind]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe {
        let listener = fields::whole(listener)? as c_int;
        let core = state::of(loop_)?;
        if !readers::has_listener(core, listener) {
            return Ok(Owned::new_reference(ffi::Py_NotImplemented()));
        }
        match readers::with_listener(core, listener, |reactor, id| reactor.accept(id))? {
            Ok(Accepted { socket, from }) => match socket.into_fd() {
                Ok(own) => operations::accepted(own, &peer(from), kind),
                Err(_) => Ok(Owned::new_reference(ffi::Py_None())),
            },
            Err(error) if is_over_for_now(&error) => Ok(Owned::new_reference(ffi::Py_None())),
            Err(error) => Err(raise_io(&error)),
        }
    }
}

fn peer(from: Option<Address>) -> Peer {
    match from {
        Some(Address::Tcp(address)) => address.into(),
        Some(Address::Unnamed) => Peer::Unnamed,
        _ => Peer::Other,
    }
}

/// Returns whether nothing more can be accepted for now, as asyncio sees it: also if a connection was aborted before it was accepted.
fn is_over_for_now(error: &io::Error) -> bool {
    is_not_now(error) || error.kind() == io::ErrorKind::ConnectionAborted
}

/// Creates a protocol and a transport for a connection. If that fails, the connection is closed. asyncio reports
/// the error in debug mode only, and in debug mode this function is not called.
unsafe fn accepted(own: OwnedFd, kind: Kind, peer: Peer, [loop_, factory, server]: [*mut PyObject; 3]) -> Result<()> {
    // SAFETY: the caller guarantees that all are alive. Without TLS there is no handshake to wait for, so unlike asyncio
    // this needs no task. A task would have its own context, so this enters a copy: variables that a factory sets must
    // not be visible to the next connection.
    let outcome = unsafe {
        Owned::returned(ffi::PyContext_CopyCurrent()).and_then(|context| {
            check(ffi::PyContext_Enter(context.as_ptr()))?;
            let opened = Owned::returned(ffi::PyObject_CallNoArgs(factory)).and_then(|protocol| {
                let others = [loop_, protocol.as_ptr(), ffi::Py_None(), server];
                open_own(own, kind, peer, others).map(drop)
            });
            check(ffi::PyContext_Exit(context.as_ptr())).and(opened)
        })
    };
    outcome.or_else(|Raised| {
        // SAFETY: an exception is set, and the lock is held.
        unsafe {
            if ffi::PyErr_ExceptionMatches(ffi::PyExc_SystemExit) != 0
                || ffi::PyErr_ExceptionMatches(ffi::PyExc_KeyboardInterrupt) != 0
            {
                return Err(Raised);
            }
            ffi::PyErr_Clear();
            Ok(())
        }
    })
}

/// `loop._start_connecting(host, port)`: returns the descriptor, the family, and the result of the attempt: `None`
/// while it is in progress, otherwise as for [`connect_outcome`]. Returns `None` if the host needs name resolution.
pub(crate) unsafe fn connect(_: *mut PyObject, [host, port]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: Python keeps both arguments alive during the call.
    unsafe {
        let Some(address) = addresses::host_and_port(host, port)? else {
            return Ok(Owned::new_reference(ffi::Py_None()));
        };
        let (own, connecting) = syscalls::new_connection(address).map_err(|error| raise_io(&error))?;
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let outcome = outcome(&connecting)?;
        let answer = ffi::Py_BuildValue(c"(iiO)".as_ptr(), own.as_raw_fd(), family, outcome.as_ptr());
        let answer = Owned::returned(answer)?;
        // Python owns the descriptor from here on.
        let _ = own.into_raw_fd();
        Ok(answer)
    }
}

/// Converts the result of a connection attempt for Python.
///
/// # Safety
/// The lock is held.
pub(crate) unsafe fn outcome(connecting: &Connecting) -> Result<Owned> {
    // SAFETY: the caller guarantees that the lock is held.
    unsafe {
        match connecting {
            Connecting::InProgress => Ok(Owned::new_reference(ffi::Py_None())),
            Connecting::Finished(error) => Owned::returned(ffi::PyLong_FromLong((*error).into())),
        }
    }
}

/// `loop._connect_outcome(fd)`: the error number of the attempt, or 0.
pub(crate) unsafe fn connect_outcome(_: *mut PyObject, fd: *mut PyObject) -> Result<usize> {
    // SAFETY: Python keeps the argument alive during the call.
    let fd = unsafe { fields::whole(fd)? } as c_int;
    syscalls::connect_outcome(fd).map(|error| error as usize).map_err(|error| raise_io(&error))
}
