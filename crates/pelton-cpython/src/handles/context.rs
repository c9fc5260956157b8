//! The contexts that callbacks run in.
//!
//! A callback scheduled without a context runs in a copy of the current one. In asyncio that copy is an object per
//! callback, which the garbage collector visits for as long as a timer is pending, although few callbacks set a
//! variable. But the variables of a context are an immutable map, and copying a context copies a pointer to the map. So
//! a handle here only remembers the map, in a context that it *shares* with all handles scheduled under the same
//! variables, and that is never entered. When the handle is called, it gets its own context. The context of the
//! previous call is reused if no variable was set in it and nothing else refers to it: it is then equal to a new copy.
//!
//! This requires finding the current context and comparing the variables of two contexts. Python has no functions
//! for either, so their offsets are [determined](look_up) once by experiment. If that fails, every handle gets its
//! own copy immediately.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::{Fields, Handle, SHARES_CONTEXT};
use crate::call::{report_unraisable, returned, status};
use crate::object::Result;
use crate::slot::Slot;

/// The contexts that a loop keeps.
#[derive(Default)]
pub struct SharedContexts {
    /// The context that the most recent handles share.
    snapshot: Slot,
    /// The context in which the most recent of such handles was called.
    used: Slot,
}

owns!(SharedContexts { snapshot, used });

impl SharedContexts {
    /// Drops the contexts kept for the next callback if they keep values of variables alive, that is, unless the current context has the
    /// same variables. The loop must be outside any callback's context.
    pub fn forget_foreign(&self, py: Python<'_>) {
        if self.snapshot.is_empty() && self.used.is_empty() {
            return;
        }
        // Contexts are only shared if the current one can be found.
        let current = current(py);
        let foreign =
            |slot: &Slot| !slot.is_empty() && (current.is_null() || variables(slot.pointer()) != variables(current));
        if foreign(&self.snapshot) || foreign(&self.used) {
            self.forget(py);
        }
    }

    /// Drops the contexts kept for the next callback.
    pub fn forget(&self, py: Python<'_>) {
        let taken = [self.snapshot.take(py), self.used.take(py)];
        taken.into_iter().for_each(drop);
    }
}

/// Gives a new handle a copy of the current context, or a shared context with the same variables.
#[inline]
pub(super) fn copy_current(py: Python<'_>, contexts: Option<&SharedContexts>, fields: &Fields) -> Result<()> {
    if let Some(contexts) = contexts
        && let Some(snapshot) = contexts.snapshot.get(py)
    {
        let current = current(py);
        // The snapshot keeps its map alive, so no other map can have the same address.
        if !current.is_null() && variables(current) == variables(snapshot.as_ptr()) {
            fields.context.put(snapshot);
            fields.add(SHARES_CONTEXT);
            return Ok(());
        }
    }
    make_snapshot(py, contexts, fields)
}

#[cold]
fn make_snapshot(py: Python<'_>, contexts: Option<&SharedContexts>, fields: &Fields) -> Result<()> {
    let copy = copy_of_current(py)?;
    fields.context.set(copy.clone());
    if let Some(contexts) = contexts
        && VARIABLES.load(Ordering::Relaxed) != 0
    {
        fields.add(SHARES_CONTEXT);
        contexts.snapshot.set(copy);
    }
    Ok(())
}

/// Gives a handle its own context. Without the loop's contexts, that is always a new one. The caller has a reference to `entered`, if that
/// is given, and has entered it.
#[inline]
pub(super) fn stop_sharing(
    py: Python<'_>,
    contexts: Option<&SharedContexts>,
    fields: &Fields,
    entered: Option<&Bound<'_, PyAny>>,
) -> Result<()> {
    let snapshot = fields.context.pointer();
    if let Some(contexts) = contexts
        && !contexts.used.is_empty()
    {
        let used = contexts.used.pointer();
        // References: the loop's, and while it is entered also the caller's and the thread's. Python code can only reach a context
        // through its handle or a token, and both own references, so the count shows whether anyone else has it.
        let references = if entered.is_some_and(|entered| entered.as_ptr() == used) { 3 } else { 1 };
        if count(used) == references && variables(used) == variables(snapshot) {
            fields.remove(SHARES_CONTEXT);
            let used = contexts.used.get(py);
            drop(fields.context.replace(py, used));
            return Ok(());
        }
    }
    if count(snapshot) == 1 {
        // No other handle shares it.
        fields.remove(SHARES_CONTEXT);
        return Ok(());
    }
    let Some(snapshot) = fields.context.get(py) else { return Ok(()) };
    let copy = copy(&snapshot)?;
    fields.remove(SHARES_CONTEXT);
    fields.context.set(copy.clone());
    if let Some(contexts) = contexts {
        contexts.used.set(copy);
    }
    Ok(())
}

/// Returns the number of references to a context that a slot has.
#[inline]
fn count(context: *mut PyObject) -> ffi::Py_ssize_t {
    // SAFETY: the callers pass the pointer of a slot that is not empty, with the lock held.
    unsafe { ffi::Py_REFCNT(context) }
}

/// The context that callbacks run in. It is left only when the next callback needs another one.
pub struct Entered<'py>(Option<Bound<'py, PyAny>>);

impl<'py> Entered<'py> {
    /// None yet.
    pub const NONE: Entered<'py> = Entered(None);

    /// Enters the context of a handle that is not cancelled.
    #[inline]
    pub(super) fn enter(&mut self, handle: Handle<'_, 'py>, contexts: &SharedContexts) -> Result<()> {
        let (py, fields) = (handle.py(), handle.fields());
        if fields.has(SHARES_CONTEXT) {
            stop_sharing(py, Some(contexts), fields, self.0.as_ref())?;
        }
        if self.0.as_ref().is_some_and(|entered| fields.context.is(entered)) {
            return Ok(());
        }
        let Some(context) = fields.context.get(py) else { return Ok(()) };
        self.leave();
        enter(&context)?;
        self.0 = Some(context);
        Ok(())
    }

