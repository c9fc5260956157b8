//! No framing.

use bytes::Bytes;

use super::{Buffer, Codec, FrameError};

/// No framing: a message is all bytes received so far, and it is sent unchanged. Nothing is buffered, so there is no
/// limit.
#[derive(Clone, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    type Message = Bytes;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        if buffer.is_empty() {
            return Ok(None);
        }
        Ok(buffer.take(buffer.len()).map(Bytes::from))
    }

    fn encode(&mut self, message: &Bytes, out: &mut Vec<u8>) -> Result<(), FrameError> {
        out.extend_from_slice(message);
        Ok(())
    }
}
