//! Noticing a fork without asking the kernel.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the first process and this one, as far as anybody asked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts the forks between the first process and this one. Reading it is one load; what was remembered from it differs
/// in a forked child.
///
/// It sees `fork` as libc does it. A child made by a bare `clone` system call is not seen.
pub fn count() -> u64 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe and so fit to run in a forked child.
        let error = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if error != 0 {
            // Out of memory. Forks will go unnoticed, which only matters to a program that forks.
            crate::fault::report_here(
                "fork",
                &format_args!("pthread_atfork failed ({error}); forks will not be noticed"),
            );
        }
    });
    FORKS.load(Ordering::Relaxed)
}
