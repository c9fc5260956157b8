//! Reaching the reactor from code that was not handed it.

use scoped_tls_hkt::scoped_thread_local;

use crate::Reactor;

scoped_thread_local!(static mut CURRENT: Reactor);

impl Reactor {
    /// Lends the reactor to whatever `f` calls: there, [`Reactor::with_current`] reaches it and
    /// [`Handle::schedule`](crate::Handle::schedule) runs at once. For code between two callbacks that cannot pass
    /// `&mut Reactor` on, such as a trait method of somebody else's.
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

    /// Calls `f` with the reactor that was [lent](Reactor::enter) to this code. `None` if none was, or if it is in use
    /// further up the stack.
    pub fn with_current<T>(f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        Reactor::is_lent().then(|| CURRENT.with(f))
    }

    /// Whether a reactor was lent to this code and is not in use further up the stack.
    pub(crate) fn is_lent() -> bool {
        CURRENT.is_set()
    }
}
