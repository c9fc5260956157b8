//! The operations of a handler on its datagram socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use pelton_os::{Address, Chunk, DatagramOutbox, DatagramSetting, MulticastInterface};

use super::socket::Stage;
use super::{DatagramSocket, DatagramsId};
use crate::reactor::source::Source;
use crate::{Reactor, Reason, SendError, WaterMarks};

/// Gives access to a datagram socket and its reactor. Callbacks of [`Datagrams`](super::Datagrams) receive it.
pub struct DatagramIo<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) id: DatagramsId,
}

/// Sending. Datagrams sent while a received batch is handled go out together, after the last datagram of the batch. All
/// others go out in the turn's next flush. Failures are reported later by
/// [`send_failed`](super::Datagrams::send_failed).
impl DatagramIo<'_> {
    /// Sends a copy of `bytes` to the connected peer. On a socket that is not connected, the send fails later.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(None, bytes))
    }

    /// Sends a copy of `bytes` to `to`.
    pub fn send_to(&mut self, to: &Address, bytes: &[u8]) -> Result<(), SendError> {
        self.queue(bytes.len(), |outbox| outbox.push_copy(Some(to.clone()), bytes))
    }

    /// Sends `bytes` to the connected peer without copying them.
    pub fn send_bytes(&mut self, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(None, bytes))
    }

    /// Sends `bytes` to `to` without copying them.
    pub fn send_bytes_to(&mut self, to: &Address, bytes: impl Into<Bytes>) -> Result<(), SendError> {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(Some(to.clone()), bytes))
    }

    /// Sends a received chunk to the connected peer without copying it.
    pub fn send_chunk(&mut self, chunk: Chunk) -> Result<(), SendError> {
        self.queue(chunk.len(), |outbox| outbox.push_chunk(None, chunk))
    }

    /// Sends a received chunk to `to` without copying it.
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

    /// Returns the number of bytes in queued datagrams.
    pub fn queued(&mut self) -> usize {
        self.reactor.datagram_socket_mut(self.id.0).map_or(0, |socket| socket.outbox.bytes())
    }

    /// Returns whether [`writable`](super::Datagrams::writable) will be called.
    pub(crate) fn drains(&mut self) -> bool {
        self.reactor.datagram_socket_mut(self.id.0).is_some_and(|socket| socket.above_high)
    }

    /// Returns the water marks of the send queue.
    pub fn water_marks(&mut self) -> WaterMarks {
        self.reactor.datagram_socket_mut(self.id.0).map_or_else(WaterMarks::default, |socket| socket.marks)
    }

    /// Sets the water marks of the send queue. The overhead of each queued datagram counts too. Unlike a connection, a
    /// socket still receives while its queue is above the high-water mark: pause it if its answers fill the queue.
    /// [`Builder::water_marks`](crate::Builder::water_marks) sets the initial ones.
    pub fn set_water_marks(&mut self, marks: WaterMarks) {
        if let Some(socket) = self.reactor.datagram_socket_mut(self.id.0) {
            socket.marks = WaterMarks { low: marks.low.min(marks.high), ..marks };
            self.reactor.queue_datagram_flush(self.id.0);
        }
    }
}

/// Ending.
impl DatagramIo<'_> {
    /// Closes the socket and drops its send queue.
    pub fn close(&mut self) {
        self.close_with(Reason::Local);
    }

    /// Closes the socket and passes `reason` to its handler's `closed`.
    pub fn close_with(&mut self, reason: Reason) {
        self.reactor.datagrams_are_over(self.id.0, reason);
    }

    /// Closes the socket when everything queued has been sent. Nothing more is received.
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
    /// Stops receiving until [`resume`](DatagramIo::resume). The kernel buffers datagrams meanwhile, as long as it has
    /// room.
    pub fn pause(&mut self) {
        self.reactor.pause_transport::<DatagramSocket>(self.id.0);
    }

    /// Resumes receiving.
    pub fn resume(&mut self) {
        self.reactor.resume_transport::<DatagramSocket>(self.id.0);
    }

    /// Returns whether receiving is [paused](DatagramIo::pause).
    pub fn is_paused(&mut self) -> bool {
        self.reactor.transport_is_paused::<DatagramSocket>(self.id.0)
    }
}

/// Multicast and broadcast.
impl DatagramIo<'_> {
    /// Joins the multicast group `group` on `interface`.
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

    /// Leaves a multicast group.
    pub fn leave_multicast(&mut self, group: IpAddr, interface: MulticastInterface) -> io::Result<()> {
        self.set(DatagramSetting::Leave(group, interface))
    }

    /// Sets the interface on which multicast datagrams are sent.
    pub fn set_multicast_interface(&mut self, interface: MulticastInterface) -> io::Result<()> {
        self.set(DatagramSetting::MulticastInterface(interface))
    }

    /// Sets whether multicast datagrams are also delivered on this machine. Enabled by default.
    pub fn set_multicast_loop(&mut self, on: bool) -> io::Result<()> {
        self.set(DatagramSetting::MulticastLoop(on))
    }

    /// Sets the time to live of multicast datagrams: each router on the way subtracts one. With 1, the default, they
    /// stay on the local network.
    pub fn set_multicast_ttl(&mut self, hops: u32) -> io::Result<()> {
        self.set(DatagramSetting::MulticastTtl(hops))
    }

    /// Allows or forbids sending to broadcast addresses. Forbidden by default.
    pub fn set_broadcast(&mut self, on: bool) -> io::Result<()> {
        self.set(DatagramSetting::Broadcast(on))
    }

    fn set(&mut self, setting: DatagramSetting) -> io::Result<()> {
        self.reactor.engine.set_datagrams(self.id.0, setting)
    }
}

/// Access to the socket's properties.
impl DatagramIo<'_> {
    /// Returns the socket's id.
    pub fn id(&self) -> DatagramsId {
        self.id
    }

    /// Returns the reactor.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Gives the socket a label, which reports print.
    pub fn set_label(&mut self, label: impl Into<Arc<str>>) {
        self.reactor.label(self.id, label);
    }

    /// Returns whether the socket is neither over nor closing.
    pub fn is_open(&mut self) -> bool {
        self.reactor.datagram_socket_mut(self.id.0).is_some_and(|socket| socket.stage == Stage::Open)
    }

    /// Returns the local address. If the requested port was 0, it has the assigned port.
    pub fn local_address(&self) -> io::Result<Address> {
        self.reactor.engine.local_address(self.id.0)
    }

    /// Returns the address of the connected peer.
    pub fn peer_address(&self) -> io::Result<Address> {
        self.reactor.engine.peer_address(self.id.0)
    }

    /// Returns the socket's descriptor, for example to set options with [`SocketOptions`](crate::SocketOptions). Do not
    /// receive, send or close it: the reactor does. Returns `None` on an engine without descriptors.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.engine.descriptor(self.id.0)
    }
}
