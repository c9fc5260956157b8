//! What a handler can do with its datagram socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use pelton_os::{Address, Chunk, DatagramOutbox, DatagramSetting, MulticastInterface};

use super::DatagramsId;
use super::socket::Stage;
use crate::reactor::source::Source;
use crate::{Reactor, Reason, SendError, WaterMarks};

/// A datagram socket and the reactor it is on: what callbacks of [`Datagrams`](super::Datagrams) are handed.
pub struct DatagramIo<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) id: DatagramsId,
}

/// Sending. What is sent in answer to several datagrams that have come in together goes out together, when the last of them
/// has been handled; everything else, in the turn's next flush. That a datagram could not be sent is
/// [told later](super::Datagrams::send_failed).
impl DatagramIo<'_> {
    /// Sends a copy of `bytes` to whom the socket is connected to. On one that is not, this fails later.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(None, bytes))
    }

    /// Sends a copy of `bytes` to `to`.
    pub fn send_to(&mut self, to: &Address, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(Some(to.clone()), bytes))
    }

    /// Sends `bytes` without copying them, to whom the socket is connected to.
    pub fn send_bytes(&mut self, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(None, bytes))
    }

    /// Sends `bytes` without copying them, to `to`.
    pub fn send_bytes_to(&mut self, to: &Address, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(Some(to.clone()), bytes))
    }

    /// Sends on what came in, without copying it, to whom the socket is connected to.
    pub fn send_chunk(&mut self, chunk: Chunk) -> Result<(), SendError> {
        self.queue(chunk.len(), |outbox| outbox.push_chunk(None, chunk))
    }

    /// Sends on what came in, without copying it, to `to`.
    pub fn send_chunk_to(&mut self, to: &Address, chunk: Chunk) -> Result<(), SendError> {
        self.queue(chunk.len(), |outbox| outbox.push_chunk(Some(to.clone()), chunk))
    }

    fn queue(&mut self, bytes: usize, push: impl FnOnce(&mut DatagramOutbox)) -> Result<(), SendError> {
        let Reactor { sources, flow, .. } = &mut *self.reactor;
        let Some(Source::Datagrams(socket)) = sources.get_mut(self.id.0) else { return Err(SendError::Closed) };
        if socket.stage != Stage::Open {
            return Err(SendError::Closed);
        }
        let (queued, most) = (socket.outbox.in_memory(), socket.marks.most);
        if queued + bytes + DatagramOutbox::OVERHEAD > most {
            return Err(SendError::Full { bytes, queued, most });
        }
        push(&mut socket.outbox);
        flow.add(socket.outbox.in_memory() - queued);
        self.reactor.queue_datagram_flush(self.id.0);
        Ok(())
    }

    /// How many bytes of datagrams wait to be sent.
    pub fn queued(&mut self) -> usize {
        self.reactor.datagram_socket_mut(self.id.0).map_or(0, |socket| socket.outbox.bytes())
    }

    /// Whether [`drained`](super::Datagrams::drained) will be called.
    pub(crate) fn drains(&mut self) -> bool {
        self.reactor.datagram_socket_mut(self.id.0).is_some_and(|socket| socket.high)
    }

    /// How much may wait to be sent.
    pub fn water_marks(&mut self) -> WaterMarks {
        self.reactor.datagram_socket_mut(self.id.0).map_or_else(WaterMarks::default, |socket| socket.marks)
    }

    /// Sets how much may wait to be sent, with what the reactor needs to keep a datagram counted too. Unlike a connection, a
    /// socket that has much to send is still received from: pause it if its answers are the reason. What a reactor's sockets
    /// begin with is set by [`Builder::water_marks`](crate::Builder::water_marks).
    pub fn set_water_marks(&mut self, marks: WaterMarks) {
        if let Some(socket) = self.reactor.datagram_socket_mut(self.id.0) {
            socket.marks = WaterMarks { low: marks.low.min(marks.high), ..marks };
            self.reactor.queue_datagram_flush(self.id.0);
        }
    }
}

/// Ending.
impl DatagramIo<'_> {
    /// Closes the socket. What waits to be sent is dropped.
    pub fn close(&mut self) {
        self.close_with(Reason::Local);
    }

    /// Closes the socket, and has its handler told this reason.
    pub fn close_with(&mut self, reason: Reason) {
        self.reactor.datagrams_are_over(self.id.0, reason);
    }

    /// Closes the socket when everything that waits has been sent. Nothing more is received.
    pub fn close_after_sending(&mut self) {
        if let Some(socket) = self.reactor.datagram_socket_mut(self.id.0)
            && socket.stage == Stage::Open
        {
            socket.stage = Stage::Closing;
            self.reactor.set_receiving_datagrams(self.id.0);
            self.reactor.queue_datagram_flush(self.id.0);
        }
    }
}

