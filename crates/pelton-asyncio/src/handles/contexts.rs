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

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::event_loop::state::LoopState;
use crate::handles::handle::{Fields, SHARES_CONTEXT};
use pelton_cpython::object::{Owned, Raised, Result, check};

/// The contexts that a loop keeps. References are owned or null.
pub(crate) struct SharedContext {
    /// The context that the most recent handles share.
    snapshot: *mut PyObject,
    /// The context in which the most recent of such handles was called.
    used: *mut PyObject,
}

impl SharedContext {
    pub(crate) const NONE: SharedContext = SharedContext { snapshot: null_mut(), used: null_mut() };

    pub(crate) fn references(&self) -> [*mut PyObject; 2] {
        [self.snapshot, self.used]
    }
}

/// Drops the contexts kept for the next callback if they keep values of variables alive, that is, unless the
/// context in which the loop runs has the same variables.
///
/// # Safety
/// `core` belongs to a loop that this thread runs, outside any callback's context. No Rust reference into it is held.
pub(crate) unsafe fn forget_foreign(core: *mut LoopState) {
    // SAFETY: the caller guarantees that the core is alive. Contexts are only shared if the current one can be found.
    unsafe {
        if (*core).contexts.references() == [null_mut(); 2] {
            return;
        }
        let current = current();
        let foreign = |context: *mut PyObject| {
            !context.is_null() && (current.is_null() || variables(context) != variables(current))
        };
        if (*core).contexts.references().into_iter().any(foreign) {
            forget(core);
        }
    }
}

/// Drops the contexts kept for the next callback.
///
/// # Safety
/// `core` belongs to a live loop. No Rust reference into it is held.
pub(crate) unsafe fn forget(core: *mut LoopState) {
    // SAFETY: the caller guarantees that the core is alive. The fields are emptied before anything is dropped.
    unsafe {
        for reference in ptr::replace(&raw mut (*core).contexts, SharedContext::NONE).references() {
            ffi::Py_XDECREF(reference);
        }
    }
}

/// Gives a new handle a copy of the current context, or a shared context with the same variables.
///
/// # Safety
/// `fields` belong to a new handle without a context; `core` belongs to a live loop, or is null.
#[inline]
pub(crate) unsafe fn copy_current(core: *mut LoopState, fields: *mut Fields) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive. The snapshot keeps its map alive, so no other map can have
    // the same address.
    unsafe {
        if !core.is_null() && !(*core).contexts.snapshot.is_null() {
            let (snapshot, current) = ((*core).contexts.snapshot, current());
            if !current.is_null() && variables(current) == variables(snapshot) {
                (*fields).context = ffi::Py_NewRef(snapshot);
                (*fields).flags |= SHARES_CONTEXT;
                return Ok(());
            }
        }
        make_snapshot(core, fields)
    }
}

#[cold]
unsafe fn make_snapshot(core: *mut LoopState, fields: *mut Fields) -> Result<()> {
    // SAFETY: as for `copy_current`. The previous snapshot is dropped last.
    unsafe {
        let copy = Owned::returned(ffi::PyContext_CopyCurrent())?.into_ptr();
        (*fields).context = copy;
        if !core.is_null() && VARIABLES.load(Ordering::Relaxed) != 0 {
            (*fields).flags |= SHARES_CONTEXT;
            ffi::Py_XDECREF(ptr::replace(&raw mut (*core).contexts.snapshot, ffi::Py_NewRef(copy)));
        }
        Ok(())
    }
}

/// Gives a handle its own context. Without a core, that is always a new one.
///
/// # Safety
/// `fields` belong to a live handle that shares its context; `core` belongs to a live loop, or is null. If
/// `entered` is not null, the caller has a reference to it and has entered that context.
#[inline]
pub(crate) unsafe fn stop_sharing(core: *mut LoopState, fields: *mut Fields, entered: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that all are alive. Python code can only reach a context through its handle or
    // a token, and both own references, so the count shows whether anyone else has it.
    unsafe {
        (*fields).flags &= !SHARES_CONTEXT;
        let snapshot = (*fields).context;
        let used = if core.is_null() { null_mut() } else { (*core).contexts.used };
        // References: the loop's, and while it is entered also the caller's and the thread's.
        let references = if used == entered { 3 } else { 1 };
        if !used.is_null() && ffi::Py_REFCNT(used) == references && variables(used) == variables(snapshot) {
            (*fields).context = ffi::Py_NewRef(used);
            ffi::Py_DECREF(snapshot);
            return Ok(());
        }
        if ffi::Py_REFCNT(snapshot) == 1 {
            // No other handle shares it.
            return Ok(());
        }
        let copy = ffi::PyContext_Copy(snapshot);
        if copy.is_null() {
            (*fields).flags |= SHARES_CONTEXT;
            return Err(Raised);
        }
        (*fields).context = copy;
        if !core.is_null() {
            ffi::Py_XDECREF(ptr::replace(&raw mut (*core).contexts.used, ffi::Py_NewRef(copy)));
        }
        ffi::Py_DECREF(snapshot);
        Ok(())
    }
}

/// The context that callbacks run in. It is left only when the next callback needs another one.
pub(crate) struct Entered(Option<Owned>);

impl Entered {
    pub(crate) const NONE: Entered = Entered(None);

