//! The memory that OpenSSL reads from and writes to, in place of a socket.

use std::io::{self, Read, Write};

/// Received bytes, and bytes to send.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) input: Vec<u8>,
    /// How many bytes of `input` OpenSSL has read.
    pub(crate) start: usize,
    pub(crate) output: Vec<u8>,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let waiting = &self.input[self.start..];
        let count = waiting.len().min(buffer.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        buffer[..count].copy_from_slice(&waiting[..count]);
        self.start += count;
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
