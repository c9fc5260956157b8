//! What a loop consists of: queue, timers, descriptors and the engine that waits for them.
//!
//! A loop object is a Python object with a dictionary, which CPython's own machinery takes down. Behind it sits one reference
//! to an object of the type here, which has no attributes and which only this crate can reach.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use pelton::{Engine, EngineKind, Time, TimerKey, Wheel};
use pelton_os::{Event, engine, fork};
use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::contexts::{self, Shared};
use crate::handle_memory;
use crate::intake::Intake;
use crate::known::known;
use crate::object::{Owned, Raised, Result, raise, raise_io, raise_text};
use crate::panic::guard;
use crate::readers::Readers;
use crate::sockets::Waiting;
use crate::stats::Counters;
use crate::types;

/// A handle in the wheel; the wheel owns a reference to it.
pub(crate) type Timers = Wheel<*mut PyObject>;

/// The state of a loop. References are owned, or null for `None`.
///
/// It is always reached through a raw pointer, and a Rust reference to a part of it ends before anything is called that could
/// come back for that part: Python, or the dropping of a reference.
pub(crate) struct Core {
    /// `None` once closed.
    pub(crate) engine: Option<Box<dyn Engine>>,
    pub(crate) engine_name: &'static str,
    pub(crate) waker: Waker,
    /// Handles to be called, in order; it owns a reference to each.
    pub(crate) ready: std::collections::VecDeque<*mut PyObject>,
    pub(crate) timers: Timers,
    pub(crate) readers: Readers,
    /// How many of the watched descriptors are the loop's own, as asyncio counts them: the one that signals wake it by.
    pub(crate) internal_descriptors: i64,
    pub(crate) debug: bool,
    pub(crate) closed: bool,
    pub(crate) stopping: bool,
    /// Some thread is in the engine, without the lock.
    pub(crate) parked: bool,
    /// The last time that the engine was asked, and that the lock was let go of.
    pub(crate) polled: Time,
    pub(crate) unlocked: Time,
    /// How often that is to happen while there is work.
    pub(crate) unlock_every: Duration,
    pub(crate) thread: *mut PyObject,
    pub(crate) task_factory: *mut PyObject,
    pub(crate) current_handle: *mut PyObject,
    /// `{"loop": loop}`, to make futures and tasks with.
    pub(crate) loop_keyword: *mut PyObject,
    /// The dictionary in `loop._transports`.
    pub(crate) transports: *mut PyObject,
    pub(crate) waiting: Waiting,
    pub(crate) contexts: Shared,
    /// Whom to tell of callbacks that take at least so many nanoseconds.
    pub(crate) on_slow: *mut PyObject,
    pub(crate) slow: u64,
    pub(crate) counters: Counters,
    /// What comes from outside of Python, if the loop hosts. Only the thread that runs the loop touches it.
    pub(crate) intake: Option<Box<dyn Intake>>,
    /// Somebody who had the lock has woken the loop since it went to sleep.
    pub(crate) posted: AtomicBool,
    /// An event that was taken out of the engine to see whether there is one.
    pub(crate) found: Option<Event>,
    /// Whether the last wait was short enough for looking instead of sleeping to pay.
    pub(crate) spin_pays: bool,
    /// The process whose engine this is, as a number of forks.
    forks: u64,
}

#[repr(C)]
struct CoreObject {
    head: PyObject,
    core: ManuallyDrop<Core>,
}

/// Where the reference to its core is in a loop object.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Sets where a loop object has its core.
pub(crate) fn set_offset(offset: usize) {
    OFFSET.store(offset, Ordering::Relaxed);
}

/// The type `pelton.Loop`.
static LOOP_TYPE: AtomicPtr<PyTypeObject> = AtomicPtr::new(null_mut());

/// Sets what a loop is.
pub(crate) fn set_loop_type(its_type: *mut PyTypeObject) {
    LOOP_TYPE.store(its_type, Ordering::Relaxed);
}

/// Whether an object is a `pelton.Loop`.
///
/// # Safety
/// `object` is alive.
pub(crate) unsafe fn is_loop(object: *mut PyObject) -> bool {
    // SAFETY: as the caller says; the type lives for ever.
    unsafe { ffi::PyObject_TypeCheck(object, LOOP_TYPE.load(Ordering::Relaxed)) != 0 }
}

/// The core of a loop, or null if the garbage collector has already taken the loop apart.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn core_or_null(loop_: *mut PyObject) -> *mut Core {
    // SAFETY: loops were made with a reference at this offset, which only `tp_new` sets and only the collector clears.
    unsafe {
        let object = *loop_.byte_add(OFFSET.load(Ordering::Relaxed)).cast::<*mut CoreObject>();
        if object.is_null() { null_mut() } else { (&raw mut (*object).core).cast() }
    }
}

