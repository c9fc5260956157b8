//! An open file.

use std::fs::{self, FileTimes, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Operation, reading};

/// An open file, like [`std::fs::File`].
///
/// Operations that overlap may run at the same time and in any order. [`read_at`](File::read_at) and
/// [`write_at`](File::write_at) do not interfere with each other, while [`read`](File::read) and [`write`](File::write)
/// share a position. Clones refer to the same file.
///
/// ```
/// use pelton::{Reactor, fs};
///
/// let mut reactor = Reactor::new()?;
/// fs::File::open("/dev/zero").then(&mut reactor, |reactor, file| {
///     let file = file.unwrap();
///     let read = file.read(4).then(reactor, |reactor, bytes| {
///         assert_eq!(bytes.unwrap(), [0; 4]);
///         reactor.stop();
///     });
///     read.unwrap();
/// })?;
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct File {
    file: Arc<fs::File>,
    path: Arc<Path>,
}

impl File {
    /// Opens a file for reading. See [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> Operation<File> {
        File::open_with(path, OpenOptions::new().read(true))
    }

    /// Creates a file, or truncates an existing one, for writing. See [`std::fs::File::create`].
    pub fn create(path: impl AsRef<Path>) -> Operation<File> {
        Operation::on("create", path, |path| Ok(File::from_std(fs::File::create(path)?, path)))
    }

    /// Creates a file for reading and writing. Fails if it exists. See [`std::fs::File::create_new`].
    pub fn create_new(path: impl AsRef<Path>) -> Operation<File> {
        Operation::on("create", path, |path| Ok(File::from_std(fs::File::create_new(path)?, path)))
    }

    /// Opens a file with `options`.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Operation<File> {
        let options = options.clone();
        Operation::on("open", path, move |path| Ok(File::from_std(options.open(path)?, path)))
    }

    /// Wraps an open file. The path is used in error messages.
    pub fn from_std(file: fs::File, path: impl AsRef<Path>) -> File {
        File { file: Arc::new(file), path: path.as_ref().into() }
    }

    /// Returns the standard file, for operations that are not offered here.
    pub fn as_std(&self) -> &Arc<fs::File> {
        &self.file
    }

    /// Returns the path with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn on<T: Send + 'static>(
        &self,
        what: &'static str,
        op: impl FnOnce(&fs::File) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let file = self.file.clone();
        Operation::of(what, &self.path, move || op(&file))
    }

    /// Reads up to `limit` bytes. Returns none at the end of the file.
    pub fn read(&self, limit: usize) -> Operation<Vec<u8>> {
        self.read_into(Vec::with_capacity(limit))
    }

    /// Reads into `buffer`, replacing its contents, up to its capacity. Returns it empty at the end of the file.
    ///
    /// Reusing one buffer saves an allocation per read.
    pub fn read_into(&self, buffer: Vec<u8>) -> Operation<Vec<u8>> {
        self.on("read", move |file| reading::into(file, buffer))
    }

    /// Reads up to `limit` bytes from `offset`, without moving the file's position.
    pub fn read_at(&self, offset: u64, limit: usize) -> Operation<Vec<u8>> {
        self.read_into_at(offset, Vec::with_capacity(limit))
    }

    /// Reads into `buffer` from `offset`, without moving the file's position. See [`read_into`](File::read_into).
    pub fn read_into_at(&self, offset: u64, buffer: Vec<u8>) -> Operation<Vec<u8>> {
        self.on("read", move |file| reading::into_at(file, buffer, offset))
    }

    /// Reads exactly `length` bytes from `offset`. Fails if there are fewer.
    pub fn read_exact_at(&self, offset: u64, length: usize) -> Operation<Vec<u8>> {
        self.on("read", move |file| {
            let mut buffer = vec![0; length];
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer)
        })
    }

    /// Reads from the file's position to its end.
    pub fn read_to_end(&self) -> Operation<Vec<u8>> {
        self.on("read", |mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// Reads text from the file's position to its end.
    pub fn read_to_string(&self) -> Operation<String> {
        self.on("read", |mut file| {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    /// Writes as many bytes as the system accepts in one call. Returns how many.
    pub fn write(&self, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<usize> {
        self.on("write", move |mut file| file.write(bytes.as_ref()))
    }

    /// Writes all bytes.
    pub fn write_all(&self, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
        self.on("write", move |mut file| file.write_all(bytes.as_ref()))
    }

    /// Writes at `offset`, without moving the file's position. See [`write`](File::write).
    pub fn write_at(&self, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<usize> {
        self.on("write", move |file| file.write_at(bytes.as_ref(), offset))
    }

    /// Writes all bytes at `offset`, without moving the file's position.
    pub fn write_all_at(&self, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
        self.on("write", move |file| file.write_all_at(bytes.as_ref(), offset))
    }

    /// Moves the file's position and returns the new one. See [`std::io::Seek::seek`].
    pub fn seek(&self, to: SeekFrom) -> Operation<u64> {
        self.on("seek in", move |mut file| file.seek(to))
    }

    /// Returns the file's position.
    pub fn stream_position(&self) -> Operation<u64> {
        self.on("seek in", |mut file| file.stream_position())
    }

    /// Flushes the file's data and metadata to the disk. See [`std::fs::File::sync_all`].
    pub fn sync_all(&self) -> Operation<()> {
        self.on("sync", |file| file.sync_all())
    }

    /// Flushes the file's data to the disk, without metadata that is not needed to read it. See
    /// [`std::fs::File::sync_data`].
    pub fn sync_data(&self) -> Operation<()> {
        self.on("sync", |file| file.sync_data())
    }

    /// Truncates the file, or extends it with zeros. See [`std::fs::File::set_len`].
    pub fn set_len(&self, length: u64) -> Operation<()> {
        self.on("set length of", move |file| file.set_len(length))
    }

    /// Returns the file's metadata.
    pub fn metadata(&self) -> Operation<Metadata> {
        self.on("get metadata of", |file| file.metadata())
    }

    /// Changes the file's permissions.
    pub fn set_permissions(&self, permissions: Permissions) -> Operation<()> {
        self.on("set permissions of", move |file| file.set_permissions(permissions))
    }

    /// Changes the file's access and modification times. See [`std::fs::File::set_times`].
    pub fn set_times(&self, times: FileTimes) -> Operation<()> {
        self.on("set times of", move |file| file.set_times(times))
    }

    /// Changes the file's modification time.
    pub fn set_modified(&self, time: SystemTime) -> Operation<()> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// Duplicates the file's descriptor. Both share one position. See [`std::fs::File::try_clone`].
    pub fn try_clone(&self) -> Operation<File> {
        let path = self.path.clone();
        self.on("duplicate", move |file| Ok(File { file: Arc::new(file.try_clone()?), path }))
    }

    /// Acquires an exclusive lock on the file, and waits until that is possible. The lock is held until it is
    /// [released](File::unlock) or the last clone of this file is dropped. See [`std::fs::File::lock`].
    ///
    /// It waits on the [`Waits`](crate::Lane::Waits) lane, so it does not block operations on other files.
    pub fn lock(&self) -> Operation<()> {
        self.on("lock", |file| file.lock()).on_waits_lane()
    }

    /// Acquires a shared lock, as [`lock`](File::lock) does an exclusive one. See [`std::fs::File::lock_shared`].
    pub fn lock_shared(&self) -> Operation<()> {
        self.on("lock", |file| file.lock_shared()).on_waits_lane()
    }

    /// Acquires an exclusive lock if that is possible without waiting. Returns whether it did.
    pub fn try_lock(&self) -> Operation<bool> {
        self.on("lock", |file| is_free(file.try_lock()))
    }

    /// Acquires a shared lock if that is possible without waiting. Returns whether it did.
    pub fn try_lock_shared(&self) -> Operation<bool> {
        self.on("lock", |file| is_free(file.try_lock_shared()))
    }

    /// Releases a lock.
    pub fn unlock(&self) -> Operation<()> {
        self.on("unlock", |file| file.unlock())
    }

    /// Closes the file on another thread, if this is its last clone. Dropping the file closes it too, on the loop,
    /// which may block for files on a network file system.
    pub fn close(self) -> Operation<()> {
        let file = self.file;
        Operation::of("close", &self.path, move || {
            drop(file);
            Ok(())
        })
    }
}

fn is_free(outcome: Result<(), TryLockError>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
