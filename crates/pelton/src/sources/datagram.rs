//! Datagrams: the reactor receives and sends, handlers get them one by one.
//!
//! This file is what a handler sees: the [`Datagrams`] it implements. Next to it, `datagram/io.rs` is what a handler can do,
//! `socket.rs` what happens to a datagram socket, and `open.rs` where they come from.

mod io;
mod open;
mod socket;

use std::any::Any;
use std::fmt;

use pelton_os::{Address, Datagram, Token};

pub use io::DatagramIo;
pub(crate) use socket::{DatagramSocket, DatagramSockets};

use crate::{Reactor, Reason};

/// Names a datagram socket, to reach it from elsewhere with [`Reactor::datagrams`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatagramsId(pub(crate) Token);

/// What happens to a datagram socket. `closed` comes once, whatever happened, and last.
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
    /// A datagram has come in, perhaps an empty one. Its bytes are on loan from the reactor: keep what you need, or send them
    /// on, and let go of them.
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram);

    /// A datagram could not be sent: it is too large, or there is no way to where it should go. Or, on a socket that is
    /// connected, the system has learnt that an earlier one did not arrive, as when nobody receives there; then there is no
    /// address. The socket goes on. By default this is logged.
    fn send_failed(&mut self, io: &mut DatagramIo<'_>, to: Option<&Address>, error: std::io::Error) {
        let socket = io.id();
        match to {
            Some(to) => tracing::debug!(%socket, %to, %error, "a datagram was not sent"),
            None => tracing::debug!(%socket, %error, "a datagram was not sent, or did not arrive"),
        }
    }

    /// More had been waiting to be sent than the [high-water mark](crate::WaterMarks::high), and now most of it is gone.
    fn drained(&mut self, io: &mut DatagramIo<'_>) {
        let _ = io;
    }

    /// The reactor is [draining](Reactor::drain), and waits for this socket to close. By default it is closed when everything
    /// has been sent.
    fn draining(&mut self, io: &mut DatagramIo<'_>) {
        io.close_after_sending();
    }

    /// It is over.
    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let _ = (reactor, reason);
    }
}

impl fmt::Display for DatagramsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagrams {}", self.0.index())
    }
}
