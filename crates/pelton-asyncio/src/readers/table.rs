//! The table of descriptors: the reader, the writer and the reactor's source of each.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;

use pelton::{ConnectionId, DatagramsId, Interest, ListenerId, WatchId};
use pyo3::prelude::*;

use pelton_cpython::handles::Queued;
use pelton_cpython::slot::Slot;

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
    entries: RefCell<Vec<Entry>>,
    /// The number of readers and writers in all entries.
    awaited: Cell<usize>,
    /// How many of the readers belong to a pending `sock_recv` or similar operation.
    receiving: Cell<usize>,
    /// How many of these must be checked before the loop may sleep for long, and where to continue.
    unchecked: Cell<usize>,
    next_check: Cell<usize>,
    /// The number of callbacks that had run when the last check of all began.
    checked_after: Cell<u64>,
    /// The number of sources.
    watched: Cell<usize>,
    /// Whether one of the lists below has an item.
    untidy: Cell<bool>,
    /// Descriptors changed by a thread that could not reach the reactor because another thread turns it.
    postponed: RefCell<Vec<RawFd>>,
    /// Descriptors that such a thread has released, with the sources that they had.
    released: RefCell<Vec<(RawFd, Source)>>,
    /// Readable descriptors that are still watched although they have no reader.
    unwanted: RefCell<Vec<RawFd>>,
    /// Cancelled readers and writers of descriptors that were reported as ready.
    cancelled: RefCell<Vec<(RawFd, Side)>>,
}

pelton_cpython::owns!(Readers { entries });

#[derive(Default)]
pub(crate) struct Entry {
    reader: Option<Queued>,
    writer: Option<Queued>,
    /// The reactor's source, if there is one.
    source: Option<Source>,
    /// Whether the descriptor is watched without a reader, for the next one.
    kept: Kept,
    /// The reader is a handle of [`sockets`](crate::sockets::operations), whose second argument is the socket.
    receives: bool,
    /// The socket object that owns the descriptor: a weak reference.
    owner: Slot,
}

pelton_cpython::owns!(Entry { reader, writer });

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
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kept {
    #[default]
    Not,
    Watched,
    /// Watched, and the last `sock_recv` has received everything there was.
    Emptied,
}

/// What dispatch does with a descriptor that is ready.
pub(super) enum Found {
    Handle(Queued),
    Cancelled,
    Unwanted,
    Nothing,
}

impl Entry {
    fn side(&mut self, side: Side) -> &mut Option<Queued> {
        match side {
            Side::Reader => &mut self.reader,
            Side::Writer => &mut self.writer,
        }
    }

    fn interest(&self) -> Interest {
        let reading = if self.reader.is_none() && self.kept == Kept::Not { Interest::NONE } else { Interest::READABLE };
        let writing = if self.writer.is_none() { Interest::NONE } else { Interest::WRITABLE };
        reading | writing
    }

    /// Releases its handles, and returns the weak reference to the owner.
    pub(crate) fn release(self, py: Python<'_>) -> Option<Bound<'_, PyAny>> {
        let Entry { reader, writer, owner, .. } = self;
        let owner = owner.take(py);
        [reader, writer].into_iter().flatten().for_each(|handle| handle.release(py));
        owner
    }
}

#[cold]
fn grow(entries: &mut Vec<Entry>, place: usize) {
    entries.resize_with(place + 1, Entry::default);
}

impl Readers {
    /// Takes all entries out.
    pub(crate) fn take(&self) -> Vec<Entry> {
        for count in [&self.awaited, &self.receiving, &self.unchecked, &self.watched] {
            count.set(0);
        }
        self.untidy.set(false);
        self.postponed.take();
        self.released.take();
        self.unwanted.take();
        self.cancelled.take();
        self.entries.take()
    }

    /// Calls `f` with the entry of a descriptor, which exists from then on. `f` must not call into Python.
    #[inline]
    fn with<T>(&self, fd: RawFd, f: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.entries.borrow_mut();
        let place = fd as usize;
        if place >= entries.len() {
            grow(&mut entries, place);
        }
        f(&mut entries[place])
    }

    /// Calls `f` with the entry of a descriptor, if there is one.
    #[inline]
    fn look<T>(&self, fd: RawFd, f: impl FnOnce(&Entry) -> T) -> Option<T> {
        let place = usize::try_from(fd).ok()?;
        self.entries.borrow().get(place).map(f)
    }

    /// Returns whether there is an entry for this number.
    pub(super) fn has(&self, fd: RawFd) -> bool {
        self.look(fd, |_| ()).is_some()
    }

    /// Returns how many descriptors have a reader or a writer.
    pub(crate) fn len(&self) -> usize {
        self.descriptors().len()
    }

    /// Returns the descriptors that have a reader or a writer.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let awaited = |entry: &Entry| entry.reader.is_some() || entry.writer.is_some();
        (0..).zip(&*self.entries.borrow()).filter(|(_, entry)| awaited(entry)).map(|(fd, _)| fd).collect()
    }

