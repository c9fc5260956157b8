//! Hands over to a newer process of the same program, without refusing a connection or losing a request.
//!
//! The new process is started from the same path, which may hold another version by now, with the same arguments. It inherits the
//! listening sockets and one end of a socket pair, on which it reports when it serves. Until then, and if it never does, nothing
//! changes here.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use pelton::{Chunk, Connection, DescriptorLimit, Io, Lane, Limit, Reactor, Reason, Socket};
use rustix::net::RecvFlags;
use zeroize::Zeroizing;

/// The name of the socket on which the new process reports.
pub const READY: &str = "ready";

/// The message it sends there.
const WORD: &[u8] = b"serving\n";

/// The most bytes of secrets: a few keys.
const MOST_SECRETS: usize = 4096;

/// How long a new process may take until it serves.
const START_TIME: Duration = Duration::from_secs(60);

/// Starts a new process that inherits `sockets`, by name, and `secrets`. Calls `then` when it serves, or with the reason why it
/// will not.
pub fn begin(
    reactor: &mut Reactor,
    program: &Path,
    limit: &DescriptorLimit,
    (sockets, secrets): (Vec<(String, BorrowedFd<'_>)>, &[u8]),
    then: impl FnOnce(&mut Reactor, Result<u32, String>) + 'static,
) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    // They fit into the socket's buffer, and are there when the process looks.
    ours.write_all(secrets)?;
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
    tracing::info!(process = id, "started a new process");
    Ok(())
}

type Then = Box<dyn FnOnce(&mut Reactor, Result<u32, String>)>;

/// Waits for the new process's report.
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
            // Killing fails if the process has just ended, which is as good.
            let _ = child.kill();
        }
        let end = move || child.wait();
        let told = reactor.defer(Lane::Waits, end, move |reactor, outcome| {
            let why = match outcome {
                _ if too_late => format!("it did not serve within {START_TIME:?} and was killed"),
                Ok(Ok(status)) => format!("it ended before it served, with {status}"),
                Ok(Err(error)) => format!("it ended before it served: {error}"),
                Err(failure) => format!("it ended before it served: {failure}"),
            };
            then(reactor, Err(why));
        });
        if told.is_err() {
            tracing::error!("the new process ended before it served");
        }
    }
}

/// Reads the secrets that the process that started this one has passed on. Empty if there are none.
pub fn secrets(ready: &[Socket]) -> Zeroizing<Vec<u8>> {
    let mut secrets = Zeroizing::new(vec![0; MOST_SECRETS]);
    let fd = ready.first().and_then(Socket::as_fd);
    // It was written before this process was started, or never.
    let received = fd.map(|fd| rustix::net::recv(fd, &mut secrets[..], RecvFlags::DONTWAIT));
    let count = match received {
        Some(Ok((_, count))) => count.min(MOST_SECRETS),
        Some(Err(_)) | None => 0,
    };
    secrets.truncate(count);
    secrets
}

/// Reports to the process that started this one, if it is handing over, that this one serves.
pub fn report(ready: impl Iterator<Item = Socket>) {
    for socket in ready {
        let Ok(fd) = socket.into_fd() else { continue };
        // If that process is gone, nobody waits for the report.
        let _ = UnixStream::from(fd).write_all(WORD);
    }
}
