//! Creating stream transports: for accepted connections, for outgoing connections, and for sockets that the program
//! connected.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use pelton::{Accepted, Address};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PySystemExit, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::extra_info;
use super::stream::{Connected, Kind, Stream, Transport};
use crate::event_loop::scheduling;
use crate::event_loop::state::{self, Loop};
use crate::known::{known, name};
use crate::readers::{self, Side};
use crate::sockets::addresses::{self, Peer};
use crate::sockets::syscalls::{self, Connecting, End, is_not_now};
use crate::sockets::{guards, operations};
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise, raise_io, raised_a};
use pelton_cpython::class::{self, Method, This};
use pelton_cpython::descriptor::{self, Lent};
use pelton_cpython::handles::context;
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::{no_arguments, one_named_argument, several_arguments};

pub(crate) fn methods() -> Vec<Method<Stream>> {
    vec![
        several_arguments!(Stream, c"_open", open_socket, c"Start with a connected socket."),
        no_arguments!(Stream, c"_start_reading", start_reading, c"Start receiving."),
        one_named_argument!(
            Stream,
            c"set_protocol",
            |py| name!(py, protocol),
            set_protocol,
            c"set_protocol($self, protocol)\n--\n\nSet a new protocol.",
        ),
    ]
}

/// Who a transport belongs to, and who waits for it.
struct Others<'a, 'py> {
    its_loop: &'a Bound<'py, PyAny>,
    protocol: &'a Bound<'py, PyAny>,
    waiter: Option<&'a Bound<'py, PyAny>>,
    server: Option<&'a Bound<'py, PyAny>>,
}

fn given<'a, 'py>(argument: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyAny>> {
    Some(argument).filter(|argument| !argument.is_none())
}

/// `transport._open(loop, sock, protocol, waiter, extra, server)`: called by the constructor.
fn open_socket<'py>(
    transport: Transport<'_, 'py>,
    [its_loop, sock, protocol, waiter, extra, server]: [Argument<'_, 'py>; 6],
) -> Result<()> {
    let (py, known) = (transport.py(), known());
    if !state::is_loop(&its_loop) {
        return Err(raise::<PyTypeError>(py, "a stream transport requires a pelton.Loop"));
    }
    let stream = transport.state()?;
    if stream.connection.borrow().is_some() {
        return Err(raise::<PyRuntimeError>(py, "the transport is open already"));
    }
    let is_plain = sock.get_type().is(known.socket.bind(py));
    let overrides = !is_plain && known.overrides.bind(py).call_one(&sock)?.truth()?;
    if overrides || !sock.is_instance(known.plain_socket.bind(py)).or_raise(py)? {
        let message = "a stream transport requires a socket that does not override methods";
        return Err(raise::<PyTypeError>(py, message));
    }
    let fd = sock.method(name!(py, fileno))?.whole()? as RawFd;
    if fd < 0 {
        return Err(raise_io(py, &io::Error::from_raw_os_error(libc::EBADF)));
    }
    let plain = is_plain && guards::methods_are_original(py)?;
    // Other classes may define their own addresses.
    let address = |end| if plain { syscalls::address(fd, end) } else { Peer::Other };
    stream.our_address.set(address(End::Ours));
    stream.their_address.set(address(End::Theirs));
    stream.sock.set(sock.to_owned());
    if let Some(extra) = given(&extra) {
        extra_info::fill(stream, extra)?;
        stream.extra.set(extra.clone());
    }
    let attribute = |name| Ok(sock.attribute(name)?.whole()? as i32);
    stream.kind.set(Kind { family: attribute(name!(py, family))?, protocol: attribute(name!(py, proto))? });
    let others = Others { its_loop: &its_loop, protocol: &protocol, waiter: given(&waiter), server: given(&server) };
    open(transport, stream, fd, &others)
}

/// `loop._open_stream(fd, family, protocol, waiter)`: creates a transport for a connected TCP socket and takes over
/// the descriptor.
pub(crate) fn open_descriptor<'py>(
    this: This<'_, 'py, Loop>,
    [fd, family, protocol, waiter]: [Argument<'_, 'py>; 4],
) -> Result<Bound<'py, PyAny>> {
    // `pelton._loop` passes a descriptor that `connect` returned and that nothing else owns.
    let Some(own) = descriptor::take_over(fd.whole()?) else {
        return Err(raise::<PyValueError>(this.py(), "the descriptor is out of range"));
    };
    let kind = Kind { family: family.whole()? as i32, protocol: libc::IPPROTO_TCP };
    let peer = syscalls::address(own.as_raw_fd(), End::Theirs);
    let others = Others { its_loop: &this, protocol: &protocol, waiter: given(&waiter), server: None };
    open_own(own, kind, peer, &others)
}

/// Creates a transport for a connected descriptor.
fn open_own<'py>(own: OwnedFd, kind: Kind, peer: Peer, others: &Others<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let transport = class::instance::<Stream>(others.its_loop.py())?;
    let Some(this) = This::<Stream>::of(&transport) else { return Ok(transport) };
    let stream = this.state()?;
    let fd = own.as_raw_fd();
    stream.kind.set(kind);
    stream.our_address.set(syscalls::address(fd, End::Ours));
    stream.their_address.set(peer);
    *stream.own.borrow_mut() = Some(own);
    open(this, stream, fd, others)?;
    Ok(transport)
}

