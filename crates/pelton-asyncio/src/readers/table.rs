//! The table of descriptors: the reader, the writer and the reactor's source of each.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use pelton::{ConnectionId, DatagramsId, Interest, ListenerId, WatchId};
use pyo3::ffi::PyObject;

/// The maximum number of entries to examine when searching for the next descriptor with a pending `sock_recv`.
const DESCRIPTORS_PASSED_OVER: usize = 64;

/// Reader or writer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Reader,
    Writer,
}

/// All descriptors, indexed by their numbers, which are small.
#[derive(Default)]
pub(crate) struct Readers {
    pub(super) entries: Vec<Entry>,
    /// The number of readers and writers in all entries.
    awaited: usize,
    /// How many of the readers belong to a pending `sock_recv` or similar operation.
    receiving: usize,
    /// How many of these must be checked before the loop may sleep for long, and where to continue.
    unchecked: usize,
    next_check: usize,
    /// The number of callbacks that had run when the last check of all began.
    checked_after: u64,
    /// The number of sources.
    watched: usize,
    /// Descriptors changed by a thread that could not reach the reactor because another thread turns it.
    pub(super) postponed: Vec<RawFd>,
    /// Descriptors that such a thread has released, with the sources that they had.
    pub(super) released: Vec<(RawFd, Source)>,
    /// Readable descriptors that are still watched although they have no reader.
    pub(super) unwanted: Vec<RawFd>,
    /// Cancelled readers and writers of descriptors that were reported as ready.
    pub(super) cancelled: Vec<(RawFd, Side)>,
}

pub(super) struct Entry {
    /// Owned references, or null.
    pub(super) reader: *mut PyObject,
    pub(super) writer: *mut PyObject,
    /// The reactor's source, if there is one.
    pub(super) source: Option<Source>,
    /// Whether the descriptor is watched without a reader, for the next one.
    pub(super) kept: Kept,
    /// The reader is a handle of [`sockets`](crate::sockets::operations), whose second argument is the socket.
    pub(super) receives: bool,
    /// The socket object that owns the descriptor: an owned weak reference, or null.
    pub(super) owner: *mut PyObject,
}

/// What reports to the reader and the writer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Watch(WatchId),
    /// The connection of a stream transport or a pipe.
    Connection(ConnectionId),
    /// A listener of a server.
    Listener(ListenerId),
    /// The socket of a datagram transport.
    Datagrams(DatagramsId),
}

/// Whether a socket is still watched after a `sock_recv`, for the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Not,
    Watched,
    /// Watched, and the last `sock_recv` has received everything there was.
    Emptied,
}

impl Entry {
    const EMPTY: Entry = Entry {
        reader: null_mut(),
        writer: null_mut(),
        source: None,
        kept: Kept::Not,
        receives: false,
        owner: null_mut(),
    };

    fn side(&mut self, side: Side) -> &mut *mut PyObject {
        match side {
            Side::Reader => &mut self.reader,
            Side::Writer => &mut self.writer,
        }
    }

    pub(super) fn interest(&self) -> Interest {
        let reading = if self.reader.is_null() && self.kept == Kept::Not { Interest::NONE } else { Interest::READABLE };
        let writing = if self.writer.is_null() { Interest::NONE } else { Interest::WRITABLE };
        reading | writing
    }
}

impl Readers {
    /// Returns all handles.
    pub(crate) fn handles(&self) -> impl Iterator<Item = *mut PyObject> {
        self.entries.iter().flat_map(|entry| [entry.reader, entry.writer]).filter(|handle| !handle.is_null())
    }

    /// Returns the weak references to socket objects. The garbage collector does not visit them.
    pub(crate) fn owners(&self) -> impl Iterator<Item = *mut PyObject> {
        self.entries.iter().map(|entry| entry.owner).filter(|owner| !owner.is_null())
    }

    /// Returns how many descriptors have a reader or a writer.
    pub(crate) fn len(&self) -> usize {
        self.descriptors().len()
    }

