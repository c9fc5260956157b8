//! Receives request bodies.

use pelton::Io;

use super::busy::{Answer, Kind};
use super::out::Out;
use super::{HttpConnection, Phase};
use crate::body::Reader;
use crate::wire::{Decoded, Fields, Refusal};
use crate::{BodyError, BodyEvent};

impl From<Refusal> for BodyError {
    fn from(refusal: Refusal) -> BodyError {
        BodyError::Refused(refusal)
    }
}

impl HttpConnection {
    /// Decodes body data. Returns the number of bytes consumed.
    pub(super) fn receive_body(&mut self, io: &mut Io<'_>, out: &mut Out, input: &[u8]) -> usize {
        let limits = self.shared.settings.chunks;
        let Some(body) = self.busy.as_mut().and_then(|busy| busy.body.as_mut()) else {
            debug_assert!(false, "no body is being received");
            self.phase = self.after_request();
            return 0;
        };
        let decoded = match &mut body.kind {
            Kind::Length(0) => Ok((0, Decoded::End)),
            Kind::Length(missing) => {
                let length = usize::try_from(*missing).unwrap_or(usize::MAX).min(input.len());
                *missing -= length as u64;
                let decoded = if length == 0 { Decoded::More } else { Decoded::Data(&input[..length]) };
                Ok((length, decoded))
            }
            Kind::Chunked(decoder) => decoder.decode(input, &limits),
        };
        match decoded {
            Ok((used, Decoded::More)) => used,
            Ok((used, Decoded::Data(data))) => {
                self.body_data(io, out, data);
                used
            }
            Ok((used, Decoded::End)) => {
                self.body_ends(io, out);
                used
            }
            Err(refusal) => {
                self.body_fails(io, out, refusal.into());
                input.len()
            }
        }
    }

    fn body_data(&mut self, io: &mut Io<'_>, out: &mut Out, data: &[u8]) {
        let discard = self.shared.settings.discard;
        let Some(body) = self.busy.as_mut().and_then(|busy| busy.body.as_mut()) else { return };
        body.received += data.len() as u64;
        body.wanted = false;
        body.window += data.len() as u64;
        if body.discarded {
            if body.received > discard {
                // The request is answered, and reading the rest would take longer than a new connection.
                self.drop_body();
            }
            return;
        }
        if body.received > body.limit {
            let limit = body.limit;
            return self.body_fails(io, out, BodyError::TooLarge { limit });
        }
        let sequence = body.sequence;
        let Some(mut reader) = body.reader.take() else { return };
        reader(io.reactor(), BodyEvent::Data(data));
        if let Some(body) = self.busy.as_mut().and_then(|busy| busy.body_of(sequence)).filter(|body| !body.discarded) {
            body.reader = Some(reader);
        }
        self.apply_commands(io, out);
    }

    fn body_ends(&mut self, io: &mut Io<'_>, out: &mut Out) {
        let Some(body) = self.busy.as_mut().and_then(|busy| busy.body.take()) else { return };
        self.phase = if body.then_hold && self.is_open(body.sequence) { Phase::Hold } else { self.after_request() };
        if let Some(mut reader) = body.reader {
            let trailers = match &body.kind {
                Kind::Chunked(decoder) => decoder.trailers(),
                Kind::Length(_) => Fields::new(&[], &[]),
            };
            reader(io.reactor(), BodyEvent::End(trailers));
            self.apply_commands(io, out);
        }
    }

    /// Whether a request is unanswered.
    fn is_open(&self, sequence: u32) -> bool {
        self.busy.as_ref().is_some_and(|busy| busy.exchanges.iter().any(|exchange| exchange.sequence == sequence))
    }

    /// Stops reading the body, and accepts no other request.
    pub(super) fn drop_body(&mut self) {
        (self.phase, self.last, self.lingers) = (Phase::Done, true, true);
        if let Some(busy) = &mut self.busy {
            busy.body = None;
            busy.drop_input();
        }
    }

    /// Stops reading the body. Refuses its request if that is unanswered, and closes the connection.
    pub(super) fn body_fails(&mut self, io: &mut Io<'_>, out: &mut Out, error: BodyError) {
        tracing::debug!(%error, "request body not read to its end");
        let Some(body) = self.busy.as_mut().and_then(|busy| busy.body.take()) else { return };
        self.drop_body();
        if let Some(exchange) = self.busy().exchange(body.sequence) {
            exchange.facts.keep_alive = false;
            let unanswered = match &exchange.answer {
                Answer::Waiting | Answer::Upgrade(_) => true,
                Answer::Streaming(streaming) => streaming.head.is_some(),
                Answer::Ready(_) => false,
            };
            if unanswered && error != BodyError::Gone {
                exchange.answer = Answer::Ready(Box::new(error.response().close()));
            }
        }
        if let Some(mut reader) = body.reader {
            reader(io.reactor(), BodyEvent::Failed(error));
            self.apply_commands(io, out);
        }
    }

    /// The client finished sending before the end of its body.
    pub(super) fn body_is_cut_off(&mut self, io: &mut Io<'_>, out: &mut Out) {
        self.body_fails(io, out, Refusal::new(400, "the request body is incomplete").into());
    }

    /// Sets the reader for the body of a request.
    pub(super) fn read_body(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        mut reader: Reader,
        limit: Option<u64>,
    ) {
        let limit = limit.unwrap_or(self.shared.settings.body);
        let open = self.is_open(sequence);
        match self.busy.as_mut().and_then(|busy| busy.body_of(sequence)) {
            Some(body) if !body.discarded && body.reader.is_none() => {
                body.limit = limit;
                body.reader = Some(reader);
                body.wanted = body.expects_continue && body.received == 0;
                if body.missing().is_some_and(|missing| missing > limit) {
                    self.body_fails(io, out, BodyError::TooLarge { limit });
                }
            }
            None if open => reader(io.reactor(), BodyEvent::End(Fields::new(&[], &[]))),
            _ => reader(io.reactor(), BodyEvent::Failed(BodyError::Taken)),
        }
    }
}
