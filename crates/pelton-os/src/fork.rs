//! Detecting forks without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of forks between the first process and this one, from the first call of [`count`] on.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of forks that this process has made, from the first call of [`count`] on.
static CHILDREN: AtomicU64 = AtomicU64::new(0);

/// Returns how many children this process has forked. A child has duplicates of all descriptors, so that closing one here does
/// not close the file. A call costs one load.
///
/// Only libc's `fork` counts. Children of `posix_spawn` and `vfork` have no duplicates of descriptors that are closed on
/// `exec`, except for a moment.
pub(crate) fn children() -> u64 {
    CHILDREN.load(Ordering::Relaxed)
}

/// Returns the number of forks between the first process and this one. A value that was stored before a fork differs in the
/// child. A call costs one load.
///
/// Only libc's `fork` is seen. A child of a bare `clone` system call is not.
pub fn count() -> u64 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        extern "C" fn before() {
            CHILDREN.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handlers only add to an atomic, which is async-signal-safe and therefore allowed in a forked child.
        let error = unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
        if error != 0 {
            // Out of memory. Forks will not be noticed, which matters only to programs that fork.
            crate::fault::report_here(
                "fork",
                &format_args!("pthread_atfork failed ({error}); forks will not be noticed"),
            );
        }
    });
    FORKS.load(Ordering::Relaxed)
}
