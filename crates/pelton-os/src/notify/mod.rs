//! Notices of changes to directories and their entries.
//!
//! ```text
//! mod.rs       the notices, and what can be asked for
//! inotify.rs   Linux: the kernel names the entries
//! vnodes.rs    elsewhere: the kernel says that a file or directory changed; the entries are compared with a snapshot
//! snapshot.rs  the entries of a directory, and what distinguishes two snapshots
//! kqueue.rs    the queue that vnodes.rs reads, on macOS and the BSDs
//! emulated.rs  an emulation of it for tests on Linux
//! choice.rs    either of the two, for these tests
//! ```
//!
//! A [`Notifier`] has *marks* on directories and symbolic links. A mark belongs to the file, not to its name: it follows a
//! directory that is moved, and two paths to the same directory share a mark. Everything about names and paths is the caller's.

#[cfg(all(any(target_os = "linux", target_os = "android"), feature = "emulated-kqueue"))]
mod choice;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod inotify;
#[cfg(any(feature = "emulated-kqueue", not(any(target_os = "linux", target_os = "android"))))]
mod snapshot;
#[cfg(any(feature = "emulated-kqueue", not(any(target_os = "linux", target_os = "android"))))]
mod vnodes;

#[cfg(all(feature = "emulated-kqueue", any(target_os = "linux", target_os = "android")))]
#[path = "emulated.rs"]
mod queue;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "kqueue.rs"]
mod queue;

use std::ffi::OsString;

#[cfg(all(any(target_os = "linux", target_os = "android"), feature = "emulated-kqueue"))]
pub use choice::{Notifier, emulate_vnodes};
#[cfg(all(any(target_os = "linux", target_os = "android"), not(feature = "emulated-kqueue")))]
pub use inotify::Notifier;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub use vnodes::Notifier;

/// Identifies a mark of a [`Notifier`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct MarkId(pub(crate) i32);

/// How much a mark reports. Each level includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Level {
    /// That the marked file itself was deleted or moved. This never reports anything about entries, so a mark on a busy
    /// directory costs nothing.
    Itself,
    /// Which entries of the marked directory were created, deleted or moved.
    Names,
    /// Which entries were modified, and changes of attributes.
    Contents,
}

/// Whether a call to `Notifier::mark` may reduce what a mark reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marking {
    /// The mark reports what it reported before and what is asked for.
    Widen,
    /// The mark reports what is asked for and nothing else.
    Replace,
}

/// Something that happened to a marked file or to an entry of a marked directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The mark. Meaningless for [`What::Overflow`].
    pub mark: MarkId,
    /// What happened.
    pub what: What,
    /// Whether the entry is a directory.
    pub directory: bool,
    /// The entry's name. `None` if the notice is about the marked file itself.
    pub name: Option<OsString>,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// The entry was created.
    Created,
    /// The entry was written to.
    Modified,
    /// Permissions, owner, times or the number of links changed.
    Attributes,
    /// The entry was moved away. The [`What::MovedTo`] with the same number says where to, if that is marked too.
    MovedFrom(u32),
    /// The entry was moved here.
    MovedTo(u32),
    /// The entry was deleted.
    Deleted,
    /// The marked file itself was deleted or moved, or its file system was unmounted.
    Gone,
    /// The mark no longer exists. Nothing follows from it.
    Ended,
    /// Notices were lost.
    Overflow,
}