    /// Enters the context of a handle.
    ///
    /// # Safety
    /// `fields` belong to a live handle that is not cancelled, and the caller has a reference to it. `core` belongs
    /// to its loop.
    #[inline]
    pub(crate) unsafe fn enter(&mut self, core: *mut LoopState, fields: *mut Fields) -> Result<()> {
        let entered = self.0.as_ref().map_or(null_mut(), Owned::as_ptr);
        // SAFETY: the caller guarantees that handle and core are alive. A handle that is not cancelled has a context.
        unsafe {
            if (*fields).flags & SHARES_CONTEXT != 0 {
                stop_sharing(core, fields, entered)?;
            }
            let context = (*fields).context;
            if entered == context {
                return Ok(());
            }
            self.leave();
            check(ffi::PyContext_Enter(context))?;
            self.0 = Some(Owned::new_reference(context));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn leave(&mut self) {
        if let Some(context) = self.0.take() {
            // SAFETY: this owns a reference to the context. Leaving fails only if a callback left it, which cannot
            // be repaired here.
            unsafe {
                if ffi::PyContext_Exit(context.as_ptr()) < 0 {
                    ffi::PyErr_WriteUnraisable(null_mut());
                }
            }
        }
    }

    #[cold]
    pub(crate) fn leave_keeping_exception(&mut self) {
        pyo3::Python::attach(|py| {
            let raised = pyo3::PyErr::take(py);
            self.leave();
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

/// Offset of the context in a thread's state, and of the variables in a context; 0 while unknown.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static VARIABLES: AtomicUsize = AtomicUsize::new(0);

/// How much of a thread's state is searched: less than its size in any version so far, the smallest of which is 288
/// bytes.
const THREAD_STATE: usize = 256;

const WORD: usize = size_of::<usize>();

/// Returns the current context as a borrowed reference; null if this thread has none yet. Requires that [`look_up`]
/// found it.
#[inline]
unsafe fn current() -> *mut PyObject {
    // SAFETY: the thread holds the lock, so it has a state. `look_up` has determined the offset within it.
    unsafe { word(ffi::PyThreadState_Get().cast(), CURRENT.load(Ordering::Relaxed)) as *mut PyObject }
}

/// Returns the address of a context's map of variables.
#[inline]
unsafe fn variables(context: *mut PyObject) -> usize {
    // SAFETY: the callers guarantee that the context is alive. `look_up` has determined the offset within it.
    unsafe { word(context.cast(), VARIABLES.load(Ordering::Relaxed)) }
}

#[inline]
unsafe fn word(of: *const u8, offset: usize) -> usize {
    // SAFETY: the caller guarantees that there is an aligned word at this offset.
    unsafe { of.add(offset).cast::<usize>().read() }
}

/// Determines the offsets.
///
/// # Safety
/// The lock is held. No loop has been used yet.
pub(crate) unsafe fn look_up() -> Result<()> {
    // SAFETY: the caller holds the lock. All objects are created here and alive, and all words read are within them.
    unsafe {
        let contexts = [Owned::returned(ffi::PyContext_New())?, Owned::returned(ffi::PyContext_New())?];
        let copy = Owned::returned(ffi::PyContext_Copy(contexts[0].as_ptr()))?;
        let variable = Owned::returned(ffi::PyContextVar_New(c"_".as_ptr(), null_mut()))?;
        // The variables come before the list of weak references. There may be uninitialized padding after that list.
        let length = match &*ffi::Py_TYPE(copy.as_ptr()) {
            kind if kind.tp_weaklistoffset > 0 => kind.tp_weaklistoffset as usize,
            kind => kind.tp_basicsize as usize,
        };
        let words = |context: &Owned| -> Vec<usize> {
            (0..length / WORD).map(|index| word(context.as_ptr().cast(), index * WORD)).collect()
        };
        let before = words(&contexts[0]);

        let state: *const u8 = ffi::PyThreadState_Get().cast();
        let mut current: Vec<usize> = (0..THREAD_STATE).step_by(WORD).collect();
        let mut references: Vec<Py_ssize_t> = Vec::new();
        for context in &contexts {
            check(ffi::PyContext_Enter(context.as_ptr()))?;
            current.retain(|&offset| word(state, offset) == context.as_ptr() as usize);
            references.push(ffi::Py_REFCNT(context.as_ptr()));
            let token = ffi::PyContextVar_Set(variable.as_ptr(), ffi::Py_None());
            let left = ffi::PyContext_Exit(context.as_ptr());
            drop(Owned::returned(token)?);
            check(left)?;
        }
        current.retain(|&offset| contexts.iter().all(|context| word(state, offset) != context.as_ptr() as usize));

        // A copy has the same map until a variable is set.
        let (after, copied) = (words(&contexts[0]), words(&copy));
        let is_map =
            |&index: &usize| before[index] != 0 && copied[index] == before[index] && after[index] != before[index];
        let maps: Vec<usize> = (0..before.len()).filter(is_map).collect();
        if let ([current], [map], [2, 2]) = (&current[..], &maps[..], &references[..]) {
            CURRENT.store(*current, Ordering::Relaxed);
            VARIABLES.store(map * WORD, Ordering::Relaxed);
        }
        Ok(())
    }
}
