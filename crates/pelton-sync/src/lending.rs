//! Lends a value to code that it cannot be passed to.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::process::abort;
use std::ptr::null_mut;

/// How many values can be lent inside each other without allocating. Programs nest one or two loops.
const INLINE: usize = 4;

/// The values that are lent to the code that runs now, on one thread, the latest first. Keep it in a thread-local.
///
/// Reaching a value takes a few instructions: frameworks do it for every operation of code that has no reference to pass on, such as
/// that of another language.
///
/// Such a language may switch stacks while a value is lent: Ruby has fibers, Python has greenlets, which even copy stacks away. So
/// no part of the list is on a stack, and loans may end in any order. Only a loan that ends while its value is in use aborts the
/// process.
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
    latest: Cell<*mut Loan<T>>,
    /// The id of the next loan.
    next: Cell<u64>,
    /// Memory for the first loans. One is free if its value is null.
    inline: [UnsafeCell<Loan<T>>; INLINE],
}

/// A value that is lent.
struct Loan<T> {
    value: *mut T,
    earlier: *mut Loan<T>,
    /// Ascending in the order in which loans begin.
    id: u64,
    /// How many calls of [`Lending::with`] forbid to reach the value.
    uses: u32,
}

/// Ends a loan when it is dropped.
struct Ends<'a, T> {
    lending: &'a Lending<T>,
    loan: *mut Loan<T>,
}

/// Makes the values that were lent before the loan `next` reachable again when it is dropped.
struct Unused<'a, T> {
    lending: &'a Lending<T>,
    next: u64,
}

impl<T> Lending<T> {
    /// Creates one without values.
    pub const fn new() -> Lending<T> {
        let inline =
            [const { UnsafeCell::new(Loan { value: null_mut(), earlier: null_mut(), id: 0, uses: 0 }) }; INLINE];
        Lending { latest: Cell::new(null_mut()), next: Cell::new(0), inline }
    }

    /// Returns whether a value is lent and not in use further up the stack.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.loans().any(|loan| {
            // SAFETY: loans in the list are valid.
            unsafe { (*loan).uses == 0 }
        })
    }

    /// Lends `value` to the code that `f` calls.
    #[inline]
    pub fn lend<R>(&self, value: &mut T, f: impl FnOnce() -> R) -> R {
        let id = self.next.get();
        self.next.set(id + 1);
        let loan = self.store(Loan { value, earlier: self.latest.get(), id, uses: 0 });
        // A loan is in the list exactly while this exists. Dropping it, also by unwinding, takes the loan out of the list before the
        // memory of the loan is reused. So every loan in the list is valid, and its value is borrowed exclusively by this function,
        // which does not use it.
        let _ends = Ends { lending: self, loan };
        self.latest.set(loan);
        f()
    }

    /// Calls `f` with the latest value that `is_wanted`. Meanwhile none of the values lent so far can be reached, so that there is one
    /// reference to each. Returns `None` if there is no such value, or if it is in use further up the stack.
    #[inline]
    pub fn with<R>(&self, is_wanted: impl Fn(&T) -> bool, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let latest = self.latest.get();
        // SAFETY: loans in the list are valid.
        let only = unsafe { latest.as_ref() }?;
        if only.earlier.is_null() {
            // Fast path: most programs lend one value at a time.
            return self.with_only(latest, is_wanted, f);
        }
        // SAFETY: loans in the list are valid.
        self.loans().for_each(|loan| unsafe { (*loan).uses += 1 });
        let _unused = Unused { lending: self, next: self.next.get() };
        let wanted = self.loans().find(|loan| {
            // SAFETY: loans in the list are valid. With a single use, this one, there is no other reference to the value: `lend` has
            // borrowed it exclusively, and this function gives out no other before `_unused` is dropped.
            unsafe { (**loan).uses == 1 && is_wanted(&*(**loan).value) }
        })?;
        // SAFETY: as above. A loan with a use does not end.
        Some(f(unsafe { &mut *(*wanted).value }))
    }

    /// Does what [`with`](Lending::with) does, if there is one loan.
    #[inline]
    fn with_only<R>(
        &self,
        only: *mut Loan<T>,
        is_wanted: impl Fn(&T) -> bool,
        f: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        /// Makes the value reachable again when it is dropped.
        struct Used<T>(*mut Loan<T>);
        impl<T> Drop for Used<T> {
            fn drop(&mut self) {
                // SAFETY: a loan with a use does not end.
                unsafe { (*self.0).uses -= 1 };
            }
        }
        // SAFETY: the loan is in the list, so it is valid. The value is given out only if nobody uses it, and not again before
        // `_used` is dropped: `lend` has borrowed it exclusively.
        unsafe {
            if (*only).uses > 0 {
                return None;
            }
            (*only).uses = 1;
            let _used = Used(only);
            let value = &mut *(*only).value;
            if is_wanted(value) { Some(f(value)) } else { None }
        }
    }

    /// Iterates over the loans, the latest first. The caller ends none meanwhile.
    #[inline]
    fn loans(&self) -> impl Iterator<Item = *mut Loan<T>> {
        let mut next = self.latest.get();
        std::iter::from_fn(move || {
            let loan = next;
            // SAFETY: loans in the list are valid.
            next = unsafe { loan.as_ref() }?.earlier;
            Some(loan)
        })
    }

    #[inline]
    fn store(&self, loan: Loan<T>) -> *mut Loan<T> {
        let is_free = |place: &&UnsafeCell<Loan<T>>| {
            // SAFETY: references to a loan end in the statement that creates them, so there is none now.
            unsafe { (*place.get()).value.is_null() }
        };
        // Fast path: most programs lend one value at a time.
        let place = Some(&self.inline[0]).filter(is_free).or_else(|| self.inline.iter().find(is_free));
        match place {
            Some(place) => {
                // SAFETY: as above.
                unsafe { *place.get() = loan };
                place.get()
            }
            None => Box::into_raw(Box::new(loan)),
        }
    }

    #[inline]
    fn free(&self, loan: *mut Loan<T>) {
        if self.inline.as_ptr_range().contains(&loan.cast_const().cast()) {
            // SAFETY: as in `store`.
            unsafe { (*loan).value = null_mut() };
        } else {
            // SAFETY: it was created by `store`, and is not in the list any more.
            drop(unsafe { Box::from_raw(loan) });
        }
    }
}

