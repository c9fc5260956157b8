//! Bounds the number of open files, cached or being sent.
//!
//! A client that requests many large files and reads none keeps them all open, even if the cache has dropped them. Without a
//! bound, a few clients could exhaust the descriptors of the process, and no other connection could be accepted or refused.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The open files, up to a maximum number. Threads of the file lane share it.
#[derive(Debug)]
pub(super) struct OpenFiles {
    most: usize,
    /// Some may have been closed since they were added here.
    files: Mutex<Vec<Weak<File>>>,
}

impl OpenFiles {
    pub(super) fn new(most: usize) -> OpenFiles {
        OpenFiles { most, files: Mutex::default() }
    }

    /// Counts a file as open until its last reference is dropped. Closes it and returns `None` at the maximum.
    pub(super) fn hold(&self, file: File) -> Option<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove closed files before the list grows.
        if files.len() >= files.capacity().min(self.most) {
            files.retain(|file| file.strong_count() > 0);
        }
        if files.len() >= self.most {
            return None;
        }
        let file = Arc::new(file);
        files.push(Arc::downgrade(&file));
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn open_files_are_bounded_and_closing_makes_room() {
        let open = OpenFiles::new(3);
        let mut held: Vec<_> = (0..3).map(|_| open.hold(file()).unwrap()).collect();
        let also_sent = held[1].clone();
        assert!(open.hold(file()).is_none());
        held.remove(1);
        assert!(open.hold(file()).is_none(), "the file is still being sent");
        drop(also_sent);
        held.push(open.hold(file()).unwrap());
        assert!(open.hold(file()).is_none());
        assert!(OpenFiles::new(0).hold(file()).is_none());
    }

    #[test]
    fn closed_files_are_removed_from_the_list() {
        let open = OpenFiles::new(usize::MAX);
        for _ in 0..1000 {
            drop(open.hold(file()).unwrap());
        }
        assert!(open.files.lock().unwrap().capacity() < 16);
    }
}
