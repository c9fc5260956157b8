//! `sock_recv`, `sock_accept` and similar methods: the immediate attempt, and waiting to receive.
//!
//! A program that uses `sock_recv` waits for the same socket again and again. So after a wait the engine keeps
//! watching the socket. The previous receive usually emptied it, so the next one waits without trying to receive
//! first. If data arrives while nothing waits for it, watching ends.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use pelton::Time;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::event_loop::scheduling;
use crate::event_loop::state::{Loop, LoopState};
use crate::known::{known, name};
use crate::readers::{self, Side, descriptors};
use crate::sockets::addresses::{self, Peer};
use crate::sockets::guards;
use crate::sockets::syscalls::{self, RECEIVE, is_not_now};
use crate::transports::opening;
use pelton_cpython::arguments::Argument;
use pelton_cpython::buffer::View;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise_io, take_raised};
use pelton_cpython::class::This;
use pelton_cpython::handles::{self, Handle, context};
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::slot::Slot;

/// Maximum number of sockets checked each time before the loop sleeps, and the maximum sleep if there are more.
const CHECKED_AT_ONCE: usize = 64;
const NEXT_CHECK: Duration = Duration::from_millis(20);

/// Tells the Python side to use asyncio's own implementation.
fn not_here(py: Python<'_>) -> Result<Bound<'_, PyAny>> {
    Ok(py.NotImplemented().into_bound(py))
}

/// Returns the descriptor of a plain `socket.socket`; `None` for anything else: a TLS socket, another class, or
/// replaced methods.
fn plain(state: &LoopState, sock: &Bound<'_, PyAny>) -> Result<Option<i32>> {
    let py = sock.py();
    if !sock.get_type().is(known().socket.bind(py)) || state.debug.get() || !guards::methods_are_original(py)? {
        return Ok(None);
    }
    let fd = sock.method(name!(py, fileno))?.whole()?;
    Ok((fd >= 0).then_some(fd as i32))
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
    fn ready(self, py: Python<'_>) -> &Bound<'_, PyString> {
        match self {
            Operation::Receive => name!(py, _recv_ready),
            Operation::ReceiveInto => name!(py, _recv_into_ready),
            Operation::ReceiveFrom => name!(py, _recvfrom_ready),
            Operation::Accept => name!(py, _accept_ready),
        }
    }
}

/// What waiting needs each time, kept by the loop.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The bound methods to call when a socket is ready, by operation.
    ready: [Slot; Operation::COUNT],
    /// The context that they are called in.
    context: Slot,
}

pelton_cpython::owns!(Waiting { ready, context });

impl Waiting {
    /// Takes everything out.
    pub(crate) fn take<'py>(&self, py: Python<'py>) -> Vec<Option<Bound<'py, PyAny>>> {
        self.ready.iter().chain([&self.context]).map(|slot| slot.take(py)).collect()
    }
}

/// What an operation has done, and whether the socket has nothing more to receive for now.
type Done<'py> = (Bound<'py, PyAny>, bool);

/// Performs the operation if that is possible now.
fn perform<'py>(operation: Operation, fd: RawFd, with: &Bound<'py, PyAny>) -> io::Result<Result<Done<'py>>> {
    let py = with.py();
    let wanted = || with.whole().map(|wanted| (wanted as usize).min(RECEIVE));
    match operation {
        Operation::Receive => {
            let wanted = match wanted() {
                Ok(0) => return Ok(Ok((PyBytes::new(py, b"").into_any(), false))),
                Ok(wanted) => wanted,
                Err(Raised) => return Ok(Err(Raised)),
            };
            let data = syscalls::receive_bytes(py, fd, wanted)?;
            let emptied = data.as_bytes().len() < wanted;
            Ok(Ok((data.into_any(), emptied)))
        }
        Operation::ReceiveInto => {
            let Ok(mut view) = View::writable(with) else { return Ok(Err(Raised)) };
            let room = view.len();
            let count = if room == 0 { 0 } else { view.write(|memory| syscalls::receive(fd, memory))? };
            Ok(count.into_pyobject(py).or_raise(py).map(|number| (number.into_any(), count < room)))
        }
        Operation::ReceiveFrom => {
            let wanted = match wanted() {
                Ok(wanted) => wanted,
                Err(Raised) => return Ok(Err(Raised)),
            };
            let (data, peer) = syscalls::receive_datagram(py, fd, wanted)?;
            let pair = addresses::to_python(py, &peer).and_then(|address| pair(data.into_any(), address));
            Ok(pair.map(|pair| (pair, false)))
        }
        Operation::Accept => {
            let Some((own, peer)) = syscalls::accept(fd)? else { return Err(io::ErrorKind::WouldBlock.into()) };
            Ok(accepted(own, &peer, with).map(|pair| (pair, false)))
        }
    }
}

