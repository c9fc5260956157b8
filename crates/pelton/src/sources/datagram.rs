//! Datagrams: the reactor receives and sends, handlers get the datagrams one by one.
//!
//! This file has the interface of handlers: the [`Datagrams`] trait. In the folder `datagram/`, `io.rs` has the
//! operations of a handler, `socket.rs` handles events, `open.rs` opens sockets, and `manual.rs` has sockets that leave
//! receiving to their handlers.

mod io;
mod manual;
mod open;
mod socket;

use std::any::Any;
use std::fmt;

use pelton_os::{Address, Datagram, Token};

pub use io::DatagramIo;
pub(crate) use socket::{DatagramSocket, DatagramSockets};

use crate::{Reactor, Reason};

/// Identifies a datagram socket. [`Reactor::datagrams`] gives access to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatagramsId(pub(crate) Token);

/// Handles a datagram socket. `closed` is called exactly once, last, whatever happened before.
///
/// ```
/// use pelton::{Datagram, DatagramIo, Datagrams};
///
/// struct Echo;
///
/// impl Datagrams for Echo {
///     fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
///         io.send_chunk_to(&datagram.from, datagram.bytes).ok();
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle datagrams",
    label = "not a `Datagrams` handler",
    note = "implement `Datagrams` for it: `received` is the only method without a default"
)]
pub trait Datagrams: Any {
    /// Called when a datagram was received. It may be empty. The reactor reuses its memory: keep the bytes you need or
    /// send them on, then drop the datagram.
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram);

    /// Called when a [manual](Reactor::adopt_manual_datagrams) socket has something to
    /// [receive](DatagramIo::receive_into): a datagram, or an error. It is called in each turn until the handler has received
    /// everything or [pauses](DatagramIo::pause).
    fn readable(&mut self, io: &mut DatagramIo<'_>) {
        let _ = io;
    }

    /// Called when a datagram could not be sent because it is too large or there is no route. On a connected socket it
    /// is also called without an address when the system learns that an earlier datagram did not arrive, for example
    /// because nobody receives there. The socket stays open. By default the error is logged.
    fn send_failed(&mut self, io: &mut DatagramIo<'_>, to: Option<&Address>, error: std::io::Error) {
        let socket = io.id();
        match to {
            Some(to) => tracing::debug!(%socket, %to, %error, "could not send a datagram"),
            None => tracing::debug!(%socket, %error, "a datagram was not sent, or did not arrive"),
        }
    }

    /// Called when the send queue had exceeded the [high-water mark](crate::WaterMarks::high) and has fallen to the low
    /// one. On a [manual](Reactor::adopt_manual_datagrams) socket, it is called whenever the socket has accepted some of the
    /// queue, or a queued datagram could not be sent.
    fn writable(&mut self, io: &mut DatagramIo<'_>) {
        let _ = io;
    }

    /// Called when the reactor is [draining](Reactor::drain) and waits for this socket to close. By default the socket
    /// closes when everything has been sent.
    fn draining(&mut self, io: &mut DatagramIo<'_>) {
        io.close_after_sending();
    }

    /// Called when the socket has ended.
    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let _ = (reactor, reason);
    }
}

impl fmt::Display for DatagramsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagrams {}", self.0.index())
    }
}
