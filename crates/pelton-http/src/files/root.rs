//! The served directory, which may be replaced while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pelton::Time;
use rustix::io::Errno;

use super::resolve::{Directory, status_of};

/// A path, and the directory that it last resolved to. Threads of the file lane share it.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// How long the directory is used before the path is resolved again. `None` means forever.
    valid: Option<Duration>,
    resolved: Mutex<Resolved>,
}

#[derive(Debug)]
struct Resolved {
    directory: Result<Arc<Directory>, Errno>,
    /// `None` until the first look-up: the server may have been set up long before.
    at: Option<Time>,
}

impl Root {
    pub(super) fn open(path: &Path, valid: Option<Duration>) -> io::Result<Root> {
        // Later changes of the current directory must not matter.
        let path = std::path::absolute(path)?;
        let directory = Ok(Arc::new(Directory::open(&path)?));
        Ok(Root { path, valid, resolved: Mutex::new(Resolved { directory, at: None }) })
    }

    /// The directory to look names up in.
    pub(super) fn directory(&self, now: Time) -> Result<Arc<Directory>, Errno> {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = match (self.valid, resolved.at) {
            (None, _) => true,
            (Some(valid), Some(at)) => now < at + valid,
            (Some(_), None) => false,
        };
        if fresh {
            return resolved.directory.clone();
        }
        // Resolving may block, so release the lock. Other threads use the old directory meanwhile.
        resolved.at = Some(now);
        drop(resolved);
        let opened = Directory::open(&self.path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        match opened {
            // Lack of descriptors or memory says nothing about the directory.
            Err(error) if status_of(error) >= 500 && resolved.directory.is_ok() => {
                tracing::warn!(%error, path = ?self.path, "cannot resolve the served directory again");
            }
            opened => resolved.directory = opened.map(Arc::new),
        }
        resolved.directory.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_path_is_resolved_once_per_period() {
        let tree = std::env::temp_dir().join(format!("pelton-root-{}", std::process::id()));
        let _ = fs::remove_dir_all(&tree);
        for name in ["one", "two"] {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join(name), "").unwrap();
        }
        let link = tree.join("link");
        let point_to = |target: &str| {
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
        };
        point_to("one");
        let period = Duration::from_millis(1000);
        let following = Root::open(&link, Some(period)).unwrap();
        let (always, never) = (Root::open(&link, Some(Duration::ZERO)).unwrap(), Root::open(&link, None).unwrap());
        let has = |root: &Root, name: &str, now: u64| root.directory(at(now)).unwrap().look(name.as_bytes()).is_ok();
        point_to("two");
        // The first look-up resolves the path again.
        assert!(has(&following, "two", 0) && has(&always, "two", 0) && has(&never, "one", 0));
        point_to("one");
        assert!(has(&following, "two", 999) && has(&always, "one", 999));
        assert!(has(&following, "one", 1000) && has(&never, "one", 1000));
        // Work that was queued earlier but runs later.
        assert!(has(&following, "one", 500));
        fs::remove_file(&link).unwrap();
        assert!(has(&following, "one", 1999));
        assert_eq!(following.directory(at(2000)).err(), Some(Errno::NOENT));
        point_to("two");
        assert_eq!(following.directory(at(2999)).err(), Some(Errno::NOENT), "the failure is cached just as long");
        assert!(has(&following, "two", 3000) && has(&never, "one", 3000));
        fs::remove_dir_all(tree).unwrap();
    }
}
