//! The files, used on the file lane: opening, appending, compacting.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::log::{self, HEADER, Record};
use super::{FileOptions, SyncPolicy};
use crate::Error;
use crate::ledger::Ledger;
use crate::memory::{apply, unix_millis};
use crate::store::{Request, Response};

pub(super) struct Disk {
    options: FileOptions,
    path: PathBuf,
    log: File,
    /// Held as long as the files are open, and released by the system if the process dies.
    _lock: File,
    ledger: Ledger,
    /// The end of the last whole record.
    len: u64,
    /// The length at which the log is replaced by its contents.
    compact_at: u64,
    /// Data has been written since then, and is not synced.
    dirty: Option<Instant>,
    /// After a failed sync, nobody knows what is on the disk.
    broken: Option<Error>,
}

impl Disk {
    pub(super) fn open(options: FileOptions) -> Result<Disk, Error> {
        let directory = &options.directory;
        std::fs::create_dir_all(directory).map_err(|error| Error::io("create", directory, error))?;
        let lock = lock(directory)?;
        let path = directory.join("jobs.log");
        // Left behind by a crash.
        match std::fs::remove_file(directory.join("jobs.new")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &directory.join("jobs.new"), error));
            }
            _ => {}
        }
        let mut log = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| Error::io("open", &path, error))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes).map_err(|error| Error::io("read", &path, error))?;
        let mut ledger = Ledger::default();
        let len = replay(&mut ledger, &bytes, &path, options.sync)?;
        if len < HEADER.len() as u64 || len < bytes.len() as u64 {
            if len > 0 {
                let torn = bytes.len() as u64 - len;
                tracing::warn!("{}: cut off {torn} bytes of a write that was not finished", path.display());
            }
            repair(&log, len).map_err(|error| Error::io("repair", &path, error))?;
            sync_directory(directory)?;
        }
        let len = len.max(HEADER.len() as u64);
        let compact_at = options.compact_at.max(len.saturating_mul(2));
        let mut disk = Disk { options, path, log, _lock: lock, ledger, len, compact_at, dirty: None, broken: None };
        // The process that had leases is gone, otherwise it would have the lock.
        disk.append(unix_millis(), vec![Request::Recover])?;
        disk.ledger.apply(unix_millis(), Request::Recover)?;
        Ok(disk)
    }

    /// Does what is asked, in this order. Calls `ring` for queues that have become ready.
    pub(super) fn commit(
        &mut self,
        requests: Vec<Request>,
        mut ring: impl FnMut(&str),
    ) -> Vec<Result<Response, Error>> {
        let now = unix_millis();
        let mut stored = Vec::new();
        for request in &requests {
            // A request that changes nothing alone may do so after another one.
            let after_others = !stored.is_empty() && !request.is_read_only();
            if after_others || self.ledger.changes(now, request) {
                stored.push(request.clone());
            }
        }
        let written = if stored.is_empty() { self.sync_if_due() } else { self.append(now, stored) };
        let answers = requests.into_iter().map(|request| match &written {
            Err(error) if !request.is_read_only() => Err(error.clone()),
            _ => apply(&mut self.ledger, now, request, &mut ring),
        });
        let answers = answers.collect();
        if self.len >= self.compact_at {
            self.compact();
        }
        answers
    }

    /// Returns after how long something must be synced.
    pub(super) fn sync_due(&self) -> Option<Duration> {
        match (self.options.sync, self.dirty) {
            (SyncPolicy::Every(period), Some(since)) => Some(period.saturating_sub(since.elapsed())),
            _ => None,
        }
    }

    fn append(&mut self, now: u64, requests: Vec<Request>) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let record = Record::Batch(now, requests).encode().map_err(|error| self.unencodable(error))?;
        if let Err(error) = self.log.write_all_at(&record, self.len) {
            // A disk that is full may have room again later. The part that was written is cut off, or overwritten next time.
            let _ = self.log.set_len(self.len);
            return Err(Error::io("write to", &self.path, error));
        }
        self.dirty.get_or_insert_with(Instant::now);
        if self.options.sync == SyncPolicy::Always {
            self.sync()?;
        }
        self.len += record.len() as u64;
        self.sync_if_due()
    }

    fn unencodable(&self, error: postcard::Error) -> Error {
        Error::io("encode for", &self.path, io::Error::other(error.to_string()))
    }

    fn sync_if_due(&mut self) -> Result<(), Error> {
        match self.sync_due() {
            Some(Duration::ZERO) => self.sync(),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.dirty = None;
        self.log.sync_data().map_err(|error| {
            let error = Error::io("sync", &self.path, error);
            // The system may have dropped the data and reports it only once.
            self.broken = Some(error.clone());
            error
        })
    }

    /// Replaces the log by what is left of it. If that fails, the log stays and grows.
    fn compact(&mut self) {
        let new = self.options.directory.join("jobs.new");
        match self.write_snapshot(&new) {
            Ok((file, len)) => {
                self.log = file;
                self.len = len;
                self.dirty = None;
                self.compact_at = self.options.compact_at.max(len.saturating_mul(4));
            }
            Err(error) => {
                tracing::warn!("a log of jobs could not be compacted: {error}");
                let _ = std::fs::remove_file(&new);
                self.compact_at = self.len.saturating_mul(2);
            }
        }
    }

    fn write_snapshot(&self, new: &Path) -> Result<(File, u64), Error> {
        let failed = |doing| move |error: io::Error| Error::io(doing, new, error);
        let record = Record::snapshot(&self.ledger).and_then(|snapshot| snapshot.encode());
        let record = record.map_err(|error| self.unencodable(error))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(new)
            .map_err(failed("create"))?;
        file.write_all(HEADER).and_then(|()| file.write_all(&record)).map_err(failed("write to"))?;
        file.sync_all().map_err(failed("sync"))?;
        std::fs::rename(new, &self.path).map_err(failed("rename"))?;
        // From here on, the new file is the log.
        if let Err(error) = sync_directory(&self.options.directory) {
            tracing::warn!("a log of jobs: {error}");
        }
        Ok((file, (HEADER.len() + record.len()) as u64))
    }
}

