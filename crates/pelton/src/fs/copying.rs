//! Copying with progress.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Operation, Steps};

/// Bytes per step: a few milliseconds on a fast disk, which makes the round trip to the loop negligible.
const BYTES_PER_STEP: u64 = 8 * 1024 * 1024;

/// Copies a file and its permissions [step by step](Steps), reporting progress. Where the system supports it, the bytes
/// stay in the kernel.
///
/// If the copy is abandoned, the part already copied stays.
pub fn copy_in_steps(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Copying {
    let (from, to) = (from.as_ref().to_path_buf(), to.as_ref().to_path_buf());
    Copying { from, to, files: None, progress: Progress { copied: 0, total: 0 }, most: BYTES_PER_STEP }
}

/// A copy in progress: see [`copy_in_steps`].
#[derive(Debug)]
#[must_use = "nothing is copied until it is stepped"]
pub struct Copying {
    from: PathBuf,
    to: PathBuf,
    files: Option<(File, File)>,
    progress: Progress,
    most: u64,
}

/// The progress of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes copied so far.
    pub copied: u64,
    /// The size of the file when the copy started.
    pub total: u64,
}

impl Copying {
    /// Sets how many bytes a step copies at most. By default 8 MiB.
    pub fn bytes_per_step(mut self, most: u64) -> Copying {
        self.most = most.max(1);
        self
    }

    fn open(&mut self) -> io::Result<(File, File)> {
        let from = File::open(&self.from)?;
        let about = from.metadata()?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the source is not a file"));
        }
        self.progress.total = about.len();
        let mut options = OpenOptions::new();
        let to = options.write(true).create(true).truncate(false).mode(about.permissions().mode()).open(&self.to)?;
        let about_to = to.metadata()?;
        if same_file(&about, &about_to) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the source and the target are the same file"));
        }
        if about_to.is_file() {
            to.set_len(0)?;
            to.set_permissions(about.permissions())?;
        }
        Ok((from, to))
    }
}

/// Returns whether both are the same file. Truncating one would truncate the other.
fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl Steps for Copying {
    type Step = Progress;

    fn step(mut self) -> Operation<(Progress, Option<Copying>)> {
        let (from, to) = (self.from.clone(), self.to.clone());
        Operation::between("copy", from, to, move |_, _| {
            let (from, mut to) = match self.files.take() {
                Some(files) => files,
                None => self.open()?,
            };
            let copied = io::copy(&mut (&from).take(self.most), &mut to)?;
            self.progress.copied += copied;
            let progress = self.progress;
            // A file that grows is copied to its end. Checking for the end saves a last step that would copy nothing.
            let over = copied < self.most || (progress.copied >= progress.total && at_end(&from, progress.copied)?);
            self.files = Some((from, to));
            Ok((progress, (!over).then_some(self)))
        })
    }
}

fn at_end(file: &File, position: u64) -> io::Result<bool> {
    Ok(file.metadata()?.len() <= position)
}
