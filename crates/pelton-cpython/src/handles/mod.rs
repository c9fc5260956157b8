//! Handles: scheduled callbacks, of the types `pelton.Handle` and `pelton.TimerHandle`.
//!
//! They derive from asyncio's types and have their own fields after those of these classes, whose slots stay empty. The attributes that
//! tools read are computed from these fields, so asyncio's own methods that use them (`repr`, `get_context`) work unchanged.
//!
//! | file | contents |
//! |---|---|
//! | `memory.rs` | allocating, tracking and freeing them |
//! | `class.rs` | the two types |
//! | `context.rs` | the contexts that callbacks run in |

mod class;
pub mod context;
mod memory;

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pelton::TimerKey;
use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::Argument;
use crate::call::{Call, OrRaise, returned, take_ordinary};
use crate::object::{Raised, Result};
use crate::slot::Slot;
pub use class::{EachQueued, Hooks, make_types};
use context::SharedContexts;
pub use memory::{goes_silently, track_shared_soon};

/// Number of arguments stored in the handle itself. More are stored in a tuple.
const INLINE: usize = 3;

/// The fields of a handle after those of `asyncio.Handle`.
#[repr(C)]
struct Fields {
    its_loop: Slot,
    callback: Slot,
    context: Slot,
    /// Scratch space for the callee, as vectorcall allows. The arguments follow.
    scratch: Cell<*mut PyObject>,
    arguments: [Slot; INLINE],
    /// All arguments, if there are more than `INLINE`.
    tuple: Slot,
    source_traceback: Slot,
    repr: Slot,
    count: Cell<u32>,
    flags: Cell<u32>,
}

/// The fields of a timer handle.
#[repr(C)]
struct TimerFields {
    handle: Fields,
    /// When it is called, on the loop's clock, in seconds.
    when: Cell<f64>,
    /// The time as it was given, if it was not a float.
    when_object: Slot,
    /// Its key in the wheel, if it is in the wheel.
    key: Cell<Option<TimerKey>>,
}

const CANCELLED: u32 = 1;
/// It is being called: callback and arguments must stay until the call returns.
const RUNNING: u32 = 2;
/// The garbage collector tracks it.
const TRACKED: u32 = 4;
/// Its context is still shared with other handles.
const SHARES_CONTEXT: u32 = 8;
/// It was cancelled, so Python code sees no callback and no arguments. They have been dropped unless it is [`RUNNING`].
const FORGOTTEN: u32 = 16;

/// It is in a queue, which owns a reference to it.
const QUEUED: u32 = 32;

impl Fields {
    fn has(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }

    fn add(&self, flag: u32) {
        self.flags.set(self.flags.get() | flag);
    }

    fn remove(&self, flag: u32) {
        self.flags.set(self.flags.get() & !flag);
    }

    /// Moves out callback and arguments. A cancelled handle drops them in this order. One that was cancelled during its call drops them
    /// in reverse, as in asyncio.
    fn take_call<'py>(&self, py: Python<'py>) -> [Option<Bound<'py, PyAny>>; 5] {
        let [first, second, third] = &self.arguments;
        [&self.callback, first, second, third, &self.tuple].map(|slot| slot.take(py))
    }
}

/// Offset of the fields in a handle. It is the same for both types, so the type need not be checked, and depends only on the version of
/// Python.
static OFFSET: AtomicUsize = AtomicUsize::new(0);
static HANDLE_TYPE: AtomicPtr<PyTypeObject> = AtomicPtr::new(null_mut());
static TIMER_TYPE: AtomicPtr<PyTypeObject> = AtomicPtr::new(null_mut());
static HOOKS: OnceLock<Hooks> = OnceLock::new();

fn hooks() -> &'static Hooks {
    HOOKS.get().expect("set when the types are made")
}

/// A loop, for which handles are created.
#[derive(Clone, Copy)]
pub struct Home<'a, 'py> {
    /// The loop.
    pub its_loop: &'a Bound<'py, PyAny>,
    /// The contexts that its handles share.
    pub contexts: &'a SharedContexts,
    /// Whether handles remember where they were created.
    pub debug: bool,
}

