//! Codecs: splitting a stream of bytes into messages.
//!
//! A [`Codec`] decodes messages from a [`Buffer`] of received bytes, and encodes messages to bytes. There is one for
//! each of the common framings:
//!
//! | codec | a message is |
//! |---|---|
//! | [`Lines`] | a line of text |
//! | [`Delimiter`] | bytes up to a delimiter |
//! | [`Fixed`] | a fixed number of bytes |
//! | [`LengthPrefixed`] | bytes, preceded by their length in one of the usual encodings |
//! | [`HeaderAndContent`] | header lines, an empty line, and content whose length a header names |
//! | [`Netstring`] | bytes, preceded by their length in decimal and followed by a comma |
//! | [`Raw`] | all bytes received so far |
//!
//! The messages do not depend on how the bytes are split in transit, and decoding takes linear time. Each codec has a
//! limit and rejects a longer frame as soon as its length is known. A peer can therefore make this side buffer at most
//! that limit plus one read.
//!
//! Binary messages are [`Bytes`](crate::Bytes), so one sent to many connections is shared instead of copied.

mod buffer;
mod delimiter;
mod fixed;
mod header_and_content;
mod length_prefixed;
mod lines;
mod netstring;
mod raw;
mod search;

pub use buffer::Buffer;
pub(crate) use buffer::Rest;
pub use delimiter::Delimiter;
pub use fixed::Fixed;
pub use header_and_content::{Headed, HeaderAndContent, Headers};
pub use length_prefixed::{LengthPrefixed, Prefix};
pub use lines::Lines;
pub use netstring::Netstring;
pub use raw::Raw;
pub use search::{Found, Search};

/// Default limit for a piece of text (a line, a header) in bytes: as much as one read delivers at most. Text written by
/// people or simple programs stays far below.
pub const TEXT_LIMIT: usize = 64 * 1024;

/// Default limit for a frame in bytes. It is more than most messages need. A thousand peers that each withhold the last
/// byte of a frame occupy one gigabyte.
pub const FRAME_LIMIT: usize = 1024 * 1024;

/// Decodes messages from bytes, and encodes messages to bytes.
///
/// ```
/// use pelton::codec::{Buffer, Codec, FrameError};
///
/// /// A temperature, as the sensor sends it: tenths of a degree, in two bytes.
/// struct Temperatures;
///
/// impl Codec for Temperatures {
///     type Message = f32;
///
///     fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<f32>, FrameError> {
///         let Some(bytes) = buffer.take(2) else { return Ok(None) };
///         Ok(Some(f32::from(i16::from_be_bytes([bytes[0], bytes[1]])) / 10.0))
///     }
///
///     fn encode(&mut self, message: &f32, out: &mut Vec<u8>) -> Result<(), FrameError> {
///         out.extend_from_slice(&((message * 10.0) as i16).to_be_bytes());
///         Ok(())
///     }
/// }
///
/// let mut buffer = Buffer::new();
/// buffer.feed(vec![0, 215, 0].into());
/// assert_eq!(Temperatures.decode(&mut buffer), Ok(Some(21.5)));
/// assert_eq!(Temperatures.decode(&mut buffer), Ok(None));
/// assert_eq!(Temperatures.finished(&mut buffer), Err(FrameError::Unfinished { bytes: 1 }));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a codec",
    label = "not a `Codec`",
    note = "the module `pelton::codec` has codecs for the common framings; implement `Codec` for others"
)]
pub trait Codec: 'static {
    /// The type of the messages.
    type Message: 'static;

    /// Decodes the next message from `buffer`, or returns `None` if it is incomplete. Not called again after an error,
    /// because the start of the next message is unknown.
    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Self::Message>, FrameError>;

    /// Appends the bytes of `message` to `out`. On error, leaves `out` unchanged.
    fn encode(&mut self, message: &Self::Message, out: &mut Vec<u8>) -> Result<(), FrameError>;

    /// Called at the end of the input, after [`decode`](Codec::decode) has decoded all it could. A codec whose last
    /// message ends with the input returns it here. By default, remaining bytes are an error.
    ///
    /// A codec that takes a frame out of the buffer in several parts must check here whether one is incomplete.
    fn finished(&mut self, buffer: &mut Buffer) -> Result<Option<Self::Message>, FrameError> {
        finished_after(0, buffer)
    }
}

/// Returns the outcome of [`Codec::finished`] for a codec that has taken `begun` bytes of the current frame out of the
/// buffer.
fn finished_after<M>(begun: usize, buffer: &Buffer) -> Result<Option<M>, FrameError> {
    match begun + buffer.len() {
        0 => Ok(None),
        bytes => Err(FrameError::Unfinished { bytes }),
    }
}

/// Why bytes could not be decoded, or a message could not be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It exceeds the codec's limit.
    #[error("{what} of more than {limit} bytes")]
    TooLong {
        /// Which part: "a line", "a frame", "a header", ...
        what: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// Its length differs from the fixed length of the codec's messages.
    #[error("a message of {length} bytes where the codec requires {needed}")]
    WrongLength {
        /// Its length.
        length: usize,
        /// The required length.
        needed: usize,
    },
    /// It is malformed.
    #[error("{what}")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The input ended in the middle of a frame.
    #[error("the input ended {bytes} bytes into a frame")]
    Unfinished {
        /// How many bytes of the frame had arrived.
        bytes: usize,
    },
}
