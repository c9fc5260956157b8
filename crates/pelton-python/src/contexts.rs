//! The contexts that callbacks run in.
//!
//! Whoever schedules a callback without naming a context has it run in a copy of the current one. For asyncio that is an object
//! per callback, which the garbage collector goes through for as long as a timer waits; and hardly any callback sets a variable.
//! But the variables of a context are an immutable map, and copying a context copies a pointer to it. So here a handle only
//! remembers the map, in a context that it *shares* with all that were scheduled under the same variables and that nobody enters.
//! It gets a context of its own when it is called. The one before has had the same done for it: if no variable was set in that
//! context, and nobody has kept it, then it is as good as a new copy, and is used again.
//!
//! For that one must know which context is current, and compare the variables of two. Python has no functions for either; so where
//! they lie is [found out](look_up) once, by trying. Where it cannot be, every handle gets its copy at once.

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::core::Core;
use crate::handle::{Fields, SHARES_CONTEXT};
use crate::object::{Owned, Raised, Result, check};

/// What a loop keeps. References are owned, or null.
pub(crate) struct Shared {
    /// The context that the latest handles share.
    snapshot: *mut PyObject,
    /// The context that the latest of such handles was called in.
    used: *mut PyObject,
}

impl Shared {
    pub(crate) const NONE: Shared = Shared { snapshot: null_mut(), used: null_mut() };

    pub(crate) fn references(&self) -> [*mut PyObject; 2] {
        [self.snapshot, self.used]
    }
}

/// Forgets what is only kept for the next callback, if that keeps the values of variables alive: unless the context that the loop
/// is run in has the same.
///
/// # Safety
/// `core` is that of a loop that this thread runs, in no callback's context. No Rust reference into it is held.
pub(crate) unsafe fn forget_foreign(core: *mut Core) {
    // SAFETY: as the caller says; contexts are only shared where the current one can be found.
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

/// Forgets what is only kept for the next callback.
///
/// # Safety
/// `core` is that of a live loop. No Rust reference into it is held.
pub(crate) unsafe fn forget(core: *mut Core) {
    // SAFETY: as the caller says. The fields are emptied before anything is let go of.
    unsafe {
        for reference in ptr::replace(&raw mut (*core).contexts, Shared::NONE).references() {
            ffi::Py_XDECREF(reference);
        }
    }
}

/// Gives a new handle a copy of the current context, or one that stands for it.
///
/// # Safety
/// `fields` are those of a new handle, without a context so far; `core` is that of a live loop, or null.
#[inline]
pub(crate) unsafe fn copy_current(core: *mut Core, fields: *mut Fields) -> Result<()> {
    // SAFETY: as the caller says. The snapshot is not freed, so no other map can have come to lie where its map is.
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
unsafe fn make_snapshot(core: *mut Core, fields: *mut Fields) -> Result<()> {
    // SAFETY: as for `copy_current`. What was there before is let go of last.
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

/// Gives a handle a context that it does not share. Without a core, that is always a new one.
///
/// # Safety
/// `fields` are those of a live handle that shares its context; `core` is that of a live loop, or null. If `entered` is not
/// null, the caller has a reference to it and is in that context.
#[inline]
pub(crate) unsafe fn stop_sharing(core: *mut Core, fields: *mut Fields, entered: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says. A context can be had from Python only by way of its handle or a token, which refer to it.
    unsafe {
        (*fields).flags &= !SHARES_CONTEXT;
        let snapshot = (*fields).context;
        let used = if core.is_null() { null_mut() } else { (*core).contexts.used };
        // Ours, and while it is entered the caller's and the thread's.
        let references = if used == entered { 3 } else { 1 };
        if !used.is_null() && ffi::Py_REFCNT(used) == references && variables(used) == variables(snapshot) {
            (*fields).context = ffi::Py_NewRef(used);
            ffi::Py_DECREF(snapshot);
            return Ok(());
        }
        if ffi::Py_REFCNT(snapshot) == 1 {
            // The last that shares it.
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

/// The context that callbacks run in. It is left only when the next one needs another.
pub(crate) struct Entered(Option<Owned>);

impl Entered {
    pub(crate) const NONE: Entered = Entered(None);

    /// Enters the context of a handle.
    ///
    /// # Safety
    /// `fields` are those of a live handle that is not cancelled, and the caller has a reference to it. `core` is that of its loop.
    #[inline]
    pub(crate) unsafe fn enter(&mut self, core: *mut Core, fields: *mut Fields) -> Result<()> {
        let entered = self.0.as_ref().map_or(null_mut(), Owned::as_ptr);
        // SAFETY: as the caller says; a handle that is not cancelled has a context.
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
            // SAFETY: it is alive. Leaving fails only if a callback has left it, which nobody here can mend.
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

/// Where in a thread's state its context is, and where in a context its variables are; 0 while that is not known.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static VARIABLES: AtomicUsize = AtomicUsize::new(0);

/// So much of a thread's state is looked at: less than it is long in any version so far, 288 bytes being the least.
const THREAD_STATE: usize = 256;

const WORD: usize = size_of::<usize>();

/// The current context, a borrowed reference; null if this thread has none yet. Only after [`look_up`] has found it.
#[inline]
unsafe fn current() -> *mut PyObject {
    // SAFETY: the thread has a state, since it holds the lock; and that is where its context is.
    unsafe { word(ffi::PyThreadState_Get().cast(), CURRENT.load(Ordering::Relaxed)) as *mut PyObject }
}

/// What tells maps of variables apart: where they lie.
#[inline]
unsafe fn variables(context: *mut PyObject) -> usize {
    // SAFETY: it is alive, and that is where its variables are.
    unsafe { word(context.cast(), VARIABLES.load(Ordering::Relaxed)) }
}

#[inline]
unsafe fn word(of: *const u8, offset: usize) -> usize {
    // SAFETY: as the caller says, there is one, and it is aligned.
    unsafe { of.add(offset).cast::<usize>().read() }
}

/// Finds out where things are.
///
/// # Safety
/// The lock is held. Nobody has used a loop yet.
pub(crate) unsafe fn look_up() -> Result<()> {
    // SAFETY: as the caller says. All objects are made here and alive, and what is read of each is within it.
    unsafe {
        let contexts = [Owned::returned(ffi::PyContext_New())?, Owned::returned(ffi::PyContext_New())?];
        let copy = Owned::returned(ffi::PyContext_Copy(contexts[0].as_ptr()))?;
        let variable = Owned::returned(ffi::PyContextVar_New(c"_".as_ptr(), null_mut()))?;
        // The variables come before the list of weak references. Behind that there may be padding, which nobody has initialized.
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

        // What a copy has too, until a variable is set.
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
