//! Listeners that whoever started this process has opened for it: systemd's socket activation, those who do likewise, and
//! an older process of the same program that hands over to a newer one.
//!
//! systemd's protocol wants the descriptors at 3 and up, and the number of the new process in its environment. Both can only be
//! brought about between `fork` and `exec`, in a copy of a process that may have many threads. [`pass_on`] needs neither: the
//! descriptors keep their numbers, and the environment lists them.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::Socket;

/// The first descriptor that is passed on; the others follow it.
const FIRST: RawFd = 3;

/// Where a process lists, for the one that it starts, its own number and what it has [passed on](pass_on):
/// `4711,listen=12,ready=13`.
const PASSED_ON: &str = "PELTON_PASSED_ON";

/// A socket that was passed on.
#[derive(Debug)]
pub struct Inherited {
    /// Its name, if it was given one (`FileDescriptorName=` in a systemd unit).
    pub name: Option<String>,
    /// The socket.
    pub socket: Socket,
}

/// Copies of descriptors that a child process inherits. To be kept until it is started, and not longer.
#[derive(Debug)]
#[must_use = "what is dropped before the process is started is not passed on"]
pub struct PassedOn {
    #[expect(dead_code, reason = "held, not used")]
    copies: Vec<OwnedFd>,
}

/// Has the process that `command` starts inherit these sockets, under these names; it finds them with [`inherited_listeners`].
/// Names are of letters, digits, `-` and `.`.
///
/// Any other process that is started before the copies are dropped inherits them as well, and does not know of it.
pub fn pass_on<'a>(
    command: &mut Command,
    sockets: impl IntoIterator<Item = (&'a str, BorrowedFd<'a>)>,
) -> io::Result<PassedOn> {
    let mut list = std::process::id().to_string();
    let mut copies = Vec::new();
    for (name, socket) in sockets {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("pass on a socket as {name:?}")));
        }
        let copy = socket.try_clone_to_owned()?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        // Writing to a string does not fail.
        let _ = write!(list, ",{name}={}", copy.as_raw_fd());
        copies.push(copy);
    }
    command.env(PASSED_ON, list);
    for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    Ok(PassedOn { copies })
}

/// The listeners that were passed on to this process, as the environment variables `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES` say; none if they say nothing or were meant for another process. Also those that the process that started this
/// one has [passed on](pass_on).
///
/// They are given out once: asked again, there are none. Children of this process do not get them.
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    static GIVEN_OUT: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| std::env::var(name).ok();
    let count = match (variable("LISTEN_PID"), variable("LISTEN_FDS")) {
        (Some(pid), Some(count)) => announced(&pid, &count, std::process::id())?,
        _ => 0,
    };
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').filter(|name| !name.is_empty());
    let mut given: Vec<(Option<String>, RawFd)> =
        (FIRST..FIRST + count).map(|fd| (names.next().map(str::to_owned), fd)).collect();
    if let Some(list) = variable(PASSED_ON) {
        given.extend(passed_on(&list, rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid()))?);
    }
    if given.is_empty() || GIVEN_OUT.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    given.into_iter().map(|(name, fd)| Ok(Inherited { name, socket: take(fd)? })).collect()
}

/// Takes over a descriptor that this process was started with.
fn take(fd: RawFd) -> io::Result<Socket> {
    // Looked at before it is taken: a number that nothing is open under must not be closed later, when there may be.
    // SAFETY: F_GETFD takes no pointer, and any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("take descriptor {fd}, which was announced: {error}")));
    }
    // SAFETY: it is open, and whoever started this process says that it is for us; it is given out only once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(Socket::from(fd))
}

/// What the process `parent` has passed on, as it says.
fn passed_on(list: &str, parent: i32) -> io::Result<Vec<(Option<String>, RawFd)>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("{PASSED_ON} is {list:?}, which makes no sense"));
    let mut parts = list.split(',');
    let by: i32 = parts.next().and_then(|pid| pid.parse().ok()).ok_or_else(bad)?;
    if by != parent {
        // It was meant for a process between that one and this.
        return Ok(Vec::new());
    }
    let entry = |part: &str| {
        let (name, fd) = part.split_once('=').ok_or_else(bad)?;
        let fd = fd.parse().ok().filter(|fd| *fd >= FIRST).ok_or_else(bad)?;
        Ok((Some(name.to_owned()), fd))
    };
    parts.map(entry).collect()
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
        let both = [(Some("a".to_owned()), 12), (Some("b.1".to_owned()), 3)];
        assert_eq!(passed_on("7,a=12,b.1=3", 7).unwrap(), both);
        assert_eq!(passed_on("7,a=12", 8).unwrap(), []);
        for nonsense in ["", "x,a=12", "7,a", "7,a=", "7,a=-1", "7,a=2"] {
            assert!(passed_on(nonsense, 7).unwrap_err().to_string().contains(PASSED_ON), "{nonsense}");
        }
    }

    #[test]
    fn names_that_could_be_read_otherwise_are_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for name in ["", "a=b", "a,b", "a b"] {
            let error = pass_on(&mut Command::new("true"), [(name, std::os::fd::AsFd::as_fd(&socket))]).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }
}
