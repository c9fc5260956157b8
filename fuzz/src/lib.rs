//! Properties that every codec must have, for any input.

#![forbid(unsafe_code)]

use std::fmt::Debug;

use pelton::codec::Buffer;
use pelton::{Chunk, Codec, FrameError};

/// The longest frame that targets allow: short, so that the limits are reached often.
pub const LIMIT: usize = 64;

/// The fuzzer's input: a choice, seven lengths, and the bytes of a connection.
pub struct Input<'a> {
    /// Selects among variants of a codec.
    pub choice: usize,
    /// Lengths of the pieces in which the input arrives, repeated.
    cuts: [u8; 7],
    /// The input.
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Parses the fuzzer's data. Returns `None` if it is too short.
    pub fn new(data: &'a [u8]) -> Option<Input<'a>> {
        let ([choice, cuts @ ..], bytes) = data.split_first_chunk::<8>()?;
        Some(Input { choice: usize::from(*choice), cuts: *cuts, bytes })
    }

    /// Returns the input in pieces, as the fuzzer split it.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.bytes;
        let mut cuts = self.cuts.into_iter().cycle();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            // Empty pieces are possible, but not forever.
            let cut = usize::from(cuts.next()?).min(rest.len()).max(usize::from(self.cuts == [0; 7]));
            let (piece, left) = rest.split_at(cut);
            rest = left;
            Some(piece)
        })
    }
}

/// The messages, and how the stream ended.
type Outcome<M> = (Vec<M>, Result<(), FrameError>);

/// Decodes the pieces of a stream, and checks that at most `memory` bytes are buffered for a frame.
pub fn decode<'a, C: Codec + Clone>(
    codec: &C,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    memory: usize,
) -> Outcome<C::Message> {
    let mut codec = codec.clone();
    let mut messages = Vec::new();
    let mut buffer = Buffer::new();
    let run = || {
        for piece in pieces {
            buffer.feed(Chunk::from(piece.to_vec()));
            while let Some(message) = codec.decode(&mut buffer)? {
                messages.push(message);
            }
            buffer.keep_rest();
            assert!(buffer.memory() <= memory, "{} bytes of memory, not {memory}", buffer.memory());
            assert!(!buffer.is_empty() || buffer.memory() == 0, "an empty buffer holds memory");
        }
        messages.extend(codec.finished(&mut buffer)?);
        Ok(())
    };
    let end = run();
    (messages, end)
}

/// Checks that messages and error do not depend on how the input is split, and that decoding what `writer` encodes yields the
/// same messages.
///
/// The writer is the codec itself, unless the codec cannot encode everything that it decodes.
pub fn check<C>(codec: &C, writer: &C, input: &Input<'_>, memory: usize)
where
    C: Codec<Message: PartialEq + Debug> + Clone,
{
    let whole = decode(codec, [input.bytes], memory);
    assert_eq!(decode(codec, input.pieces(), memory), whole, "in pieces or whole");
    assert_eq!(decode(codec, input.bytes.chunks(1), memory), whole, "byte by byte or whole");
    let (messages, _) = whole;
    let mut encoder = writer.clone();
    let mut out = Vec::new();
    for message in &messages {
        if let Err(error) = encoder.encode(message, &mut out) {
            panic!("encode {message:?}: {error}");
        }
    }
    assert_eq!(decode(writer, [&*out], usize::MAX), (messages, Ok(())), "decoding the encoded messages");
}
