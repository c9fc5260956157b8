//! Watches of files and directories, on every engine.

mod directories;
mod files;
mod lifetime;
mod many;
mod trees;
#[cfg(target_os = "linux")]
mod vnodes;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton::{Changes, EventLoop, PathWatchId, PathWatchOptions, Reactor};
use pelton_testing::{Log, On, poll, run_until};

/// A reactor, and a directory that is removed at the end of the test.
struct Scene {
    reactor: EventLoop,
    directory: PathBuf,
    log: Log,
}

impl Scene {
    fn new(on: On) -> Scene {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("pelton-watches-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scene { reactor: on.reactor(), directory: directory.canonicalize().unwrap(), log: Log::default() }
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a directory, and those above it.
    fn make(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn write(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    fn link(&self, target: &str, name: &str) {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
    }

    fn watch(&mut self, name: &str) -> PathWatchId {
        self.watch_with(name, &PathWatchOptions::default())
    }

    fn watch_with(&mut self, name: &str, options: &PathWatchOptions) -> PathWatchId {
        let (path, report) = (self.path(name), self.reporter());
        self.reactor.watch_path_with(path, options, report).unwrap()
    }

    /// A callback that logs each change, with paths relative to the directory.
    fn reporter(&self) -> impl FnMut(&mut Reactor, Changes) + 'static {
        let (log, directory) = (self.log.clone(), format!("{}", self.directory.display()));
        move |_, changes| {
            assert!(!changes.is_empty());
            for change in changes {
                let shown = change.to_string();
                log.add(shown.replace(&format!("{directory}/"), "").replace(&directory, "."));
            }
        }
    }

    /// Waits for these changes, and that there are no others.
    #[track_caller]
    fn expect<const N: usize>(&mut self, changes: [&str; N]) {
        let log = self.log.clone();
        run_until(&mut self.reactor, |_| log.len() >= N);
        self.settle();
        assert_eq!(self.log.take(), changes);
    }

    /// Handles everything that the system has queued.
    fn settle(&mut self) {
        for _ in 0..4 {
            run_until(&mut self.reactor, |reactor| !reactor.is_visiting_paths());
            poll(&mut self.reactor);
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
