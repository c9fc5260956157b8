//! Lends a value to code further down the stack that cannot be passed a reference.

use std::cell::Cell;
use std::fmt;
use std::ptr::null_mut;

/// A place where the values lent to the running code are found. It belongs in a `thread_local!`.
///
/// Values can be lent inside each other. While one of them is in use, none can be borrowed again: the place is empty.
///
/// ```
/// use pelton_sync::Lent;
///
/// thread_local!(static CURRENT: Lent<String> = const { Lent::new() });
///
/// fn deep_down() {
///     CURRENT.with(|lent| lent.with_last(|text| text.push('!')));
/// }
///
/// let mut text = String::from("hello");
/// CURRENT.with(|lent| lent.lend(&mut text, deep_down));
/// assert_eq!(text, "hello!");
/// assert_eq!(CURRENT.with(|lent| lent.with_last(|_| ())), None, "nothing is lent any more");
/// ```
pub struct Lent<T> {
    /// The value that was lent last. Null: none, or they are in use.
    last: Cell<*mut Loan<T>>,
}

/// A lent value, on the stack of the function that lends it.
struct Loan<T> {
    value: *mut T,
    outer: *mut Loan<T>,
}

/// Sets what is lent, until it is dropped.
struct Restore<'a, T> {
    lent: &'a Lent<T>,
    before: *mut Loan<T>,
}

impl<'a, T> Restore<'a, T> {
    #[inline]
    fn after(lent: &'a Lent<T>, meanwhile: *mut Loan<T>) -> Restore<'a, T> {
        Restore { lent, before: lent.last.replace(meanwhile) }
    }
}

impl<T> Drop for Restore<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lent.last.set(self.before);
    }
}

impl<T> Lent<T> {
    /// Creates an empty place.
    pub const fn new() -> Lent<T> {
        Lent { last: Cell::new(null_mut()) }
    }

    /// Lends `value` to the code that `f` calls.
    #[inline]
    pub fn lend<R>(&self, value: &mut T, f: impl FnOnce() -> R) -> R {
        let mut loan = Loan { value, outer: self.last.get() };
        let _restore = Restore::after(self, &raw mut loan);
        f()
    }

    /// Returns whether a value is lent and not in use.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.last.get().is_null()
    }

    /// Calls `f` with the value that was lent last. Returns `None` if none is lent, or if they are in use.
    #[inline]
    pub fn with_last<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.with(|_| true, f)
    }

    /// Calls `f` with the value that was lent last among those that `is_wanted` accepts. Returns `None` if there is none, or if they
    /// are in use.
    #[inline]
    pub fn with<R>(&self, mut is_wanted: impl FnMut(&T) -> bool, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Neither function finds anything here meanwhile, so the references below are the only ones.
        let restore = Restore::after(self, null_mut());
        let mut next = restore.before;
        // SAFETY: a loan is on the stack of a call of `lend` that has not returned, since it is in the list: `Restore` takes it out
        // when that call ends, by a panic too. The call has borrowed the value exclusively and does not touch it. No other reference
        // to it exists, because the list was taken out while `f` and `is_wanted` run, and the place is not `Sync`.
        unsafe {
            while !next.is_null() {
                let Loan { value, outer } = *next;
                if is_wanted(&*value) {
                    return Some(f(&mut *value));
                }
                next = outer;
            }
        }
        None
    }
}

impl<T> Default for Lent<T> {
    fn default() -> Lent<T> {
        Lent::new()
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("is_any", &self.is_any()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn values_lent_inside_each_other_are_found_last_first() {
        let lent = Lent::new();
        let (mut outer, mut inner) = (1, 2);
        lent.lend(&mut outer, || {
            lent.lend(&mut inner, || {
                assert_eq!(lent.with_last(|value| std::mem::replace(value, 20)), Some(2));
                assert_eq!(lent.with(|value| *value == 1, |value| std::mem::replace(value, 10)), Some(1));
                assert_eq!(lent.with(|value| *value == 2, |_| ()), None);
            });
            assert_eq!(lent.with_last(|value| *value), Some(10));
        });
        assert_eq!((outer, inner), (10, 20));
        assert!(!lent.is_any());
    }

    #[test]
    fn a_value_in_use_cannot_be_borrowed_again() {
        let lent = Lent::new();
        let mut value = 1;
        lent.lend(&mut value, || {
            lent.with_last(|value| {
                assert!(!lent.is_any());
                assert_eq!(lent.with_last(|_| ()), None);
                assert_eq!(lent.with(|_| true, |_| ()), None);
                // But another one can be lent, and ends before.
                let mut other = 5;
                lent.lend(&mut other, || assert_eq!(lent.with_last(|other| *other), Some(5)));
                assert!(!lent.is_any());
                *value = 2;
            });
            lent.with(
                |_| {
                    assert_eq!(lent.with_last(|_| ()), None);
                    false
                },
                |_| (),
            );
            assert!(lent.is_any());
        });
        assert_eq!(value, 2);
    }

    #[test]
    fn a_panic_ends_the_loan() {
        let lent = Lent::new();
        let mut value = 1;
        let panicked = catch_unwind(AssertUnwindSafe(|| lent.lend(&mut value, || panic!("on purpose"))));
        assert!(panicked.is_err() && !lent.is_any());
        lent.lend(&mut value, || {
            let panicked = catch_unwind(AssertUnwindSafe(|| lent.with_last(|_| panic!("on purpose"))));
            assert!(panicked.is_err() && lent.is_any(), "and the use of a loan does not end it");
        });
    }
}
