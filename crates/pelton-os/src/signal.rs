//! Signal dispositions, and writing without `SIGPIPE`.

use std::io;
use std::mem::MaybeUninit;

/// Returns whether `signal` has its default action.
pub fn is_default(signal: i32) -> io::Result<bool> {
    Ok(handler(signal)? == libc::SIG_DFL)
}

/// Returns whether `signal` is ignored.
pub fn is_ignored(signal: i32) -> io::Result<bool> {
    Ok(handler(signal)? == libc::SIG_IGN)
}

fn handler(signal: i32) -> io::Result<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null new action the call only queries. It writes the old action to memory of the right type.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has initialised the action.
    Ok(unsafe { action.assume_init() }.sa_sigaction)
}

/// Calls `write`, and removes the `SIGPIPE` that it raises if it fails with `EPIPE`. The signal is blocked for this thread
/// meanwhile. One that was already pending stays pending.
pub(crate) fn without_sigpipe<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let sigpipe = Signals::only(libc::SIGPIPE);
    let before = sigpipe.block()?;
    let was_blocked = before.contains(libc::SIGPIPE);
    // A write sends `SIGPIPE` to the writing thread. If that thread did not block the signal, it cannot be pending.
    let was_pending = was_blocked && Signals::pending()?.contains(libc::SIGPIPE);
    let outcome = write();
    let broken = outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    let removed = if broken && !was_pending { sigpipe.remove_pending() } else { Ok(()) };
    if !was_blocked {
        before.restore()?;
    }
    removed.and(outcome)
}

/// A set of signals.
struct Signals(libc::sigset_t);

impl Signals {
    fn only(signal: i32) -> Signals {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first call initialises the set, and the second adds to it.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            Signals(set.assume_init())
        }
    }

    fn contains(&self, signal: i32) -> bool {
        // SAFETY: the set is initialised and only read.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }

    /// Blocks these signals too for the calling thread. Returns those that were blocked before.
    fn block(&self) -> io::Result<Signals> {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the new set is initialised. The call writes the old one to memory of the right type.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.0, before.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the call succeeded, so it has initialised the set.
        Ok(Signals(unsafe { before.assume_init() }))
    }

    /// Blocks exactly these for the calling thread.
    fn restore(&self) -> io::Result<()> {
        // SAFETY: the set is initialised, and a null pointer asks for no old one.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Returns the signals that are pending for the calling thread.
    fn pending() -> io::Result<Signals> {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the call writes a set to memory of the right type.
        if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it has initialised the set.
        Ok(Signals(unsafe { pending.assume_init() }))
    }

    /// Removes a pending signal of this set, which has one member, and which the calling thread blocks.
    fn remove_pending(&self) -> io::Result<()> {
        if !Signals::pending()?.contains(libc::SIGPIPE) {
            // It is ignored, and was dropped when it was raised.
            return Ok(());
        }
        let mut signal = 0;
        // SAFETY: the set is initialised. The call writes the number of the signal, and does not sleep because one is pending.
        let error = unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}

/// Returns whether the calling thread blocks `signal`, and whether it is pending.
#[cfg(test)]
pub(crate) fn state_of(signal: i32) -> (bool, bool) {
    let before = Signals::only(libc::SIGUSR2).block().unwrap();
    before.restore().unwrap();
    (before.contains(signal), Signals::pending().unwrap().contains(signal))
}

/// Blocks `signal` for the calling thread, and raises it there.
#[cfg(test)]
pub(crate) fn raise_blocked(signal: i32) {
    Signals::only(signal).block().unwrap();
    // SAFETY: the signal is blocked, so that raising it has no other effect than to make it pending.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untouched_signal_has_its_default_action_and_an_invalid_one_is_an_error() {
        assert!(is_default(libc::SIGWINCH).unwrap());
        assert!(!is_ignored(libc::SIGWINCH).unwrap());
        assert!(is_default(10_000).is_err());
    }

    #[test]
    fn the_standard_library_ignores_sigpipe() {
        assert!(is_ignored(libc::SIGPIPE).unwrap());
    }
}
