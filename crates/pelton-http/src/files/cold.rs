//! Sends files that may not be in the page cache, without blocking the loop.
//!
//! `sendfile` blocks if the data is not in the page cache, and no flag prevents that. But `preadv2` with `RWF_NOWAIT` fails
//! instead of blocking. So before a piece is sent, a few of its bytes are read that way. If one is missing, a thread of the file
//! lane reads the piece into the page cache first, and the kernel is told to read ahead. A slow client delays only its own file:
//! the next piece is checked when there is room for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton::{Lane, Reactor};

use super::lookup::Resource;
use super::representation::Held;
use crate::{Responder, Response, ResponseStream, SendState};

/// How much is checked, read and sent at a time.
pub(super) const PIECE: u64 = 256 << 10;

/// One byte is probed at the beginning of each stride. The kernel reads files in units of 128 KiB by default and evicts them in
/// large units too.
#[cfg(target_os = "linux")]
const STRIDE: u64 = 64 << 10;

/// How far past the piece the kernel is asked to read ahead, if that much will be sent.
const AHEAD: u64 = 4 * PIECE;

/// How long to wait before trying again when the file lane is full in the middle of a body.
const AGAIN: Duration = Duration::from_millis(20);

/// The buffer size for reading on the lane. The data is discarded.
const BLOCK: usize = 64 << 10;

/// Whether a piece of a file is in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Warmth {
    /// It is in memory.
    Warm,
    Cold,
    /// The file ends before the piece does.
    Short,
    /// The kernel cannot tell.
    Unknown,
}

#[cfg(target_os = "linux")]
pub(super) fn warmth(file: &File, piece: &Range<u64>) -> Warmth {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;
    let mut at = piece.start;
    while at < piece.end {
        let mut byte = [0];
        match preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return Warmth::Short,
            Ok(_) => at = at.saturating_add(STRIDE),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Warmth::Unknown,
            // A real error shows up when the piece is read.
            Err(_) => return Warmth::Cold,
        }
    }
    Warmth::Warm
}

#[cfg(not(target_os = "linux"))]
pub(super) fn warmth(_: &File, _: &Range<u64>) -> Warmth {
    Warmth::Unknown
}

/// Reads a piece into the page cache and asks the kernel to read `ahead`. Returns `false` if the file is shorter.
fn read(file: &File, piece: &Range<u64>, ahead: &Range<u64>) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if let Some(length) = ahead.end.checked_sub(ahead.start).and_then(std::num::NonZeroU64::new) {
        use rustix::fs::{Advice, fadvise};
        // Only advice: errors do not matter.
        let _ = fadvise(file, ahead.start, Some(length), Advice::WillNeed);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let _ = ahead;
    let at_most_a_block = |bytes: u64| usize::try_from(bytes).map_or(BLOCK, |bytes| bytes.min(BLOCK));
    let mut block = vec![0; at_most_a_block(piece.end - piece.start)];
    let mut at = piece.start;
    while at < piece.end {
        let wanted = at_most_a_block(piece.end - at);
        match file.read_at(&mut block[..wanted], at) {
            Ok(0) => return false,
            Ok(count) => at += count as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::error!(%error, "cannot read a file");
                return false;
            }
        }
    }
    true
}

/// Returns the range that the kernel should read ahead while the lane reads `piece`: nothing past `end`, where the body ends,
/// and nothing before `asked_to`, up to which it was asked already. Empty if one call reads everything anyway.
fn ahead(piece: &Range<u64>, end: u64, asked_to: u64) -> Range<u64> {
    let end = piece.end.saturating_add(AHEAD).min(end);
    let start = piece.start.max(asked_to).min(end);
    if end - piece.start <= BLOCK as u64 { start..start } else { start..end }
}

/// A part of a body.
pub(super) enum Segment {
    Bytes(Bytes),
    File(Range<u64>),
}

