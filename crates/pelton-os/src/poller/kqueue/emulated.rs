//! An emulation of the kernel's queue for Linux, with the functions and types of [`abi`](super), to test the poller where it
//! will never run.
//!
//! Each queue is an epoll object, which makes its descriptor readable while there are events. A table beside it keeps what
//! epoll lacks: a registration ("knote") for each descriptor *and filter*, each enabled or not. It models what the man pages
//! promise. Where they leave something open, it takes the strictest reading: a knote keeps the flags of its creation (as on
//! FreeBSD), a failed change ends the call before it waits, and a write filter on a pipe without a reader is refused.
//!
//! Not modelled: filters other than reading and writing, regular files (epoll refuses them), values of `data` other than the
//! bytes to read, the error number in `fflags`, and `EV_CLEAR` together with a filter without it. A forked child inherits a
//! queue.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::descriptor::borrow;

/// `struct kevent`, as on macOS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Event {
    pub ident: usize,
    pub filter: FilterNumber,
    pub flags: Flags,
    pub fflags: u32,
    pub data: isize,
    pub udata: *mut c_void,
}

pub type FilterNumber = i16;
pub type Flags = u16;
pub type Count = c_int;

pub const EVFILT_READ: FilterNumber = -1;
pub const EVFILT_WRITE: FilterNumber = -2;
pub const EV_ADD: Flags = 0x1;
pub const EV_DELETE: Flags = 0x2;
pub const EV_ENABLE: Flags = 0x4;
pub const EV_DISABLE: Flags = 0x8;
pub const EV_ONESHOT: Flags = 0x10;
pub const EV_CLEAR: Flags = 0x20;
pub const EV_RECEIPT: Flags = 0x40;
pub const EV_DISPATCH: Flags = 0x80;
pub const EV_ERROR: Flags = 0x4000;
pub const EV_EOF: Flags = 0x8000;

/// Whether a forked child inherits a queue.
pub const SURVIVES_FORK: bool = true;

/// Returns an empty event.
pub fn blank() -> Event {
    Event { ident: 0, filter: 0, flags: 0, fflags: 0, data: 0, udata: std::ptr::null_mut() }
}

/// Queues by descriptor number. A place is created once and then serves every queue with that number, so references to it stay
/// valid. Each has its own lock, and there is no common one: a child that is forked while another thread is in here must not
/// find its own queue locked.
static QUEUES: [OnceLock<Mutex<Queue>>; 4096] = [const { OnceLock::new() }; 4096];

#[derive(Default)]
struct Queue {
    members: HashMap<RawFd, Member>,
    /// Numbers all members ever added, so that a late event of an earlier one is recognised.
    serials: u32,
}

/// A descriptor with at least one knote.
struct Member {
    serial: u32,
    kind: FileType,
    /// The knote for reading and the knote for writing.
    knotes: [Option<Knote>; 2],
}

#[derive(Clone, Copy)]
struct Knote {
    flags: Flags,
    enabled: bool,
    udata: usize,
}

/// The epoll events that activate each of a member's knotes.
const CAUSES: [EventFlags; 2] = [EventFlags::IN.union(EventFlags::RDHUP), EventFlags::OUT];
/// The epoll events that activate both, requested or not.
const ENDS: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
const FILTERS: [FilterNumber; 2] = [EVFILT_READ, EVFILT_WRITE];

impl Member {
    fn data(&self, fd: RawFd) -> EventData {
        EventData::new_u64(u64::from(self.serial) << 32 | fd as u64)
    }

    /// Returns the events to request from epoll. A member whose knotes are all disabled stays registered, edge-triggered and
    /// without events. That way a closed one is still noticed, and a hang-up is one spurious event.
    fn asked(&self) -> EventFlags {
        let mut asked = EventFlags::ET;
        for (knote, cause) in self.knotes.iter().zip(CAUSES) {
            if let Some(knote) = knote.filter(|knote| knote.enabled) {
                asked |= cause;
                asked.set(EventFlags::ET, knote.flags & EV_CLEAR != 0);
            }
        }
        asked
    }
}

/// Opens a queue: returns its descriptor, or -1 with `errno` set.
pub unsafe fn kqueue() -> c_int {
    let opened = epoll::create(CreateFlags::CLOEXEC).and_then(|epoll| match QUEUES.get(epoll.as_raw_fd() as usize) {
        Some(place) => {
            *lock(place.get_or_init(Mutex::default)) = Queue::default();
            Ok(epoll.into_raw_fd())
        }
        None => Err(Errno::MFILE),
    });
    opened.unwrap_or_else(fail)
}