/// Starts a transport whose socket is in place.
fn open<'py>(transport: Transport<'_, 'py>, stream: &Stream, fd: RawFd, others: &Others<'_, 'py>) -> Result<()> {
    let py = transport.py();
    let &Others { its_loop, protocol, waiter, server } = others;
    stream.fd.set(fd);
    stream.its_loop.set(its_loop.clone());
    if matches!(stream.our_address.get(), Peer::Other) || matches!(stream.their_address.get(), Peer::Other) {
        describe(py, stream).or_raise(py)?;
    }
    let lent = Lent::new(fd);
    let sock = stream.sock.get(py).filter(|sock| sock.is_instance(known().plain_socket.bind(py)).unwrap_or(false));
    if let Some(sock) = sock {
        lent.set_socket(&sock, known().fileno.bind(py));
    }
    let state = state::of(its_loop)?;
    let id = match readers::adopt(py, state, fd, &lent) {
        Ok(id) => id,
        Err(Raised) => {
            lent.end(py);
            return Err(Raised);
        }
    };
    *stream.connection.borrow_mut() = Some(Connected { id, state: Rc::downgrade(state) });
    *stream.lent.borrow_mut() = Some(lent);
    set_protocol(transport, protocol.as_borrowed())?;
    if let Some(server) = server {
        attach(server, &transport, name!(py, _attach))?;
        stream.server.set(server.clone());
    }
    remember(state, &transport, fd)?;
    if stream.kind.get().is_tcp() {
        // On some systems this fails if the peer has already disconnected. Reading will report that.
        let _ = syscalls::set_no_delay(fd);
    }
    stream.gone.set(false);
    scheduling::soon(its_loop, &protocol.attribute(name!(py, connection_made))?, &[transport.as_borrowed()])?;
    // After `connection_made`.
    scheduling::soon(its_loop, &transport.attribute(name!(py, _start_reading))?, &[])?;
    if let Some(waiter) = waiter {
        let none = py.None().into_bound(py);
        let settle = known().set_result_unless_cancelled.bind(py);
        scheduling::soon(its_loop, settle, &[waiter.as_borrowed(), none.as_borrowed()])?;
    }
    Ok(())
}

/// Asks the socket object for what `get_extra_info` returns, for address families that only Python can represent.
fn describe(py: Python<'_>, stream: &Stream) -> PyResult<()> {
    let sock = extra_info::socket_object(py, stream)?;
    let extra = known().describe_socket.bind(py).call1((sock,))?.cast_into::<PyDict>()?;
    match stream.extra.get(py) {
        Some(given) => {
            let given = given.cast_into::<PyDict>()?;
            given.update_if_missing(extra.as_mapping())?;
            let name = name!(py, sockname);
            let ours = extra.get_item(name)?;
            given.set_item(name, ours)
        }
        None => {
            stream.extra.set(extra.into_any());
            Ok(())
        }
    }
}

/// Calls `server._attach` or `server._detach`, which take the transport as an argument since Python 3.13.
pub(super) fn attach<'py>(
    server: &Bound<'py, PyAny>,
    transport: &Bound<'py, PyAny>,
    name: &Bound<'py, pyo3::types::PyString>,
) -> Result<()> {
    if known().servers_know_transports {
        server.method_one(name, transport).map(drop)
    } else {
        server.method(name).map(drop)
    }
}

/// Adds a weak reference to `loop._transports`, where `add_reader` and similar methods check for it.
fn remember(state: &state::LoopState, transport: &Bound<'_, PyAny>, fd: RawFd) -> Result<()> {
    let py = transport.py();
    let Some(transports) = state.transports.get(py) else { return Ok(()) };
    let Ok(transports) = transports.cast::<PyDict>() else { return Ok(()) };
    transports.set_item(fd, transport.weak()?).or_raise(py)
}

fn set_protocol<'py>(transport: Transport<'_, 'py>, protocol: Argument<'_, 'py>) -> Result<()> {
    let buffered = protocol.is_of(known().buffered_protocol.bind(transport.py()))?;
    let stream = transport.state()?;
    stream.buffered.set(buffered);
    stream.connected.set(true);
    stream.protocol.assign(transport.py(), Some(protocol));
    Ok(())
}

fn start_reading(transport: Transport<'_, '_>) -> Result<()> {
    let stream = transport.state()?;
    if stream.closing.get() || stream.paused.get() || stream.its_loop.is_empty() {
        return Ok(());
    }
    watch(transport, stream, Side::Reader)
}

/// Calls the transport when its socket is ready.
pub(crate) fn watch(transport: Transport<'_, '_>, stream: &Stream, side: Side) -> Result<()> {
    let py = transport.py();
    let name = if side == Side::Reader { name!(py, _read_ready) } else { name!(py, _write_ready) };
    let ready = transport.attribute(name)?;
    let watched = stream.with_loop(py, |its_loop, state| {
        readers::add_number(its_loop, state, stream.fd.get(), side, &ready, &[]).map(drop)
    })?;
    watched.ok_or_else(|| raise::<PyRuntimeError>(py, "the transport has no event loop"))
}

