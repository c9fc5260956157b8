//! Drops long chains without recursion.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    static PENDING: RefCell<Vec<Rc<dyn Any>>> = const { RefCell::new(Vec::new()) };
    static DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// Resets the flag, also on a panic.
struct ResetDropping;

impl Drop for ResetDropping {
    fn drop(&mut self) {
        DROPPING.set(false);
    }
}

/// Drops `remains`, then everything that was passed to this function meanwhile. The links of a long chain are therefore
/// dropped in a loop instead of recursively.
pub(super) fn drop_later(remains: Rc<dyn Any>) {
    if DROPPING.replace(true) {
        let mut remains = Some(remains);
        // At the end of a thread the list may be gone. Then this drops it here.
        let _ = PENDING.try_with(|list| list.borrow_mut().extend(remains.take()));
        return;
    }
    let _reset = ResetDropping;
    drop(remains);
    while let Ok(Some(next)) = PENDING.try_with(|list| list.borrow_mut().pop()) {
        drop(next);
    }
}