/// The core of a loop.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn core(loop_: *mut PyObject) -> Result<*mut Core> {
    // SAFETY: as the caller says.
    let core = unsafe { core_or_null(loop_) };
    if core.is_null() { Err(taken_apart()) } else { Ok(core) }
}

#[cold]
fn taken_apart() -> Raised {
    // SAFETY: the exception classes are there as long as the interpreter is.
    raise(unsafe { ffi::PyExc_RuntimeError }, c"the event loop has been taken apart by the garbage collector")
}

/// Whether a loop is in debug mode.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
#[inline]
pub(crate) unsafe fn is_in_debug_mode(loop_: *mut PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let core = core_or_null(loop_);
        !core.is_null() && (*core).debug
    }
}

/// Raises what asyncio raises if the loop is closed.
///
/// # Safety
/// `core` is that of a live loop.
#[inline]
pub(crate) unsafe fn check_open(core: *mut Core) -> Result<()> {
    // SAFETY: as the caller says.
    if unsafe { (*core).closed } {
        // SAFETY: the exception classes are there as long as the interpreter is.
        return Err(raise(unsafe { ffi::PyExc_RuntimeError }, c"Event loop is closed"));
    }
    Ok(())
}

/// Takes a timer out of a loop's wheel: the wheel's reference to it, which is the caller's now.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`.
pub(crate) unsafe fn take_timer(loop_: *mut PyObject, key: TimerKey) -> Option<*mut PyObject> {
    // SAFETY: as the caller says; the wheel does not call anything.
    unsafe {
        let core = core_or_null(loop_);
        if core.is_null() { None } else { (*core).timers.cancel(key) }
    }
}

/// Wakes the loop if it sleeps, or is about to.
///
/// # Safety
/// `core` is that of a live loop.
#[inline]
pub(crate) unsafe fn wake(core: *mut Core) {
    // SAFETY: as the caller says. The lock is held, so whether somebody is parked does not change meanwhile.
    unsafe {
        if (*core).parked {
            (*core).posted.store(true, Ordering::Release);
            (*core).waker.wake_by_ref();
        }
    }
}

/// The engine of a loop that is open and not parked in it.
///
/// In a forked child this cuts what the loop shares with the parent's first: otherwise the two would take events, and
/// registrations, from each other.
///
/// # Safety
/// `core` is that of a live loop. The reference ends before anything is called that could come back for the engine.
pub(crate) unsafe fn engine<'a>(core: *mut Core) -> Result<&'a mut dyn Engine> {
    // SAFETY: as the caller says.
    unsafe {
        debug_assert!(!(*core).parked);
        let Some(engine) = (*core).engine.as_mut() else {
            return Err(raise(ffi::PyExc_RuntimeError, c"Event loop is closed"));
        };
        if (*core).forks != fork::count() {
            engine.after_fork().map_err(|error| raise_io(&error))?;
            (*core).forks = fork::count();
        }
        Ok(&mut **engine)
    }
}

/// A new core, with the engine that `PELTON_ENGINE` names or else the best there is.
pub(crate) fn new() -> Result<Owned> {
    // SAFETY: the exception classes are there as long as the interpreter is.
    let value_error = unsafe { ffi::PyExc_ValueError };
    let wanted = EngineKind::from_environment()
        .map_err(|error| raise_text(value_error, &format!("{}: {error}", pelton::ENGINE_VARIABLE)))?;
    let engine = engine::open(wanted).map_err(|error| raise_io(&error))?.engine;
    let now = engine.now();
    let core = Core {
        engine_name: engine.name(),
        waker: engine.waker(),
        engine: Some(engine),
        ready: Default::default(),
        timers: Wheel::new(now),
        readers: Readers::default(),
        internal_descriptors: 0,
        debug: false,
        closed: false,
        stopping: false,
        parked: false,
        polled: Time::ZERO,
        unlocked: now,
        unlock_every: Duration::from_micros(7_500),
        thread: null_mut(),
        task_factory: null_mut(),
        current_handle: null_mut(),
        loop_keyword: null_mut(),
        transports: null_mut(),
        waiting: Waiting::EMPTY,
        contexts: Shared::NONE,
        on_slow: null_mut(),
        slow: u64::MAX,
        counters: Counters::default(),
        intake: None,
        posted: AtomicBool::new(false),
        found: None,
        spin_pays: false,
        forks: fork::count(),
    };
    // SAFETY: the type was made with room for a `CoreObject`. The collector looks at it from the allocation on, but nothing is
    // allocated between that and the core being in place.
    unsafe {
        let object = Owned::returned(ffi::PyType_GenericAlloc(known().core_type, 0))?;
        ptr::write(&raw mut (*object.as_ptr().cast::<CoreObject>()).core, ManuallyDrop::new(core));
        (*CORES.0.get()).push((&raw mut (*object.as_ptr().cast::<CoreObject>()).core).cast());
        Ok(object)
    }
}

