//! Closures that are stored inline.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, size_of};

/// A closure that captures at most this much is stored inline. A larger one is boxed.
pub const INLINE_BYTES: usize = size_of::<Words>();

/// Three words: a handle or a reference-counted pointer, and two numbers.
type Words = [usize; 3];

/// A `FnOnce(&mut R)` of any type, like `Box<dyn FnOnce(&mut R)>`. A small one is stored inline: creating, moving and calling
/// it does not allocate.
///
/// ```
/// use pelton_sync::Closure;
///
/// let add = 3;
/// let closure = Closure::new(move |sum: &mut i32| *sum += add);
/// let mut sum = 4;
/// closure.call(&mut sum);
/// assert_eq!(sum, 7);
/// ```
pub struct Closure<R: 'static> {
    table: &'static Table<R>,
    /// The captured values, or a box with them. `table` knows which.
    words: MaybeUninit<Words>,
    /// The captured values can have any type, so this is neither `Send` nor `Sync`.
    captured: PhantomData<*mut ()>,
}

struct Table<R: 'static> {
    /// Moves the closure out of the words and calls it.
    call: unsafe fn(*mut Words, &mut R),
    /// Drops the closure in the words.
    drop: unsafe fn(*mut Words),
}

/// What the words hold: the closure itself, or a closure that holds a box with it.
trait Stored<R: 'static>: FnOnce(&mut R) + Sized {
    const TABLE: Table<R> = Table {
        call: |words, argument| {
            // SAFETY: `Closure::store` wrote a `Self` to the words. `Closure::call` calls this once, as its last access to
            // them.
            let closure = unsafe { words.cast::<Self>().read() };
            closure(argument);
        },
        drop: |words| {
            // SAFETY: `Closure::store` wrote a `Self` to the words. `Closure::drop` calls this once, as the last access to
            // them.
            unsafe { words.cast::<Self>().drop_in_place() }
        },
    };
}

impl<R: 'static, F: FnOnce(&mut R)> Stored<R> for F {}

impl<R: 'static> Closure<R> {
    /// Stores `closure`.
    pub fn new<F: FnOnce(&mut R) + 'static>(closure: F) -> Self {
        if size_of::<F>() <= size_of::<Words>() && align_of::<F>() <= align_of::<Words>() {
            Self::store(closure)
        } else {
            let boxed: Box<F> = Box::new(closure);
            Self::store(move |argument: &mut R| boxed(argument))
        }
    }

    fn store<S: Stored<R> + 'static>(stored: S) -> Self {
        const { assert!(size_of::<Box<u8>>() <= size_of::<Words>()) };
        assert!(size_of::<S>() <= size_of::<Words>() && align_of::<S>() <= align_of::<Words>());
        let mut words = MaybeUninit::<Words>::uninit();
        // SAFETY: the words are a local that is large and aligned enough for an `S`, as just asserted.
        unsafe { words.as_mut_ptr().cast::<S>().write(stored) };
        Closure { table: &S::TABLE, words, captured: PhantomData }
    }

    /// Calls the closure.
    pub fn call(self, argument: &mut R) {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the words hold the closure that `table` belongs to. `self` is not dropped, so this is the last access to
        // them, even if the closure panics.
        unsafe { (this.table.call)(this.words.as_mut_ptr(), argument) }
    }
}

impl<R: 'static> Drop for Closure<R> {
    fn drop(&mut self) {
        // SAFETY: the words hold the closure that `table` belongs to, because `call` prevents this drop.
        unsafe { (self.table.drop)(self.words.as_mut_ptr()) }
    }
}

impl<R: 'static> fmt::Debug for Closure<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure(..)")
    }
}

/// A [`Closure`] that may be sent to another thread.
#[derive(Debug)]
pub struct SendClosure<R: 'static>(Closure<R>);

// SAFETY: `new` accepts only closures that are `Send`, and `table` is shared immutable data.
unsafe impl<R: 'static> Send for SendClosure<R> {}

impl<R: 'static> SendClosure<R> {
    /// Stores `closure`.
    pub fn new<F: FnOnce(&mut R) + Send + 'static>(closure: F) -> Self {
        SendClosure(Closure::new(closure))
    }

    /// Calls the closure.
    pub fn call(self, argument: &mut R) {
        self.0.call(argument);
    }
}

impl<R: 'static> From<SendClosure<R>> for Closure<R> {
    fn from(closure: SendClosure<R>) -> Self {
        closure.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    /// Counts how often it was dropped, to be captured by a closure.
    struct Counted(Rc<Cell<u32>>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn dropped_once_by(act: impl FnOnce(Counted)) {
        let drops = Rc::new(Cell::new(0));
        act(Counted(drops.clone()));
        assert_eq!(drops.get(), 1);
    }

    #[test]
    fn captured_values_are_dropped_once_when_called_inline() {
        dropped_once_by(|counted| {
            let closure = Closure::new(move |calls: &mut u32| {
                let _counted = &counted;
                *calls += 1;
            });
            let mut calls = 0;
            closure.call(&mut calls);
            assert_eq!(calls, 1);
        });
    }

    #[test]
    fn captured_values_are_dropped_once_when_called_from_a_box() {
        dropped_once_by(|counted| {
            let large = [7u64; 9];
            let closure = Closure::new(move |sum: &mut u64| {
                let _counted = &counted;
                *sum = large.iter().sum();
            });
            let mut sum = 0;
            closure.call(&mut sum);
            assert_eq!(sum, 63);
        });
    }

    #[test]
    fn captured_values_are_dropped_once_when_never_called() {
        dropped_once_by(|counted| drop(Closure::new(move |_: &mut ()| drop(counted))));
        dropped_once_by(|counted| {
            let large = [0u64; 9];
            drop(Closure::new(move |_: &mut ()| drop((counted, large))));
        });
    }

    #[test]
    fn captured_values_are_dropped_once_when_the_call_panics() {
        dropped_once_by(|counted| {
            let closure = Closure::new(move |_: &mut ()| {
                let _counted = counted;
                panic!("on purpose");
            });
            assert!(catch_unwind(AssertUnwindSafe(|| closure.call(&mut ()))).is_err());
        });
    }

    #[test]
    fn an_over_aligned_capture_is_boxed_and_stays_aligned() {
        #[repr(align(64))]
        struct Aligned(u8);
        let aligned = Aligned(5);
        let closure = Closure::new(move |seen: &mut u8| {
            assert_eq!(std::ptr::from_ref(&aligned).addr() % 64, 0);
            *seen = aligned.0;
        });
        let mut seen = 0;
        closure.call(&mut seen);
        assert_eq!(seen, 5);
    }

    #[test]
    fn three_captured_words_fit_and_the_whole_is_four() {
        assert_eq!(INLINE_BYTES, 3 * size_of::<usize>());
        assert_eq!(size_of::<Closure<()>>(), 4 * size_of::<usize>());
    }
}