/// One of our handles.
#[derive(Clone, Copy)]
pub struct Handle<'a, 'py>(Borrowed<'a, 'py, PyAny>);

impl<'a, 'py> std::ops::Deref for Handle<'a, 'py> {
    type Target = Bound<'py, PyAny>;

    #[inline]
    fn deref(&self) -> &Bound<'py, PyAny> {
        &self.0
    }
}

/// Creates a handle for `callback(*arguments)`. The callback runs in `context`, or else in a copy of the current one.
#[inline]
pub fn new<'py>(
    home: Home<'_, 'py>,
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
    context: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>> {
    let handle = memory::allocate::<false>(home.its_loop.py())?;
    fill(&handle, home, callback, arguments, context)?;
    Ok(handle)
}

/// Creates a timer handle that is not in the wheel yet. Without `when_object`, the time reads as the float `when`.
#[inline]
pub fn new_timer<'py>(
    home: Home<'_, 'py>,
    (when, when_object): (f64, Option<&Bound<'py, PyAny>>),
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
    context: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>> {
    let timer = memory::allocate::<true>(home.its_loop.py())?;
    if let Some(fields) = Handle(timer.as_borrowed()).timer() {
        fields.when.set(when);
        if let Some(when) = when_object {
            fields.when_object.set(when.clone());
        }
    }
    fill(&timer, home, callback, arguments, context)?;
    Ok(timer)
}

/// Sets the fields of a handle that was just allocated. One that is filled in part can be dropped.
#[inline]
fn fill<'py>(
    handle: &Bound<'py, PyAny>,
    home: Home<'_, 'py>,
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
    context: Option<&Bound<'py, PyAny>>,
) -> Result<()> {
    let py = handle.py();
    let fields = Handle(handle.as_borrowed()).fields();
    match context {
        Some(context) => fields.context.put(context.clone()),
        None => context::copy_current(py, Some(home.contexts), fields)?,
    }
    if arguments.len() <= INLINE {
        for (slot, argument) in fields.arguments.iter().zip(arguments) {
            slot.put((*argument).to_owned());
        }
    } else {
        fields.tuple.set(PyTuple::new(py, arguments).or_raise(py)?.into_any());
    }
    fields.count.set(arguments.len() as u32);
    fields.its_loop.put(home.its_loop.clone());
    fields.callback.put(callback.clone());
    if home.debug {
        fields.source_traceback.set(hooks().extract_stack.bind(py).call_none()?);
    }
    Ok(())
}

impl<'a, 'py> Handle<'a, 'py> {
    /// Returns an object as a handle, if it is one of ours.
    #[inline]
    pub fn of(object: &'a Bound<'py, PyAny>) -> Option<Handle<'a, 'py>> {
        is_ours(object.as_ptr()).then(|| Handle(object.as_borrowed()))
    }

