//! The end of a process, as a descriptor that becomes readable.
//!
//! On Linux the descriptor is a pidfd. It refers to the process and not to its number, so a process that gets the number later is
//! never confused with it. Elsewhere it is a kernel queue that waits for the process (`EVFILT_PROC`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Pid;
#[cfg(not(target_os = "openbsd"))]
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// A process that is being watched.
pub struct Process {
    pid: Pid,
    fd: OwnedFd,
}

/// What is known about a watched process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It is running, or nothing is known.
    Unknown,
    /// It has exited with this status. It is a child of this process, and was not waited for yet.
    Exited(ExitStatus),
}

impl Process {
    /// Begins to watch a process. Fails with `NotFound` if there is none with this number.
    pub fn open(pid: u32) -> io::Result<Process> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "this is not the number of a process");
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(invalid)?;
        let fd = open(pid).map_err(|error| match error {
            rustix::io::Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, "there is no such process"),
            error => error.into(),
        })?;
        Ok(Process { pid, fd })
    }

    /// Returns its number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the status with which it has exited, if the system tells. It tells the parent of a process, until the parent has
    /// waited for it. This does not wait for it, so the owner of the child still can.
    pub fn progress(&self) -> Progress {
        #[cfg(target_os = "openbsd")]
        return Progress::Unknown;
        #[cfg(not(target_os = "openbsd"))]
        {
            #[cfg(target_os = "linux")]
            let which = WaitId::PidFd(self.fd.as_fd());
            #[cfg(not(target_os = "linux"))]
            let which = WaitId::Pid(self.pid);
            // Fails if it is not a child of this process.
            match waitid(which, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => exit_status(&status).map_or(Progress::Unknown, Progress::Exited),
                Ok(None) | Err(_) => Progress::Unknown,
            }
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes all descriptors of this process but its three standard files close when a program is executed: also those that it has
/// inherited, and those that a library has opened without close-on-exec. Children that are started afterwards inherit none of them.
///
/// The alternative is to close them in the child. It then has to be forked instead of spawned, which was measured to take 180 ms in
/// a process with 1 GiB of memory. An event loop cannot stop for so long.
pub fn withhold_descriptors() {
    #[cfg(target_os = "linux")]
    {
        let (first, last, flags) =
            (FIRST as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_uint);
        // SAFETY: the call takes three numbers, and changes nothing but the flags of descriptors.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0 {
            return;
        }
        // Linux before 5.11 has no such call.
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(MOST_DESCRIPTORS, |limit| libc::c_int::try_from(limit).unwrap_or(MOST_DESCRIPTORS));
    for number in FIRST..limit.min(MOST_DESCRIPTORS) {
        // SAFETY: the call takes three numbers. It fails for those that are no descriptors, and that is what is wanted.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The first descriptor after the standard files.
const FIRST: libc::c_int = 3;

/// Where descriptors have to be marked one by one, higher ones are left as they are: the limit can be in the billions, and inherited
/// descriptors have low numbers.
const MOST_DESCRIPTORS: libc::c_int = 1_024;

#[cfg(not(any(target_os = "openbsd", target_os = "netbsd")))]
fn exit_status(status: &WaitIdStatus) -> Option<ExitStatus> {
    const DUMPED: i32 = 0x80;
    if let Some(code) = status.exit_status() {
        Some(ExitStatus::from_raw(code << 8))
    } else {
        let core = if status.dumped() { DUMPED } else { 0 };
        status.terminating_signal().map(|signal| ExitStatus::from_raw(signal | core))
    }
}

/// The field is not at a known place there.
#[cfg(target_os = "netbsd")]
fn exit_status(_: &WaitIdStatus) -> Option<ExitStatus> {
    None
}

#[cfg(target_os = "linux")]
fn open(pid: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn open(pid: Pid) -> rustix::io::Result<OwnedFd> {
    use rustix::event::kqueue::{Event, EventFilter, EventFlags, ProcessEvents, kevent, kqueue};
    use rustix::io::{FdFlags, fcntl_setfd};
    use std::time::Duration;

    let queue = kqueue()?;
    fcntl_setfd(&queue, FdFlags::CLOEXEC)?;
    let filter = EventFilter::Proc { pid, flags: ProcessEvents::EXIT };
    let change = Event::new(filter, EventFlags::ADD | EventFlags::ONESHOT, std::ptr::null_mut());
    // SAFETY: the change does not refer to a descriptor.
    unsafe { kevent(&queue, &[change], &mut Vec::<Event>::new(), Some(Duration::ZERO)) }?;
    Ok(queue)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn wait(process: &Process) {
        let mut files = [PollFd::new(process, PollFlags::IN)];
        assert_eq!(poll(&mut files, None).unwrap(), 1);
    }

    #[test]
    fn the_status_of_a_child_can_be_looked_at_and_still_waited_for() {
        for (script, expected) in [("exit 7", 7 << 8), ("kill -9 $$", 9)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = Process::open(child.id()).unwrap();
            wait(&process);
            let expected = ExitStatus::from_raw(expected);
            assert_eq!((process.pid(), process.progress()), (child.id(), Progress::Exited(expected)));
            assert_eq!(child.wait().unwrap(), expected);
            assert_eq!(process.progress(), Progress::Unknown);
        }
    }

    #[test]
    fn numbers_without_a_process_are_errors() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(Process::open(child.id()).err().unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(Process::open(0).err().unwrap().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Process::open(u32::MAX).err().unwrap().kind(), io::ErrorKind::InvalidInput);
    }
}
