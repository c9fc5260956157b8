//! A file that is open.

use std::fs::{self, FileTimes, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Operation, reading};

/// A file that is open: what [`std::fs::File`] is.
///
/// Operations of which one is started before another is done may be done at the same time and in any order;
/// [`read_at`](File::read_at) and [`write_at`](File::write_at) do not get in each other's way then, while
/// [`read`](File::read) and [`write`](File::write) share a position. Clones are the same file.
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
    /// Opens a file, to read it. See [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> Operation<File> {
        File::open_with(path, OpenOptions::new().read(true))
    }

    /// Makes a file, or empties it if there is one, to write it. See [`std::fs::File::create`].
    pub fn create(path: impl AsRef<Path>) -> Operation<File> {
        Operation::on("create", path, |path| Ok(File::from_std(fs::File::create(path)?, path)))
    }

    /// Makes a file that was not there, to read and write it. See [`std::fs::File::create_new`].
    pub fn create_new(path: impl AsRef<Path>) -> Operation<File> {
        Operation::on("create", path, |path| Ok(File::from_std(fs::File::create_new(path)?, path)))
    }

    /// Opens a file as `options` say.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Operation<File> {
        let options = options.clone();
        Operation::on("open", path, move |path| Ok(File::from_std(options.open(path)?, path)))
    }

    /// Takes over a file that is open. The path is for error messages.
    pub fn from_std(file: fs::File, path: impl AsRef<Path>) -> File {
        File { file: Arc::new(file), path: path.as_ref().into() }
    }

    /// The file itself, to do with it what is not done here.
    pub fn as_std(&self) -> &Arc<fs::File> {
        &self.file
    }

    /// The path that it was opened by.
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

    /// Reads what is there, at most `limit` bytes. None at the end of the file.
    pub fn read(&self, limit: usize) -> Operation<Vec<u8>> {
        self.read_into(Vec::with_capacity(limit))
    }

    /// Reads what is there into `buffer`, in place of what is in it, as far as it has memory. Empty at the end of the file.
    ///
    /// One buffer that goes back and forth spares an allocation per read.
    pub fn read_into(&self, buffer: Vec<u8>) -> Operation<Vec<u8>> {
        self.on("read", move |file| reading::into(file, buffer))
    }

    /// [`read`](File::read) from `offset` on; the file's own position stays.
    pub fn read_at(&self, offset: u64, limit: usize) -> Operation<Vec<u8>> {
        self.read_into_at(offset, Vec::with_capacity(limit))
    }

    /// [`read_into`](File::read_into) from `offset` on; the file's own position stays.
    pub fn read_into_at(&self, offset: u64, buffer: Vec<u8>) -> Operation<Vec<u8>> {
        self.on("read", move |file| reading::into_at(file, buffer, offset))
    }

    /// Reads exactly `length` bytes from `offset` on; an error if there are fewer.
    pub fn read_exact_at(&self, offset: u64, length: usize) -> Operation<Vec<u8>> {
        self.on("read", move |file| {
            let mut buffer = vec![0; length];
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer)
        })
    }

    /// Reads everything from the file's position on.
    pub fn read_to_end(&self) -> Operation<Vec<u8>> {
        self.on("read", |mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// Reads everything from the file's position on, which is text.
    pub fn read_to_string(&self) -> Operation<String> {
        self.on("read", |mut file| {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    /// Writes as many of the bytes as the system takes at once; says how many.
    pub fn write(&self, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<usize> {
        self.on("write", move |mut file| file.write(bytes.as_ref()))
    }

    /// Writes all bytes.
    pub fn write_all(&self, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
        self.on("write", move |mut file| file.write_all(bytes.as_ref()))
    }

    /// [`write`](File::write) at `offset`; the file's own position stays.
    pub fn write_at(&self, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<usize> {
        self.on("write", move |file| file.write_at(bytes.as_ref(), offset))
    }

    /// [`write_all`](File::write_all) at `offset`; the file's own position stays.
    pub fn write_all_at(&self, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
        self.on("write", move |file| file.write_all_at(bytes.as_ref(), offset))
    }

    /// Moves the file's position; says where it is then. See [`std::io::Seek::seek`].
    pub fn seek(&self, to: SeekFrom) -> Operation<u64> {
        self.on("seek in", move |mut file| file.seek(to))
    }

    /// Where the file's position is.
    pub fn stream_position(&self) -> Operation<u64> {
        self.on("seek in", |mut file| file.stream_position())
    }

    /// Waits until everything that was written is on the disk. See [`std::fs::File::sync_all`].
    pub fn sync_all(&self) -> Operation<()> {
        self.on("sync", |file| file.sync_all())
    }

    /// Likewise, but for what is only known about the file. See [`std::fs::File::sync_data`].
    pub fn sync_data(&self) -> Operation<()> {
        self.on("sync", |file| file.sync_data())
    }

    /// Cuts the file off, or extends it with zeros. See [`std::fs::File::set_len`].
    pub fn set_len(&self, length: u64) -> Operation<()> {
        self.on("set length of", move |file| file.set_len(length))
    }

    /// What there is to know of the file.
    pub fn metadata(&self) -> Operation<Metadata> {
        self.on("look at", |file| file.metadata())
    }

    /// Changes who may do what with the file.
    pub fn set_permissions(&self, permissions: Permissions) -> Operation<()> {
        self.on("set permissions of", move |file| file.set_permissions(permissions))
    }

    /// Changes when the file is said to have been read and written. See [`std::fs::File::set_times`].
    pub fn set_times(&self, times: FileTimes) -> Operation<()> {
        self.on("set times of", move |file| file.set_times(times))
    }

    /// Changes when the file is said to have been written.
    pub fn set_modified(&self, time: SystemTime) -> Operation<()> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// The same file by another descriptor, with which it shares its position. See [`std::fs::File::try_clone`].
    pub fn try_clone(&self) -> Operation<File> {
        let path = self.path.clone();
        self.on("duplicate", move |file| Ok(File { file: Arc::new(file.try_clone()?), path }))
    }

    /// Waits until nobody else has a lock on the file, then has one, until it is [given back](File::unlock) or the last clone
    /// of this file is dropped. See [`std::fs::File::lock`].
    ///
    /// It waits on the [lane of what waits](crate::Lane::Waits), so other files are read and written meanwhile.
    pub fn lock(&self) -> Operation<()> {
        self.on("lock", |file| file.lock()).that_waits()
    }

    /// [`lock`](File::lock), but others may have such a lock too. See [`std::fs::File::lock_shared`].
    pub fn lock_shared(&self) -> Operation<()> {
        self.on("lock", |file| file.lock_shared()).that_waits()
    }

    /// [`lock`](File::lock) if nobody else has a lock; says whether.
    pub fn try_lock(&self) -> Operation<bool> {
        self.on("lock", |file| is_free(file.try_lock()))
    }

    /// [`lock_shared`](File::lock_shared) if nobody else has a lock for itself; says whether.
    pub fn try_lock_shared(&self) -> Operation<bool> {
        self.on("lock", |file| is_free(file.try_lock_shared()))
    }

    /// Gives a lock back.
    pub fn unlock(&self) -> Operation<()> {
        self.on("unlock", |file| file.unlock())
    }

    /// Closes the file on another thread, if this is its last clone. Dropping it closes it too, on the loop, which is quick but
    /// for files of another machine.
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
