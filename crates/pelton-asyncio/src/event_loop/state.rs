//! The state of a loop: its queue, timers, descriptors, and the reactor that waits for them.
//!
//! A loop object is a Python object with a dictionary, which CPython deallocates like any other. It holds one reference to an
//! object of the type defined here, which has no attributes and which only this crate can reach.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pelton::{EngineKind, EventLoop, Handle, PanicPolicy, Reactor, Time, TimerKey, Wheel};
use pelton_os::{clock, fork};
use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::event_loop::guest;
use crate::event_loop::intake::Intake;
use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::slow::Slow;
use crate::event_loop::stats::Counters;
use crate::handles::contexts::{self, SharedContext};
use crate::handles::memory;
use crate::known::known;
use crate::readers::Readers;
use crate::sockets::operations::Waiting;
use pelton_cpython::object::{Owned, Raised, Result, raise, raise_text};
use pelton_cpython::panic::guard;
use pelton_cpython::types;

/// The timer handles. The wheel owns a reference to each.
pub(crate) type Timers = Wheel<*mut PyObject>;

/// The state of a loop. References are owned, or null for `None`.
///
/// It is always accessed through a raw pointer. A Rust reference to a part of it ends before any call that could access the same part
/// again: a call into Python, or dropping a Python reference.
pub(crate) struct LoopState {
    /// `None` once closed, and during a turn: the thread that turns the reactor then has it on its stack.
    event_loop: Option<Box<EventLoop>>,
    pub(crate) engine_name: &'static str,
    /// Reaches the reactor during a turn, and wakes it.
    pub(crate) handle: Handle,
    /// The thread that the loop belongs to, once Rust code may have registered something with its reactor.
    thread_of_reactor: Option<ThreadId>,
    /// The loop whose core this is, during a turn; borrowed.
    pub(crate) turning: *mut PyObject,
    /// An exception has ended the turn. It is set.
    pub(crate) raised: bool,
    /// The handles to call, in order. It owns a reference to each.
    pub(crate) ready: std::collections::VecDeque<*mut PyObject>,
    pub(crate) timers: Timers,
    pub(crate) readers: Readers,
    /// How many watched descriptors belong to the loop itself, as asyncio counts them: the one by which signals wake it.
    pub(crate) internal_descriptors: i64,
    pub(crate) debug: bool,
    pub(crate) closed: bool,
    pub(crate) stopping: bool,
    /// Whether the thread that turns the loop has released the lock.
    pub(crate) parked: bool,
    /// Whether a run has just begun. Its first turn always polls: programs that run a loop for one turn rely on it.
    pub(crate) run_begins: bool,
    /// Whether the lock was released since the last batch.
    pub(crate) was_parked: bool,
    /// When the lock was last released.
    pub(crate) unlocked: Time,
    /// How often to release it while there is work.
    pub(crate) unlock_every: Duration,
    /// When a sleeping loop must check again for sockets that were closed.
    pub(crate) check_again: Option<Time>,
    pub(crate) thread: *mut PyObject,
    pub(crate) task_factory: *mut PyObject,
    pub(crate) current_handle: *mut PyObject,
    /// `{"loop": loop}`, the keywords for creating futures and tasks.
    pub(crate) loop_keyword: *mut PyObject,
    /// The dictionary in `loop._transports`.
    pub(crate) transports: *mut PyObject,
    pub(crate) waiting: Waiting,
    pub(crate) contexts: SharedContext,
    pub(crate) slow: Slow,
    pub(crate) counters: Counters,
    /// Work from outside of Python, if the loop belongs to a host. Only the thread that runs the loop uses it.
    pub(crate) intake: Option<Box<dyn Intake>>,
    /// Whether a thread with the lock has woken the loop since it fell asleep.
    pub(crate) posted: AtomicBool,
    /// Whether the last wait was short enough for spinning to pay off.
    pub(crate) spin_pays: bool,
    /// Identifies the process that the reactor belongs to, as a number of forks.
    forks: u64,
}

#[repr(C)]
struct LoopStateObject {
    head: PyObject,
    core: ManuallyDrop<LoopState>,
}

/// The offset of the reference to the core in a loop object.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Sets the offset of the core in a loop object.
pub(crate) fn set_offset(offset: usize) {
    OFFSET.store(offset, Ordering::Relaxed);
}

