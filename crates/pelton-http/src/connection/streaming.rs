//! Sends response bodies in pieces.

use pelton::{Fault, Io};

use super::HttpConnection;
use super::answering::PIECE;
use super::busy::{Facts, ResponseFraming, Streaming};
use super::head::{self, Body};
use super::out::Out;
use crate::Content;
use crate::wire::encode;

/// The outcome of writing a response.
pub(super) enum Progress {
    /// It is complete.
    Done,
    /// There is more to come.
    More,
}

impl HttpConnection {
    /// Writes as much of a streamed body as is available and fits. Returns `None` if the connection is being closed.
    pub(super) fn stream(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        mut facts: Facts,
        streaming: &mut Streaming,
    ) -> Option<Progress> {
        if let Some(response) = streaming.head.take() {
            facts.keep_alive &= self.discard_unread_body(sequence);
            if !head::is_sound(&response, facts, Body::Streamed) {
                let instead = head::instead_of(io, &response, facts, Body::Streamed);
                self.close_after(sequence);
                self.write_small(io, out, facts, instead);
                return Some(Progress::Done);
            }
            let written = self.write_head(io, out, &response, facts, Body::Streamed);
            streaming.framing = written.framing;
            if !written.keep_alive {
                self.close_after(sequence);
            }
        }
        while let Some(content) = streaming.held.front_mut() {
            if self.is_stuck() || self.has_no_room(io, out) {
                return Some(Progress::More);
            }
            let piece = content.split_to(PIECE);
            if content.is_empty() {
                streaming.held.pop_front();
            }
            if !write_piece(io, out, &mut streaming.framing, piece) {
                io.reactor().report(Fault::new("http", "the body of a response is longer than its Content-Length"));
                self.break_off(io, out);
                return None;
            }
        }
        let Some(trailers) = &streaming.finished else { return Some(Progress::More) };
        match streaming.framing {
            ResponseFraming::Chunked => encode::last_chunk(out.buffer(), trailers),
            ResponseFraming::Counted(0) | ResponseFraming::Nothing | ResponseFraming::UntilClose => {}
            ResponseFraming::Counted(missing) => {
                let message = format!("the body of a response is {missing} bytes shorter than its Content-Length");
                io.reactor().report(Fault::new("http", message));
                self.break_off(io, out);
                return None;
            }
        }
        Some(Progress::Done)
    }
}

/// Writes a body or a part of it.
pub(super) fn write_content(io: &mut Io<'_>, out: &mut Out, content: Content) {
    match content {
        Content::Empty => {}
        Content::Bytes(bytes) => out.write(io, bytes),
        Content::File { file, offset, length } => {
            out.send(io);
            out.count(length);
            if let Err(error) = io.send_file(file, offset..offset.saturating_add(length)) {
                tracing::debug!(%error, "file not sent");
                io.close();
            }
        }
    }
}

/// Writes a piece of a body. Returns `false` if it exceeds the announced length.
fn write_piece(io: &mut Io<'_>, out: &mut Out, framing: &mut ResponseFraming, piece: Content) -> bool {
    match framing {
        ResponseFraming::Nothing => {}
        ResponseFraming::UntilClose => write_content(io, out, piece),
        ResponseFraming::Counted(missing) => match missing.checked_sub(piece.len()) {
            Some(left) => {
                *missing = left;
                write_content(io, out, piece);
            }
            None => return false,
        },
        ResponseFraming::Chunked if piece.is_empty() => {}
        ResponseFraming::Chunked => {
            // A piece is at most `PIECE` bytes, so it fits in a `usize`.
            encode::chunk_start(out.buffer(), piece.len() as usize);
            write_content(io, out, piece);
            out.buffer().extend_from_slice(encode::CHUNK_END);
        }
    }
    true
}
