//! Listeners that the parent process has opened: systemd's socket activation and compatible managers, and an older process of
//! the same program that hands over to a newer one.
//!
//! systemd's protocol puts the descriptors at 3 and up, and the new process's id in its environment. Both can only be set
//! between `fork` and `exec`, in a copy of a process that may have many threads. [`pass_on`] avoids that: the descriptors keep
//! their numbers, and the environment lists them.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::Socket;

/// systemd's first descriptor. The others follow it.
const FIRST: RawFd = 3;

/// The environment variable in which a process lists, for its child, its own process id and the sockets it has [passed
/// on](pass_on): `4711,listen=12,ready=13`.
const PASSED_ON: &str = "PELTON_PASSED_ON";

/// A socket that was passed on.
#[derive(Debug)]
pub struct Inherited {
    /// Its name, if it has one (`FileDescriptorName=` in a systemd unit).
    pub name: Option<String>,
    /// The socket.
    pub socket: Socket,
}

/// Copies of descriptors for a child process to inherit. Keep them until the child is started, and no longer.
#[derive(Debug)]
#[must_use = "sockets that are dropped before the process starts are not passed on"]
pub struct PassedOn {
    #[expect(dead_code, reason = "held, not used")]
    copies: Vec<OwnedFd>,
}

/// Passes these sockets on to the process that `command` starts, under these names. The child gets them from
/// [`inherited_listeners`]. A name consists of letters, digits, `-` and `.`.
///
/// Every other process that is started before the copies are dropped inherits them too, without knowing.
pub fn pass_on<'a>(
    command: &mut Command,
    sockets: impl IntoIterator<Item = (&'a str, BorrowedFd<'a>)>,
) -> io::Result<PassedOn> {
    let mut list = std::process::id().to_string();
    let mut copies = Vec::new();
    for (name, socket) in sockets {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("pass on a socket as {name:?}: invalid name"),
            ));
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

/// Returns the listeners that were passed on to this process: by a service manager, in the environment variables `LISTEN_PID`,
/// `LISTEN_FDS` and `LISTEN_FDNAMES`, or by its parent with [`pass_on`]. Variables that are meant for another process are
/// ignored.
///
/// The first call returns them, later calls return none. Children of this process do not inherit them.
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

/// Takes ownership of a descriptor that this process was started with.
fn take(fd: RawFd) -> io::Result<Socket> {
    // Checked first: an owner of a number that is not open would later close another file.
    // SAFETY: F_GETFD takes no pointer,
    // and any number is allowed.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("take the announced descriptor {fd}: {error}")));
    }
    // SAFETY: the descriptor is open, the parent process has announced it for this process, and it is taken only once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(Socket::from(fd))
}

/// Parses the list of what the process `parent` has passed on.
fn passed_on(list: &str, parent: i32) -> io::Result<Vec<(Option<String>, RawFd)>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("{PASSED_ON} is {list:?}, not a list of sockets"));
    let mut parts = list.split(',');
    let by: i32 = parts.next().and_then(|pid| pid.parse().ok()).ok_or_else(bad)?;
    if by != parent {
        // It was meant for a process between that one and this one.
        return Ok(Vec::new());
    }
    let entry = |part: &str| {
        let (name, fd) = part.split_once('=').ok_or_else(bad)?;
        let fd = fd.parse().ok().filter(|fd| *fd >= FIRST).ok_or_else(bad)?;
        Ok((Some(name.to_owned()), fd))
    };
    parts.map(entry).collect()
}

/// Returns how many descriptors the variables announce for the process `own`.
fn announced(pid: &str, count: &str, own: u32) -> io::Result<RawFd> {
    let bad = |what: &str, value: &str| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is {value:?}, not a valid number"))
    };
    let pid: u32 = pid.parse().map_err(|_| bad("LISTEN_PID", pid))?;
    let wanted: u16 = count.parse().map_err(|_| bad("LISTEN_FDS", count))?;
    Ok(if pid == own { RawFd::from(wanted) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_variables_are_named_and_those_for_other_processes_ignored() {
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
    fn ambiguous_names_are_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for name in ["", "a=b", "a,b", "a b"] {
            let error = pass_on(&mut Command::new("true"), [(name, std::os::fd::AsFd::as_fd(&socket))]).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }
}