/// The type `pelton.Loop`.
static LOOP_TYPE: AtomicPtr<PyTypeObject> = AtomicPtr::new(null_mut());

/// Sets the type `pelton.Loop`.
pub(crate) fn set_loop_type(its_type: *mut PyTypeObject) {
    LOOP_TYPE.store(its_type, Ordering::Relaxed);
}

/// Returns whether an object is a `pelton.Loop`.
///
/// # Safety
/// `object` is alive.
pub(crate) unsafe fn is_loop(object: *mut PyObject) -> bool {
    let loop_type = LOOP_TYPE.load(Ordering::Relaxed);
    // SAFETY: the caller guarantees it; the type is never freed.
    !loop_type.is_null() && unsafe { ffi::PyObject_TypeCheck(object, loop_type) != 0 }
}

/// Returns the core of a loop, or null if the garbage collector has cleared the loop.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn of_or_null(loop_: *mut PyObject) -> *mut LoopState {
    // SAFETY: every loop has a reference at this offset, which only `tp_new` sets and only the collector clears.
    unsafe {
        let object = *loop_.byte_add(OFFSET.load(Ordering::Relaxed)).cast::<*mut LoopStateObject>();
        if object.is_null() { null_mut() } else { (&raw mut (*object).core).cast() }
    }
}

/// Returns the core of a loop.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn of(loop_: *mut PyObject) -> Result<*mut LoopState> {
    // SAFETY: the caller guarantees it.
    let core = unsafe { of_or_null(loop_) };
    if core.is_null() { Err(taken_apart()) } else { Ok(core) }
}

#[cold]
fn taken_apart() -> Raised {
    // SAFETY: exception classes live as long as the interpreter.
    raise(unsafe { ffi::PyExc_RuntimeError }, c"the event loop has been taken apart by the garbage collector")
}

/// Returns whether a loop is in debug mode.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn is_in_debug_mode(loop_: *mut PyObject) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = of_or_null(loop_);
        !core.is_null() && (*core).debug
    }
}

/// Raises the exception that asyncio raises for a closed loop, if the loop is closed.
///
/// # Safety
/// `core` belongs to a live loop.
#[inline]
pub(crate) unsafe fn check_open(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it.
    if unsafe { (*core).closed } {
        // SAFETY: exception classes live as long as the interpreter.
        return Err(raise(unsafe { ffi::PyExc_RuntimeError }, c"Event loop is closed"));
    }
    Ok(())
}

/// Removes a timer from a loop's wheel. The wheel's reference becomes the caller's.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
pub(crate) unsafe fn take_timer(loop_: *mut PyObject, key: TimerKey) -> Option<*mut PyObject> {
    // SAFETY: the caller guarantees it; the wheel does not call anything.
    unsafe {
        let core = of_or_null(loop_);
        if core.is_null() { None } else { (*core).timers.cancel(key) }
    }
}

/// Wakes the loop if it sleeps, or is about to.
///
/// # Safety
/// `core` belongs to a live loop.
#[inline]
pub(crate) unsafe fn wake(core: *mut LoopState) {
    // SAFETY: the caller guarantees it. The lock is held, so `parked` does not change meanwhile.
    unsafe {
        if (*core).parked {
            (*core).posted.store(true, Ordering::Release);
            (*core).handle.wake();
        }
    }
}

/// Calls `f` with the reactor of an open loop. Returns `None` if another thread turns the loop, so that its reactor is out of reach.
///
/// In a forked child it first separates the reactor from the parent's. Otherwise the two would take events and registrations from
/// each other.
///
/// # Safety
/// `core` belongs to a live loop. `f` calls nothing that could access the reactor again.
pub(crate) unsafe fn with_reactor<T>(core: *mut LoopState, f: impl FnOnce(&mut Reactor) -> T) -> Result<Option<T>> {
    // SAFETY: the caller guarantees it. Between turns, the thread that holds the lock has exclusive access to the reactor.
    unsafe {
        let f = |reactor: &mut Reactor| {
            follow_fork(core, reactor)?;
            Ok(f(reactor))
        };
        match (*core).event_loop.as_deref_mut() {
            Some(event_loop) => f(event_loop).map(Some),
            None if (*core).closed => Err(raise(ffi::PyExc_RuntimeError, c"Event loop is closed")),
            None => (*core).handle.with_reactor(f).transpose(),
        }
    }
}

