//! Environments of terms that belong to no process.

use rustler::sys::{self, ErlNifEnv};
use rustler::{Env, LocalPid, Term};

/// A term of an environment, without the environment.
pub(crate) type RawTerm = usize;

/// An environment that owns its terms. It may move to another thread, and be used by one at a time.
pub(crate) struct OwnEnv(*mut ErlNifEnv);

// SAFETY: an environment made by `enif_alloc_env` is bound to no thread, and `&mut self` or ownership keeps it to one at
// a time.
unsafe impl Send for OwnEnv {}

impl OwnEnv {
    pub(crate) fn new() -> OwnEnv {
        // SAFETY: this has no preconditions.
        OwnEnv(unsafe { sys::enif_alloc_env() })
    }

    /// Copies a term into this environment.
    pub(crate) fn keep(&mut self, term: Term<'_>) -> RawTerm {
        // SAFETY: the term is alive, as its lifetime shows, and this environment is used by this thread only.
        unsafe { sys::enif_make_copy(self.0, term.as_c_arg()) }
    }

    /// Lends the environment to code that reads or creates terms. Terms that it returns as `RawTerm` are valid as long as
    /// this environment.
    pub(crate) fn with<R>(&mut self, code: impl FnOnce(Env<'_>) -> R) -> R {
        let marker = ();
        // SAFETY: the environment is alive, and its lifetime here is that of a local variable of this call.
        let env = unsafe { Env::new(&marker, self.0) };
        code(env)
    }

    /// Sends a message that is made in this environment, from a thread that is no scheduler. Returns whether the
    /// process was alive.
    pub(crate) fn send(mut self, to: &LocalPid, message: impl FnOnce(Env<'_>) -> RawTerm) -> bool {
        let message = self.with(message);
        // SAFETY: callers are threads of the host or of this crate, for which the first argument is null. The message is
        // a term of the environment, which `enif_send` invalidates but does not free.
        unsafe { sys::enif_send(std::ptr::null_mut(), to.as_c_arg(), self.0, message) != 0 }
    }
}

impl Drop for OwnEnv {
    fn drop(&mut self) {
        // SAFETY: this value owns the environment.
        unsafe { sys::enif_free_env(self.0) };
    }
}

/// Returns a term that an [`OwnEnv`] keeps.
///
/// # Safety
/// The term belongs to the environment.
pub(crate) unsafe fn term(env: Env<'_>, raw: RawTerm) -> Term<'_> {
    // SAFETY: the caller guarantees it.
    unsafe { Term::new(env, raw) }
}

/// Returns whether this thread is one of the virtual machine's schedulers, which may not send without a process.
pub(crate) fn is_scheduler() -> bool {
    // SAFETY: this has no preconditions.
    unsafe { sys::enif_thread_type() != 0 }
}
