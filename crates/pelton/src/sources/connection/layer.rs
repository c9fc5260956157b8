//! Layers: code between the engine and the handler of a connection that transforms the bytes, such as TLS or a proxy's
//! handshake.
//!
//! ```text
//!             handler
//!   received ▲       │ send
//!            │       ▼
//!         ┌─────────────┐
//!         │    layer    │  top: the last one pushed
//!         └─────────────┘
//!   deliver  ▲       │ transmit
//!            │       ▼
//!         ┌─────────────┐
//!         │    layer    │  bottom: next to the wire
//!         └─────────────┘
//!   receive  ▲       │ transmit
//!            │       ▼
//!             engine
//! ```
//!
//! This file has the interface: the [`Layer`] trait. In the folder `layer/`, `stack.rs` has the state of a connection's
//! layers, `io.rs` the operations of a layer, `input.rs` moves bytes up and `output.rs` moves them down. `account.rs`
//! counts how many bytes of the handler are on the way. `pushing.rs` puts layers on a connection.

mod account;
mod input;
mod io;
mod output;
mod pushing;
mod stack;

use std::any::Any;
use std::io::IoSlice;
use std::task::Poll;

pub use io::LayerIo;
pub use pushing::Layered;
pub(super) use stack::Layers;

use super::Reason;

/// Transforms the bytes of a connection between the wire and its [handler](super::Connection). A layer can be put on a
/// connection before it [opens](Layered), or [later](super::Io::push_layer). Layers stack.
///
/// The handler does not notice a layer: water marks, limits, pausing, finishing and closing work as without one. A layer
/// is called on the loop's thread, and never again after an error. The error is the [`Reason`] that the
/// handler receives when everything delivered before has been processed. What the layer has transmitted, such as an
/// alert, is still sent.
///
/// A layer that has to wait, for example for a computation on another thread, calls [`LayerIo::wait`] and is not called
/// until [`Reactor::wake_layers`](crate::Reactor::wake_layers).
///
/// ```
/// use std::io::{IoSlice, Read, Write};
///
/// use pelton::{Chunk, Connection, Io, Layer, LayerIo, Layered, Reactor, Reason};
///
/// /// Flips all bits, in both directions.
/// struct Flip;
///
/// impl Layer for Flip {
///     fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
///         let flipped: Vec<u8> = input.iter().map(|byte| !byte).collect();
///         io.deliver(flipped.into());
///         Ok(input.len())
///     }
///
///     fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
///         let flipped: Vec<u8> = output.iter().flat_map(|slice| slice.iter()).map(|byte| !byte).collect();
///         io.transmit_bytes(flipped.clone());
///         Ok(flipped.len())
///     }
/// }
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         assert_eq!(&*chunk, b"water");
///         io.send_chunk(chunk).ok();
///     }
/// }
///
/// let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// reactor.adopt(ours, Layered::new(Echo, |io| io.push_layer(Flip)))?;
/// let flipped = b"water".map(|byte| !byte);
/// theirs.write_all(&flipped)?;
/// theirs.shutdown(std::net::Shutdown::Write)?;
/// reactor.run_until(|reactor| reactor.connection_count() == 0)?;
/// let mut answer = Vec::new();
/// theirs.read_to_end(&mut answer)?;
/// assert_eq!(answer, flipped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Layer: Any {
    /// Called first, when the connection is established and all layers below are ready. A client's handshake begins
    /// here. By default the layer is [ready](LayerIo::ready) immediately.
    ///
    /// A layer that is not ready receives input, but no output to send.
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        io.ready();
        Ok(())
    }

    /// Called with bytes from below. Returns how many of them it has processed. The rest is kept: the next call has it
    /// again, with the bytes that have arrived meanwhile. The call is repeated until nothing is left or nothing was
    /// processed.
    ///
    /// Reading stops while more than 64 KiB are kept for a layer. A layer that needs more at once must buffer it
    /// itself.
    ///
    /// Deliver about as much per call as was received. A layer that can deliver much more, such as a decompressor,
    /// should ask to be called [again](LayerIo::again) instead. It is then called when the handler wants more.
    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason>;

    /// Called with bytes from above. Returns how many of them it has processed. The rest stays in the queue. The call
    /// is repeated while there is more, unless nothing was processed or much waits below to be sent. After a call that
    /// processed nothing, this is called again after the next [`receive`](Layer::receive) or
    /// [`woken`](Layer::woken).
    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason>;

    /// Called after [`Reactor::wake_layers`](crate::Reactor::wake_layers).
    fn woken(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        let _ = io;
        Ok(())
    }

    /// Called when this side finishes sending or closes after writing, and all bytes from above have been sent. A layer
    /// transmits its closing message here. Returns whether it is done. If not, this is called again after the next
    /// [`receive`](Layer::receive) or [`woken`](Layer::woken).
    ///
    /// It is not called if the connection is [closed](super::Io::close) without writing.
    fn finish(&mut self, io: &mut LayerIo<'_>) -> Result<Poll<()>, Reason> {
        let _ = io;
        Ok(Poll::Ready(()))
    }

    /// Called when nothing more comes from below. `unread` has the bytes that [`receive`](Layer::receive) did not
    /// process. By default this is the [end](LayerIo::end) for the handler as well, or [`Reason::Truncated`] if there
    /// are such bytes.
    ///
    /// It is not called if the layer itself has [ended](LayerIo::end) the stream.
    fn peer_finished(&mut self, io: &mut LayerIo<'_>, unread: &[u8]) -> Result<(), Reason> {
        if !unread.is_empty() {
            return Err(Reason::Truncated);
        }
        io.end();
        Ok(())
    }

    /// Returns how many bytes from above the layer has processed but not transmitted yet. They count as queued, and
    /// [`finish`](Layer::finish) waits for them. By default 0.
    fn held(&self) -> usize {
        0
    }
}