/// A body that is being sent.
pub(super) struct Sending {
    resource: Rc<Resource>,
    /// The index of the form, which is held open.
    form: usize,
    segments: VecDeque<Segment>,
    /// The current segment has been read up to here.
    read_to: u64,
    /// The kernel has been asked to read the current segment up to here.
    asked_to: u64,
}

impl Sending {
    pub(super) fn new(resource: Rc<Resource>, form: usize, segments: VecDeque<Segment>) -> Sending {
        Sending { resource, form, segments, read_to: 0, asked_to: 0 }
    }

    /// Sends the head of the response once the first piece is in memory.
    pub(super) fn begin(self, reactor: &mut Reactor, responder: Responder, response: Response) {
        let Some(piece) = self.next_piece().filter(|piece| self.warmth(piece) == Warmth::Cold) else {
            return self.start(reactor, responder, response);
        };
        let read =
            self.after_reading(reactor, piece, (responder, response), |sending, reactor, (responder, response), _| {
                // If reading failed, sending fails too and closes the connection.
                sending.start(reactor, responder, response);
            });
        if let Err((_, (responder, _))) = read {
            responder.respond(reactor, super::overloaded());
        }
    }

    fn start(self, reactor: &mut Reactor, responder: Responder, mut response: Response) {
        if let (Some(Segment::File(range)), 1, Some(file)) = (self.segments.front(), self.segments.len(), self.file())
            && range.end - range.start <= PIECE
        {
            return responder.respond(reactor, response.file(file, range.start, range.end - range.start));
        }
        response.fields_mut().set("Content-Length", self.len().to_string());
        let stream = responder.stream(reactor, response);
        self.continue_sending(reactor, stream);
    }

