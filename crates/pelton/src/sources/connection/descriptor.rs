//! Connections over descriptors other than sockets: pipes, FIFOs, terminals, devices.
//!
//! The engine says what a stream can do. A stream that only receives refuses sends. On a stream that only sends, the
//! peer counts as finished from the start.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::panic::Location;

use pelton_os::{Socket, StreamKind};

use super::stream::Peer;
use super::{Connection, ConnectionId, ConnectionState, Detached, Io, SendError};
use crate::{Error, Reactor};

impl ConnectionState {
    pub(super) fn is_read_only(&self) -> bool {
        self.kind == StreamKind::ReadOnly
    }

    /// Returns why data is refused.
    #[cold]
    pub(super) fn send_error(&self) -> SendError {
        if self.is_read_only() { SendError::ReadOnly } else { SendError::Closed }
    }

    /// Returns whether data that the peer has not read yet is lost if this side closes while there is unread input. So
    /// it is with sockets.
    pub(super) fn loses_data_if_closed_early(&self) -> bool {
        self.kind == StreamKind::Socket
    }
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> io::Error {
        let kind = match error {
            SendError::Closed => ErrorKind::BrokenPipe,
            SendError::Full { .. } => ErrorKind::FileTooLarge,
            SendError::ReadOnly => ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

impl Io<'_> {
    /// Returns whether the connection can send and receive, and how its directions end. Pipes have one direction.
    pub fn stream_kind(&mut self) -> StreamKind {
        self.reactor.stream_mut(self.id.0).map_or(StreamKind::Socket, |stream| stream.kind)
    }
}

impl Reactor {
    /// Opens standard input as a connection that only receives: what is typed on a terminal, or comes from a pipe or a
    /// file. Use it with [`Framed`](crate::Framed) and a [codec](crate::codec) to get lines.
    ///
    /// Standard input is not closed at the end. If the loop has to set it to non-blocking mode, which it shares with
    /// other programs, the mode is restored when the connection has ended or the reactor is dropped. On Linux it uses a
    /// copy of a terminal or pipe that has a mode of its own, and nothing is left to restore.
    ///
    /// If standard input is a regular file, it is [read on the file lane](Reactor::receive_file).
    ///
    /// Do not use [`std::io::stdin`] meanwhile. It reads ahead, and takes input away from this connection.
    ///
    /// ```no_run
    /// use pelton::codec::Lines;
    /// use pelton::{Framed, Protocol, Reactor, Reason, Replies};
    ///
    /// struct Keyboard;
    ///
    /// impl Protocol for Keyboard {
    ///     type Message = String;
    ///
    ///     fn process(&mut self, line: String, replies: &mut Replies<'_, String>) {
    ///         println!("you typed {line:?}");
    ///         if line == "quit"
    ///             && let Some(reactor) = replies.reactor()
    ///         {
    ///             reactor.stop();
    ///         }
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.open_stdin(Framed::new(Lines::default(), Keyboard))?;
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn open_stdin(&mut self, handler: impl Connection) -> Result<ConnectionId, Error> {
        // Shares the position with the original, as programs expect that follow this one in a script.
        let own = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        if let Some(file) = own.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file())) {
            return self.receive_regular_file(Location::caller(), file, Box::new(handler));
        }
        let detached = Detached { socket: Socket::borrowed(io::stdin()), unread: Vec::new() };
        let id = self.take_on_detached(Location::caller(), detached, Box::new(handler))?;
        if let Some(stream) = self.stream_mut(id.0)
            && stream.kind != StreamKind::WriteOnly
        {
            // A terminal is usually open in both directions. A program that answers there would fail with a pipe.
            stream.kind = StreamKind::ReadOnly;
        }
        Ok(id)
    }

    /// Records what a connection can do.
    pub(super) fn set_stream_kind(&mut self, id: ConnectionId, kind: StreamKind) {
        if let Some(stream) = self.stream_mut(id.0) {
            stream.kind = kind;
            if kind == StreamKind::WriteOnly {
                stream.peer = Peer::Finished;
            }
        }
    }
}
