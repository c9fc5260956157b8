//! A directory of files to serve, removed at the end of the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use pelton_http::FileSettings;

/// A temporary directory with files.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    fn below(directory: &Path) -> Tree {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("pelton-tree-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Tree(path)
    }

    /// Creates one on a disk, so that its files can be evicted from the page cache: the target or temporary directory may be in
    /// memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn on_disk() -> Tree {
        let places = [env!("CARGO_TARGET_TMPDIR").into(), std::env::temp_dir(), "/var/tmp".into()];
        let found = places.iter().map(|place: &PathBuf| Tree::below(place)).find(|tree| {
            tree.write("probe", noise(2_000_000));
            let forgotten = (0..100).any(|_| tree.forget("probe") && !tree.is_in_memory("probe"));
            fs::remove_file(tree.path().join("probe")).unwrap();
            forgotten
        });
        found.unwrap_or_else(|| {
            panic!("this test needs one of {places:?} on a disk, so that files can be evicted from the page cache")
        })
    }

    /// Evicts a file from the page cache.
    #[cfg(target_os = "linux")]
    pub(crate) fn forget(&self, name: &str) -> bool {
        let file = File::open(self.0.join(name)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).is_ok()
    }

    /// Whether the middle of a file is in the page cache, or the kernel cannot tell. Reads nothing into it.
    #[cfg(target_os = "linux")]
    fn is_in_memory(&self, name: &str) -> bool {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        let file = File::open(self.0.join(name)).unwrap();
        let middle = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        let slices = &mut [std::io::IoSliceMut::new(&mut byte)];
        preadv2(&file, slices, middle, ReadWriteFlags::NOWAIT) != Err(Errno::AGAIN)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and its parent directories, dated an hour ago.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        self.write_at(name, bytes, SystemTime::now() - Duration::from_secs(3600));
    }

    pub(crate) fn write_at(&self, name: &str, bytes: impl AsRef<[u8]>, modified: SystemTime) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Settings for tests that need validators right after writing. A test must take care that the clock of the file system ticks
/// between two writes.
pub(crate) fn settled() -> FileSettings {
    FileSettings { settled_after: Duration::ZERO, ..FileSettings::default() }
}

/// Makes this thread, and threads it starts, respect file permissions even as root.
pub(crate) fn respect_permissions() {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).unwrap();
    }
}

/// Bytes without repetition.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}
