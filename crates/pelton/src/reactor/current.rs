//! Gives access to the reactor from code that has no reference to it.

use std::ptr;

use scoped_tls_hkt::{ReborrowMut, scoped_thread_local};

use crate::threads::handle::Shared;
use crate::{Handle, Reactor};

/// The reactors that are lent to the code that runs now. Loops can run inside each other, so there may be several.
trait Lent {
    /// Returns the reactor that was lent last.
    fn last(&mut self) -> &mut Reactor;

    /// Returns the reactor that has this state.
    fn find(&mut self, shared: &Shared) -> Option<&mut Reactor>;
}

/// A lent reactor, inside the code that the others were lent to.
struct Inner<'r, 'o> {
    reactor: &'r mut Reactor,
    outer: &'o mut (dyn Lent + 'o),
}

impl Lent for Reactor {
    fn last(&mut self) -> &mut Reactor {
        self
    }

    fn find(&mut self, shared: &Shared) -> Option<&mut Reactor> {
        ptr::eq(&*self.shared, shared).then_some(self)
    }
}

impl Lent for Inner<'_, '_> {
    fn last(&mut self) -> &mut Reactor {
        self.reactor
    }

    fn find(&mut self, shared: &Shared) -> Option<&mut Reactor> {
        if ptr::eq(&*self.reactor.shared, shared) { Some(self.reactor) } else { self.outer.find(shared) }
    }
}

struct Lending<'a>(&'a mut (dyn Lent + 'a));

impl<'a> ReborrowMut<'a> for Lending<'_> {
    type Result = Lending<'a>;

    fn reborrow_mut(&'a mut self) -> Lending<'a> {
        Lending(self.0)
    }
}

scoped_thread_local!(static mut CURRENT: for<'a> Lending<'a>);

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
        if !Reactor::is_lent() {
            return CURRENT.set(Lending(self), f);
        }
        CURRENT.with(|outer| {
            let mut inner = Inner { reactor: self, outer: outer.0 };
            CURRENT.set(Lending(&mut inner), f)
        })
    }

    /// Calls `f` with the reactor that was [lent](Reactor::enter) to this code, the last one if there are several.
    /// Returns `None` if no reactor was lent or if it is in use further up the stack.
    pub fn with_current<T>(f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        Reactor::is_lent().then(|| CURRENT.with(|lent| f(lent.0.last())))
    }

    /// Returns whether a reactor was lent to this code and is not in use further up the stack.
    #[inline]
    pub(crate) fn is_lent() -> bool {
        CURRENT.is_set()
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
    pub fn with_reactor<T>(&self, f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        if !Reactor::is_lent() {
            return None;
        }
        CURRENT.with(|lent| lent.0.find(self.shared.latest()).map(f))
    }
}
