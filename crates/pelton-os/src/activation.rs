//! Listeners that whoever started this process has opened for it: systemd's socket activation, and those who do likewise.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::Socket;

/// The first descriptor that is passed on; the others follow it.
const FIRST: RawFd = 3;

/// A socket that was passed on.
#[derive(Debug)]
pub struct Inherited {
    /// Its name, if it was given one (`FileDescriptorName=` in a systemd unit).
    pub name: Option<String>,
    /// The socket.
    pub socket: Socket,
}

/// The listeners that were passed on to this process, as the environment variables `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES` say; none if they say nothing or were meant for another process.
///
/// They are given out once: asked again, there are none. Children of this process do not get them.
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    static GIVEN_OUT: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| std::env::var(name).ok();
    let count = match (variable("LISTEN_PID"), variable("LISTEN_FDS")) {
        (Some(pid), Some(count)) => announced(&pid, &count, std::process::id())?,
        _ => 0,
    };
    if count == 0 || GIVEN_OUT.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').filter(|name| !name.is_empty());
    let mut inherited = Vec::new();
    for fd in FIRST..FIRST + count {
        // Looked at before it is taken: a number that nothing is open under must not be closed later, when there may be.
        // SAFETY: F_GETFD takes no pointer, and any number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(
                error.kind(),
                format!("take descriptor {fd}, which LISTEN_FDS announces: {error}"),
            ));
        }
        // SAFETY: it is open, and whoever started this process says that it is for us; it is given out only once.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        inherited.push(Inherited { name: names.next().map(str::to_owned), socket: Socket::from(fd) });
    }
    Ok(inherited)
}

/// How many descriptors the variables announce for the process `own`.
fn announced(pid: &str, count: &str, own: u32) -> io::Result<RawFd> {
    let bad = |what: &str, value: &str| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is {value:?}, which is no number of that kind"))
    };
    let pid: u32 = pid.parse().map_err(|_| bad("LISTEN_PID", pid))?;
    let wanted: u16 = count.parse().map_err(|_| bad("LISTEN_FDS", count))?;
    Ok(if pid == own { RawFd::from(wanted) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_make_no_sense_are_named_and_those_for_others_ignored() {
        assert_eq!(announced("7", "2", 7).unwrap(), 2);
        assert_eq!(announced("7", "2", 8).unwrap(), 0);
        assert!(announced("x", "2", 7).unwrap_err().to_string().contains("LISTEN_PID"));
        assert!(announced("7", "-1", 7).unwrap_err().to_string().contains("LISTEN_FDS"));
        assert!(announced("7", "1000000", 7).unwrap_err().to_string().contains("1000000"));
    }
}