    /// Returns the descriptors that have a reader or a writer.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let awaited = |entry: &Entry| !entry.reader.is_null() || !entry.writer.is_null();
        (0..).zip(&self.entries).filter(|(_, entry)| awaited(entry)).map(|(fd, _)| fd).collect()
    }

    /// Returns the reader and the writer of a descriptor: borrowed references, or null.
    pub(crate) fn of(&self, fd: RawFd) -> (*mut PyObject, *mut PyObject) {
        let entry = usize::try_from(fd).ok().and_then(|place| self.entries.get(place));
        entry.map_or((null_mut(), null_mut()), |entry| (entry.reader, entry.writer))
    }

    /// Returns whether a descriptor is still being watched without a reader, and its owner: a borrowed reference, or null.
    pub(super) fn kept(&self, fd: RawFd) -> (Kept, *mut PyObject) {
        self.entries.get(fd as usize).map_or((Kept::Not, null_mut()), |entry| (entry.kept, entry.owner))
    }

    pub(super) fn entry(&mut self, fd: RawFd) -> &mut Entry {
        let place = fd as usize;
        if place >= self.entries.len() {
            self.entries.resize_with(place + 1, || Entry::EMPTY);
        }
        &mut self.entries[place]
    }

    /// Returns whether there are more readers and writers than `own`, the number that belong to the loop itself.
    pub(crate) fn any_beside(&self, own: i64) -> bool {
        self.awaited as i64 > own
    }

    /// Makes `new` the reader or writer of `fd`, and returns the previous one. Both are owned references, or null.
    pub(super) fn exchange(&mut self, fd: RawFd, side: Side, new: *mut PyObject) -> *mut PyObject {
        let old = std::mem::replace(self.entry(fd).side(side), new);
        self.awaited += usize::from(!new.is_null());
        self.awaited -= usize::from(!old.is_null());
        if side == Side::Reader {
            self.set_receives(fd, false);
        }
        old
    }

    pub(super) fn set_receives(&mut self, fd: RawFd, receives: bool) {
        let before = std::mem::replace(&mut self.entry(fd).receives, receives);
        self.receiving += usize::from(receives);
        self.receiving -= usize::from(before);
    }

    /// Returns how many sockets with a pending `sock_recv` must still be checked. All of them, if callbacks have run since: these may
    /// have closed some.
    pub(crate) fn unchecked(&mut self, callbacks: u64) -> usize {
        if self.checked_after != callbacks {
            (self.checked_after, self.unchecked) = (callbacks, self.receiving);
        }
        self.unchecked = self.unchecked.min(self.receiving);
        self.unchecked
    }

    /// Returns the next descriptor to check, or `None` if there is none among the next few entries.
    pub(crate) fn next_unchecked(&mut self) -> Option<RawFd> {
        for _ in 0..DESCRIPTORS_PASSED_OVER.min(self.entries.len()) {
            let place = self.next_check % self.entries.len();
            self.next_check = place + 1;
            if self.entries[place].receives {
                self.unchecked = self.unchecked.saturating_sub(1);
                return Some(place as RawFd);
            }
        }
        None
    }

    /// Returns the reactor's source of a descriptor.
    #[inline]
    pub(super) fn source(&self, fd: RawFd) -> Option<Source> {
        self.entries.get(usize::try_from(fd).ok()?)?.source
    }

    /// Stores the reactor's source of a descriptor. Returns the previous one.
    pub(super) fn set_source(&mut self, fd: RawFd, source: Option<Source>) -> Option<Source> {
        let before = std::mem::replace(&mut self.entry(fd).source, source);
        self.watched += usize::from(source.is_some());
        self.watched -= usize::from(before.is_some());
        before
    }

    /// Returns how many descriptors the reactor watches.
    pub(crate) fn watched(&self) -> usize {
        self.watched
    }

    /// Returns whether [`tidy`](super::tidy) has something to do.
    #[inline]
    pub(crate) fn is_untidy(&self) -> bool {
        !self.postponed.is_empty()
            || !self.released.is_empty()
            || !self.unwanted.is_empty()
            || !self.cancelled.is_empty()
    }
}
