//! Signal dispositions.

use std::io;
use std::mem::MaybeUninit;

/// Returns whether `signal` has its default action.
pub fn is_default(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null new action the call only queries. It writes the old action to memory of the right type.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has initialised the action.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_DFL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untouched_signal_has_its_default_action_and_an_invalid_one_is_an_error() {
        assert!(is_default(libc::SIGWINCH).unwrap());
        assert!(is_default(10_000).is_err());
    }
}