/// Applies all records, and returns where the last whole one ends.
fn replay(ledger: &mut Ledger, bytes: &[u8], path: &Path, sync: SyncPolicy) -> Result<u64, Error> {
    let Some(mut rest) = bytes.strip_prefix(HEADER) else {
        // The process may have died while it wrote the header.
        if HEADER.starts_with(bytes) {
            return Ok(0);
        }
        let error = io::Error::new(io::ErrorKind::InvalidData, "it is not a log of jobs of this version");
        return Err(Error::io("open", path, error));
    };
    while !rest.is_empty() {
        let at = (bytes.len() - rest.len()) as u64;
        let Some((contents, len)) = log::split(rest) else {
            // With `SyncPolicy::Always`, only the last record can be torn. Otherwise a power failure may have torn several.
            if sync == SyncPolicy::Always && log::contains_record(&rest[1..]) {
                return Err(Error::Corrupt { path: path.to_owned(), offset: at });
            }
            return Ok(at);
        };
        let unreadable = |_| Error::Corrupt { path: path.to_owned(), offset: at };
        match postcard::from_bytes(contents).map_err(unreadable)? {
            Record::Snapshot(snapshot) => *ledger = postcard::from_bytes(&snapshot).map_err(unreadable)?,
            Record::Batch(now, requests) => {
                for request in requests {
                    // A request that was refused then is refused now.
                    let _ = ledger.apply(now, request);
                }
            }
        }
        rest = &rest[len..];
    }
    Ok(bytes.len() as u64)
}

/// Cuts off what follows the last whole record, or begins a log.
fn repair(log: &File, len: u64) -> io::Result<()> {
    log.set_len(len)?;
    if len < HEADER.len() as u64 {
        log.write_all_at(HEADER, 0)?;
    }
    log.sync_all()
}

fn sync_directory(directory: &Path) -> Result<(), Error> {
    let opened = File::open(directory).and_then(|directory| directory.sync_all());
    opened.map_err(|error| Error::io("sync", directory, error))
}

/// Takes the lock, which names the process that has it.
fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join("lock");
    let failed = |error: io::Error| Error::io("lock", &path, error);
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(Error::Locked { path: directory.to_owned(), pid });
        }
        Err(error) => return Err(failed(error.into())),
    }
    file.set_len(0).map_err(failed)?;
    file.write_all(std::process::id().to_string().as_bytes()).map_err(failed)?;
    Ok(file)
}
