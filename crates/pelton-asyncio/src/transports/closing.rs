//! Closing a stream transport.

use std::rc::Rc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::opening::attach;
use super::stream::{Stream, Transport};
use crate::event_loop::scheduling;
use crate::event_loop::state::{self, LoopState};
use crate::known::{known, name};
use crate::readers::{self, Side};
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, OrRaise};
use pelton_cpython::class::Method;
use pelton_cpython::descriptor;
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::{no_arguments, one_argument};

pub(crate) fn methods() -> Vec<Method<Stream>> {
    vec![
        no_arguments!(Stream, c"close", close, c"Close the transport after sending the write buffer."),
        one_argument!(
            Stream,
            c"_call_connection_lost",
            connection_lost,
            c"Call connection_lost(), then close the socket."
        ),
    ]
}

/// Closes the transport once the write buffer is empty.
pub(crate) fn close(transport: Transport<'_, '_>) -> Result<()> {
    let py = transport.py();
    let stream = transport.state()?;
    // A transport that is not closing has a loop unless its constructor failed.
    if stream.closing.get() || stream.its_loop.is_empty() {
        return Ok(());
    }
    stream.closing.set(true);
    let fd = stream.fd.get();
    stream.with_loop(py, |its_loop, state| {
        readers::remove_number(py, state, fd, Side::Reader)?;
        if !stream.unsent.get() {
            stream.conn_lost.set(stream.conn_lost.get() + 1);
            readers::remove_number(py, state, fd, Side::Writer)?;
            let lost = transport.attribute(name!(py, _call_connection_lost))?;
            scheduling::soon(its_loop, &lost, &[py.None().into_bound(py).as_borrowed()])?;
        }
        Ok(())
    })?;
    Ok(())
}

fn connection_lost<'py>(transport: Transport<'_, 'py>, error: Argument<'_, 'py>) -> Result<()> {
    call_connection_lost(transport, &error)
}

/// Calls `connection_lost` with `error`, which is `None` after an orderly close, and releases everything that the
/// transport owns.
pub(crate) fn call_connection_lost<'py>(transport: Transport<'_, 'py>, error: &Bound<'py, PyAny>) -> Result<()> {
    let py = transport.py();
    let stream = transport.state()?;
    // From now on writes are ignored, even if the buffer left over at close() was sent only now.
    stream.conn_lost.set(stream.conn_lost.get() + 1);
    let mut told = Ok(());
    if stream.connected.get() {
        // The program may have set it to None, which raises, as in asyncio.
        let protocol = stream.protocol.get(py).unwrap_or_else(|| py.None().into_bound(py));
        told = protocol.method_one(name!(py, connection_lost), error).map(drop);
    }
    if told.is_ok() {
        return release(transport, stream);
    }
    let raised = PyErr::fetch(py);
    if let Err(Raised) = release(transport, stream) {
        // The first exception is the interesting one.
        drop(PyErr::take(py));
    }
    raised.restore(py);
    Err(Raised)
}

/// Closes the socket and drops the references to loop, protocol and server. Each reference is moved out before it is used or dropped, so
/// reentrant calls find nothing.
fn release(transport: Transport<'_, '_>, stream: &Stream) -> Result<()> {
    let py = transport.py();
    let was_gone = stream.gone.replace(true);
    let its_loop = stream.its_loop.take(py);
    let protocol = stream.protocol.take(py);
    let server = stream.server.take(py);
    let waiter = stream.empty_waiter.take(py);
    if let Some(its_loop) = &its_loop {
        let state = state::of(its_loop)?;
        forget(state, &transport, stream.fd.get())?;
        disconnect(py, stream, state)?;
    }
    stream.end_lending(py);
    drop(stream.lent.take());
    let own = stream.own.take();
    if let Some(own) = own {
        // The program may have closed the descriptor behind our back.
        descriptor::close(own);
    } else if let Some(sock) = stream.sock.get(py).filter(|_| !was_gone) {
        sock.method(name!(py, close))?;
    }
    if let Some(server) = server {
        attach(&server, &transport, name!(py, _detach))?;
    }
    if let Some(waiter) = waiter {
        known().lost_while_emptying.bind(py).call_one(&waiter)?;
    }
    drop(protocol);
    Ok(())
}

/// Ends the connection of a transport, so that the descriptor can be closed.
fn disconnect(py: Python<'_>, stream: &Stream, state: &Rc<LoopState>) -> Result<()> {
    let connected = stream.connection.take();
    match connected {
        Some(connected) if connected.is_of(state) => readers::release(py, state, stream.fd.get(), connected.id),
        _ => Ok(()),
    }
}

/// Removes a transport from `loop._transports`, if it is still there. An object has at most one weak reference without a callback, so
/// comparing addresses is enough.
fn forget(state: &LoopState, transport: &Bound<'_, PyAny>, fd: i32) -> Result<()> {
    let py = transport.py();
    let Some(transports) = state.transports.get(py) else { return Ok(()) };
    let Ok(transports) = transports.cast::<PyDict>() else { return Ok(()) };
    let reference = transport.weak()?;
    if transports.get_item(fd).or_raise(py)?.is_some_and(|found| found.is(&reference)) {
        transports.del_item(fd).or_raise(py)?;
    }
    Ok(())
}