    /// Leaves the context.
    #[inline]
    pub fn leave(&mut self) {
        // Leaving fails only if a callback left it, which cannot be repaired here.
        if let Some(context) = self.0.take()
            && exit(&context).is_err()
        {
            report_unraisable(context.py());
        }
    }
}

/// Returns a copy of the current context.
pub fn copy_of_current(py: Python<'_>) -> Result<Bound<'_, PyAny>> {
    // SAFETY: the lock is held.
    unsafe { returned(py, ffi::PyContext_CopyCurrent()) }
}

/// Returns an empty context.
pub fn empty(py: Python<'_>) -> Result<Bound<'_, PyAny>> {
    // SAFETY: the lock is held.
    unsafe { returned(py, ffi::PyContext_New()) }
}

/// Returns a copy of a context. Raises if it is none.
fn copy<'py>(context: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    // SAFETY: the object is alive and the lock is held, as its type shows. The function checks that it is a context.
    unsafe { returned(context.py(), ffi::PyContext_Copy(context.as_ptr())) }
}

/// Enters a context. Raises if it is none.
#[inline]
pub fn enter(context: &Bound<'_, PyAny>) -> Result<()> {
    // SAFETY: as for `copy`.
    status(unsafe { ffi::PyContext_Enter(context.as_ptr()) }).map(drop)
}

/// Leaves a context. Raises if it is not the current one.
#[inline]
pub fn exit(context: &Bound<'_, PyAny>) -> Result<()> {
    // SAFETY: as for `copy`.
    status(unsafe { ffi::PyContext_Exit(context.as_ptr()) }).map(drop)
}

/// Offset of the context in a thread's state, and of the variables in a context; 0 while unknown.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static VARIABLES: AtomicUsize = AtomicUsize::new(0);

/// How much of a thread's state is searched: less than its size in any version so far, the smallest of which is 288
/// bytes.
const THREAD_STATE: usize = 256;

const WORD: usize = size_of::<usize>();

/// Returns the current context; null if this thread has none yet. Requires that [`look_up`] found it.
#[inline]
fn current(_: Python<'_>) -> *mut PyObject {
    // SAFETY: the thread holds the lock, so it has a state. `look_up` has determined the offset within it.
    unsafe { word(ffi::PyThreadState_Get().cast(), CURRENT.load(Ordering::Relaxed)) as *mut PyObject }
}

/// Returns the address of a context's map of variables.
#[inline]
fn variables(context: *mut PyObject) -> usize {
    // SAFETY: the callers pass the current context, or one that a slot refers to; only contexts are in these slots once `look_up` has
    // determined the offset within them.
    unsafe { word(context.cast(), VARIABLES.load(Ordering::Relaxed)) }
}

#[inline]
unsafe fn word(of: *const u8, offset: usize) -> usize {
    // SAFETY: the caller guarantees that there is an aligned word at this offset.
    unsafe { of.add(offset).cast::<usize>().read() }
}

/// Returns the words of a context that can be its map. It comes before the list of weak references; there may be uninitialized padding
/// after that list.
fn words(context: &Bound<'_, PyAny>) -> Vec<usize> {
    // SAFETY: the object is alive, and the words are within it.
    unsafe {
        let length = match &*ffi::Py_TYPE(context.as_ptr()) {
            kind if kind.tp_weaklistoffset > 0 => kind.tp_weaklistoffset as usize,
            kind => kind.tp_basicsize as usize,
        };
        (0..length / WORD).map(|index| word(context.as_ptr().cast(), index * WORD)).collect()
    }
}

/// Returns whether the thread's state has this word at an offset.
fn is_in_thread_state(offset: usize, value: usize) -> bool {
    // SAFETY: the callers hold the lock, so the thread has a state, which is larger than any offset that they pass.
    unsafe { word(ffi::PyThreadState_Get().cast(), offset) == value }
}

/// Determines the offsets.
pub fn look_up(py: Python<'_>) -> Result<()> {
    let contexts = [empty(py)?, empty(py)?];
    let copied = copy(&contexts[0])?;
    // SAFETY: the lock is held, and the name is a C string.
    let variable = unsafe { returned(py, ffi::PyContextVar_New(c"_".as_ptr(), std::ptr::null_mut()))? };
    let before = words(&contexts[0]);
    let mut current: Vec<usize> = (0..THREAD_STATE).step_by(WORD).collect();
    let mut references = Vec::new();
    for context in &contexts {
        enter(context)?;
        current.retain(|&offset| is_in_thread_state(offset, context.as_ptr() as usize));
        references.push(count(context.as_ptr()));
        // SAFETY: the variable is alive, and the lock is held.
        let token = unsafe { returned(py, ffi::PyContextVar_Set(variable.as_ptr(), ffi::Py_None())) };
        let left = exit(context);
        drop(token?);
        left?;
    }
    current.retain(|&offset| contexts.iter().all(|context| !is_in_thread_state(offset, context.as_ptr() as usize)));

    // A copy has the same map until a variable is set.
    let (after, copied) = (words(&contexts[0]), words(&copied));
    let is_map = |&index: &usize| before[index] != 0 && copied[index] == before[index] && after[index] != before[index];
    let maps: Vec<usize> = (0..before.len()).filter(is_map).collect();
    if let ([current], [map], [2, 2]) = (&current[..], &maps[..], &references[..]) {
        CURRENT.store(*current, Ordering::Relaxed);
        VARIABLES.store(map * WORD, Ordering::Relaxed);
    }
    Ok(())
}