/// Makes the reactor usable in a forked child.
///
/// # Safety
/// `core` belongs to a live loop.
#[inline]
pub(crate) unsafe fn follow_fork(core: *mut LoopState, reactor: &mut Reactor) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        if (*core).forks != fork::count() {
            reactor.after_fork().map_err(raise_error)?;
            (*core).forks = fork::count();
        }
        Ok(())
    }
}

/// Binds a loop to this thread: closures registered with its reactor need not be `Send`. Fails if it is bound to another.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn bind_to_thread(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let here = thread::current().id();
        if *(*core).thread_of_reactor.get_or_insert(here) == here {
            return Ok(());
        }
        let message = c"Rust code has used this event loop on another thread, so it must stay there";
        Err(raise(ffi::PyExc_RuntimeError, message))
    }
}

/// Drops a reactor that was taken out of its core, or leaks it if that would drop closures on a thread that they do not belong to.
///
/// # Safety
/// `core` belongs to a live loop, or to one that is being freed.
unsafe fn drop_reactor(core: *mut LoopState, event_loop: Option<Box<EventLoop>>) {
    // SAFETY: the caller guarantees it.
    let belongs_here = unsafe { (*core).thread_of_reactor.is_none_or(|thread| thread == thread::current().id()) };
    if belongs_here {
        drop(event_loop);
    } else {
        std::mem::forget(event_loop);
    }
}

/// A reactor that was taken out of its core to be turned. Dropping this puts it back.
pub(crate) struct Taken {
    core: *mut LoopState,
    event_loop: Option<Box<EventLoop>>,
}

impl Taken {
    /// Takes the reactor of a loop out of its core, to turn it. Returns `None` if that has been done already.
    ///
    /// # Safety
    /// `loop_` is a live loop, `core` its core, and both stay alive while this does.
    pub(crate) unsafe fn out_of(loop_: *mut PyObject, core: *mut LoopState) -> Result<Option<Taken>> {
        // SAFETY: the caller guarantees it.
        unsafe {
            if (*core).event_loop.is_none() {
                return Ok(None);
            }
            // In a program that hosts Python, callbacks in Rust reach the reactor by `Reactor::with_current`.
            if cfg!(feature = "embed") || (*core).thread_of_reactor.is_some() {
                bind_to_thread(core)?;
            }
            let Some(mut event_loop) = (*core).event_loop.take() else { return Ok(None) };
            let followed = follow_fork(core, &mut event_loop);
            (*core).turning = loop_;
            // A panic, which is a bug in this crate, has ended the guest.
            if !event_loop.has_guest() {
                guest::host(core, &mut event_loop);
            }
            let taken = Taken { core, event_loop: Some(event_loop) };
            followed.map(|()| Some(taken))
        }
    }

    /// Calls `f` with the reactor.
    pub(crate) fn with_reactor<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        self.event_loop.as_deref_mut().map(|event_loop| f(event_loop))
    }

    /// Turns the reactor until `goes_on` returns `false` after a turn. An exception ends it too.
    pub(crate) fn turn_while(&mut self, goes_on: impl Fn() -> bool) -> Result<()> {
        let Some(event_loop) = &mut self.event_loop else { return Ok(()) };
        let core = self.core;
        let mut followed = Ok(());
        // SAFETY: `out_of` requires the core to be alive.
        let mut before = unsafe { (*core).counters.turns };
        let turned = event_loop.turn_while(|reactor| {
            // SAFETY: as above.
            unsafe {
                let counters = &mut (*core).counters;
                counters.reactor = reactor.counts();
                reactor.count_guest_callbacks(counters.new_callbacks());
                // Batches are counted as turns. A turn without a batch counts too.
                counters.turns = counters.turns.max(before + 1);
                before = counters.turns;
                if (*core).raised || (*core).closed || !goes_on() {
                    return false;
                }
                // A callback may have forked.
                followed = follow_fork(core, reactor);
                followed.is_ok()
            }
        });
        // SAFETY: as above.
        if unsafe { std::mem::take(&mut (*core).raised) } {
            return Err(Raised);
        }
        followed.and(turned.map_err(raise_error))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: `out_of` requires the core to be alive. A reactor refers to no Python objects but queued `bytes`, so dropping it runs no Python code.
        unsafe {
            (*self.core).turning = null_mut();
            if (*self.core).closed {
                drop(self.event_loop.take());
            } else {
                (*self.core).event_loop = self.event_loop.take();
            }
        }
    }
}

