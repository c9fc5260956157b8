//! Dropping long chains without recursion.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    static REMAINS: RefCell<Vec<Rc<dyn Any>>> = const { RefCell::new(Vec::new()) };
    static BURYING: Cell<bool> = const { Cell::new(false) };
}

/// Ends a burial, also one that a panic ends.
struct Burial;

impl Drop for Burial {
    fn drop(&mut self) {
        BURYING.set(false);
    }
}

/// Drops `remains`, and then what was to be buried meanwhile. So what a chain of a hundred thousand links drops is dropped
/// one after the other, not each inside the one before.
pub(super) fn bury(remains: Rc<dyn Any>) {
    if BURYING.replace(true) {
        let mut remains = Some(remains);
        // At the end of a thread the list may be gone; then it is dropped here.
        let _ = REMAINS.try_with(|list| list.borrow_mut().extend(remains.take()));
        return;
    }
    let _burial = Burial;
    drop(remains);
    while let Ok(Some(next)) = REMAINS.try_with(|list| list.borrow_mut().pop()) {
        drop(next);
    }
}
