//! Lists everything below a directory.

use std::fs::{self, ReadDir};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Entry, Operation, Steps};

/// Entries per step: about a millisecond of work, which bounds the wait of others for the thread.
const ENTRIES_PER_STEP: usize = 256;

/// Lists everything below a directory [step by step](Steps), some entries per step.
///
/// A directory comes before its entries; otherwise the order is unspecified. Links are listed but not followed. A
/// directory that cannot be read appears as an error among the entries, and the walk continues. At most one directory
/// is open at a time, regardless of the depth.
pub fn walk(path: impl AsRef<Path>) -> Walk {
    let root: Arc<Path> = path.as_ref().into();
    let waiting = vec![(root.to_path_buf(), 1)];
    Walk { root, open: None, waiting, most: ENTRIES_PER_STEP }
}

/// A walk in progress: see [`walk`].
#[derive(Debug)]
#[must_use = "a walk does nothing until it is stepped"]
pub struct Walk {
    root: Arc<Path>,
    open: Option<(ReadDir, usize)>,
    /// Directories found but not yet read, the next one last, with the depth of their entries.
    waiting: Vec<(PathBuf, usize)>,
    most: usize,
}

impl Walk {
    /// Sets how many entries a step lists at most. By default 256.
    pub fn entries_per_step(mut self, most: usize) -> Walk {
        self.most = most.max(1);
        self
    }

    fn next(&mut self) -> Option<io::Result<Entry>> {
        loop {
            let Some((open, depth)) = &mut self.open else {
                let (path, depth) = self.waiting.pop()?;
                match fs::read_dir(&path) {
                    Ok(open) => self.open = Some((open, depth)),
                    Err(error) => return Some(Err(about(&path, &error))),
                }
                continue;
            };
            let depth = *depth;
            let entry = match open.next() {
                None => {
                    self.open = None;
                    continue;
                }
                Some(entry) => entry.and_then(|entry| Entry::of(&entry, depth)),
            };
            if let Ok(entry) = &entry
                && entry.file_type().is_dir()
            {
                self.waiting.push((entry.path().to_path_buf(), depth + 1));
            }
            return Some(entry);
        }
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("list {}: {error}", path.display()))
}

impl Steps for Walk {
    type Step = Vec<io::Result<Entry>>;

    fn step(mut self) -> Operation<(Self::Step, Option<Walk>)> {
        let root = self.root.clone();
        Operation::of("list", &root, move || {
            let mut entries = Vec::new();
            while entries.len() < self.most {
                match self.next() {
                    Some(entry) => entries.push(entry),
                    None => return Ok((entries, None)),
                }
            }
            Ok((entries, Some(self)))
        })
    }
}
