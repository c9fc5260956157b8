//! Passes the body of a response on: counted, limited, decompressed.

use pelton::Reactor;

use crate::client::call::Call;
use crate::client::decompress::Decoder;
use crate::client::error::ErrorKind;
use crate::client::pool::Shared;
use crate::client::response::ResponseEvent;

/// The way of a body from the reader to the receiver.
pub(super) struct Intake {
    pub(super) decoder: Option<Decoder>,
    /// Compressed bytes that have arrived while the call is paused.
    undecoded: Vec<u8>,
    /// Bytes of the body so far, decompressed.
    received: u64,
    /// The maximum of `received`.
    pub(super) most: u64,
}

impl Default for Intake {
    fn default() -> Intake {
        Intake { decoder: None, undecoded: Vec::new(), received: 0, most: u64::MAX }
    }
}

impl Intake {
    /// Prepares for another response. Keeps the memory.
    pub(super) fn clear(&mut self) {
        self.undecoded.clear();
        (self.decoder, self.received, self.most) = (None, 0, u64::MAX);
    }

    /// Counts bytes that are skipped. Returns how many there were.
    pub(super) fn skip(&mut self, data: &[u8]) -> u64 {
        self.received += data.len() as u64;
        self.received
    }

    pub(super) fn deliver(
        &mut self,
        reactor: &mut Reactor,
        shared: &Shared,
        call: &Call,
        data: &[u8],
    ) -> Result<(), ErrorKind> {
        if self.decoder.is_some() {
            return self.decode(reactor, shared, call, data);
        }
        self.count(data)?;
        call.tell(reactor, ResponseEvent::Data(data));
        Ok(())
    }

    /// Whether data has arrived that is not decoded yet.
    pub(super) fn has_undecoded(&self) -> bool {
        !self.undecoded.is_empty()
    }

    /// Decodes what has arrived while the call was paused.
    pub(super) fn resume(&mut self, reactor: &mut Reactor, shared: &Shared, call: &Call) -> Result<(), ErrorKind> {
        let undecoded = std::mem::take(&mut self.undecoded);
        self.decode(reactor, shared, call, &undecoded)
    }

    fn count(&mut self, data: &[u8]) -> Result<(), ErrorKind> {
        self.received += data.len() as u64;
        if self.received > self.most { Err(ErrorKind::TooLarge { limit: self.most }) } else { Ok(()) }
    }

    /// Decompresses data and passes it on, until the call is paused.
    fn decode(
        &mut self,
        reactor: &mut Reactor,
        shared: &Shared,
        call: &Call,
        mut data: &[u8],
    ) -> Result<(), ErrorKind> {
        let mut out = shared.scratch.take();
        let outcome = loop {
            let Some(decoder) = &mut self.decoder else { break Ok(()) };
            if call.paused.get() || call.is_over() {
                self.undecoded.extend_from_slice(data);
                break Ok(());
            }
            out.clear();
            match decoder.step(data, &mut out) {
                Ok(used) => data = &data[used..],
                Err(_) => break Err(ErrorKind::Undecodable(decoder.name())),
            }
            if out.is_empty() && data.is_empty() {
                break Ok(());
            }
            if let Err(kind) = self.count(&out) {
                break Err(kind);
            }
            if !out.is_empty() {
                call.tell(reactor, ResponseEvent::Data(&out));
            }
        };
        shared.keep_scratch(out);
        outcome
    }

    /// The body is complete.
    pub(super) fn finish(&mut self, reactor: &mut Reactor, call: &Call) -> Result<(), ErrorKind> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        let mut out = Vec::new();
        decoder.finish(&mut out).map_err(|_| ErrorKind::Undecodable(decoder.name()))?;
        self.count(&out)?;
        if !out.is_empty() {
            call.tell(reactor, ResponseEvent::Data(&out));
        }
        Ok(())
    }
}
