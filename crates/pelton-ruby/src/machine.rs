//! The machine: a reactor, and the signatures by which Ruby names what the reactor has.
//!
//! There is at most one machine, as in EventMachine. Everything here is used with the interpreter's lock held, which also
//! orders the accesses of different threads, so plain cells suffice. No borrow is held while Ruby code runs.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pelton::{
    Address, ConnectionId, DatagramsId, EventLoop, Handle, Interest, Limit, ListenerId, PanicPolicy, PathWatchId,
    ProcessWatchId, Reactor, Time, TimerId, WatchId, WaterMarks,
};
use pelton_os::fork;

use crate::call::{self, Jump, Told};
use crate::proxies::Proxy;
use crate::tls::Progress;
use crate::tuning::settings;

/// How long a connection may take to be established, unless a program says otherwise.
const PENDING_CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// More than any queue can hold.
pub(crate) const UNBOUNDED: usize = usize::MAX / 4;

/// Numbers are spread well enough by a multiplication; the default hasher costs more than everything else in a look-up.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }
}

pub(crate) type BySignature<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// What a signature names, apart from timers.
pub(crate) struct Entry {
    pub(crate) source: Source,
    pub(crate) standing: Standing,
    /// It will be closed. The count of such entries is [`Machine::closing`].
    pub(crate) closing: bool,
    /// The descriptor that Ruby owns and that this entry uses, for attached and watched ones.
    pub(crate) attached: Option<RawFd>,
}

/// How a connection came to be, and how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It is not established yet, or not a connection.
    Opening,
    /// It was accepted by a server.
    Accepted,
    /// It was established or attached by the program.
    Opened,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Connection(ConnectionId),
    Server(ListenerId),
    Datagrams(DatagramsId),
    Watch(WatchId),
    /// A watched file; whether it is the first watch of this file.
    Path(PathWatchId, bool),
    /// A process whose exit is watched.
    Process(ProcessWatchId),
    /// The connection of a child has ended, with an error, and the child has not exited yet.
    Exiting(ProcessWatchId, i32),
    /// It has ended, or never existed, and the program has not been told yet.
    Over(i32),
}

pub(crate) struct Machine {
    /// Owned. Null once the machine is released.
    event_loop: Cell<*mut EventLoop>,
    /// The reactor, while a callback of it runs Ruby code.
    lent: Cell<*mut Reactor>,
    /// The thread that turns the loop, while it does.
    turned_by: Cell<Option<libc::pthread_t>>,
    pub(crate) handle: Handle,
    pub(crate) entries: RefCell<BySignature<Entry>>,
    pub(crate) timers: RefCell<BySignature<TimerId>>,
    /// What programs want to be told of watched descriptors.
    pub(crate) wanted: RefCell<BySignature<Interest>>,
    /// Connections whose input goes to another one.
    pub(crate) proxies: RefCell<BySignature<Proxy>>,
    /// Connections with TLS.
    pub(crate) tls: RefCell<BySignature<Progress>>,
    /// Why TLS has ended a connection, while the program is told of the end.
    pub(crate) tls_error: RefCell<Option<(u64, String)>>,
    /// The files that are watched.
    pub(crate) paths: RefCell<BySignature<PathBuf>>,
    /// The sender of the last datagram of each datagram socket.
    pub(crate) senders: RefCell<BySignature<Address>>,
    /// A jump out of Ruby code. No Ruby code runs until the loop has returned and continued it.
    raised: Cell<Option<Jump>>,
    /// Entries whose end could not be told because of such a jump.
    pub(crate) untold: RefCell<Vec<(u64, i32)>>,
    pub(crate) stopping: Cell<bool>,
    /// There are ticks or deferred results.
    pub(crate) loop_break: Cell<bool>,
    /// The loop sleeps without the lock, or is about to.
    pub(crate) parked: Cell<bool>,
    /// When the lock was last released.
    pub(crate) unlocked: Cell<Time>,
    pub(crate) closing: Cell<usize>,
    /// The number of forks when the machine was made.
    pub(crate) forks: u64,
}

/// The machine of the process, if there is one.
struct Place(UnsafeCell<Option<Rc<Machine>>>);

// SAFETY: it is accessed with the lock held only.
unsafe impl Sync for Place {}

static MACHINE: Place = Place(UnsafeCell::new(None));