/// All cores that there are.
struct Cores(UnsafeCell<Vec<*mut Core>>);

// SAFETY: only touched with the interpreter lock held.
unsafe impl Sync for Cores {}

static CORES: Cores = Cores(UnsafeCell::new(Vec::new()));

/// Whether [`track_shared`] is going to be called.
static TRACKING: AtomicBool = AtomicBool::new(false);

/// The garbage collector has come upon a handle that it does not know of and that somebody besides the queue has. It cannot be told
/// while it runs, so this has the main thread tell it afterwards.
pub(crate) fn track_shared_soon() {
    if !TRACKING.swap(true, Ordering::Relaxed) {
        // SAFETY: the function can be called at any time with the lock held. Asking for it calls and allocates nothing.
        let queued = unsafe { ffi::Py_AddPendingCall(Some(track_shared), null_mut()) };
        // With too much to be called already, the next collection asks again.
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
                handle_memory::track_if_shared(handle);
            }
        }
    }
    0
}

/// Lets go of everything: what is queued is not called any more, and nothing is waited for.
///
/// # Safety
/// `core` is that of a live loop that is not running.
pub(crate) unsafe fn close(core: *mut Core) {
    // SAFETY: everything is taken out before the first reference is let go of; what that calls finds a closed, empty loop.
    unsafe {
        (*core).closed = true;
        let ready = std::mem::take(&mut (*core).ready);
        let timers = std::mem::replace(&mut (*core).timers, Wheel::new(Time::ZERO));
        let readers = std::mem::take(&mut (*core).readers);
        let waiting = std::mem::replace(&mut (*core).waiting, Waiting::EMPTY);
        let intake = (*core).intake.take();
        (*core).found = None;
        // Dropped first, so that taking descriptors out of it one by one is not necessary.
        drop((*core).engine.take());
        let fields = [
            &raw mut (*core).thread,
            &raw mut (*core).task_factory,
            &raw mut (*core).current_handle,
            &raw mut (*core).loop_keyword,
            &raw mut (*core).transports,
            &raw mut (*core).on_slow,
        ]
        .map(|field| ptr::replace(field, null_mut()));
        for timer in timers.iter().map(|(_, timer)| *timer) {
            crate::timer_handle::set_key(timer, None);
        }
        for handle in ready.into_iter().chain(timers.iter().map(|(_, timer)| *timer)).chain(readers.handles()) {
            handle_memory::release(handle);
        }
        for field in fields.into_iter().chain(readers.owners()).chain(waiting.references()) {
            ffi::Py_XDECREF(field);
        }
        contexts::forget(core);
        drop(intake);
    }
}

unsafe extern "C" fn traverse(object: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a live core. It runs no code that could change what is iterated over.
    unsafe {
        let core: *mut Core = (&raw mut (*object.cast::<CoreObject>()).core).cast();
        // Field by field: a thread that sleeps in the engine may be changing others.
        let (ready, timers, readers) = (&(*core).ready, &(*core).timers, &(*core).readers);
        let queued = ready.iter().copied().chain(timers.iter().map(|(_, timer)| *timer));
        for handle in queued.chain(readers.handles()) {
            let status = handle_memory::visit_queued(handle, visit, argument);
            if status != 0 {
                return status;
            }
        }
        let (transports, waiting, contexts) = ((*core).transports, &(*core).waiting, &(*core).contexts);
        let fields = [(*core).task_factory, (*core).current_handle, (*core).loop_keyword, (*core).on_slow];
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
        // SAFETY: the collector calls it with a live core whose loop is garbage, so it does not run.
        unsafe { close((&raw mut (*object.cast::<CoreObject>()).core).cast()) };
        0
    })
}

unsafe extern "C" fn dealloc(object: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it with a core that nobody has any more. After `close` there are no references left in it.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            let core = &raw mut (*object.cast::<CoreObject>()).core;
            close(core.cast());
            (*CORES.0.get()).retain(|other| *other != core.cast());
            ManuallyDrop::drop(&mut *core);
            let its_type = ffi::Py_TYPE(object);
            ffi::PyObject_GC_Del(object.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    });
}

/// Makes the type.
pub(crate) fn make_type() -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
    ];
    // SAFETY: the functions are for objects of this size.
    unsafe { types::make(c"pelton._pelton.Core", null_mut(), size_of::<CoreObject>(), &slots) }
}

/// Gives a new loop its core.
///
/// # Safety
/// `loop_` is a `pelton.Loop` that has none.
pub(crate) unsafe fn put(loop_: *mut PyObject, core: Owned) {
    // SAFETY: the slot is there, and empty.
    unsafe { *loop_.byte_add(OFFSET.load(Ordering::Relaxed)).cast() = core.into_ptr() };
}
