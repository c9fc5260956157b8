//! Sends requests.

use std::rc::Rc;

use pelton::Io;

use super::ClientConnection;
use super::busy::Upload;
use crate::client::call::Call;
use crate::client::encode;
use crate::client::error::ErrorKind;
use crate::client::request::Payload;
use crate::wire::{To, encode as chunks};
use crate::{Content, Method};

/// Bodies up to this many bytes are copied behind their heads, so that both are one write.
const COPIED: u64 = 4 * 1024;

/// Larger bodies are handed to the reactor in pieces of this many bytes.
const PIECE: usize = 256 * 1024;

impl ClientConnection {
    /// Sends a request over this connection, which is idle.
    pub(in crate::client) fn start(&mut self, io: &mut Io<'_>, call: Rc<Call>) {
        let Some(route) = self.shared.route(self.origin()) else { return };
        let shared = self.shared.clone();
        let settings = shared.settings();
        let busy = self.begin(io, call);
        let mut out = std::mem::take(&mut busy.out);
        {
            let state = busy.call.state.borrow();
            let Some(parts) = &state.parts else { return };
            let Some(url) = &parts.url else { return };
            encode::head(&mut out, parts, url, &route, shared.config());
            busy.closes = parts.given.close;
            busy.to = match () {
                () if parts.verb.is(Method::Head) => To::Head,
                () if parts.given.upgrade => To::Upgrade,
                () => To::Other,
            };
            let limit = if parts.limits.collects { settings.body } else { u64::MAX };
            busy.intake.most = parts.limits.body.unwrap_or(limit);
            let upload = match &parts.payload {
                Payload::Content(Content::Empty) => Upload::Done,
                Payload::Content(content) => Upload::Content(content.clone()),
                Payload::Parts(contents) => Upload::Parts(Content::Empty, contents.clone(), 0),
                Payload::Stream(Some(0)) => Upload::Done,
                Payload::Stream(length) => Upload::Stream(*length),
            };
            busy.upload = match upload {
                Upload::Done => Upload::Done,
                upload if parts.given.expects_continue => {
                    busy.call.awaits_consent.set(true);
                    Upload::Held(Box::new(upload))
                }
                Upload::Content(Content::Bytes(bytes)) if bytes.len() as u64 <= COPIED => {
                    out.extend_from_slice(&bytes);
                    Upload::Done
                }
                upload => upload,
            };
        }
        let sent = io.send_block(&mut out);
        busy.out = out;
        if sent.is_err() {
            // The connection has ended, or the reactor's queue limit is smaller than a head.
            return io.close();
        }
        if !matches!(busy.upload, Upload::Done) {
            self.pump(io);
        }
        self.restart_deadline(io);
    }

    /// Sends as much of the body as is available and fits.
    pub(super) fn pump(&mut self, io: &mut Io<'_>) {
        while self.pump_once(io) {}
    }

    /// Sends the bytes that are there, and asks the body for more. Returns whether the body has more that it could not send itself.
    fn pump_once(&mut self, io: &mut Io<'_>) -> bool {
        let Some(busy) = &mut self.busy else { return false };
        if matches!(busy.upload, Upload::Done | Upload::Held(_)) {
            return false;
        }
        let call = busy.call.clone();
        let mut is_full = false;
        loop {
            let high = io.water_marks().high as u64;
            if io.queued() as u64 + io.queued_in_files() > high {
                is_full = true;
                break;
            }
            let Some(busy) = &mut self.busy else { return false };
            let piece = match &mut busy.upload {
                Upload::Content(content) => Some(content.split_to(PIECE)).filter(|piece| !piece.is_empty()),
                Upload::Parts(rest, contents, next) => {
                    while rest.is_empty() && *next < contents.len() {
                        *rest = contents[*next].clone();
                        *next += 1;
                    }
                    Some(rest.split_to(PIECE)).filter(|piece| !piece.is_empty())
                }
                Upload::Stream(_) => call.next_piece(PIECE),
                Upload::Done | Upload::Held(_) => None,
            };
            let Some(piece) = piece else {
                self.body_is_sent(io);
                break;
            };
            let sent = match &mut busy.upload {
                Upload::Stream(Some(missing)) => match missing.checked_sub(piece.len()) {
                    Some(left) => {
                        *missing = left;
                        send(io, piece)
                    }
                    None => {
                        let what = "the body of the request is longer than announced";
                        self.fail(io, ErrorKind::BadRequest(what.into()));
                        return false;
                    }
                },
                Upload::Stream(None) => send_chunk(io, piece),
                _ => send(io, piece),
            };
            if sent.is_err() {
                io.close();
                return false;
            }
        }
        if !matches!(self.busy.as_ref().map(|busy| &busy.upload), Some(Upload::Stream(_))) {
            return false;
        }
        call.notify_room(io.reactor());
        if call.is_over() {
            if self.busy.is_some() {
                self.drop_call(io);
            }
            return false;
        }
        let outgoing = call.outgoing.borrow();
        !is_full && (outgoing.finished || !outgoing.queue.is_empty())
    }

    /// There is no more of the body for now. If it is complete, its end is sent.
    fn body_is_sent(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        match &busy.upload {
            Upload::Stream(_) if !busy.call.outgoing.borrow().finished => return,
            Upload::Stream(Some(missing)) if *missing > 0 => {
                let what = format!("the body of the request is {missing} bytes shorter than announced");
                return self.fail(io, ErrorKind::BadRequest(what.into()));
            }
            Upload::Stream(None) => {
                let mut end = Vec::new();
                chunks::last_chunk(&mut end, &busy.call.outgoing.borrow().trailers);
                if io.send(&end).is_err() {
                    return io.close();
                }
            }
            _ => {}
        }
        busy.upload = Upload::Done;
        self.set_deadline(io);
    }

    /// Sends the body, since the server agrees, or has not answered for a while.
    pub(super) fn send_body_anyway(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        if let Upload::Held(upload) = std::mem::take(&mut busy.upload) {
            busy.upload = *upload;
            busy.call.awaits_consent.set(false);
            self.pump(io);
            self.set_deadline(io);
        }
    }
}

fn send(io: &mut Io<'_>, piece: Content) -> Result<(), pelton::SendError> {
    match piece {
        Content::Empty => Ok(()),
        Content::Bytes(bytes) if bytes.len() as u64 <= COPIED => io.send(&bytes),
        Content::Bytes(bytes) => io.send_bytes(bytes),
        Content::File { file, offset, length } => io.send_file(file, offset..offset.saturating_add(length)),
    }
}

fn send_chunk(io: &mut Io<'_>, piece: Content) -> Result<(), pelton::SendError> {
    if piece.is_empty() {
        return Ok(());
    }
    let mut start = Vec::with_capacity(20);
    // A piece is at most `PIECE` bytes, so it fits in a `usize`.
    chunks::chunk_start(&mut start, piece.len() as usize);
    io.send(&start)?;
    send(io, piece)?;
    io.send(chunks::CHUNK_END)
}
