//! Lends a value to code that it cannot be passed to.

use std::cell::Cell;
use std::ptr::NonNull;

/// The values that are lent to the code that runs now, on one thread, the latest first. Keep it in a thread-local.
///
/// Reaching a value takes a few instructions: frameworks do it for every operation of code that has no reference to pass on, such as
/// that of another language.
///
/// ```
/// use pelton_sync::Lending;
///
/// thread_local!(static LENT: Lending<String> = const { Lending::new() });
///
/// fn somewhere_deep_down() {
///     LENT.with(|lent| lent.with(|_| true, |text| text.push_str(" world")));
/// }
///
/// let mut text = "hello".to_owned();
/// LENT.with(|lent| lent.lend(&mut text, somewhere_deep_down));
/// assert_eq!(text, "hello world");
/// ```
pub struct Lending<T> {
    latest: Cell<Option<NonNull<Loan<T>>>>,
}

/// A value that is lent. It is on the stack of [`Lending::lend`].
struct Loan<T> {
    value: NonNull<T>,
    earlier: Option<NonNull<Loan<T>>>,
}

/// Sets the latest loan, now and when it is dropped.
struct Restore<'a, T> {
    lending: &'a Lending<T>,
    before: Option<NonNull<Loan<T>>>,
}

impl<'a, T> Restore<'a, T> {
    #[inline]
    fn replace(lending: &'a Lending<T>, latest: Option<NonNull<Loan<T>>>) -> Restore<'a, T> {
        Restore { lending, before: lending.latest.replace(latest) }
    }
}

impl<T> Drop for Restore<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lending.latest.set(self.before);
    }
}

impl<T> Lending<T> {
    /// Creates one without values.
    pub const fn new() -> Lending<T> {
        Lending { latest: Cell::new(None) }
    }

    /// Returns whether a value is lent and not in use further up the stack.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.latest.get().is_some()
    }

    /// Lends `value` to the code that `f` calls.
    #[inline]
    pub fn lend<R>(&self, value: &mut T, f: impl FnOnce() -> R) -> R {
        let mut loan = Loan { value: NonNull::from(value), earlier: self.latest.get() };
        let _restore = Restore::replace(self, Some(NonNull::from(&mut loan)));
        f()
    }

    /// Calls `f` with the latest value that `is_wanted`. Meanwhile no value is lent, so that there is one reference to each. Returns
    /// `None` if there is no such value, or if one is in use further up the stack.
    #[inline]
    pub fn with<R>(&self, is_wanted: impl Fn(&T) -> bool, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let restore = Restore::replace(self, None);
        let mut next = restore.before;
        while let Some(loan) = next {
            // SAFETY: a loan is in the list only while the `lend` that has it on its stack runs: `lend` removes it before it returns,
            // also by unwinding, and closures cannot keep it. `lend` has borrowed the value exclusively and does not use it itself.
            // Nothing else reaches it now, because the list is empty until `restore` is dropped; a loan that is added meanwhile is of
            // another value, since this one is borrowed here.
            let (value, earlier) = unsafe { (&mut *loan.as_ref().value.as_ptr(), loan.as_ref().earlier) };
            if is_wanted(value) {
                return Some(f(value));
            }
            next = earlier;
        }
        None
    }
}

impl<T> Default for Lending<T> {
    fn default() -> Lending<T> {
        Lending::new()
    }
}

impl<T> std::fmt::Debug for Lending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lending").field("is_lent", &self.is_lent()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr;

    #[test]
    fn the_latest_wanted_value_is_found() {
        let lending = Lending::new();
        assert_eq!(lending.with(|_| true, |value: &mut u8| *value), None);
        let (mut one, mut two) = (1, 2);
        lending.lend(&mut one, || {
            lending.lend(&mut two, || {
                assert_eq!(lending.with(|_| true, |value| *value), Some(2));
                assert_eq!(lending.with(|value| *value == 1, |value| std::mem::replace(value, 10)), Some(1));
                assert_eq!(lending.with(|value| *value == 3, |value| *value), None);
            });
            assert_eq!(lending.with(|_| true, |value| *value), Some(10));
        });
        assert!(!lending.is_lent());
        assert_eq!((one, two), (10, 2));
    }

    #[test]
    fn a_value_in_use_cannot_be_reached_again() {
        let lending = Lending::new();
        let (mut one, mut two) = (1, 2);
        lending.lend(&mut one, || {
            lending.with(
                |_| true,
                |one| {
                    assert!(!lending.is_lent());
                    assert_eq!(lending.with(|_| true, |value| *value), None);
                    // Lent on, it can be reached again, and nothing else.
                    lending.lend(one, || assert_eq!(lending.with(|value| *value == 2, |value| *value), None));
                    let address: *const i32 = one;
                    lending.lend(one, || {
                        assert_eq!(lending.with(|value| ptr::eq(value, address), |value| *value += 1), Some(()));
                    });
                    lending.lend(&mut two, || assert_eq!(lending.with(|value| *value != 2, |value| *value), None));
                },
            );
            assert!(lending.is_lent());
        });
        assert_eq!(one, 2);
    }

    #[test]
    fn a_panic_takes_the_loan_back() {
        let lending = Lending::new();
        let mut value = String::new();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            lending.lend(&mut value, || lending.with(|_| true, |_| panic!("in use")));
        }));
        assert!(caught.is_err());
        assert!(!lending.is_lent());
        lending.lend(&mut value, || lending.with(|_| true, |value| value.push('x')));
        assert_eq!(value, "x");
    }
}