/// Applies changes, then waits for events: returns their number, or -1 with `errno` set.
///
/// # Safety
///
/// `changes` must point to `nchanges` events and `events` to room for `nevents`. They must not overlap. `timeout` must be null
/// or point to a timespec.
pub unsafe fn kevent(
    kq: c_int,
    changes: *const Event,
    nchanges: Count,
    events: *mut Event,
    nevents: Count,
    timeout: *const libc::timespec,
) -> c_int {
    let Some(queue) = QUEUES.get(kq as usize).and_then(OnceLock::get) else { return fail(Errno::BADF) };
    // SAFETY: the caller guarantees `nchanges` changes. An empty list may be null.
    let changes = if nchanges == 0 { &[] } else { unsafe { std::slice::from_raw_parts(changes, nchanges as usize) } };
    // SAFETY: the caller guarantees null or a timespec.
    let timeout = unsafe { timeout.as_ref() }.map(|t| Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
    let kq = borrow(&kq);
    let mut answer = Answer { events: Vec::new(), room: nevents as usize };
    let applied = apply(&mut lock(queue), kq, changes, &mut answer);
    if let Err(error) = applied.and_then(|()| wait(queue, kq, &mut answer, timeout)) {
        return fail(error);
    }
    for (place, event) in answer.events.iter().enumerate() {
        // SAFETY: the caller guarantees room for `nevents`, and an answer has no more events.
        unsafe { events.add(place).write(*event) };
    }
    answer.events.len() as c_int
}

/// Replaces the queue `old` by `new`, under its number.
pub fn replace(old: &OwnedFd, new: OwnedFd) -> io::Result<()> {
    let [old_place, new_place] = [old, &new].map(|fd| &QUEUES[fd.as_raw_fd() as usize]);
    let queue = new_place.get().map(|queue| std::mem::take(&mut *lock(queue))).unwrap_or_default();
    *lock(old_place.get_or_init(Mutex::default)) = queue;
    crate::descriptor::replace(old, new)
}

/// The events that a call returns, as far as there is room.
struct Answer {
    events: Vec<Event>,
    room: usize,
}

impl Answer {
    fn is_full(&self) -> bool {
        self.events.len() == self.room
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fail(error: Errno) -> c_int {
    // SAFETY: it is the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

/// Applies the changes in order. A change that fails or requests a receipt leaves an `EV_ERROR` entry. If there is no room for
/// it, a failure ends the whole call.
fn apply(queue: &mut Queue, kq: BorrowedFd<'_>, changes: &[Event], answer: &mut Answer) -> Result<(), Errno> {
    for change in changes {
        let applied = queue.apply(kq, change);
        if applied.is_ok() && change.flags & EV_RECEIPT == 0 {
            continue;
        }
        if answer.is_full() {
            return applied;
        }
        let error = applied.err().map_or(0, Errno::raw_os_error);
        answer.events.push(Event { flags: EV_ERROR, data: error as isize, ..*change });
    }
    Ok(())
}

/// Waits, unless there are entries already.
fn wait(queue: &Mutex<Queue>, kq: BorrowedFd<'_>, answer: &mut Answer, timeout: Option<Duration>) -> Result<(), Errno> {
    let start = Instant::now();
    while answer.events.is_empty() && !answer.is_full() {
        lock(queue).collect(kq, answer)?;
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        if !answer.events.is_empty() || left == Some(Duration::ZERO) {
            break;
        }
        // `poll` has nanosecond timeouts. Not every kernel's epoll has.
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        poll(&mut [PollFd::from_borrowed_fd(kq, PollFlags::IN)], left.as_ref())?;
    }
    Ok(())
}

impl Queue {
    fn apply(&mut self, kq: BorrowedFd<'_>, change: &Event) -> Result<(), Errno> {
        let side = FILTERS.iter().position(|filter| *filter == change.filter).ok_or(Errno::INVAL)?;
        let fd = RawFd::try_from(change.ident).map_err(|_| Errno::BADF)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(borrow(&fd))?.st_mode);
        if self.members.contains_key(&fd) && !is_in(kq, fd) {
            // It was closed, which removed its knotes, and the number belongs to another file.
            self.members.remove(&fd);
        }
        if self.members.get(&fd).is_none_or(|member| member.knotes[side].is_none()) {
            if change.flags & EV_ADD == 0 {
                return Err(Errno::NOENT);
            }
            let other = self.members.get(&fd).and_then(|member| member.knotes[1 - side]);
            if other.is_some_and(|other| (other.flags ^ change.flags) & EV_CLEAR != 0) {
                return Err(Errno::INVAL);
            }
            if change.filter == EVFILT_WRITE && kind == FileType::Fifo && is_broken(fd)? {
                return Err(Errno::PIPE);
            }
        }
        let member = self.members.entry(fd).or_insert_with(|| {
            self.serials += 1;
            Member { serial: self.serials, kind, knotes: [None; 2] }
        });
        if change.flags & EV_DELETE != 0 {
            member.knotes[side] = None;
        } else {
            let kept = change.flags & (EV_CLEAR | EV_DISPATCH | EV_ONESHOT);
            let knote = member.knotes[side].get_or_insert(Knote { flags: kept, enabled: true, udata: 0 });
            knote.enabled = (knote.enabled || change.flags & EV_ENABLE != 0) && change.flags & EV_DISABLE == 0;
            if change.flags & EV_ADD != 0 {
                knote.udata = change.udata as usize;
            }
        }
        self.tell(kq, fd)
    }

    /// Updates a member's registration with epoll.
    fn tell(&mut self, kq: BorrowedFd<'_>, fd: RawFd) -> Result<(), Errno> {
        let Some(member) = self.members.get(&fd) else { return Ok(()) };
        if matches!(member.knotes, [None, None]) {
            self.members.remove(&fd);
            return epoll::delete(kq, borrow(&fd));
        }
        let told = match epoll::modify(kq, borrow(&fd), member.data(fd), member.asked()) {
            Err(Errno::NOENT) => epoll::add(kq, borrow(&fd), member.data(fd), member.asked()),
            told => told,
        };
        if told.is_err() {
            self.members.remove(&fd);
        }
        told
    }

    /// Takes out what is active now.
    fn collect(&mut self, kq: BorrowedFd<'_>, answer: &mut Answer) -> Result<(), Errno> {
        // Each can become two events.
        let mut active = Vec::with_capacity((answer.room / 2).max(1));
        epoll::wait(kq, spare_capacity(&mut active), Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let mut ghosts = false;
        for epoll::Event { flags, data } in active {
            let (fd, serial) = (data.u64() as u32 as RawFd, (data.u64() >> 32) as u32);
            match self.members.get_mut(&fd).filter(|member| member.serial == serial) {
                // Only if necessary: changing a registration would repeat an edge that was just reported.
                Some(member) if is_in(kq, fd) => {
                    if member.report(fd, flags, answer) == Spent::Some {
                        self.tell(kq, fd)?;
                    }
                }
                // It was closed, but a duplicate keeps it registered with epoll. The real queue goes by number.
                _ => ghosts = true,
            }
        }
        if ghosts { self.rebuild(kq) } else { Ok(()) }
    }

    /// Replaces the epoll object, under its number, by one with the members whose descriptors were not reused.
    fn rebuild(&mut self, kq: BorrowedFd<'_>) -> Result<(), Errno> {
        let fresh = epoll::create(CreateFlags::CLOEXEC)?;
        self.members.retain(|fd, member| {
            is_in(kq, *fd) && epoll::add(&fresh, borrow(fd), member.data(*fd), member.asked()).is_ok()
        });
        // SAFETY: both are open. The owner of the queue waits for this call, so nobody else uses the number.
        match unsafe { libc::dup3(fresh.as_raw_fd(), kq.as_raw_fd(), libc::O_CLOEXEC) } {
            -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::BADF)),
            _ => Ok(()),
        }
    }
}

/// Whether reporting a member has used up any of its knotes.
#[derive(PartialEq, Eq)]
enum Spent {
    None,
    Some,
}

impl Member {
    /// Creates an event for each knote that `flags` activate.
    fn report(&mut self, fd: RawFd, flags: EventFlags, answer: &mut Answer) -> Spent {
        let mut spent = Spent::None;
        for (side, place) in self.knotes.iter_mut().enumerate() {
            let Some(knote) = place.as_mut().filter(|knote| knote.enabled) else { continue };
            if !flags.intersects(CAUSES[side] | ENDS) || answer.is_full() {
                continue;
            }
            let udata = knote.udata as *mut c_void;
            let mut event = Event { ident: fd as usize, filter: FILTERS[side], udata, ..blank() };
            if flags.intersects(ENDS) || side == 0 && flags.contains(EventFlags::RDHUP) {
                event.flags |= EV_EOF;
            }
            if flags.contains(EventFlags::ERR) && self.kind == FileType::Socket {
                // The actual error cannot be read without taking it away from the owner.
                event.fflags = libc::ECONNRESET as u32;
            }
            if side == 0 {
                event.data = rustix::io::ioctl_fionread(borrow(&fd)).map_or(0, |bytes| bytes as isize);
            }
            answer.events.push(event);
            if knote.flags & EV_ONESHOT != 0 {
                *place = None;
                spent = Spent::Some;
            } else if knote.flags & EV_DISPATCH != 0 {
                knote.enabled = false;
                spent = Spent::Some;
            }
        }
        spent
    }
}

/// Returns whether `fd` is the file that epoll has under this number. There is no query for that, but an attempt to add it
/// tells and changes nothing.
fn is_in(kq: BorrowedFd<'_>, fd: RawFd) -> bool {
    match epoll::add(kq, borrow(&fd), EventData::new_u64(0), EventFlags::ET) {
        Err(Errno::EXIST) => true,
        Err(_) => false,
        Ok(()) => {
            let _ = epoll::delete(kq, borrow(&fd));
            false
        }
    }
}

/// Returns whether `fd` is a pipe without a reader.
fn is_broken(fd: RawFd) -> Result<bool, Errno> {
    let fd = borrow(&fd);
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(asked[0].revents().contains(PollFlags::ERR))
}
