//! Regular files as connections that only receive.
//!
//! They are always ready, so a poller cannot wait for them, and reading them may block. So the file lane reads them, and a pipe
//! takes the bytes to the connection, with the back-pressure of a pipe.

use std::fs::File;
use std::io::{self, Read};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::{Connection, ConnectionId, Detached, Io, Reason};
use crate::{Chunk, Error, Lane, Reactor};

/// Bytes that are read at once: as many as a pipe holds.
const PIECE: usize = 64 * 1024;

/// How long to wait if the file lane is full.
const LATER: Duration = Duration::from_millis(10);

impl Reactor {
    /// Delivers the contents of a regular file to a handler, from its current position to its end, as if they were
    /// received. The connection only receives. The file is read on the [file lane](Lane::Files), and no faster than the
    /// handler takes it.
    ///
    /// An error of the file closes the connection, after everything that was read before has been delivered.
    ///
    /// ```
    /// # use std::fs::File;
    /// use pelton::codec::Lines;
    /// use pelton::{Framed, Protocol, Reactor, Replies};
    ///
    /// struct Print;
    ///
    /// impl Protocol for Print {
    ///     type Message = String;
    ///
    ///     fn process(&mut self, line: String, _: &mut Replies<'_, String>) {
    ///         println!("{line}");
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.receive_file(File::open("Cargo.toml")?, Framed::new(Lines::default(), Print))?;
    /// reactor.run_until(|reactor| reactor.connection_count() == 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn receive_file(&mut self, file: File, handler: impl Connection) -> Result<ConnectionId, Error> {
        self.receive_regular_file(Location::caller(), file, Box::new(handler))
    }

    pub(super) fn receive_regular_file(
        &mut self,
        location: &'static Location<'static>,
        file: File,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        let (reader, writer) = io::pipe().map_err(|error| Error::system("open a pipe for a file", error))?;
        let detached = |socket| Detached { socket, unread: Vec::new() };
        let to = self.take_on_detached(location, detached(reader.into()), handler)?;
        let feeder = Feeder { file: Arc::new(file), to };
        if let Err(error) = self.take_on_detached(location, detached(writer.into()), Box::new(feeder)) {
            self.connection_is_over(to.0, Reason::Local);
            return Err(error);
        }
        Ok(to)
    }
}

/// Reads the file and writes it to the pipe, a piece at a time.
struct Feeder {
    file: Arc<File>,
    to: ConnectionId,
}

impl Feeder {
    fn feed(&self, io: &mut Io<'_>) {
        let (file, to, id) = (Arc::clone(&self.file), self.to, io.id());
        let reads = io.reactor().defer(
            Lane::Files,
            move || read_piece(&file),
            move |reactor, outcome| match outcome.unwrap_or_else(|failure| Err(io::Error::other(failure))) {
                Ok(piece) => pass_on(reactor, id, piece),
                Err(error) => {
                    reactor.connection_failed(to.0, Reason::from_error(error));
                    reactor.connection_is_over(id.0, Reason::Local);
                }
            },
        );
        if reads.is_err() {
            io.reactor().after(LATER, move |reactor| {
                reactor.visit(id, |feeder: &mut Feeder, io| feeder.feed(io));
            });
        }
    }
}

fn pass_on(reactor: &mut Reactor, id: ConnectionId, piece: Vec<u8>) {
    let Some(mut io) = reactor.connection(id) else { return };
    if piece.is_empty() || io.send_bytes(piece).is_err() {
        // The end. A send fails only if the reader is gone.
        io.close_after_writing();
    } else {
        io.tell_when_sent();
    }
}

fn read_piece(mut file: &File) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece) {
            Ok(count) => {
                piece.truncate(count);
                return Ok(piece);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Connection for Feeder {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.feed(io);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn sent(&mut self, io: &mut Io<'_>) {
        self.feed(io);
    }

    fn draining(&mut self, _: &mut Io<'_>) {
        // The handler that receives the file decides.
    }
}
