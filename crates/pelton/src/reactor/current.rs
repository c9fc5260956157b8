//! Gives access to the reactor from code that has no reference to it.

use scoped_tls_hkt::scoped_thread_local;

use crate::Reactor;

scoped_thread_local!(static mut CURRENT: Reactor);

impl Reactor {
    /// Lends the reactor to the code that `f` calls. There, [`Reactor::with_current`] returns the reactor and
    /// [`Handle::schedule`](crate::Handle::schedule) runs its closure immediately. Use it where code in between cannot
    /// pass `&mut Reactor` on, such as a foreign trait's method.
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
    pub fn enter<T>(&mut self, f: impl FnOnce() -> T) -> T {
        CURRENT.set(self, f)
    }

    /// Calls `f` with the reactor that was [lent](Reactor::enter) to this code. Returns `None` if no reactor was lent
    /// or if it is in use further up the stack.
    pub fn with_current<T>(f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        Reactor::is_lent().then(|| CURRENT.with(f))
    }

    /// Returns whether a reactor was lent to this code and is not in use further up the stack.
    pub(crate) fn is_lent() -> bool {
        CURRENT.is_set()
    }
}
