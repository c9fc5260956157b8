//! Manual datagram sockets: the handler decides when to receive, and learns at once what was sent.

use std::io;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;
use pelton_os::{Address, Datagram, Sending, Socket, Space, Token};

use super::socket::Stage;
use super::{DatagramIo, DatagramSocket, Datagrams, DatagramsId};
use crate::reactor::source::Source;
use crate::sources::transport::{Control, Pauses, Transport};
use crate::{Error, Reactor};

/// The delay before another try if the socket has room, but the receiver of a datagram does not. No poller can wait for that.
const RECEIVER_RETRY_DELAY: Duration = Duration::from_millis(1);

impl DatagramSocket {
    pub(super) fn is_manual(&self) -> bool {
        self.control != Control::Reactor
    }
}

impl Reactor {
    /// Adopts a datagram socket as a manual one, paused. It is the counterpart of a
    /// [manual connection](Reactor::adopt_manual), for the event loops of other languages:
    ///
    /// - After [`resume`](DatagramIo::resume), [`readable`](Datagrams::readable) is called in each turn in which there is a
    ///   datagram, or an error, to [receive](DatagramIo::receive_into). The handler may do that later, outside the callback.
    /// - [`send_or_keep`](DatagramIo::send_or_keep) sends at once. A datagram for which there is no room is queued, and
    ///   [`writable`](Datagrams::writable) is called whenever the socket has accepted some of the queue.
    /// - The send queue has no limit and no water marks. A datagram whose receiver has no room waits for it.
    /// - A queued datagram that cannot be sent is dropped and reported with `writable`:
    ///   [`take_send_error`](DatagramIo::take_send_error) returns the error.
    ///
    /// The socket can be [borrowed](Socket::borrowed).
    ///
    /// ```
    /// use pelton::{Datagram, DatagramIo, Datagrams, Reactor, Socket, Space};
    /// use std::os::unix::net::UnixDatagram;
    /// use std::sync::Arc;
    ///
    /// struct Greeted;
    ///
    /// impl Datagrams for Greeted {
    ///     fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
    ///
    ///     fn readable(&mut self, io: &mut DatagramIo<'_>) {
    ///         let mut greeting = [0; 100];
    ///         assert_eq!(io.receive_into(&mut Space::from(&mut greeting[..])).unwrap().0, 5);
    ///         io.close();
    ///     }
    /// }
    ///
    /// let (ours, theirs) = UnixDatagram::pair()?;
    /// let ours = Arc::new(ours);
    /// let mut reactor = Reactor::new()?;
    /// let id = reactor.adopt_manual_datagrams(Socket::borrowed(ours.clone()), Greeted)?;
    /// reactor.datagrams(id).unwrap().resume();
    /// theirs.send(b"hello")?;
    /// reactor.run_until(|reactor| reactor.datagram_socket_count() == 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt_manual_datagrams(
        &mut self,
        socket: impl Into<Socket>,
        handler: impl Datagrams,
    ) -> Result<DatagramsId, Error> {
        let id = self.adopt_datagrams_from(Location::caller(), socket.into(), Box::new(handler))?;
        self.leave_datagrams_to_handler(id);
        Ok(id)
    }

    /// Makes a socket that was just opened a manual one, and pauses it.
    pub(super) fn leave_datagrams_to_handler(&mut self, id: DatagramsId) {
        let control = Control::manual(&self.engine.receive_datagrams_manually(id.0));
        if let Some(socket) = self.datagram_socket_mut(id.0) {
            socket.control = control;
            socket.pauses().add(Pauses::HANDLER);
            self.set_receiving_datagrams(id.0);
        }
    }

    /// Ends a datagram socket immediately. When this returns, the engine has released its descriptor, which the owner of a
    /// [borrowed](Socket::borrowed) one can close, and [`closed`](Datagrams::closed) was called. Returns `false` if there is no
    /// such socket.
    ///
    /// Inside a callback of the socket itself, this does the same as [`DatagramIo::close`].
    pub fn release_datagrams(&mut self, id: DatagramsId) -> bool {
        self.release_transport::<DatagramSocket>(id.0)
    }

    pub(super) fn datagrams_are_receivable(&mut self, token: Token) {
        if self.datagram_socket_mut(token).is_some_and(|socket| socket.receives()) {
            DatagramSocket::report_readable(self, token);
        }
    }

    /// Holds a datagram that the engine has received on its own until the handler fetches it.
    pub(super) fn hold_datagram(&mut self, token: Token, datagram: Datagram) {
        let Some(socket) = self.datagram_socket_mut(token).filter(|socket| socket.stage == Stage::Open) else { return };
        socket.held.push_back(datagram);
        // Stops receiving until the handler has fetched it.
        self.set_receiving_datagrams(token);
    }

    /// Sends the queue of a manual socket that has room, and tells the handler about progress.
    pub(super) fn manual_datagrams_are_sendable(&mut self, token: Token) {
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        let before = socket.outbox.len();
        socket.busy = false;
        self.flush_datagrams(token);
        let Some(socket) = self.datagram_socket_mut(token) else { return };
        if before > 0 && socket.outbox.len() == before && socket.busy {
            // If that fails, it is tried again in the next turn.
            let _ = self.engine.report_room(token, false);
            self.after(RECEIVER_RETRY_DELAY, move |reactor| {
                if reactor.datagram_socket_mut(token).is_some_and(|socket| socket.busy) {
                    reactor.manual_datagrams_are_sendable(token);
                }
            });
        } else {
            self.notify_datagrams(token, |handler, io| handler.writable(io));
        }
    }

    pub(super) fn manual_datagram_failed(&mut self, token: Token, error: io::Error) {
        if let Some(socket) = self.datagram_socket_mut(token) {
            socket.send_errors.push_back(error);
            self.notify_datagrams(token, |handler, io| handler.writable(io));
        }
    }
}