    #[inline]
    fn fields(self) -> &'a Fields {
        // SAFETY: it is alive for `'a`, and of a type with room for `Fields` at this offset.
        unsafe { &*self.0.as_ptr().byte_add(OFFSET.load(Ordering::Relaxed)).cast() }
    }

    #[inline]
    fn timer(self) -> Option<&'a TimerFields> {
        // SAFETY: a timer handle has room for `TimerFields`, which begin with `Fields`.
        unsafe {
            (ffi::Py_TYPE(self.0.as_ptr()) == TIMER_TYPE.load(Ordering::Relaxed))
                .then(|| &*std::ptr::from_ref(self.fields()).cast::<TimerFields>())
        }
    }

    /// Returns whether it was cancelled.
    #[inline]
    pub fn is_cancelled(self) -> bool {
        self.fields().has(CANCELLED)
    }

    /// Returns its callback, unless it was cancelled.
    pub fn callback(self) -> Option<Bound<'py, PyAny>> {
        self.fields().callback.get(self.py())
    }

    /// Returns whether this object is the first argument of its callback.
    pub fn has_first_argument(self, object: &Bound<'_, PyAny>) -> bool {
        self.fields().arguments[0].is(object)
    }

    /// Returns the second argument of its callback.
    pub fn second_argument(self) -> Option<Bound<'py, PyAny>> {
        self.fields().arguments[1].get(self.py())
    }

    /// Stores its key in the wheel, if it is a timer.
    #[inline]
    pub fn set_key(self, key: Option<TimerKey>) {
        if let Some(timer) = self.timer() {
            timer.key.set(key);
        }
    }

    /// Returns when a timer is called, in seconds.
    pub fn when(self) -> f64 {
        self.timer().map_or(0.0, |timer| timer.when.get())
    }

    /// Lets the garbage collector track it.
    pub fn track(self) {
        memory::track(self);
    }

    /// Enters its context, which is not shared with other handles from now on.
    #[inline]
    pub fn enter(self, entered: &mut context::Entered<'py>, contexts: &SharedContexts) -> Result<()> {
        entered.enter(self, contexts)
    }

    /// Calls the callback in the current context and returns its result. An exception stays set. The handle must not be cancelled.
    ///
    /// The caller leaves the context first, and only then drops the result and calls [`forget_if_cancelled`](Self::forget_if_cancelled).
    /// A finalizer must not run inside the callback's context.
    #[inline]
    pub fn call(self) -> Result<Bound<'py, PyAny>> {
        let (py, fields) = (self.py(), self.fields());
        fields.add(RUNNING);
        let callback = fields.callback.pointer();
        // Only a wrong reference count frees a handle that is queued.
        assert!(!callback.is_null(), "a queued handle was freed");
        // SAFETY: a handle that is not cancelled has a callback and its arguments. While it is marked as running, `cancel` leaves them in
        // place, and nothing else removes them: the caller has a reference to the handle. Slots are pointers. The item before the first
        // argument is the scratch space that the flag promises.
        let called = unsafe {
            if fields.tuple.is_empty() {
                let arguments = fields.arguments.as_ptr().cast::<*mut PyObject>();
                let count = fields.count.get() as usize | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
                ffi::PyObject_Vectorcall(callback, arguments, count, null_mut())
            } else {
                ffi::PyObject_Call(callback, fields.tuple.pointer(), null_mut())
            }
        };
        fields.remove(RUNNING);
        // SAFETY: it is an owned reference, or null.
        unsafe { returned(py, called) }
    }

    /// Drops callback and arguments if the handle was cancelled during its call, when they had to stay.
    #[inline]
    pub fn forget_if_cancelled(self) {
        let fields = self.fields();
        if fields.flags.get() & (FORGOTTEN | RUNNING) == FORGOTTEN {
            fields.take_call(self.py()).into_iter().rev().for_each(drop);
        }
    }

    /// Returns the context that its callback runs in; `None` if the garbage collector has cleared it.
    pub fn context(self) -> Result<Option<Bound<'py, PyAny>>> {
        let fields = self.fields();
        if fields.has(SHARES_CONTEXT) {
            context::stop_sharing(self.py(), None, fields, None)?;
        }
        Ok(fields.context.get(self.py()))
    }

    /// Cancels it.
    pub fn cancel(self) -> Result<()> {
        let (py, fields) = (self.py(), self.fields());
        if fields.has(CANCELLED) {
            return Ok(());
        }
        fields.add(CANCELLED);
        if fields.its_loop.get(py).is_some_and(|its_loop| (hooks().is_debug)(&its_loop)) {
            // Without callback and arguments, the repr could no longer show them. Code that this runs finds the handle cancelled and
            // leaves it alone.
            fields.repr.set(self.repr().or_raise(py)?.into_any());
        }
        fields.add(FORGOTTEN);
        if !fields.has(RUNNING) {
            fields.take_call(py).into_iter().for_each(drop);
        }
        Ok(())
    }

    /// Calls the callback in its context, and reports its exception: `handle._run()`.
    pub fn run_alone(self) -> Result<()> {
        let py = self.py();
        let _kept = self.0.to_owned();
        if self.is_cancelled() {
            return Ok(());
        }
        let Some(context) = self.context()? else { return Ok(()) };
        let outcome = context::enter(&context).and_then(|()| {
            let outcome = self.call();
            context::exit(&context).and(outcome)
        });
        match outcome {
            Ok(result) => {
                self.forget_if_cancelled();
                drop(result);
                Ok(())
            }
            Err(Raised) => {
                let outcome = report(py, &self);
                self.forget_if_cancelled();
                outcome
            }
        }
    }
}