impl<T> Drop for Ends<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the loan is in the list until here.
        let (earlier, uses) = unsafe { ((*self.loan).earlier, (*self.loan).uses) };
        if uses > 0 {
            eprintln!("pelton: a stack that had lent a value ended while another stack was using the value");
            abort();
        }
        if self.lending.latest.get() == self.loan {
            self.lending.latest.set(earlier);
        } else if let Some(later) = self.lending.loans().find(|later| {
            // SAFETY: loans in the list are valid.
            unsafe { (**later).earlier == self.loan }
        }) {
            // SAFETY: as above.
            unsafe { (*later).earlier = earlier };
        }
        self.lending.free(self.loan);
    }
}

impl<T> Drop for Unused<'_, T> {
    #[inline]
    fn drop(&mut self) {
        for loan in self.lending.loans() {
            // SAFETY: loans in the list are valid. Those with an older id were in the list when their use was counted.
            unsafe {
                if (*loan).id < self.next {
                    (*loan).uses -= 1;
                }
            }
        }
    }
}

impl<T> Default for Lending<T> {
    fn default() -> Lending<T> {
        Lending::new()
    }
}

impl<T> fmt::Debug for Lending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn more_values_than_fit_inline_are_found() {
        fn nest(lending: &Lending<usize>, depth: usize) {
            let mut value = depth;
            lending.lend(&mut value, || {
                if depth < 3 * INLINE {
                    nest(lending, depth + 1);
                }
                for wanted in 0..=depth {
                    assert_eq!(lending.with(|value| *value == wanted, |value| *value), Some(wanted));
                }
                assert_eq!(lending.with(|_| true, |value| *value), Some(depth));
            });
        }
        let lending = Lending::new();
        nest(&lending, 0);
        assert!(!lending.is_lent());
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

    #[test]
    fn loans_may_end_in_any_order() {
        let lending = Lending::new();
        let (mut one, mut two, mut three) = (1, 2, 3);
        // What a switch of stacks does: `lend` on one stack ends before `lend` on another that began later.
        let begin = |value: *mut i32| {
            let loan = lending.store(Loan { value, earlier: lending.latest.get(), id: lending.next.get(), uses: 0 });
            lending.next.set(lending.next.get() + 1);
            lending.latest.set(loan);
            Ends { lending: &lending, loan }
        };
        let (first, second, third) = (begin(&raw mut one), begin(&raw mut two), begin(&raw mut three));
        drop(second);
        assert_eq!(lending.with(|value| *value == 2, |value| *value), None);
        assert_eq!(lending.with(|value| *value == 1, |value| *value), Some(1));
        drop(first);
        assert_eq!(lending.with(|_| true, |value| *value), Some(3));
        drop(third);
        assert!(!lending.is_lent());
    }
}