/// Creates a core with the engine that `PELTON_ENGINE` names, or else the best available one.
pub(crate) fn new() -> Result<Owned> {
    // SAFETY: exception classes live as long as the interpreter.
    let value_error = unsafe { ffi::PyExc_ValueError };
    EngineKind::from_environment()
        .map_err(|error| raise_text(value_error, &format!("{}: {error}", pelton::ENGINE_VARIABLE)))?;
    // Loops may run inside each other. A panic is propagated to the method that turns the loop, which raises it.
    let builder = Reactor::builder().nested(true).stats(false).panic_policy(PanicPolicy::Propagate);
    let event_loop = builder.build().map_err(raise_error)?;
    let now = clock::now();
    let core = LoopState {
        engine_name: event_loop.engine_name(),
        handle: event_loop.handle(),
        event_loop: Some(Box::new(event_loop)),
        thread_of_reactor: None,
        turning: null_mut(),
        raised: false,
        ready: Default::default(),
        timers: Wheel::new(now),
        readers: Readers::default(),
        internal_descriptors: 0,
        debug: false,
        closed: false,
        stopping: false,
        parked: false,
        run_begins: false,
        was_parked: false,
        unlocked: now,
        unlock_every: Duration::from_micros(7_500),
        check_again: None,
        thread: null_mut(),
        task_factory: null_mut(),
        current_handle: null_mut(),
        loop_keyword: null_mut(),
        transports: null_mut(),
        waiting: Waiting::EMPTY,
        contexts: SharedContext::NONE,
        slow: Slow::new(),
        counters: Counters::default(),
        intake: None,
        posted: AtomicBool::new(false),
        spin_pays: false,
        forks: fork::count(),
    };
    // SAFETY: the type has room for a `LoopStateObject`. The collector may visit the object once it is allocated, but nothing is allocated
    // before the core is in place.
    unsafe {
        let object = Owned::returned(ffi::PyType_GenericAlloc(known().core_type, 0))?;
        ptr::write(&raw mut (*object.as_ptr().cast::<LoopStateObject>()).core, ManuallyDrop::new(core));
        let core: *mut LoopState = (&raw mut (*object.as_ptr().cast::<LoopStateObject>()).core).cast();
        (*CORES.0.get()).push(core);
        with_reactor(core, |reactor| guest::host(core, reactor))?;
        Ok(object)
    }
}

/// All cores.
struct Cores(UnsafeCell<Vec<*mut LoopState>>);

// SAFETY: it is accessed only with the interpreter lock held.
unsafe impl Sync for Cores {}

static CORES: Cores = Cores(UnsafeCell::new(Vec::new()));

/// Whether a call to [`track_shared`] is pending.
static TRACKING: AtomicBool = AtomicBool::new(false);

/// Makes the main thread call [`track_shared`]. Called when the garbage collector finds an untracked handle that has other references
/// than the queue's: the handle cannot be tracked while the collector runs.
pub(crate) fn track_shared_soon() {
    if !TRACKING.swap(true, Ordering::Relaxed) {
        // SAFETY: the function may be called at any time with the lock held. Adding it calls and allocates nothing.
        let queued = unsafe { ffi::Py_AddPendingCall(Some(track_shared), null_mut()) };
        // If too many calls are pending already, the next collection tries again.
        TRACKING.store(queued == 0, Ordering::Relaxed);
    }
}

extern "C" fn track_shared(_: *mut c_void) -> c_int {
    TRACKING.store(false, Ordering::Relaxed);
    // SAFETY: the main thread calls it between two instructions of Python, with the lock held. The collector does not run then, and
    // tracking calls nothing.
    unsafe {
        for core in &*CORES.0.get() {
            let (ready, timers) = (&(**core).ready, &(**core).timers);
            for handle in ready.iter().copied().chain(timers.iter().map(|(_, timer)| *timer)) {
                memory::track_if_shared(handle);
            }
        }
    }
    0
}

/// Returns whether the loop can be closed here: nobody turns it, or this thread does and is inside a callback.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn can_close(core: *mut LoopState) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { (*core).closed || (*core).event_loop.is_some() || (*core).handle.with_reactor(|_| ()).is_some() }
}

