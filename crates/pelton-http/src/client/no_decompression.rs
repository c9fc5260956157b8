//! In place of the decoders, without the feature `decompression`.

use std::convert::Infallible;

/// No decoder.
pub(super) struct Decoder(Infallible);

impl Decoder {
    pub(super) fn of(_: &[u8]) -> Option<Decoder> {
        None
    }

    pub(super) fn name(&self) -> &'static str {
        match self.0 {}
    }

    pub(super) fn step(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<usize, Infallible> {
        match self.0 {}
    }

    pub(super) fn finish(&mut self, _: &mut Vec<u8>) -> Result<(), Infallible> {
        match self.0 {}
    }
}