/// Receiving.
impl DatagramIo<'_> {
    /// Stops receiving, until [`resume`](DatagramIo::resume). The kernel keeps what comes in meanwhile, as far as it has room.
    pub fn pause(&mut self) {
        self.set_paused(true);
    }

    /// Goes on receiving.
    pub fn resume(&mut self) {
        self.set_paused(false);
    }

    fn set_paused(&mut self, paused: bool) {
        if let Some(socket) = self.reactor.datagram_socket_mut(self.id.0) {
            socket.paused = paused;
            self.reactor.set_receiving_datagrams(self.id.0);
        }
    }

    /// Whether receiving was [stopped](DatagramIo::pause).
    pub fn is_paused(&mut self) -> bool {
        self.reactor.datagram_socket_mut(self.id.0).is_some_and(|socket| socket.paused)
    }
}

/// Multicast and broadcast.
impl DatagramIo<'_> {
    /// Receives what is sent to the group `group`, on `interface`.
    ///
    /// ```
    /// # use pelton::{Datagram, DatagramIo, DatagramOptions, Datagrams, MulticastInterface, Reactor};
    /// # use std::net::Ipv4Addr;
    /// # struct Listener;
    /// # impl Datagrams for Listener {
    /// #     fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
    /// # }
    /// let mut reactor = Reactor::new()?;
    /// // Others on this machine may listen to the same group.
    /// let options = DatagramOptions::default().reuse_address(true);
    /// let id = reactor.bind_datagrams_with(&"0.0.0.0:0".parse()?, &options, Listener)?;
    /// let interface = MulticastInterface::Address(Ipv4Addr::LOCALHOST);
    /// reactor.datagrams(id).unwrap().join_multicast([239, 1, 2, 3].into(), interface)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join_multicast(&mut self, group: IpAddr, interface: MulticastInterface) -> io::Result<()> {
        self.set(DatagramSetting::Join(group, interface))
    }

    /// Receives what is sent to the group no more.
    pub fn leave_multicast(&mut self, group: IpAddr, interface: MulticastInterface) -> io::Result<()> {
        self.set(DatagramSetting::Leave(group, interface))
    }

    /// Has what is sent to groups go out there.
    pub fn set_multicast_interface(&mut self, interface: MulticastInterface) -> io::Result<()> {
        self.set(DatagramSetting::MulticastInterface(interface))
    }

    /// Whether what is sent to groups is heard on this machine too, which it is by default.
    pub fn set_multicast_loop(&mut self, on: bool) -> io::Result<()> {
        self.set(DatagramSetting::MulticastLoop(on))
    }

    /// How far what is sent to groups goes: 1, the default, is this network; each router on the way takes off one.
    pub fn set_multicast_ttl(&mut self, hops: u32) -> io::Result<()> {
        self.set(DatagramSetting::MulticastTtl(hops))
    }

    /// Whether it may send to broadcast addresses, which it may not by default.
    pub fn set_broadcast(&mut self, on: bool) -> io::Result<()> {
        self.set(DatagramSetting::Broadcast(on))
    }

    fn set(&mut self, setting: DatagramSetting) -> io::Result<()> {
        self.reactor.engine.set_datagrams(self.id.0, setting)
    }
}

/// Looking around.
impl DatagramIo<'_> {
    /// The socket's name.
    pub fn id(&self) -> DatagramsId {
        self.id
    }

    /// The reactor, to do anything else with.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Gives the socket a name of your own, to be read in reports.
    pub fn set_label(&mut self, label: impl Into<Arc<str>>) {
        self.reactor.label(self.id, label);
    }

    /// Whether it is neither over nor being closed.
    pub fn is_open(&mut self) -> bool {
        self.reactor.datagram_socket_mut(self.id.0).is_some_and(|socket| socket.stage == Stage::Open)
    }

    /// Where it receives, with the port that it was given if that was left open.
    pub fn local_address(&self) -> io::Result<Address> {
        self.reactor.engine.local_address(self.id.0)
    }

    /// Whom it is connected to.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.reactor.engine.peer_address(self.id.0)
    }

    /// The socket's descriptor, to set options on with [`SocketOptions`](crate::SocketOptions) or otherwise. Receiving, sending
    /// and closing is the reactor's. `None` on an engine that has no descriptors.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.engine.descriptor(self.id.0)
    }
}
