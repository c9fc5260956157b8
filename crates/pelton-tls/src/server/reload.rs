//! Reads the files of a server again, without affecting its connections.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::Server;
use crate::ConfigError;

/// What a file looked like when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Also changes when permissions do, so that a file that becomes readable is read.
    changed: (i64, i64),
}

impl Stamp {
    /// Returns `None` if there is no such file.
    pub(super) fn of(path: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(path).ok()?;
        Some(Stamp {
            inode: found.ino(),
            length: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Refuses paths at which there is a pipe or a device now. It may be read at the start, but a second time there may be
/// nobody who writes, and nothing could be reloaded ever after.
fn refuse_pipes(paths: &[PathBuf]) -> Result<(), ConfigError> {
    let is_other = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    match paths.iter().find(is_other) {
        Some(path) => Err(ConfigError::unusable(path.display().to_string(), "this is neither a file nor a directory")),
        None => Ok(()),
    }
}

/// What became of a [reload](Server::reload).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reload {
    /// New connections use what the files contain now.
    Done,
    /// No file has changed.
    Unchanged,
}

impl Server {
    /// Reads all files again: certificates, keys, OCSP responses, authorities of clients and revocation lists. New
    /// connections use them; others are not affected. After an error, everything stays as it was.
    ///
    /// If clients present certificates, sessions from before cannot be resumed, since the client may have been revoked.
    ///
    /// This blocks to read files. On a loop, use [`watch`](Server::watch) or a [lane](pelton::Lane).
    pub fn reload(&self) -> Result<(), ConfigError> {
        let _alone = self.shared.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.read_again()
    }

    fn read_again(&self) -> Result<(), ConfigError> {
        let Some(settings) = &self.shared.settings else { return Ok(()) };
        let before = self.with_current(|loaded| (loaded.tickets.clone(), Arc::clone(&loaded.config.session_storage)));
        let (tickets, sessions) = match settings.verifies_clients() {
            // Not the same without its contents: a handshake that began before may end later, and must not leave a session.
            true => (settings.tickets(), settings.sessions()),
            false => before,
        };
        refuse_pipes(&settings.paths())?;
        let loaded = settings.load(tickets, sessions)?;
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// Reads all files again if one of them has changed, appeared or vanished since they were last read. An error is
    /// returned once, until a file changes again.
    pub fn reload_if_changed(&self) -> Result<Reload, ConfigError> {
        let Some(settings) = &self.shared.settings else { return Ok(Reload::Unchanged) };
        let _alone = self.shared.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let now = settings.stamps();
        if self.with_current(|loaded| loaded.stamps == now) {
            return Ok(Reload::Unchanged);
        }
        let reloaded = self.read_again();
        if reloaded.is_err() {
            // The same files fail again.
            self.shared.current.write().unwrap_or_else(PoisonError::into_inner).stamps = now;
        }
        reloaded.map(|()| Reload::Done)
    }

    /// Returns the files that matter, and the directories in which others may appear.
    pub(super) fn paths(&self) -> BTreeSet<PathBuf> {
        self.shared.settings.iter().flat_map(|settings| settings.paths()).collect()
    }
}