/// Manual sockets.
impl DatagramIo<'_> {
    /// Receives one datagram on a [manual](Reactor::adopt_manual_datagrams) socket. Returns its length and its sender, if that
    /// has an address. Bytes that do not fit are lost. Fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if none has arrived,
    /// and like the system call.
    pub fn receive_into(&mut self, space: &mut Space<'_>) -> io::Result<(usize, Option<Address>)> {
        let Some(socket) = self.reactor.datagram_socket_mut(self.id.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match socket.control {
            Control::Handler => self.reactor.engine.receive_datagram_into(self.id.0, space),
            Control::HandlerFromHeld => {
                let datagram = socket.held.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
                self.reactor.set_receiving_datagrams(self.id.0);
                Ok((space.fill(&datagram.bytes), Some(datagram.from)))
            }
            Control::Reactor => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Sends a datagram to `to`, or to the connected peer, immediately, unless others are queued already, and returns
    /// [`Sending::Idle`]. If there is no room, `keep` is called and returns the bytes, which are queued without being copied:
    /// [`Sending::Busy`].
    ///
    /// An error is that of the system call, and nothing is queued.
    pub fn send_or_keep(
        &mut self,
        to: Option<&Address>,
        bytes: &[u8],
        keep: impl FnOnce() -> Bytes,
    ) -> io::Result<Sending> {
        let Reactor { sources, engine, flow, .. } = &mut *self.reactor;
        let Some(Source::Datagrams(socket)) = sources.get_mut(self.id.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if socket.stage != Stage::Open {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut is_full = false;
        if socket.is_manual() && !socket.busy && socket.outbox.is_empty() {
            match engine.send_datagram_now(self.id.0, to, bytes) {
                Ok(()) => return Ok(Sending::Idle),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    is_full = true;
                }
                // The engine only sends from the queue.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let before = socket.outbox.in_memory();
        socket.outbox.push_bytes(to.cloned(), keep());
        flow.add(socket.outbox.in_memory() - before);
        if is_full {
            socket.busy = true;
            engine.report_room(self.id.0, true)?;
        } else {
            self.reactor.queue_datagram_flush(self.id.0);
        }
        Ok(Sending::Busy)
    }

    /// Returns the number of queued datagrams.
    pub fn queued_datagrams(&mut self) -> usize {
        self.reactor.datagram_socket_mut(self.id.0).map_or(0, |socket| socket.outbox.len())
    }

    /// Returns why a queued datagram of a [manual](Reactor::adopt_manual_datagrams) socket could not be sent, once for each.
    pub fn take_send_error(&mut self) -> Option<io::Error> {
        self.reactor.datagram_socket_mut(self.id.0)?.send_errors.pop_front()
    }

    /// Starts or stops calling [`writable`](Datagrams::writable) in each turn in which the socket has room, even if nothing is
    /// queued, on a [manual](Reactor::adopt_manual_datagrams) socket.
    pub fn report_room(&mut self, report: bool) -> io::Result<()> {
        match self.reactor.datagram_socket_mut(self.id.0) {
            // It is reported while something is queued.
            Some(socket) if socket.busy && !report => Ok(()),
            Some(socket) if socket.is_manual() => self.reactor.engine.report_room(self.id.0, report),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Drops the send queue of a [manual](Reactor::adopt_manual_datagrams) socket.
    pub fn drop_queued(&mut self) -> io::Result<()> {
        let Reactor { sources, engine, flow, .. } = &mut *self.reactor;
        let Some(Source::Datagrams(socket)) = sources.get_mut(self.id.0) else { return Ok(()) };
        flow.remove(std::mem::take(&mut socket.outbox).in_memory());
        if socket.control == Control::Handler && std::mem::take(&mut socket.busy) {
            engine.report_room(self.id.0, false)?;
        }
        Ok(())
    }
}
