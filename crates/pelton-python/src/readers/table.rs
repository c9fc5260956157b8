//! The table of descriptors: who reads, who writes, and as what the engine knows it.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use pelton::Interest;
use pelton_os::Token;
use pyo3::ffi::PyObject;

/// How many descriptors are looked at, at most, to find the next one that somebody waits to receive from.
const DESCRIPTORS_PASSED_OVER: usize = 64;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Reader,
    Writer,
}

/// All descriptors, at their numbers, which are small.
#[derive(Default)]
pub(crate) struct Readers {
    pub(super) entries: Vec<Entry>,
    /// How many of the entries' readers and writers are not null.
    awaited: usize,
    /// How many of the readers wait to receive for a `sock_recv` or the like.
    receiving: usize,
    /// How many of these are to be checked before the loop may sleep for long, and where to go on.
    unchecked: usize,
    next_check: usize,
    /// How many callbacks had been called when all were to be checked.
    checked_after: u64,
    /// Goes into tokens, so that an event for an earlier file of the same number is recognised.
    generation: u32,
    /// Descriptors that another thread has changed while the engine was lent to the one that sleeps in it.
    pub(super) postponed: Vec<RawFd>,
}

pub(super) struct Entry {
    /// Owned references, or null.
    pub(super) reader: *mut PyObject,
    pub(super) writer: *mut PyObject,
    /// What the engine knows it as, while it does.
    pub(super) token: Option<Token>,
    /// Nobody waits to read, but the engine goes on watching for the next reader.
    pub(super) kept: Kept,
    /// The reader is a handle of [`sockets`](crate::sockets), whose second argument is the socket.
    pub(super) receives: bool,
    /// The socket object whose descriptor that is: an owned weak reference, or null.
    pub(super) owner: *mut PyObject,
}

/// Whether a socket is still being watched after a `sock_recv`, for the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Not,
    Watched,
    /// Watched, and the last one has left nothing to be received.
    Emptied,
}

impl Entry {
    const EMPTY: Entry = Entry {
        reader: null_mut(),
        writer: null_mut(),
        token: None,
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
    /// All handles.
    pub(crate) fn handles(&self) -> impl Iterator<Item = *mut PyObject> {
        self.entries.iter().flat_map(|entry| [entry.reader, entry.writer]).filter(|handle| !handle.is_null())
    }

    /// References to socket objects, which are weak, and not for the garbage collector to see.
    pub(crate) fn owners(&self) -> impl Iterator<Item = *mut PyObject> {
        self.entries.iter().map(|entry| entry.owner).filter(|owner| !owner.is_null())
    }

    /// How many descriptors somebody waits for.
    pub(crate) fn len(&self) -> usize {
        self.descriptors().len()
    }

    /// Those that somebody waits for.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let awaited = |entry: &Entry| !entry.reader.is_null() || !entry.writer.is_null();
        (0..).zip(&self.entries).filter(|(_, entry)| awaited(entry)).map(|(fd, _)| fd).collect()
    }

    /// Reader and writer of a descriptor: borrowed references, or null.
    pub(crate) fn of(&self, fd: RawFd) -> (*mut PyObject, *mut PyObject) {
        let entry = usize::try_from(fd).ok().and_then(|place| self.entries.get(place));
        entry.map_or((null_mut(), null_mut()), |entry| (entry.reader, entry.writer))
    }

    /// Whether a descriptor is still being watched, and whose it is: a borrowed reference, or null.
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

    /// Whether anything is watched beside so many descriptors of the loop's own.
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

    /// How many sockets are to be checked, of those that somebody waits to receive from: all of them once callbacks have been called,
    /// one of which may have closed some.
    pub(crate) fn unchecked(&mut self, callbacks: u64) -> usize {
        if self.checked_after != callbacks {
            (self.checked_after, self.unchecked) = (callbacks, self.receiving);
        }
        self.unchecked = self.unchecked.min(self.receiving);
        self.unchecked
    }

    /// The descriptor of the next one. `None` if there is none among the next few descriptors.
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

    pub(super) fn next_token(&mut self, fd: RawFd) -> Token {
        self.generation = if self.generation == Token::MAX_GENERATION { 0 } else { self.generation + 1 };
        Token::new(fd as u32, self.generation)
    }
}