/// Reports the exception of a callback to the loop's exception handler. `SystemExit` and `KeyboardInterrupt` propagate. The handle may be
/// of any type.
#[cold]
pub fn report(py: Python<'_>, handle: &Bound<'_, PyAny>) -> Result<()> {
    let Some(error) = take_ordinary(py)? else { return Ok(()) };
    let failed = hooks().callback_failed.bind(py);
    failed.call_with(&[handle.as_borrowed(), error.as_any().as_borrowed()]).map(drop)
}

#[inline]
fn is_ours(handle: *mut PyObject) -> bool {
    // SAFETY: the callers have a reference to it.
    let its_type = unsafe { ffi::Py_TYPE(handle) };
    its_type == HANDLE_TYPE.load(Ordering::Relaxed) || its_type == TIMER_TYPE.load(Ordering::Relaxed)
}

/// A queue's reference to a handle, ours or asyncio's.
///
/// Our handles that only a queue refers to are not tracked by the garbage collector; what visits the queue visits their references
/// instead. So the reference must be [released](Queued::release): dropping it leaks.
#[repr(transparent)]
pub struct Queued(NonNull<PyObject>);

impl Queued {
    /// Queues a handle.
    #[inline]
    pub fn new(handle: Bound<'_, PyAny>) -> Queued {
        if let Some(handle) = Handle::of(&handle) {
            handle.fields().add(QUEUED);
        }
        // SAFETY: a reference is never null.
        Queued(unsafe { NonNull::new_unchecked(handle.into_ptr()) })
    }

    /// Returns the handle.
    #[inline]
    pub fn object<'a, 'py>(&'a self, py: Python<'py>) -> Borrowed<'a, 'py, PyAny> {
        // SAFETY: this owns a reference, and the lock is held.
        unsafe { Borrowed::from_ptr(py, self.0.as_ptr()) }
    }

    /// Returns the handle, if it is one of ours.
    #[inline]
    pub fn ours<'a, 'py>(&'a self, py: Python<'py>) -> Option<Handle<'a, 'py>> {
        is_ours(self.0.as_ptr()).then(|| Handle(self.object(py)))
    }

    /// Returns whether it is this handle.
    pub fn is(&self, handle: &Bound<'_, PyAny>) -> bool {
        self.0.as_ptr() == handle.as_ptr()
    }

    /// Returns another reference for a queue.
    #[inline]
    pub fn another(&self, py: Python<'_>) -> Queued {
        Queued::new(self.object(py).to_owned())
    }

    /// Takes the handle out of its queue. If others refer to it too, the garbage collector tracks it from now on.
    #[inline]
    pub fn into_object(self, py: Python<'_>) -> Bound<'_, PyAny> {
        let this = ManuallyDrop::new(self);
        if let Some(handle) = this.ours(py) {
            handle.fields().remove(QUEUED);
        }
        memory::track_if_shared(&this);
        // SAFETY: this owned the reference, and no longer does.
        unsafe { Bound::from_owned_ptr(py, this.0.as_ptr()) }
    }

    /// Drops the reference. If others refer to the handle too, the garbage collector tracks it from now on.
    #[inline]
    pub fn release(self, py: Python<'_>) {
        drop(self.into_object(py));
    }
}

impl Drop for Queued {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a queue leaks a handle");
    }
}
