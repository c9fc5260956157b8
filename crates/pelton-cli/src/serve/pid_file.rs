//! The file with the number of the process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// It is removed when this is dropped, unless another process has written its own number there.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the number of this process, in one step: who reads it sees the old number or the new.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".{}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        let written = fs::write(&unfinished, format!("{}\n", std::process::id()));
        let moved = written.and_then(|()| fs::rename(&unfinished, path));
        match moved {
            Ok(()) => Ok(PidFile(path.to_owned())),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(io::Error::new(error.kind(), format!("write the PID file {}: {error}", path.display())))
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let is_ours = fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string());
        if is_ours && let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "could not remove the PID file");
        }
    }
}
