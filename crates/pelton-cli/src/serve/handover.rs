//! Handing over to a newer process of the same program, without a connection being refused or a request lost.
//!
//! The new process is started from the same path, which may hold another version by now, with the same arguments. It inherits the
//! listening sockets and the end of a socket pair, on which it says when it serves. Until then nothing changes here, and if it
//! never does, nothing has.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use pelton::{Chunk, Connection, DescriptorLimit, Io, Lane, Limit, Reactor, Reason, Socket};

/// What the socket is called on which the new process reports.
pub const READY: &str = "ready";

/// What it says there.
const WORD: &[u8] = b"serving\n";

/// How long a new process may take until it serves.
const START_TIME: Duration = Duration::from_secs(60);

/// Starts a new process that inherits `sockets`, by name. `then` is told when it serves, or why it will not.
pub fn begin(
    reactor: &mut Reactor,
    program: &Path,
    limit: &DescriptorLimit,
    sockets: Vec<(String, BorrowedFd<'_>)>,
    then: impl FnOnce(&mut Reactor, Result<u32, String>) + 'static,
) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    limit.restore_in(&mut command);
    let sockets = sockets.iter().map(|(name, socket)| (name.as_str(), *socket));
    let sockets = sockets.chain([(READY, theirs.as_fd())]);
    let passed_on = pelton::pass_on(&mut command, sockets)?;
    let child = command.spawn()?;
    drop((passed_on, theirs));
    let id = child.id();
    let waiting = Waiting { successor: Some((child, Box::new(then))), said: Vec::new() };
    let connection = reactor.adopt(ours, waiting)?;
    if let Some(mut io) = reactor.connection(connection) {
        io.set_limit(Limit::Inactivity, Some(START_TIME));
    }
    tracing::info!(process = id, "a new process is started");
    Ok(())
}

type Then = Box<dyn FnOnce(&mut Reactor, Result<u32, String>)>;

/// Waits for the new process to report.
struct Waiting {
    successor: Option<(Child, Then)>,
    said: Vec<u8>,
}

impl Connection for Waiting {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.said.extend_from_slice(&chunk);
        if self.said.starts_with(WORD)
            && let Some((child, then)) = self.successor.take()
        {
            io.close();
            then(io.reactor(), Ok(child.id()));
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let Some((mut child, then)) = self.successor.take() else { return };
        let too_late = matches!(reason, Reason::TimedOut { .. });
        if too_late {
            // Fails if it has just ended, which is as good.
            let _ = child.kill();
        }
        let end = move || child.wait();
        let told = reactor.defer(Lane::Waits, end, move |reactor, outcome| {
            let why = match outcome {
                _ if too_late => format!("it did not serve within {START_TIME:?}, and was ended"),
                Ok(Ok(status)) => format!("it ended before it served, with {status}"),
                Ok(Err(error)) => format!("it ended before it served: {error}"),
                Err(failure) => format!("it ended before it served: {failure}"),
            };
            then(reactor, Err(why));
        });
        if told.is_err() {
            tracing::error!("a new process ended before it served");
        }
    }
}

/// Tells the process that has started this one, if it hands over, that this one serves.
pub fn report(ready: impl Iterator<Item = Socket>) {
    for socket in ready {
        let Ok(fd) = socket.into_fd() else { continue };
        // If it is gone, there is nobody to wait for.
        let _ = UnixStream::from(fd).write_all(WORD);
    }
}
