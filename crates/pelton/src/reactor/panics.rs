//! Panics that were caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A panic that was caught. Dropping it does not panic, although its payload may.
pub(crate) struct Panic(Option<Box<dyn Any + Send>>);

/// Calls `f`, and catches a panic. Every call of user code that must not unwind goes through here.
#[inline]
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(f)).map_err(Panic::from)
}

impl From<Box<dyn Any + Send>> for Panic {
    fn from(payload: Box<dyn Any + Send>) -> Panic {
        Panic(Some(payload))
    }
}

impl Panic {
    /// Returns the panic's message.
    pub(crate) fn message(&self) -> String {
        let text = |payload: &Box<dyn Any + Send>| {
            let text = payload.downcast_ref::<&str>().copied();
            text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).map(str::to_owned)
        };
        self.0.as_ref().and_then(text).unwrap_or_else(|| "(not a string)".to_owned())
    }

    /// Continues the panic.
    pub(crate) fn resume(self) -> ! {
        resume_unwind(self.into_payload())
    }

    pub(super) fn into_payload(mut self) -> Box<dyn Any + Send> {
        self.0.take().unwrap_or_else(|| Box::new(()))
    }
}

impl Drop for Panic {
    fn drop(&mut self) {
        if let Some(payload) = self.0.take()
            && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
        {
            // Dropping this payload could panic again, so it leaks.
            std::mem::forget(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics with itself when dropped, so often.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_dropped_without_a_panic() {
        for bombs in 0..3 {
            let panic = catch(|| panic_any(Bomb(bombs))).unwrap_err();
            assert_eq!(panic.message(), "(not a string)");
            drop(panic);
        }
    }

    #[test]
    fn a_callback_that_panics_with_such_a_payload_ends_nothing_else() {
        let mut reactor = crate::Reactor::builder().on_fault(|_, _| {}).build().unwrap();
        reactor.next_tick(|_| panic_any(Bomb(2)));
        reactor.next_tick(|reactor| reactor.stop());
        reactor.run().unwrap();
        assert_eq!(reactor.stats().panics, 1);
    }
}
