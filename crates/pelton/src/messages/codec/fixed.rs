//! Messages of a fixed length.

use bytes::Bytes;

use super::{Buffer, Codec, FrameError};

/// Messages of a fixed length.
///
/// ```
/// use pelton::codec::{Codec, Fixed, FrameError};
///
/// let mut codec = Fixed::new(4);
/// let error = codec.encode(&"hello".into(), &mut Vec::new());
/// assert_eq!(error, Err(FrameError::WrongLength { length: 5, needed: 4 }));
/// ```
#[derive(Clone, Debug)]
pub struct Fixed {
    length: usize,
}

impl Fixed {
    /// Creates a codec for messages of `length` bytes each.
    ///
    /// # Panics
    ///
    /// If `length` is 0: any input would contain infinitely many messages.
    pub fn new(length: usize) -> Fixed {
        assert!(length > 0, "a message has at least one byte");
        Fixed { length }
    }
}

impl Codec for Fixed {
    type Message = Bytes;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        Ok(buffer.take(self.length).map(Bytes::from))
    }

    fn encode(&mut self, message: &Bytes, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if message.len() != self.length {
            return Err(FrameError::WrongLength { length: message.len(), needed: self.length });
        }
        out.extend_from_slice(message);
        Ok(())
    }
}