/// `loop._accept_streams(fd, family, number, protocol_factory, server, most)`: accepts pending connections, at most
/// `most`. Returns false if the reactor does not have the listener.
pub(crate) fn accept<'py>(
    this: This<'_, 'py, Loop>,
    [listener, family, number, factory, server, most]: [Argument<'_, 'py>; 6],
) -> Result<bool> {
    let py = this.py();
    let listener = listener.whole()? as RawFd;
    let kind = Kind { family: family.whole()? as i32, protocol: number.whole()? as i32 };
    let most = most.whole()?;
    let state = this.state()?;
    if !readers::has_listener(state, listener) {
        return Ok(false);
    }
    // Accept everything before creating the first protocol. Its factory may close the listener.
    let mut connections = Vec::new();
    let failed = readers::with_listener(py, state, listener, |reactor, id| {
        for _ in 0..most {
            connections.push(reactor.accept(id)?);
        }
        Ok(())
    })?;
    for Accepted { socket, from } in connections {
        let Ok(own) = socket.into_fd() else { continue };
        accepted(own, kind, peer(from), &this, &factory, given(&server))?;
    }
    match failed {
        Err(error) if !is_over_for_now(&error) => Err(raise_io(py, &error)),
        _ => Ok(true),
    }
}

/// `loop._accept_one(fd, kind)`: accepts a connection, for which TLS is started in Python. Returns a socket object and an address,
/// `None` if there is none now, and `NotImplemented` if the reactor does not have the listener.
pub(crate) fn accept_one<'py>(
    this: This<'_, 'py, Loop>,
    [listener, kind]: [Argument<'_, 'py>; 2],
) -> Result<Option<Bound<'py, PyAny>>> {
    let py = this.py();
    let listener = listener.whole()? as RawFd;
    let state = this.state()?;
    if !readers::has_listener(state, listener) {
        return Ok(Some(py.NotImplemented().into_bound(py)));
    }
    match readers::with_listener(py, state, listener, |reactor, id| reactor.accept(id))? {
        Ok(Accepted { socket, from }) => match socket.into_fd() {
            Ok(own) => operations::accepted(own, &peer(from), &kind).map(Some),
            Err(_) => Ok(None),
        },
        Err(error) if is_over_for_now(&error) => Ok(None),
        Err(error) => Err(raise_io(py, &error)),
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
///
/// Without TLS there is no handshake to wait for, so unlike asyncio this needs no task. A task would have its own context, so this enters a
/// copy: variables that a factory sets must not be visible to the next connection.
fn accepted<'py>(
    own: OwnedFd,
    kind: Kind,
    peer: Peer,
    its_loop: &Bound<'py, PyAny>,
    factory: &Bound<'py, PyAny>,
    server: Option<&Bound<'py, PyAny>>,
) -> Result<()> {
    let py = its_loop.py();
    let outcome = context::copy_of_current(py).and_then(|context| {
        context::enter(&context)?;
        let opened = factory.call_none().and_then(|protocol| {
            open_own(own, kind, peer, &Others { its_loop, protocol: &protocol, waiter: None, server }).map(drop)
        });
        context::exit(&context).and(opened)
    });
    outcome.or_else(|Raised| {
        if raised_a::<PySystemExit>(py) || raised_a::<PyKeyboardInterrupt>(py) {
            return Err(Raised);
        }
        clear_raised(py);
        Ok(())
    })
}

/// `loop._start_connecting(host, port)`: returns the descriptor, the family, and the result of the attempt: `None`
/// while it is in progress, otherwise as for [`connect_outcome`]. Returns `None` if the host needs name resolution.
pub(crate) fn connect<'py>(
    this: This<'_, 'py, Loop>,
    [host, port]: [Argument<'_, 'py>; 2],
) -> Result<Option<Bound<'py, PyAny>>> {
    let py = this.py();
    let Some(address) = addresses::host_and_port(&host, &port) else { return Ok(None) };
    let (own, connecting) = syscalls::new_connection(address).map_err(|error| raise_io(py, &error))?;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let answer = (own.as_raw_fd(), family, outcome(py, &connecting)?).into_pyobject(py).or_raise(py)?;
    // Python owns the descriptor from here on.
    let _ = own.into_raw_fd();
    Ok(Some(answer.into_any()))
}

/// Converts the result of a connection attempt for Python.
pub(crate) fn outcome<'py>(py: Python<'py>, connecting: &Connecting) -> Result<Bound<'py, PyAny>> {
    match connecting {
        Connecting::InProgress => Ok(py.None().into_bound(py)),
        Connecting::Finished(error) => error.into_pyobject(py).or_raise(py).map(Bound::into_any),
    }
}

/// `loop._connect_outcome(fd)`: the error number of the attempt, or 0.
pub(crate) fn connect_outcome<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<i32> {
    syscalls::connect_outcome(fd.whole()? as RawFd).map_err(|error| raise_io(this.py(), &error))
}
