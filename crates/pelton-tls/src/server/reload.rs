//! Reads the files of a server again, without affecting its connections.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pelton::{Lane, Reactor, TimerId};

use super::Server;
use crate::ConfigError;

/// What a file looked like when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// Returns `None` if there is no such file.
    pub(super) fn of(path: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(path).ok()?;
        Some(Stamp { inode: found.ino(), length: found.len(), modified: (found.mtime(), found.mtime_nsec()) })
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
        let _alone = self.0.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.read_again()
    }

    fn read_again(&self) -> Result<(), ConfigError> {
        let Some(settings) = &self.0.settings else { return Ok(()) };
        let before = self.with_current(|loaded| Arc::clone(&loaded.config));
        let sessions = match settings.verifies_clients() {
            true => settings.sessions(),
            false => Arc::clone(&before.session_storage),
        };
        let tickets = self.0.tickets.as_ref();
        let loaded = settings.load(tickets, sessions)?;
        if let Some(tickets) = tickets.filter(|_| settings.verifies_clients()) {
            tickets.forget();
        }
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// Reads all files again if one of them has changed, appeared or vanished since they were last read. An error is
    /// returned once, until a file changes again.
    pub fn reload_if_changed(&self) -> Result<Reload, ConfigError> {
        let Some(settings) = &self.0.settings else { return Ok(Reload::Unchanged) };
        let _alone = self.0.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let now = settings.stamps();
        if self.with_current(|loaded| loaded.stamps == now) {
            return Ok(Reload::Unchanged);
        }
        let reloaded = self.read_again();
        if reloaded.is_err() {
            // The same files fail again.
            self.0.current.write().unwrap_or_else(PoisonError::into_inner).stamps = now;
        }
        reloaded.map(|()| Reload::Done)
    }

    /// Looks at the files every `period`, on a thread for blocking work, and reloads them when they have changed. Calls
    /// `report` after each attempt. If a file cannot be used, everything stays as it was.
    ///
    /// [Cancel](Reactor::cancel) the timer to stop.
    pub fn watch(
        &self,
        reactor: &mut Reactor,
        period: Duration,
        report: impl FnMut(&mut Reactor, Result<(), ConfigError>) + Clone + 'static,
    ) -> TimerId {
        let server = self.clone();
        reactor.every(period, move |reactor, _| {
            let (server, mut report) = (server.clone(), report.clone());
            let looked = reactor.defer(
                Lane::Files,
                move || server.reload_if_changed(),
                move |reactor, outcome| match outcome {
                    Ok(Ok(Reload::Unchanged)) | Err(_) => {}
                    Ok(Ok(Reload::Done)) => report(reactor, Ok(())),
                    Ok(Err(error)) => report(reactor, Err(error)),
                },
            );
            // A full lane has more important work; the next period comes.
            drop(looked);
        })
    }
}
