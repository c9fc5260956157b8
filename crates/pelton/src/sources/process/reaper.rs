//! Waits for children whose reactor is gone.
//!
//! The reaper is a reactor on a thread of its own. It is started when it is needed for the first time, and sleeps unless a
//! child exits.

use std::process::Child;
use std::sync::{Mutex, PoisonError};

use pelton_os::{fault, fork};

use crate::{PostError, Reactor, ReactorThread};

struct Reaper {
    thread: ReactorThread,
    /// The process that the thread is part of, as a number of forks.
    forks: u64,
}

static REAPER: Mutex<Option<Reaper>> = Mutex::new(None);

/// Waits for a child as soon as it exits.
pub(super) fn take_over(mut child: Child) {
    // An error means that something else has waited for it.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
    let adopt = move |reactor: &mut Reactor| reactor.adopt_child(child);
    let adopt = match reaper.as_ref().filter(|reaper| reaper.forks == fork::count()) {
        Some(reaper) => match reaper.thread.handle().post(adopt) {
            Ok(()) => return,
            Err(PostError::Gone(adopt) | PostError::Full(adopt)) => adopt,
        },
        None => adopt,
    };
    let builder = Reactor::builder;
    match ReactorThread::start("pelton-reaper", builder, |_| Ok(())) {
        Ok(thread) => {
            // A loop that has just started accepts posts.
            let _ = thread.handle().post(adopt);
            // In a forked child, the old thread does not exist, and cannot be joined.
            std::mem::forget(reaper.replace(Reaper { thread, forks: fork::count() }));
        }
        Err(error) => fault::report_here("process", &format_args!("wait for a child without a reactor: {error}")),
    }
}
