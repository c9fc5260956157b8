//! The echo servers of the benchmark, each a separate process: `pelton-bench net-server NAME`.
//!
//! A server listens on a free port of the loopback interface, prints it on standard output, and echoes until it is killed. It has
//! one thread: a second one that waited for the parent to exit would make every system call of the first more expensive, because
//! the kernel then counts references to descriptors.

mod calloop;
mod floor;
mod mio;
mod monoio;
mod ours;
mod tokio;

use std::io::{self, ErrorKind, Read, Write};

use anyhow::Result;
use clap::ValueEnum;

use crate::process::{announce, end_with_parent, listener};

/// How much one read takes in, where a loop has one buffer for all connections.
const SHARED_BUFFER: usize = 64 << 10;

/// How much one read takes in, where every connection needs its own buffer.
const OWN_BUFFER: usize = 16 << 10;

/// Message length of the framed server: that of the load under which instructions are counted.
const FRAME: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Floor,
    Pelton,
    /// Pelton with a codec and a protocol instead of a handler of bytes.
    PeltonFramed,
    Tokio,
    Mio,
    Calloop,
    MonoioEpoll,
    MonoioUring,
}

/// Serves until the process is killed, which the kernel does when its parent exits.
pub fn serve(kind: Kind) -> Result<()> {
    end_with_parent()?;
    match kind {
        Kind::Floor => floor::serve(),
        Kind::Pelton => ours::serve(),
        Kind::PeltonFramed => ours::serve_framed(),
        Kind::Tokio => tokio::serve(),
        Kind::Mio => mio::serve(),
        Kind::Calloop => calloop::serve(),
        Kind::MonoioEpoll => monoio::serve_on_epoll(),
        Kind::MonoioUring => monoio::serve_on_uring(),
    }
}

/// The result of an attempt to echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echoed {
    /// This many bytes were echoed, which may be zero if there was nothing to read.
    All(usize),
    /// There is no room to send the rest, which is in `pending`.
    Blocked,
    /// The peer has finished or reset the connection.
    Ended,
}

/// Reads once and writes the result, like the callbacks of mio and calloop.
fn echo_once<S: Read + Write>(stream: &mut S, buffer: &mut [u8], pending: &mut Vec<u8>) -> Echoed {
    match stream.read(buffer) {
        Ok(0) => Echoed::Ended,
        Ok(count) => match write(stream, &buffer[..count]) {
            Ok(sent) if sent == count => Echoed::All(count),
            Ok(sent) => {
                pending.extend_from_slice(&buffer[sent..count]);
                Echoed::Blocked
            }
            Err(_) => Echoed::Ended,
        },
        Err(error) if is_temporary(&error) => Echoed::All(0),
        Err(_) => Echoed::Ended,
    }
}

/// Sends pending output.
fn send_pending(stream: &mut impl Write, pending: &mut Vec<u8>) -> Echoed {
    match write(stream, pending) {
        Ok(sent) => {
            pending.drain(..sent);
            if pending.is_empty() { Echoed::All(sent) } else { Echoed::Blocked }
        }
        Err(_) => Echoed::Ended,
    }
}

/// Writes once; returns 0 if there is no room.
fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Err(error) if is_temporary(&error) => Ok(0),
        written => written,
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
