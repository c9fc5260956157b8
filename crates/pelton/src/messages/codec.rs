//! Codecs: where one message ends and the next begins in a stream of bytes.
//!
//! A [`Codec`] takes messages out of a [`Buffer`], which holds what has come in, and writes messages as bytes. There is
//! one for each of the common ways to frame messages:
//!
//! | codec | a message is |
//! |---|---|
//! | [`Lines`] | a line of text |
//! | [`Delimiter`] | bytes up to a delimiter |
//! | [`Fixed`] | so many bytes |
//! | [`LengthPrefixed`] | bytes, after their number in one of the usual encodings |
//! | [`HeaderAndContent`] | header lines, an empty line, and content whose length a header names |
//! | [`Netstring`] | bytes, after their number in decimal, and before a comma |
//! | [`Raw`] | whatever has come in |
//!
//! However the bytes are cut on their way, the messages are the same, and decoding takes time in proportion to the bytes.
//! Each codec has a limit, past which a frame is refused as soon as its length is known: what a peer can make this
//! side keep is that limit and what one read brings.
//!
//! Messages that are bytes are [`Bytes`](crate::Bytes): one that goes to many connections is shared, not copied for each.

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

/// How long a piece of text (a line, a header) may be, in bytes, unless the codec is told otherwise: as much as one read
/// brings at most. Text that people or simple programs write stays far below.
pub const TEXT_LIMIT: usize = 64 * 1024;

/// How long a frame may be, in bytes, unless the codec is told otherwise: more than most messages need, and so little that
/// a thousand peers which each hold back the last byte of one take up a gigabyte, not the machine.
pub const FRAME_LIMIT: usize = 1024 * 1024;

/// Takes messages out of bytes, and makes bytes of messages.
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
    /// What it decodes and encodes.
    type Message: 'static;

    /// Takes the next message out of `buffer`; `None` if it is not there yet. After an error it is not called again: where
    /// the next message would begin is anybody's guess.
    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Self::Message>, FrameError>;

    /// Appends the bytes of `message` to `out`. What it refuses leaves `out` as it was.
    fn encode(&mut self, message: &Self::Message, out: &mut Vec<u8>) -> Result<(), FrameError>;

    /// Nothing more will come in, and [`decode`](Codec::decode) has taken out all it could. A codec whose last message
    /// ends with the input gives it here. By default, bytes that are left are an error.
    ///
    /// A codec that takes out a frame in several parts has to know here if it is in the middle of one.
    fn finished(&mut self, buffer: &mut Buffer) -> Result<Option<Self::Message>, FrameError> {
        finished_after(0, buffer)
    }
}

/// The outcome of [`Codec::finished`] for a codec that has taken `begun` bytes of the frame at hand out of the buffer.
fn finished_after<M>(begun: usize, buffer: &Buffer) -> Result<Option<M>, FrameError> {
    match begun + buffer.len() {
        0 => Ok(None),
        bytes => Err(FrameError::Unfinished { bytes }),
    }
}

/// Why bytes are not a message, or a message cannot be made bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It is longer than the codec allows.
    #[error("{what} of more than {limit} bytes")]
    TooLong {
        /// What is: "a line", "a frame", "a header", ...
        what: &'static str,
        /// How long it may be.
        limit: usize,
    },
    /// It is shorter or longer than all messages of this codec are.
    #[error("a message of {length} bytes where all have {needed}")]
    WrongLength {
        /// How long it is.
        length: usize,
        /// How long it has to be.
        needed: usize,
    },
    /// It does not have the form that it should.
    #[error("{what}")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The input ended in the middle of a frame.
    #[error("the input ended {bytes} bytes into a frame")]
    Unfinished {
        /// How much of it had come.
        bytes: usize,
    },
}
