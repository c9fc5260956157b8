//! `SSLProtocol` and `SSLTransport`: TLS between a transport and a program's protocol.
//!
//! The protocol derives from `pelton._tls.BaseSSLProtocol`, which derives from asyncio's own. The inherited methods use
//! the fields here by name. OpenSSL is called through Python's `ssl.SSLObject`, created by the program's own context.

use std::cell::Cell;

use pyo3::prelude::*;
use pyo3::types::PyType;

use super::tls_io;
use crate::known::{known, name};
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::Call;
use pelton_cpython::class::{self, Attribute, Parts, State, This};
use pelton_cpython::object::Result;
use pelton_cpython::slot::Slot;
use pelton_cpython::{accessed, flag_field, number_field, slot_field};

/// A TLS protocol, as its methods get it.
pub(crate) type Protocol<'a, 'py> = This<'a, 'py, Tls>;

/// The state of a TLS protocol.
#[derive(Default)]
pub(crate) struct Tls {
    pub(crate) its_loop: Slot,
    /// A member of `asyncio.sslproto.SSLProtocolState`.
    pub(crate) phase: Slot,
    pub(crate) app_protocol: Slot,
    pub(crate) transport: Slot,
    /// Received data to decrypt, and encrypted data to send: two `ssl.MemoryBIO`.
    pub(crate) incoming: Slot,
    pub(crate) outgoing: Slot,
    pub(crate) ssl_object: Slot,
    /// The `_sslobj` that a plain `ssl.SSLObject` wraps. Empty for other classes, whose methods must be called.
    pub(crate) inner: Slot,
    /// Data not encrypted yet: a `deque`.
    pub(crate) backlog: Slot,
    pub(crate) backlog_size: Cell<i64>,
    /// Bytes that OpenSSL read from `incoming` without producing data: the start of a record.
    pub(crate) begun: Cell<usize>,
    pub(crate) conn_lost: Cell<i64>,
    pub(crate) incoming_high: Cell<i64>,
    pub(crate) incoming_low: Cell<i64>,
    pub(crate) outgoing_high: Cell<i64>,
    pub(crate) outgoing_low: Cell<i64>,
    /// The transport's write buffer is full.
    pub(crate) sending_paused: Cell<bool>,
    /// The transport must not receive.
    pub(crate) receiving_paused: Cell<bool>,
    pub(crate) app_reading_paused: Cell<bool>,
    pub(crate) app_writing_paused: Cell<bool>,
    /// The program's protocol provides the buffer to receive into.
    pub(crate) buffered: Cell<bool>,
    /// The program's protocol is in a `data_received` call. Data that it writes is sent together after the call.
    pub(crate) telling: Cell<bool>,
}

pelton_cpython::state!(Tls, c"pelton._pelton.SSLState", {
    its_loop, phase, app_protocol, transport, incoming, outgoing, ssl_object, inner, backlog,
});

impl State for Tls {
    fn new(_: Python<'_>) -> Result<Tls> {
        Ok(Tls::default())
    }
}

fn get_ssl_object<'py>(protocol: Protocol<'_, 'py>) -> Result<Option<Bound<'py, PyAny>>> {
    protocol.state().map(|tls| tls.ssl_object.get(protocol.py()))
}

fn set_ssl_object<'py>(protocol: Protocol<'_, 'py>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    let py = protocol.py();
    let class = known().ssl_object.as_ref().map(|class| class.bind(py));
    let plain = value.filter(|value| class.is_some_and(|class| value.get_type().is(class)));
    let inner = plain.map(|value| value.attribute(name!(py, _sslobj))).transpose()?;
    let tls = protocol.state()?;
    tls.ssl_object.assign(py, value);
    tls.inner.assign(py, inner.as_ref().map(Bound::as_borrowed));
    Ok(())
}

fn attributes() -> Vec<Attribute<Tls>> {
    vec![
        slot_field!(Tls, c"_loop", its_loop),
        slot_field!(Tls, c"_state", phase),
        slot_field!(Tls, c"_app_protocol", app_protocol),
        slot_field!(Tls, c"_transport", transport),
        slot_field!(Tls, c"_incoming", incoming),
        slot_field!(Tls, c"_outgoing", outgoing),
        slot_field!(Tls, c"_write_backlog", backlog),
        number_field!(Tls, c"_write_buffer_size", backlog_size),
        number_field!(Tls, c"_conn_lost", conn_lost),
        number_field!(Tls, c"_incoming_high_water", incoming_high),
        number_field!(Tls, c"_incoming_low_water", incoming_low),
        number_field!(Tls, c"_outgoing_high_water", outgoing_high),
        number_field!(Tls, c"_outgoing_low_water", outgoing_low),
        flag_field!(Tls, c"_ssl_writing_paused", sending_paused),
        flag_field!(Tls, c"_ssl_reading_paused", receiving_paused),
        flag_field!(Tls, c"_app_reading_paused", app_reading_paused),
        flag_field!(Tls, c"_app_writing_paused", app_writing_paused),
        flag_field!(Tls, c"_app_protocol_is_buffer", buffered),
        accessed!(Tls, c"_sslobj", get_ssl_object, set_ssl_object),
    ]
}

/// Makes the class of the protocol, derived from `pelton._tls.BaseSSLProtocol`.
pub(crate) fn make_protocol<'py>(base: &Bound<'py, PyType>) -> Result<Bound<'py, PyType>> {
    let parts = Parts {
        name: c"pelton._pelton.SSLProtocol",
        doc: c"TLS, as a transport sees it.",
        methods: tls_io::protocol_methods(),
        attributes: attributes(),
    };
    class::make(base, parts)
}

/// Makes the class of the transport, derived from `pelton._tls.BaseSSLTransport`. asyncio's methods use its one field as `_ssl_protocol`.
pub(crate) fn make_transport<'py>(base: &Bound<'py, PyType>) -> Result<Bound<'py, PyType>> {
    let parts = Parts {
        name: c"pelton._pelton.SSLTransport",
        doc: c"A connection with TLS, as protocols see it.",
        methods: tls_io::transport_methods(),
        attributes: Vec::new(),
    };
    class::make_with_field(base, c"_ssl_protocol", parts)
}