/// Drops everything that is queued, scheduled or watched.
///
/// # Safety
/// `core` belongs to a live loop that is not running.
pub(crate) unsafe fn close(core: *mut LoopState) {
    // SAFETY: everything is taken out before the first reference is dropped, so code that runs then finds a closed, empty loop.
    unsafe {
        (*core).closed = true;
        let ready = std::mem::take(&mut (*core).ready);
        let timers = std::mem::replace(&mut (*core).timers, Wheel::new(Time::ZERO));
        let readers = std::mem::take(&mut (*core).readers);
        let waiting = std::mem::replace(&mut (*core).waiting, Waiting::EMPTY);
        let intake = (*core).intake.take();
        let names = (*core).slow.take_names();
        // First, so that descriptors need not be removed one by one. During a turn, the reactor is dropped when the turn ends.
        drop_reactor(core, (*core).event_loop.take());
        let fields = [
            &raw mut (*core).thread,
            &raw mut (*core).task_factory,
            &raw mut (*core).current_handle,
            &raw mut (*core).loop_keyword,
            &raw mut (*core).transports,
            &raw mut (*core).slow.hook,
        ]
        .map(|field| ptr::replace(field, null_mut()));
        for timer in timers.iter().map(|(_, timer)| *timer) {
            crate::handles::timer::set_key(timer, None);
        }
        for handle in ready.into_iter().chain(timers.iter().map(|(_, timer)| *timer)).chain(readers.handles()) {
            memory::release(handle);
        }
        for field in fields.into_iter().chain(readers.owners()).chain(waiting.references()) {
            ffi::Py_XDECREF(field);
        }
        contexts::forget(core);
        drop(names);
        drop(intake);
    }
}

unsafe extern "C" fn traverse(object: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a live core. No code runs here that could change the collections.
    unsafe {
        let core: *mut LoopState = (&raw mut (*object.cast::<LoopStateObject>()).core).cast();
        // Field by field: a thread that sleeps without the lock may be changing others.
        let (ready, timers, readers) = (&(*core).ready, &(*core).timers, &(*core).readers);
        let queued = ready.iter().copied().chain(timers.iter().map(|(_, timer)| *timer));
        for handle in queued.chain(readers.handles()) {
            let status = memory::visit_queued(handle, visit, argument);
            if status != 0 {
                return status;
            }
        }
        let (transports, waiting, contexts) = ((*core).transports, &(*core).waiting, &(*core).contexts);
        let fields = [(*core).task_factory, (*core).current_handle, (*core).loop_keyword, (*core).slow.hook];
        for field in fields.into_iter().chain([transports]).chain(waiting.references()).chain(contexts.references()) {
            let status = if field.is_null() { 0 } else { visit(field, argument) };
            if status != 0 {
                return status;
            }
        }
        0
    }
}

unsafe extern "C" fn clear(object: *mut PyObject) -> c_int {
    guard(0, || {
        // SAFETY: the collector calls it with a live core whose loop is unreachable, so the loop does not run.
        unsafe { close((&raw mut (*object.cast::<LoopStateObject>()).core).cast()) };
        0
    })
}

unsafe extern "C" fn dealloc(object: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it when there is no reference to the core. After `close` it holds no references itself.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            let core = &raw mut (*object.cast::<LoopStateObject>()).core;
            close(core.cast());
            (*CORES.0.get()).retain(|other| *other != core.cast());
            ManuallyDrop::drop(&mut *core);
            let its_type = ffi::Py_TYPE(object);
            ffi::PyObject_GC_Del(object.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    });
}

/// Creates the type.
pub(crate) fn make_type() -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
    ];
    // SAFETY: the functions are for objects of this size.
    unsafe { types::make(c"pelton._pelton.LoopState", null_mut(), size_of::<LoopStateObject>(), &slots) }
}

/// Gives a new loop its core.
///
/// # Safety
/// `loop_` is a `pelton.Loop` that has none.
pub(crate) unsafe fn put(loop_: *mut PyObject, core: Owned) {
    // SAFETY: the slot exists and is empty.
    unsafe { *loop_.byte_add(OFFSET.load(Ordering::Relaxed)).cast() = core.into_ptr() };
}
