//! Attributes of a stream transport that asyncio's own methods use too.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::extra_info;
use super::stream::{Stream, Transport};
use crate::event_loop::state;
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::raise;
use pelton_cpython::class::Attribute;
use pelton_cpython::object::Result;
use pelton_cpython::{accessed, flag_field, number_field, slot_field};

/// Returns the attributes.
pub(crate) fn attributes() -> Vec<Attribute<Stream>> {
    vec![
        accessed!(Stream, c"_loop", get_loop, set_loop),
        slot_field!(Stream, c"_protocol", protocol),
        slot_field!(Stream, c"_server", server),
        slot_field!(Stream, c"_empty_waiter", empty_waiter),
        number_field!(Stream, c"_sock_fd", fd),
        number_field!(Stream, c"_conn_lost", conn_lost),
        number_field!(Stream, c"_high_water", high_water),
        number_field!(Stream, c"_low_water", low_water),
        flag_field!(Stream, c"_closing", closing),
        flag_field!(Stream, c"_paused", paused),
        flag_field!(Stream, c"_eof", eof),
        flag_field!(Stream, c"_buffered", buffered),
        flag_field!(Stream, c"_protocol_connected", connected),
        flag_field!(Stream, c"_protocol_paused", protocol_paused),
        accessed!(Stream, c"_sock", get_sock, set_sock),
        accessed!(Stream, c"_extra", get_extra, set_extra),
        accessed!(Stream, c"_buffer", get_buffer, set_buffer),
    ]
}

fn get_buffer<'py>(transport: Transport<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    transport.state_object()
}

/// asyncio's constructor assigns a buffer, but ours already exists.
fn set_buffer<'py>(_: Transport<'_, 'py>, _: Option<Argument<'_, 'py>>) -> Result<()> {
    Ok(())
}

fn get_loop<'py>(transport: Transport<'_, 'py>) -> Result<Option<Bound<'py, PyAny>>> {
    transport.state().map(|stream| stream.its_loop.get(transport.py()))
}

/// Only accepts a `pelton.Loop`, because its fields are used directly.
fn set_loop<'py>(transport: Transport<'_, 'py>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    let stream = transport.state()?;
    if value.is_some_and(|value| !value.is_none() && !state::is_loop(&value)) {
        return Err(raise::<PyTypeError>(transport.py(), "a stream transport requires a pelton.Loop"));
    }
    stream.its_loop.assign(transport.py(), value);
    Ok(())
}

fn get_sock<'py>(transport: Transport<'_, 'py>) -> Result<Option<Bound<'py, PyAny>>> {
    let stream = transport.state()?;
    if stream.gone.get() { Ok(None) } else { extra_info::socket_object(transport.py(), stream).map(Some) }
}

/// asyncio's methods set it to `None` after closing the socket.
fn set_sock<'py>(transport: Transport<'_, 'py>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    let stream = transport.state()?;
    let value = value.filter(|value| !value.is_none());
    stream.gone.set(value.is_none());
    if let Some(value) = value {
        extra_info::set_socket_object(stream, &value);
        drop(stream.own.take());
    }
    Ok(())
}

fn get_extra<'py>(transport: Transport<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    extra_info::extra(transport.py(), transport.state()?)
}

fn set_extra<'py>(transport: Transport<'_, 'py>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    transport.state().map(|stream| stream.extra.assign(transport.py(), value))
}
