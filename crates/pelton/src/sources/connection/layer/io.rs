//! The operations of a layer.

use std::io;

use bytes::Bytes;
use pelton_os::{Chunk, Outbox, Token};

use super::stack::{Calls, Level, Phase};
use crate::Reactor;
#[cfg(doc)]
use crate::Reason;
use crate::reactor::source::Source;
use crate::sources::connection::io::Input;
use crate::sources::connection::{ConnectionId, Io};

/// Gives a [layer](super::Layer) access to its connection.
pub struct LayerIo<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) token: Token,
    /// The level of the layer.
    pub(super) level: u32,
}

/// Towards the wire.
impl LayerIo<'_> {
    /// Sends a copy of `bytes` to the level below, which is another layer or the engine.
    ///
    /// Nothing is refused here. If more bytes than [`WaterMarks::most`](crate::WaterMarks::most), and more than 64 KiB, wait
    /// below a layer that it has transmitted on its own, not when it was given bytes to send, the connection is closed with
    /// [`Reason::Overflow`]: the peer makes the layer answer and does not read.
    pub fn transmit(&mut self, bytes: &[u8]) {
        self.queue(bytes.len(), |outbox| outbox.push_copy(bytes));
    }

    /// Sends `bytes` to the level below without copying them.
    pub fn transmit_bytes(&mut self, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.queue(bytes.len(), |outbox| outbox.push_bytes(bytes));
    }

    /// Sends the contents of `block` to the level below and leaves it empty, often with different memory.
    pub fn transmit_block(&mut self, block: &mut Vec<u8>) {
        self.queue(block.len(), |outbox| outbox.push_block(block));
    }

    fn queue(&mut self, bytes: usize, push: impl FnOnce(&mut Outbox)) {
        let Reactor { sources, connections, flow, .. } = &mut *self.reactor;
        let Some(Source::Connection(stream)) = sources.get_mut(self.token) else { return };
        if !stream.may_write() {
            return;
        }
        let Some(level) = stream.layers_mut().and_then(|layers| layers.level_mut(self.level)) else { return };
        level.transmits(bytes);
        push(level.below.get_or_insert_with(|| connections.spare_outboxes.pop().unwrap_or_default()));
        flow.add(bytes);
    }
}

/// `write` is [`transmit`](LayerIo::transmit), for libraries that write to a [`Write`](io::Write). It never fails.
impl io::Write for LayerIo<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.transmit(bytes);
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        slices.iter().for_each(|slice| self.transmit(slice));
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Towards the handler.
impl LayerIo<'_> {
    /// Passes bytes to the level above, which is another layer or the handler. If the handler has paused, they are held.
    pub fn deliver(&mut self, chunk: Chunk) {
        if chunk.is_empty() {
            return;
        }
        let Some(stream) = self.reactor.stream_mut(self.token) else { return };
        let Some(layers) = stream.layers_mut() else { return };
        let Some(index) = layers.index(self.level).filter(|index| !layers.levels[*index].ended) else { return };
        match layers.levels.get_mut(index + 1) {
            Some(above) => above.input.push(chunk),
            None => {
                stream.used = true;
                stream.extra().held.push_back(Input::Chunk(chunk));
            }
        }
    }

    /// Calls `read` with a buffer of 64 KiB of the reactor and passes the bytes with which `read` says it has filled it
    /// to the level above. Unlike with [`deliver`](LayerIo::deliver), nothing is allocated as long as the handler drops
    /// its chunks. Returns the number of bytes.
    ///
    /// ```
    /// # use pelton::LayerIo;
    /// # use std::io::Read;
    /// # fn example(io: &mut LayerIo<'_>, mut plaintext: impl Read) -> std::io::Result<()> {
    /// while io.deliver_with(|buffer| plaintext.read(buffer))? > 0 {}
    /// # Ok(())
    /// # }
    /// ```
    pub fn deliver_with<E>(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let chunk = self.reactor.connections.buffers.fill(read)?;
        let count = chunk.len();
        self.deliver(chunk);
        Ok(count)
    }

    /// Ends the stream for the level above: the peer has finished. Later bytes are discarded.
    pub fn end(&mut self) {
        let Some(stream) = self.reactor.stream_mut(self.token) else { return };
        let Some(layers) = stream.layers_mut() else { return };
        let Some(index) = layers.index(self.level) else { return };
        if std::mem::replace(&mut layers.levels[index].ended, true) {
            return;
        }
        match layers.levels.get_mut(index + 1) {
            Some(above) => above.input.ended = true,
            None => stream.extra().held.push_back(Input::End),
        }
    }
}

/// The layer itself.
impl LayerIo<'_> {
    /// Marks the layer as ready: it now gets output to send. When all layers are ready, the handler's
    /// [`opened`](crate::Connection::opened) is called, or [`layer_ready`](crate::Connection::layer_ready) if the
    /// connection was open when the layer was pushed.
    pub fn ready(&mut self) {
        if let Some(level) = self.level_mut()
            && !level.is_ready()
        {
            level.phase = Phase::Ready;
            level.output_blocked = false;
        }
    }

    /// Removes the layer when its current call returns, for example after the handshake with a proxy. Unprocessed input
    /// goes to the level above, and the layer counts as ready.
    pub fn leave(&mut self) {
        if let Some(level) = self.level_mut() {
            level.phase = Phase::Leaves;
        }
    }

    /// Calls the layer's [`receive`](super::Layer::receive) again, even without new input, as soon as the level above
    /// wants more.
    pub fn again(&mut self) {
        self.set_calls(Calls::Again);
    }

    /// Makes the reactor not call the layer until [`Reactor::wake_layers`]. Input and output are kept meanwhile.
    pub fn wait(&mut self) {
        self.set_calls(Calls::Waits);
    }

    fn set_calls(&mut self, calls: Calls) {
        if let Some(level) = self.level_mut()
            && level.calls != Calls::Woken
        {
            level.calls = calls;
        }
    }

    fn level_mut(&mut self) -> Option<&mut Level> {
        self.reactor.stream_mut(self.token)?.layers_mut()?.level_mut(self.level)
    }

    /// Returns the connection's id, to [wake](Reactor::wake_layers) the layer later.
    pub fn id(&self) -> ConnectionId {
        ConnectionId(self.token)
    }

    /// Returns the reactor.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }

    /// Returns the connection as its handler sees it, for its addresses, limits and label. What is sent on it goes
    /// through the layers.
    pub fn connection(&mut self) -> Io<'_> {
        Io { reactor: self.reactor, id: ConnectionId(self.token) }
    }
}
