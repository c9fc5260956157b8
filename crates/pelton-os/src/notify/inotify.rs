//! Notices from `inotify`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::{Level, MarkId, Marking, Notice, What};

/// Room for about 500 notices with short names. The kernel fills it with one system call.
const BUFFER_SIZE: usize = 16 * 1024;

/// Reads per call of [`Notifier::read`]: bounds the time that one turn of a loop spends here.
const READS: usize = 8;

const ITSELF: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);

const NAMES: WatchFlags = ITSELF
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);

// A file that was deleted while it is open can still be written to. Without EXCL_UNLINK, that is reported under the name that
// it had, which may belong to another file by now.
const CONTENTS: WatchFlags = NAMES.union(WatchFlags::MODIFY).union(WatchFlags::ATTRIB).union(WatchFlags::EXCL_UNLINK);

/// Reports changes of marked directories.
pub struct Notifier {
    fd: OwnedFd,
    buffer: Box<[MaybeUninit<u8>]>,
}

impl Notifier {
    /// Opens a notifier without marks.
    pub fn new() -> io::Result<Notifier> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|error| {
            if error == Errno::MFILE { limit_reached("max_user_instances", "inotify instances") } else { error.into() }
        })?;
        Ok(Notifier { fd, buffer: vec![MaybeUninit::uninit(); BUFFER_SIZE].into() })
    }

    /// Marks a directory or a symbolic link. If the file has a mark already, that mark is changed and returned.
    ///
    /// A level above [`Level::Itself`] requires a directory.
    pub fn mark(&mut self, path: &Path, level: Level, marking: Marking) -> io::Result<MarkId> {
        let mut flags = WatchFlags::DONT_FOLLOW
            | match level {
                Level::Itself => ITSELF,
                Level::Names => NAMES | WatchFlags::ONLYDIR,
                Level::Contents => CONTENTS | WatchFlags::ONLYDIR,
            };
        if marking == Marking::Widen {
            flags |= WatchFlags::MASK_ADD;
        }
        inotify::add_watch(&self.fd, path, flags).map(MarkId).map_err(|error| {
            if error == Errno::NOSPC { limit_reached("max_user_watches", "inotify watches") } else { error.into() }
        })
    }

    /// Removes a mark. Notices that it caused may still follow.
    pub fn unmark(&mut self, mark: MarkId) {
        // Fails if the kernel has removed the mark because its file is gone.
        let _ = inotify::remove_watch(&self.fd, mark.0);
    }

    /// Appends waiting notices to `notices`. Returns whether these were all.
    pub fn read(&mut self, notices: &mut Vec<Notice>) -> io::Result<bool> {
        for _ in 0..READS {
            let mut reader = Reader::new(&self.fd, &mut self.buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                        let directory = event.events().contains(ReadFlags::ISDIR);
                        let Some(what) = what(event.events(), event.cookie()) else { continue };
                        notices.push(Notice { mark: MarkId(event.wd()), what, directory, name });
                    }
                    Err(Errno::WOULDBLOCK) => return Ok(true),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        Ok(false)
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn what(events: ReadFlags, cookie: u32) -> Option<What> {
    let table = [
        (ReadFlags::QUEUE_OVERFLOW, What::Overflow),
        (ReadFlags::IGNORED, What::Ended),
        (ReadFlags::UNMOUNT, What::Gone),
        (ReadFlags::DELETE_SELF, What::Gone),
        (ReadFlags::MOVE_SELF, What::Gone),
        (ReadFlags::CREATE, What::Created),
        (ReadFlags::MOVED_FROM, What::MovedFrom(cookie)),
        (ReadFlags::MOVED_TO, What::MovedTo(cookie)),
        (ReadFlags::DELETE, What::Deleted),
        (ReadFlags::MODIFY, What::Modified),
        (ReadFlags::ATTRIB, What::Attributes),
    ];
    table.into_iter().find_map(|(flag, what)| events.contains(flag).then_some(what))
}

/// Returns an error that says which limit to raise. The system's own errors for these are "No space left on device" and
/// "Too many open files".
fn limit_reached(sysctl: &str, of: &str) -> io::Error {
    let now = fs::read_to_string(format!("/proc/sys/fs/inotify/{sysctl}")).unwrap_or_default();
    let message = format!(
        "this user has the largest allowed number of {of}; raise the sysctl fs.inotify.{sysctl} (now {})",
        now.trim()
    );
    io::Error::new(io::ErrorKind::QuotaExceeded, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_limit_is_an_error_that_names_the_sysctl() {
        let error = limit_reached("max_user_watches", "inotify watches").to_string();
        assert!(error.contains("fs.inotify.max_user_watches"), "{error}");
        assert!(error.chars().any(|digit| digit.is_ascii_digit()), "{error}");
    }
}
