//! Two toy layers: one that transforms each byte, and one that frames, waits, has a handshake and a closing message.

use std::io::IoSlice;
use std::task::Poll;
use std::time::Duration;

use pelton::{Layer, LayerIo, Reason};

/// Adds its position in the stream to each byte, so that a byte that is lost, repeated or moved shows.
#[derive(Default)]
pub struct Shift {
    received: u8,
    sent: u8,
    block: Vec<u8>,
}

/// Transforms bytes as [`Shift`] does.
pub fn shift(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().enumerate().map(|(index, byte)| byte.wrapping_add(index as u8)).collect()
}

/// The opposite of [`shift`].
pub fn unshift(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().enumerate().map(|(index, byte)| byte.wrapping_sub(index as u8)).collect()
}

impl Layer for Shift {
    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        let count = io.deliver_with(|buffer| {
            let count = input.len().min(buffer.len());
            for (to, from) in buffer.iter_mut().zip(input) {
                *to = from.wrapping_sub(self.received);
                self.received = self.received.wrapping_add(1);
            }
            Ok::<_, Reason>(count)
        })?;
        Ok(count)
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        for byte in output.iter().flat_map(|slice| slice.iter()) {
            self.block.push(byte.wrapping_add(self.sent));
            self.sent = self.sent.wrapping_add(1);
        }
        io.transmit_block(&mut self.block);
        let processed = output.iter().map(|slice| slice.len()).sum();
        Ok(processed)
    }
}

/// Both sides begin with this.
pub const HELLO: &[u8] = b"HELLO";

/// The closing message.
pub const BYE: &[u8] = &[0, 0, 0];

const DATA: u8 = 1;
const HEADER: usize = 3;
const LARGEST: usize = 10_000;

/// Frames bytes: a kind, a length of two bytes, the payload.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![DATA];
    frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns the payload of all frames, and whether the closing message came last.
pub fn unframe(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut payload = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != DATA {
            assert!(rest.is_empty(), "{} bytes follow the closing message", rest.len());
            return (payload, true);
        }
        payload.extend_from_slice(&rest[..length]);
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "an incomplete header");
    (payload, false)
}

/// Sends frames. It is ready a moment after the handshake, waits before it processes every third frame, and holds what
/// it sends until it is woken.
#[derive(Default)]
pub struct Framer {
    greeted: bool,
    frames: usize,
    may_continue: bool,
    held: Vec<u8>,
    asked: bool,
    closing: bool,
}

impl Framer {
    /// Waits for a timer: in real life, for another thread or another runtime.
    fn pause(&mut self, io: &mut LayerIo<'_>) {
        let id = io.id();
        io.wait();
        io.reactor().after(Duration::from_micros(100), move |reactor| reactor.wake_layers(id));
    }

    fn wake_for_output(&mut self, io: &mut LayerIo<'_>) {
        if !std::mem::replace(&mut self.asked, true) {
            let id = io.id();
            io.reactor().next_tick(move |reactor| reactor.wake_layers(id));
        }
    }
}

impl Layer for Framer {
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        io.transmit(HELLO);
        Ok(())
    }

    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        if !self.greeted {
            if input.len() < HELLO.len() {
                return Ok(0);
            }
            if !input.starts_with(HELLO) {
                return Err(Reason::layer(format!("{:?} is no greeting", &input[..HELLO.len()])));
            }
            self.greeted = true;
            self.pause(io);
            return Ok(HELLO.len());
        }
        let [kind, high, low, rest @ ..] = input else { return Ok(0) };
        if *kind != DATA {
            io.end();
            return Ok(input.len());
        }
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if rest.len() < length {
            return Ok(0);
        }
        self.frames += 1;
        if self.frames.is_multiple_of(3) && !std::mem::take(&mut self.may_continue) {
            self.frames -= 1;
            self.may_continue = true;
            self.pause(io);
            return Ok(0);
        }
        io.deliver(rest[..length].to_vec().into());
        Ok(HEADER + length)
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        let payload = &output[0][..output[0].len().min(LARGEST)];
        self.held.extend_from_slice(&frame(payload));
        self.wake_for_output(io);
        Ok(payload.len())
    }

    fn woken(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        if self.greeted {
            io.ready();
        }
        self.asked = false;
        io.transmit_block(&mut self.held);
        Ok(())
    }

    fn finish(&mut self, io: &mut LayerIo<'_>) -> Result<Poll<()>, Reason> {
        if !std::mem::replace(&mut self.closing, true) {
            // The closing message takes a moment, too.
            self.pause(io);
            return Ok(Poll::Pending);
        }
        io.transmit(BYE);
        Ok(Poll::Ready(()))
    }

    fn peer_finished(&mut self, _: &mut LayerIo<'_>, _: &[u8]) -> Result<(), Reason> {
        Err(Reason::Truncated)
    }

    fn held(&self) -> usize {
        self.held.len()
    }
}
