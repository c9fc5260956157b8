//! Gives access to the reactor from code that has no reference to it.

use std::ptr;

use pelton_sync::Lending;

use crate::{Handle, Reactor};

thread_local! {
    /// The reactors that are lent to the code that runs now. Loops can run inside each other, so there may be several.
    static CURRENT: Lending<Reactor> = const { Lending::new() };
}

impl Reactor {
    /// Lends the reactor to the code that `f` calls. There, [`Reactor::with_current`] and [`Handle::with_reactor`]
    /// return the reactor and [`Handle::schedule`] runs its closure immediately. Use it where code in between cannot
    /// pass `&mut Reactor` on, such as a foreign trait's method or another language.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// fn somewhere_deep_down() {
    ///     Reactor::with_current(|reactor| reactor.stop());
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.next_tick(|reactor| reactor.enter(somewhere_deep_down));
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[inline]
    pub fn enter<T>(&mut self, f: impl FnOnce() -> T) -> T {
        CURRENT.with(|lending| lending.lend(self, f))
    }

    /// Calls `f` with the reactor that was [lent](Reactor::enter) to this code, the last one if there are several.
    /// Returns `None` if no reactor was lent or if it is in use further up the stack.
    pub fn with_current<T>(f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        CURRENT.with(|lending| lending.with(|_| true, f))
    }

    /// Returns whether a reactor was lent to this code and is not in use further up the stack.
    #[inline]
    pub(crate) fn is_lent() -> bool {
        CURRENT.with(Lending::is_lent)
    }
}

impl Handle {
    /// Calls `f` with the handle's reactor if that was [lent](Reactor::enter) to this code. Returns `None` if it was
    /// not, which includes every call on another thread, or if it is in use further up the stack.
    ///
    /// [`Reactor::with_current`] returns the reactor that was lent last. If a loop runs inside another, this is how code
    /// that belongs to the outer one reaches its own reactor.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut outer = Reactor::new()?;
    /// let mut inner = Reactor::new()?;
    /// let handle = outer.handle();
    /// assert!(handle.with_reactor(|_| ()).is_none());
    /// outer.enter(|| inner.enter(|| handle.with_reactor(|outer| outer.stop())));
    /// assert!(outer.stopped() && !inner.stopped());
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[inline]
    pub fn with_reactor<T>(&self, f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        let shared = self.shared.latest();
        CURRENT.with(|lending| lending.with(|reactor| ptr::eq(&*reactor.shared, shared), f))
    }
}