fn pair<'py>(first: Bound<'py, PyAny>, second: Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let py = first.py();
    PyTuple::new(py, [first, second]).or_raise(py).map(Bound::into_any)
}

/// Creates a socket object for a connection, and returns it with the peer's address. `kind` is family and protocol.
pub(crate) fn accepted<'py>(own: OwnedFd, peer: &Peer, kind: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let py = kind.py();
    let (family, protocol) = kind.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>().or_raise(py)?;
    // It takes over the descriptor only if it succeeds.
    let sock = known().make_socket.bind(py).call1((family, protocol, own.as_raw_fd())).or_raise(py)?;
    let _ = own.into_raw_fd();
    let address = if matches!(peer, Peer::Other) {
        sock.method(name!(py, getpeername))?
    } else {
        addresses::to_python(py, peer)?
    };
    pair(sock, address)
}

/// Returns the size of a buffer; `None` if it is not writable.
fn room_in(buffer: &Bound<'_, PyAny>) -> Option<usize> {
    match View::writable(buffer) {
        Ok(view) => Some(view.len()),
        Err(Raised) => {
            clear_raised(buffer.py());
            None
        }
    }
}

/// Performs the operation now or when the socket is ready. Returns its result, a future for it, or `NotImplemented`.
fn begin<'py>(
    this: This<'_, 'py, Loop>,
    sock: &Bound<'py, PyAny>,
    with: &Bound<'py, PyAny>,
    operation: Operation,
) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let state: &Rc<LoopState> = this.state()?;
    state.check_open(py)?;
    let Some(fd) = plain(state, sock)? else { return not_here(py) };
    if matches!(operation, Operation::Receive | Operation::ReceiveFrom)
        && (!with.is_exact_instance_of::<PyInt>() || with.whole()? < 0)
    {
        return not_here(py);
    }
    let room = match operation {
        Operation::Receive => with.whole()? as usize,
        Operation::ReceiveInto => match room_in(with) {
            Some(room) => room,
            // asyncio's own implementation raises the right error.
            None => return not_here(py),
        },
        Operation::ReceiveFrom | Operation::Accept => 1,
    };
    if operation == Operation::Accept && guards::is_audited(py) {
        return not_here(py);
    }
    let waits = readers::keeps(state, fd, sock)?;
    // As with Python's own sockets, receiving zero bytes does not wait.
    if waits != readers::Kept::Emptied || room == 0 {
        match perform(operation, fd, with) {
            Ok(done) => return done.map(|(done, _)| done),
            Err(error) if is_not_now(&error) => {}
            Err(error) => return Err(raise_io(py, &error)),
        }
    }
    if waits == readers::Kept::Not {
        descriptors::refuse_transports(&this, state, sock)?;
    }
    let future = scheduling::future(&this, state)?;
    let context = match state.waiting.context.get(py) {
        Some(context) => context,
        None => state.waiting.context.fill(context::empty(py)?),
    };
    let slot = &state.waiting.ready[operation as usize];
    let method = match slot.get(py) {
        Some(method) => method,
        None => slot.fill(this.attribute(operation.ready(py))?),
    };
    let arguments = [future.as_borrowed(), sock.as_borrowed(), with.as_borrowed()];
    let handle = handles::new(state.home(&this), &method, &arguments, Some(&context))?;
    if let Some(handle) = Handle::of(&handle) {
        handle.track();
    }
    readers::wait(state, fd, sock, handle)?;
    Ok(future)
}

/// Returns whether the socket that a handle waits for still has this descriptor. The second argument of such a handle is the socket. If
/// the handle was cancelled, it has none, and nothing waits for the socket.
pub(crate) fn is_open(handle: &Bound<'_, PyAny>, fd: RawFd) -> Result<bool> {
    let Some(sock) = Handle::of(handle).and_then(|handle| handle.second_argument()) else { return Ok(true) };
    Ok(sock.method(name!(handle.py(), fileno))?.whole()? == i64::from(fd))
}

/// Called before the loop sleeps. Makes operations fail whose sockets were closed meanwhile; the system does not
/// report that, and they would wait forever. Returns when to check again, if not all were checked.
pub(crate) fn check_closed(py: Python<'_>, state: &Rc<LoopState>, now: Time) -> Result<Option<Time>> {
    let unchecked = || state.readers.unchecked(state.counters.callbacks.get());
    let mut found = false;
    for _ in 0..unchecked().min(CHECKED_AT_ONCE) {
        let Some(fd) = state.readers.next_unchecked() else { break };
        found |= readers::fail_if_closed(py, state, fd)?;
    }
    if found {
        return Ok(Some(Time::ZERO));
    }
    Ok((unchecked() != 0).then(|| now + NEXT_CHECK))
}