    /// Returns the reader and the writer of a descriptor.
    pub(crate) fn of<'py>(&self, py: Python<'py>, fd: RawFd) -> (Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>) {
        let object = |handle: &Option<Queued>| handle.as_ref().map(|handle| handle.object(py).to_owned());
        self.look(fd, |entry| (object(&entry.reader), object(&entry.writer))).unwrap_or_default()
    }

    /// Returns the descriptor that an object, given by its weak reference, was added with.
    pub(super) fn owned_by(&self, owner: &Bound<'_, PyAny>) -> Option<RawFd> {
        (0..).zip(&*self.entries.borrow()).find(|(_, entry)| entry.owner.is(owner)).map(|(fd, _)| fd)
    }

    /// Stores the owner of a descriptor, or that there is none. The previous one is dropped last.
    pub(super) fn set_owner<'py>(&self, fd: RawFd, owner: Option<Bound<'py, PyAny>>, py: Python<'py>) {
        let before = self.with(fd, |entry| entry.owner.replace(py, owner));
        drop(before);
    }

    /// Takes the owner of a descriptor out.
    pub(super) fn take_owner<'py>(&self, py: Python<'py>, fd: RawFd) -> Option<Bound<'py, PyAny>> {
        self.with(fd, |entry| entry.owner.take(py))
    }

    /// Returns whether a descriptor is watched for reading although it has no reader.
    pub(super) fn is_watched_in_vain(&self, fd: RawFd) -> bool {
        self.look(fd, |entry| entry.reader.is_none() && entry.kept != Kept::Not).unwrap_or(false)
    }

    /// Returns whether the reader or writer of a descriptor was cancelled.
    pub(super) fn is_cancelled(&self, py: Python<'_>, fd: RawFd, side: Side) -> bool {
        let cancelled = |handle: &Queued| handle.ours(py).is_some_and(|handle| handle.is_cancelled());
        let side = |entry: &Entry| {
            if side == Side::Reader { entry.reader.as_ref() } else { entry.writer.as_ref() }.is_some_and(cancelled)
        };
        self.look(fd, side).unwrap_or(false)
    }

    /// Returns whether a descriptor has a reader or a writer.
    pub(super) fn awaits(&self, fd: RawFd, side: Side) -> bool {
        let awaits = |entry: &Entry| if side == Side::Reader { entry.reader.is_some() } else { entry.writer.is_some() };
        self.look(fd, awaits).unwrap_or(false)
    }

    /// Returns whether a descriptor is still being watched without a reader.
    pub(super) fn kept(&self, fd: RawFd) -> Kept {
        self.look(fd, |entry| entry.kept).unwrap_or_default()
    }

    /// Does the same if this is the owner.
    pub(super) fn kept_for(&self, fd: RawFd, owner: &Bound<'_, PyAny>) -> Kept {
        self.look(fd, |entry| if entry.owner.is(owner) { entry.kept } else { Kept::Not }).unwrap_or_default()
    }

    /// Sets whether a descriptor is watched without a reader, and returns what it was.
    pub(super) fn set_kept(&self, fd: RawFd, kept: Kept) -> Kept {
        self.with(fd, |entry| std::mem::replace(&mut entry.kept, kept))
    }

    /// Keeps a descriptor watched after its reader was removed, if it is.
    pub(super) fn keep(&self, fd: RawFd, kept: Kept) {
        self.with(fd, |entry| {
            if entry.source.is_some() {
                entry.kept = kept;
            }
        });
    }

    /// Returns what the reactor has to watch, and its source.
    #[inline]
    pub(super) fn wanted(&self, fd: RawFd) -> (Interest, Option<Source>) {
        self.look(fd, |entry| (entry.interest(), entry.source)).unwrap_or((Interest::NONE, None))
    }

    /// Returns the source of a descriptor.
    pub(super) fn source(&self, fd: RawFd) -> Option<Source> {
        self.look(fd, |entry| entry.source).flatten()
    }

    /// Returns what to do with a reader or writer whose descriptor is ready.
    #[inline]
    pub(super) fn find(&self, py: Python<'_>, fd: RawFd, side: Side) -> Found {
        self.with(fd, |entry| match if side == Side::Reader { &entry.reader } else { &entry.writer } {
            Some(handle) if handle.ours(py).is_some_and(|handle| handle.is_cancelled()) => Found::Cancelled,
            Some(handle) => Found::Handle(handle.another(py)),
            None if side == Side::Reader && entry.kept != Kept::Not => Found::Unwanted,
            None => Found::Nothing,
        })
    }

    /// Returns whether there are more readers and writers than `own`, the number that belong to the loop itself.
    pub(crate) fn any_beside(&self, own: i64) -> bool {
        self.awaited.get() as i64 > own
    }

    /// Makes `new` the reader or writer of `fd`, and returns the previous one.
    #[inline]
    pub(super) fn exchange(&self, fd: RawFd, side: Side, new: Option<Queued>) -> Option<Queued> {
        self.exchange_all(fd, side, new, false).0
    }

    /// Does the same, and returns whether the descriptor was watched without a reader. It is not from now on.
    #[inline]
    pub(super) fn replace(&self, fd: RawFd, side: Side, new: Option<Queued>) -> (Option<Queued>, bool) {
        self.exchange_all(fd, side, new, true)
    }

    #[inline]
    fn exchange_all(&self, fd: RawFd, side: Side, new: Option<Queued>, stop: bool) -> (Option<Queued>, bool) {
        let is_some = new.is_some();
        self.with(fd, |entry| {
            let (mut received, mut was_kept) = (false, false);
            if side == Side::Reader {
                received = std::mem::take(&mut entry.receives);
                was_kept = stop && std::mem::take(&mut entry.kept) != Kept::Not;
            }
            let old = std::mem::replace(entry.side(side), new);
            self.receiving.set(self.receiving.get() - usize::from(received));
            self.awaited.set(self.awaited.get() + usize::from(is_some) - usize::from(old.is_some()));
            (old, was_kept)
        })
    }

    pub(super) fn set_receives(&self, fd: RawFd, receives: bool) {
        let before = self.with(fd, |entry| std::mem::replace(&mut entry.receives, receives));
        self.receiving.set(self.receiving.get() + usize::from(receives) - usize::from(before));
    }

    /// Returns the handle of a pending `sock_recv` or similar operation.
    pub(super) fn receiver<'py>(&self, py: Python<'py>, fd: RawFd) -> Option<Bound<'py, PyAny>> {
        let handle =
            |entry: &Entry| entry.reader.as_ref().filter(|_| entry.receives).map(|handle| handle.object(py).to_owned());
        self.look(fd, handle).flatten()
    }

    /// Returns how many sockets with a pending `sock_recv` must still be checked. All of them, if callbacks have run since: these may
    /// have closed some.
    pub(crate) fn unchecked(&self, callbacks: u64) -> usize {
        if self.checked_after.replace(callbacks) != callbacks {
            self.unchecked.set(self.receiving.get());
        }
        self.unchecked.set(self.unchecked.get().min(self.receiving.get()));
        self.unchecked.get()
    }

    /// Returns the next descriptor to check, or `None` if there is none among the next few entries.
    pub(crate) fn next_unchecked(&self) -> Option<RawFd> {
        let entries = self.entries.borrow();
        for _ in 0..DESCRIPTORS_PASSED_OVER.min(entries.len()) {
            let place = self.next_check.get() % entries.len();
            self.next_check.set(place + 1);
            if entries[place].receives {
                self.unchecked.set(self.unchecked.get().saturating_sub(1));
                return Some(place as RawFd);
            }
        }
        None
    }

    /// Stores the reactor's source of a descriptor. Returns the previous one.
    pub(super) fn set_source(&self, fd: RawFd, source: Option<Source>) -> Option<Source> {
        let before = self.with(fd, |entry| std::mem::replace(&mut entry.source, source));
        self.watched.set(self.watched.get() + usize::from(source.is_some()) - usize::from(before.is_some()));
        before
    }

    /// Returns how many descriptors the reactor watches.
    pub(crate) fn watched(&self) -> usize {
        self.watched.get()
    }

    /// Returns whether [`tidy`](super::tidy) has something to do.
    #[inline]
    pub(crate) fn is_untidy(&self) -> bool {
        self.untidy.get()
    }

    /// Notes that [`tidy`](super::tidy) has nothing to do any more.
    pub(super) fn is_tidy(&self) {
        self.untidy.set(false);
    }

    /// Postpones a change until the thread that turns the loop can make it.
    pub(super) fn postpone(&self, fd: RawFd) {
        self.untidy.set(true);
        self.postponed.borrow_mut().push(fd);
    }

    /// Notes a descriptor that is watched although nobody reads.
    pub(super) fn is_unwanted(&self, fd: RawFd) {
        self.untidy.set(true);
        self.unwanted.borrow_mut().push(fd);
    }

    /// Notes a reader or writer that was cancelled.
    pub(super) fn was_cancelled(&self, fd: RawFd, side: Side) {
        self.untidy.set(true);
        self.cancelled.borrow_mut().push((fd, side));
    }

    /// Notes that a descriptor was released by a thread that could not reach the reactor.
    pub(super) fn was_released(&self, fd: RawFd, source: Source) {
        self.untidy.set(true);
        self.released.borrow_mut().push((fd, source));
    }

    pub(super) fn next_released(&self) -> Option<(RawFd, Source)> {
        self.released.borrow_mut().pop()
    }

    pub(super) fn next_unwanted(&self) -> Option<RawFd> {
        self.unwanted.borrow_mut().pop()
    }

    pub(super) fn next_cancelled(&self) -> Option<(RawFd, Side)> {
        self.cancelled.borrow_mut().pop()
    }

    pub(super) fn next_postponed(&self) -> Option<RawFd> {
        self.postponed.borrow_mut().pop()
    }
}
