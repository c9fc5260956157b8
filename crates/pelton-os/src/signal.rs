//! What the system does with a signal.

use std::io;
use std::mem::MaybeUninit;

/// Whether the process has left `signal` its default action.
pub fn is_default(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; the old one is written to a place of the right type.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the action in.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_DFL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_nobody_touched_has_its_default_and_no_signal_is_an_error() {
        assert!(is_default(libc::SIGWINCH).unwrap());
        assert!(is_default(10_000).is_err());
    }
}