/// Finishes an operation whose socket is ready.
fn finish<'py>(
    this: This<'_, 'py, Loop>,
    [future, sock, with]: [Argument<'_, 'py>; 3],
    operation: Operation,
) -> Result<()> {
    let py = this.py();
    // Check before receiving, because data received for a cancelled future would be lost.
    if future.method(name!(py, done))?.truth()? {
        return Ok(());
    }
    let fd = sock.method(name!(py, fileno))?.whole()? as RawFd;
    let done = perform(operation, fd, &with);
    if let Err(error) = &done
        && is_not_now(error)
    {
        return Ok(());
    }
    let emptied = matches!(&done, Ok(Ok((_, true))));
    // The exception must be taken before anything else is called.
    let done = done.map(|done| done.map_err(|Raised| take_raised(py)));
    if fd >= 0 {
        readers::keep(this.state()?, fd, &sock, emptied)?;
    }
    match done {
        Ok(Ok((result, _))) => future.method_one(name!(py, set_result), &result).map(drop),
        Ok(Err(raised)) => fail(&future, raised),
        Err(error) => {
            let Raised = raise_io(py, &error);
            fail(&future, take_raised(py))
        }
    }
}

/// Sets the exception of a future.
fn fail(future: &Bound<'_, PyAny>, raised: Option<Bound<'_, PyBaseException>>) -> Result<()> {
    let Some(raised) = raised else { return Ok(()) };
    future.method_one(name!(future.py(), set_exception), &raised).map(drop)
}

/// Defines the two methods of an operation: the one that starts it, and the one called when the socket is ready.
macro_rules! operation {
    ($operation:expr, $begin:ident, $ready:ident) => {
        pub(crate) fn $begin<'py>(
            this: This<'_, 'py, Loop>,
            [sock, with]: [Argument<'_, 'py>; 2],
        ) -> Result<Bound<'py, PyAny>> {
            begin(this, &sock, &with, $operation)
        }

        pub(crate) fn $ready<'py>(this: This<'_, 'py, Loop>, arguments: [Argument<'_, 'py>; 3]) -> Result<()> {
            finish(this, arguments, $operation)
        }
    };
}

operation!(Operation::Receive, recv, recv_ready);
operation!(Operation::ReceiveInto, recv_into, recv_into_ready);
operation!(Operation::ReceiveFrom, recvfrom, recvfrom_ready);
operation!(Operation::Accept, accept, accept_ready);

/// `_stop_waiting(fd, future)`: gives up the `sock_recv` or similar operation that waits for this future.
pub(crate) fn stop_waiting<'py>(this: This<'_, 'py, Loop>, [fd, future]: [Argument<'_, 'py>; 2]) -> Result<()> {
    let py = this.py();
    let state: &Rc<LoopState> = this.state()?;
    let fd = fd.whole()? as RawFd;
    let reader = state.readers.of(py, fd).0;
    let waits =
        |reader: &Bound<'py, PyAny>| Handle::of(reader).is_some_and(|reader| reader.has_first_argument(&future));
    if state.closed.get() || !reader.is_some_and(|reader| waits(&reader)) {
        return Ok(());
    }
    let Some(reader) = readers::set(py, state, fd, Side::Reader, None)? else { return Ok(()) };
    let reader = reader.into_object(py);
    Handle::of(&reader).map_or(Ok(()), |reader| reader.cancel())
}

/// `_send(sock, data)`: `None` if everything was sent, else the number of bytes sent, or `NotImplemented`.
pub(crate) fn send<'py>(this: This<'_, 'py, Loop>, [sock, data]: [Argument<'_, 'py>; 2]) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let Some(fd) = plain(this.state()?, &sock)? else { return not_here(py) };
    let view = View::of(&data)?;
    let sent = match view.read(|data| syscalls::send(fd, data)) {
        Ok(sent) if sent == view.len() => return Ok(py.None().into_bound(py)),
        Ok(sent) => sent,
        Err(error) if is_not_now(&error) => 0,
        Err(error) => return Err(raise_io(py, &error)),
    };
    sent.into_pyobject(py).or_raise(py).map(Bound::into_any)
}

/// `_connect(fd, address)`: `None` if the attempt is in progress, else 0 or an error number. `NotImplemented` if
/// the address needs name resolution or sockets are guarded.
pub(crate) fn connect<'py>(
    this: This<'_, 'py, Loop>,
    [fd, address]: [Argument<'_, 'py>; 2],
) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let fd = fd.whole()? as RawFd;
    if guards::is_guarded(py)? {
        return not_here(py);
    }
    let Some(address) = addresses::literal(&address) else { return not_here(py) };
    let connecting = syscalls::connect(fd, address).map_err(|error| raise_io(py, &error))?;
    opening::outcome(py, &connecting)
}
