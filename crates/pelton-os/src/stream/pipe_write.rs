//! Writing to pipes without a signal.
//!
//! A write to a pipe that has no reader raises `SIGPIPE`, which by default ends the process. Rust programs ignore the signal,
//! but a library in a program of another language cannot rely on that, and must not change the disposition for all of it. There
//! is no flag like a socket's `MSG_NOSIGNAL` except on new kernels. In order of preference:
//!
//! 1. Linux 6.18 and later: `pwritev2` with `RWF_NOSIGNAL`.
//! 2. The signal was ignored when the stream was opened: a plain `writev`. A program that wants the signal later, after it has
//!    opened pipes, gets it.
//! 3. Otherwise the signal is blocked for this thread around each write, and removed if the write has raised it.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use crate::signal;

/// How writes avoid the signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PipeWrite {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Flagged,
    Plain,
    Masked,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const NOSIGNAL: rustix::io::ReadWriteFlags = rustix::io::ReadWriteFlags::from_bits_retain(0x100);

impl PipeWrite {
    /// Selects the best way for a pipe.
    pub(super) fn select(pipe: BorrowedFd<'_>) -> io::Result<PipeWrite> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if flag_is_known(pipe) {
            return Ok(PipeWrite::Flagged);
        }
        let _ = pipe;
        Ok(if signal::is_ignored(libc::SIGPIPE)? { PipeWrite::Plain } else { PipeWrite::Masked })
    }

    pub(super) fn write(self, pipe: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            // Position -1 is the file's own, which a pipe does not have.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            PipeWrite::Flagged => Ok(rustix::io::pwritev2(pipe, slices, u64::MAX, NOSIGNAL)?),
            PipeWrite::Plain => Ok(rustix::io::writev(pipe, slices)?),
            PipeWrite::Masked => signal::without_sigpipe(|| Ok(rustix::io::writev(pipe, slices)?)),
        }
    }
}

/// Returns whether the kernel knows the flag. The write of no bytes that finds out has no effect, and is made once per process.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn flag_is_known(pipe: BorrowedFd<'_>) -> bool {
    use std::sync::OnceLock;

    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| rustix::io::pwritev2(pipe, &[IoSlice::new(&[])], u64::MAX, NOSIGNAL) == Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn every_way_writes_and_reports_a_missing_reader() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut ways = vec![PipeWrite::Plain, PipeWrite::Masked];
        ways.extend([PipeWrite::select(writer.as_fd()).unwrap()]);
        for way in &ways {
            assert_eq!(way.write(writer.as_fd(), &[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), 3);
            let mut read = [0; 3];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"abc");
        }
        drop(reader);
        for way in ways {
            let error = way.write(writer.as_fd(), &[IoSlice::new(b"x")]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{way:?}");
        }
    }

    /// Kernels without the flag need this way where the signal is not ignored. It must neither end the process, nor leave the
    /// signal pending or blocked, nor take away one that was pending before.
    #[test]
    fn a_masked_write_survives_the_default_action_and_leaves_no_trace() {
        const CHILD: &str = "PELTON_TEST_CHILD";
        let name = "stream::pipe_write::tests::a_masked_write_survives_the_default_action_and_leaves_no_trace";
        if std::env::var_os(CHILD).is_none() {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("survived"), "{output:?}");
            return;
        }
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        for _ in 0..3 {
            let error = PipeWrite::Masked.write(writer.as_fd(), &[IoSlice::new(b"x")]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(signal::state_of(libc::SIGPIPE), (false, false), "neither blocked nor pending");
        }
        signal::raise_blocked(libc::SIGPIPE);
        assert_eq!(signal::state_of(libc::SIGPIPE), (true, true));
        PipeWrite::Masked.write(writer.as_fd(), &[IoSlice::new(b"x")]).unwrap_err();
        assert_eq!(signal::state_of(libc::SIGPIPE), (true, true), "as before");
        println!("survived");
        std::process::exit(0);
    }
}