/// The last signature. It outlives machines: a stale signature never names something new.
static SIGNATURE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn next_signature() -> u64 {
    SIGNATURE.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the machine.
#[inline]
pub(crate) fn current() -> Option<Rc<Machine>> {
    // SAFETY: the lock is held, and the reference lives for this expression only.
    unsafe { (*MACHINE.0.get()).clone() }
}

/// Replaces the machine.
pub(crate) fn set_current(machine: Option<Rc<Machine>>) -> Option<Rc<Machine>> {
    // SAFETY: as in `current`.
    unsafe { std::mem::replace(&mut *MACHINE.0.get(), machine) }
}

/// Names the calling thread. The standard library's way costs as much as a look-up in a table.
#[inline]
fn this_thread() -> libc::pthread_t {
    // SAFETY: it has no preconditions.
    unsafe { libc::pthread_self() }
}

impl Machine {
    pub(crate) fn new() -> Result<Machine, pelton::Error> {
        // As in EventMachine, sends are unbounded, and a slow reader is not an error.
        let unbounded = WaterMarks { low: UNBOUNDED, high: UNBOUNDED, most: UNBOUNDED };
        let event_loop = Reactor::builder()
            .nested(true)
            .stats(settings().measures.get())
            .panic_policy(PanicPolicy::Propagate)
            .water_marks(unbounded)
            .byte_budget(UNBOUNDED)
            .limit(Limit::WriteStall, None)
            .limit(Limit::Connect, Some(PENDING_CONNECT_TIMEOUT))
            .build()?;
        Ok(Machine {
            handle: event_loop.handle(),
            unlocked: Cell::new(event_loop.now()),
            event_loop: Cell::new(Box::into_raw(Box::new(event_loop))),
            lent: Cell::new(null_mut()),
            turned_by: Cell::new(None),
            entries: RefCell::default(),
            timers: RefCell::default(),
            wanted: RefCell::default(),
            proxies: RefCell::default(),
            tls: RefCell::default(),
            tls_error: RefCell::default(),
            paths: RefCell::default(),
            senders: RefCell::default(),
            raised: Cell::new(None),
            untold: RefCell::default(),
            stopping: Cell::new(false),
            // Ticks may have been queued before.
            loop_break: Cell::new(true),
            parked: Cell::new(false),
            closing: Cell::new(0),
            forks: fork::count(),
        })
    }

    /// Returns whether a thread turns the loop.
    pub(crate) fn is_turned(&self) -> bool {
        self.turned_by.get().is_some()
    }

    /// Returns whether this thread turns the loop.
    pub(crate) fn is_turned_here(&self) -> bool {
        self.turned_by.get() == Some(this_thread())
    }

    /// Runs one turn. Panics go to the caller.
    pub(crate) fn turn(&self) -> Result<(), pelton::Error> {
        struct Turned<'a>(&'a Machine);
        impl Drop for Turned<'_> {
            fn drop(&mut self) {
                self.0.turned_by.set(None);
                self.0.lent.set(null_mut());
            }
        }
        let event_loop = self.event_loop.get();
        if event_loop.is_null() || self.is_turned() {
            return Ok(());
        }
        self.turned_by.set(Some(this_thread()));
        let _turned = Turned(self);
        // SAFETY: the pointer came from a box that only `drop_loop` frees, which does nothing while the loop is turned.
        // Nobody else uses it meanwhile: `with` does not, because the loop is turned.
        unsafe { (*event_loop).turn(None) }
    }

    /// Lends the reactor to the Ruby code that `f` calls.
    #[inline]
    fn lend<T>(&self, reactor: &mut Reactor, f: impl FnOnce() -> T) -> T {
        struct Lent<'a>(&'a Cell<*mut Reactor>, *mut Reactor);
        impl Drop for Lent<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _lent = Lent(&self.lent, self.lent.replace(reactor));
        f()
    }

    /// Calls `f` with the reactor, if this thread may use it now: its callback runs Ruby code, or nobody turns it. `f` must not
    /// call Ruby.
    #[inline]
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        if self.is_turned() {
            if !self.is_turned_here() {
                return None;
            }
            let lent = self.lent.replace(null_mut());
            if lent.is_null() {
                return None;
            }
            struct Back<'a>(&'a Cell<*mut Reactor>, *mut Reactor);
            impl Drop for Back<'_> {
                fn drop(&mut self) {
                    self.0.set(self.1);
                }
            }
            let _back = Back(&self.lent, lent);
            // SAFETY: `lend` has the mutable reference, and does not use it before `f` of it returns. It is not given out twice,
            // since it was taken out of the cell.
            return Some(f(unsafe { &mut *lent }));
        }
        let event_loop = self.event_loop.get();
        if event_loop.is_null() {
            return None;
        }
        // SAFETY: the box is alive, nobody turns the loop, and `f` does not get here again, because it does not call Ruby.
        Some(f(unsafe { &mut *event_loop }))
    }

    /// Tells the program something, unless it is being left by a jump.
    #[inline]
    pub(crate) fn tell(&self, reactor: &mut Reactor, told: Told<'_>) -> bool {
        if self.raised.get().is_some() || !self.is_current() {
            return false;
        }
        if let Err(jump) = self.lend(reactor, || call::tell(told)) {
            // The rest of the pass waits, and so does its input.
            reactor.end_turn();
            self.raised.set(Some(jump));
        }
        true
    }

    /// Asks the program whether it accepts a certificate. A jump is an answer too: no.
    pub(crate) fn accepts_certificate(&self, reactor: &mut Reactor, sig: u64, pem: &[u8]) -> bool {
        if self.raised.get().is_some() || !self.is_current() {
            return false;
        }
        self.lend(reactor, || call::accepts_certificate(sig, pem)).unwrap_or_else(|jump| {
            reactor.end_turn();
            self.raised.set(Some(jump));
            false
        })
    }

    /// Records a jump out of Ruby code that was not a callback.
    pub(crate) fn raise(&self, jump: Jump) {
        self.raised.set(Some(jump));
    }

    pub(crate) fn has_raised(&self) -> bool {
        self.raised.get().is_some()
    }

    pub(crate) fn take_raised(&self) -> Option<Jump> {
        self.raised.take()
    }

    /// Returns whether this is the machine of the process. It is not, once it is released in a callback.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: as in `current`.
        unsafe { (*MACHINE.0.get()).as_ref().is_some_and(|machine| std::ptr::eq(&**machine, self)) }
    }

    pub(crate) fn add(&self, sig: u64, source: Source) {
        self.entries
            .borrow_mut()
            .insert(sig, Entry { source, standing: Standing::Opening, closing: false, attached: None });
    }

    /// Notes that a connection is established.
    pub(crate) fn set_standing(&self, sig: u64, standing: Standing) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(&sig) {
            entry.standing = standing;
        }
    }

    #[inline]
    pub(crate) fn source(&self, sig: u64) -> Option<Source> {
        self.entries.borrow().get(&sig).map(|entry| entry.source)
    }

    /// Notes that an entry will be closed.
    pub(crate) fn will_close(&self, sig: u64) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(&sig)
            && !std::mem::replace(&mut entry.closing, true)
        {
            self.closing.set(self.closing.get() + 1);
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, sig: u64) -> Option<Entry> {
        let entry = self.entries.borrow_mut().remove(&sig)?;
        self.proxies.borrow_mut().remove(&sig);
        self.tls.borrow_mut().remove(&sig);
        if !matches!(entry.source, Source::Connection(_) | Source::Server(_)) {
            self.wanted.borrow_mut().remove(&sig);
            self.senders.borrow_mut().remove(&sig);
            self.paths.borrow_mut().remove(&sig);
        }
        if entry.closing {
            self.closing.set(self.closing.get() - 1);
        }
        Some(entry)
    }

    /// Tells the program that an entry has ended, and removes it. If a jump prevents that, it is told later.
    pub(crate) fn unbind(&self, reactor: &mut Reactor, sig: u64, error: i32) {
        self.will_close(sig);
        if let Some(entry) = self.entries.borrow_mut().get_mut(&sig) {
            entry.source = Source::Over(error);
        } else {
            return;
        }
        if self.tell(reactor, Told::Unbound(sig, error)) {
            self.target_has_ended(reactor, sig);
            self.remove(sig);
        } else {
            self.untold.borrow_mut().push((sig, error));
        }
    }

    /// Tells the program that an entry has ended, in the next turn: its own code is running now.
    pub(crate) fn unbind_soon(self: &Rc<Self>, reactor: &mut Reactor, sig: u64) {
        self.will_close(sig);
        if let Some(entry) = self.entries.borrow_mut().get_mut(&sig) {
            entry.source = Source::Over(0);
        }
        let owner = self.clone();
        reactor.next_tick(move |reactor| owner.unbind(reactor, sig, 0));
    }

    /// Ends a sleep of the loop.
    pub(crate) fn wake(&self) {
        if self.parked.get() {
            self.handle.wake();
        }
    }

    /// Drops the reactor, unless it is being turned further up the stack. Then it is left behind, empty.
    pub(crate) fn drop_loop(&self) {
        let event_loop = self.event_loop.replace(null_mut());
        if !event_loop.is_null() && !self.is_turned() {
            // SAFETY: the pointer came from a box, was taken out of the cell, and nobody turns the loop or has borrowed it.
            drop(unsafe { Box::from_raw(event_loop) });
        }
    }
}