    /// Reads a piece on the lane, then calls `then` with whether that succeeded. Returns the state if the lane is full.
    fn after_reading<S: 'static>(
        mut self,
        reactor: &mut Reactor,
        piece: Range<u64>,
        state: S,
        then: fn(Sending, &mut Reactor, S, bool),
    ) -> Result<(), (Sending, S)> {
        let Some(file) = self.file() else { return Err((self, state)) };
        let (asked_to, ahead) = (self.asked_to, self.ahead(&piece));
        // Filled once the lane has accepted the work; the callback never runs before that.
        let slot = Rc::new(Cell::new(None));
        let (taken, wanted) = (slot.clone(), piece.clone());
        let deferred = reactor.defer(
            Lane::Files,
            move || read(&file, &wanted, &ahead),
            move |reactor, outcome| {
                let Some((mut sending, state)): Option<(Sending, S)> = taken.take() else { return };
                let whole = outcome == Ok(true);
                if whole {
                    sending.has_read(&piece);
                }
                then(sending, reactor, state, whole);
            },
        );
        match deferred {
            Ok(_) => {
                slot.set(Some((self, state)));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "file not read");
                self.asked_to = asked_to;
                Err((self, state))
            }
        }
    }

    fn len(&self) -> u64 {
        let lengths = self.segments.iter().map(|segment| match segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::File(range) => range.end - range.start,
        });
        lengths.sum()
    }

    /// Sends pieces that are in memory while there is room. Dropping the stream closes the connection.
    fn continue_sending(mut self, reactor: &mut Reactor, stream: ResponseStream) {
        loop {
            let sent = if let Some(piece) = self.next_piece() {
                match self.warmth(&piece) {
                    Warmth::Warm => {}
                    Warmth::Cold => return self.wait_for(reactor, stream, piece),
                    Warmth::Short | Warmth::Unknown => {
                        return tracing::debug!("file shrank while it was sent");
                    }
                }
                self.has_sent(&piece);
                let Some(file) = self.file() else { return };
                stream.send_file(reactor, file, piece)
            } else if let Some(Segment::Bytes(bytes)) = self.segments.pop_front() {
                stream.send(reactor, bytes)
            } else {
                return stream.finish(reactor);
            };
            match sent {
                Ok(SendState::Ready) => {}
                Ok(SendState::Full) => {
                    return stream.when_ready(reactor, move |reactor, stream| self.continue_sending(reactor, stream));
                }
                Err(_) => return,
            }
        }
    }

    /// Reads a piece, then continues.
    fn wait_for(self, reactor: &mut Reactor, stream: ResponseStream, piece: Range<u64>) {
        if stream.is_gone(reactor) {
            return;
        }
        let read = self.after_reading(reactor, piece, stream, |sending, reactor, stream, whole| {
            // If the piece cannot be read, drop the stream.
            if whole {
                sending.continue_sending(reactor, stream);
            }
        });
        if let Err((sending, stream)) = read {
            reactor.after(AGAIN, move |reactor| sending.continue_sending(reactor, stream));
        }
    }

    /// The next piece, if the next segment is part of the file.
    fn next_piece(&self) -> Option<Range<u64>> {
        match self.segments.front() {
            Some(Segment::File(range)) => Some(range.start..range.end.min(range.start.saturating_add(PIECE))),
            _ => None,
        }
    }

    /// The range that the kernel should read ahead while the lane reads `piece`.
    fn ahead(&mut self, piece: &Range<u64>) -> Range<u64> {
        let Some(Segment::File(range)) = self.segments.front() else { return 0..0 };
        let ahead = ahead(piece, range.end, self.asked_to);
        self.asked_to = self.asked_to.max(ahead.end);
        ahead
    }

    fn has_sent(&mut self, piece: &Range<u64>) {
        if let Some(Segment::File(range)) = self.segments.front_mut() {
            range.start = piece.end;
            if range.is_empty() {
                self.segments.pop_front();
                (self.read_to, self.asked_to) = (0, 0);
            }
        }
    }

    fn has_read(&mut self, piece: &Range<u64>) {
        self.read_to = piece.end;
        if let Held::Open { read, .. } = &self.resource.forms[self.form].held
            && piece.start <= read.get()
        {
            read.set(read.get().max(piece.end));
        }
    }

    /// Whether a piece is in memory. If the kernel cannot tell, a piece that was read once counts as warm.
    fn warmth(&self, piece: &Range<u64>) -> Warmth {
        let Held::Open { file, read, .. } = &self.resource.forms[self.form].held else { return Warmth::Short };
        if piece.end <= self.read_to {
            return Warmth::Warm;
        }
        match warmth(file, piece) {
            Warmth::Unknown if piece.end <= read.get() => Warmth::Warm,
            Warmth::Unknown => Warmth::Cold,
            known => known,
        }
    }

    fn file(&self) -> Option<Arc<File>> {
        match &self.resource.forms[self.form].held {
            Held::Open { file, .. } => Some(file.clone()),
            Held::Memory(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_stops_at_the_end_and_does_not_repeat() {
        let block = BLOCK as u64;
        for (piece, end, asked_to, expected) in [
            (7..8, 8, 0, None),
            (7..7 + block, 7 + block, 0, None),
            (7..8 + block, 8 + block, 0, Some(7..8 + block)),
            (0..PIECE, u64::MAX, 0, Some(0..PIECE + AHEAD)),
            (0..PIECE, PIECE + 10, 0, Some(0..PIECE + 10)),
            (PIECE..2 * PIECE, u64::MAX, PIECE + AHEAD, Some(PIECE + AHEAD..2 * PIECE + AHEAD)),
            (PIECE..2 * PIECE, 2 * PIECE, 2 * PIECE, None),
            (u64::MAX - PIECE..u64::MAX, u64::MAX, 0, Some(u64::MAX - PIECE..u64::MAX)),
        ] {
            let ahead = ahead(&piece, end, asked_to);
            assert_eq!((!ahead.is_empty()).then_some(ahead), expected, "{piece:?}, end {end}, asked to {asked_to}");
        }
    }
}
