//! A timer for a deadline that moves often.

use pelton_os::Time;

use super::TimerId;
use crate::Reactor;

/// A timer for a deadline that moves often, mostly to later: the timeout of a connection with traffic. Moving the
/// deadline to later costs nothing. The timer then fires too early, and its callback arms it again.
///
/// ```
/// use pelton::{LazyTimer, Reactor, Time};
/// use std::time::Duration;
///
/// struct Session {
///     expires: Time,
///     timer: LazyTimer,
/// }
///
/// fn arm(session: &mut Session, reactor: &mut Reactor) {
///     session.timer.arm(reactor, session.expires, |reactor, at| reactor.at(at, fired));
/// }
///
/// fn fired(reactor: &mut Reactor) {
///     let mut session = std::mem::replace(reactor.state::<Option<Session>>(), None).unwrap();
///     session.timer.fired();
///     if session.expires <= reactor.now() {
///         return reactor.stop();
///     }
///     arm(&mut session, reactor);
///     *reactor.state::<Option<Session>>() = Some(session);
/// }
///
/// let mut reactor = Reactor::new()?;
/// let expires = reactor.now() + Duration::from_millis(1);
/// let mut session = Session { expires, timer: LazyTimer::default() };
/// arm(&mut session, &mut reactor);
/// // Activity only stores a time.
/// session.expires = session.expires + Duration::from_millis(1);
/// *reactor.state::<Option<Session>>() = Some(session);
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Default, Debug)]
pub struct LazyTimer(Option<TimerId>);

impl LazyTimer {
    /// Makes the timer fire no later than `deadline`. If it is not set, `set` sets it. It is moved only if it would
    /// fire later.
    pub fn arm(&mut self, reactor: &mut Reactor, deadline: Time, set: impl FnOnce(&mut Reactor, Time) -> TimerId) {
        match self.0 {
            None => self.0 = Some(set(reactor, deadline)),
            Some(timer) => {
                if reactor.deadline(timer).is_some_and(|at| at > deadline) {
                    reactor.reset_at(timer, deadline);
                }
            }
        }
    }

    /// Records that the timer has fired. Call it first in the timer's callback.
    pub fn fired(&mut self) {
        self.0 = None;
    }

    /// Cancels the timer.
    pub fn cancel(&mut self, reactor: &mut Reactor) {
        if let Some(timer) = self.0.take() {
            reactor.cancel(timer);
        }
    }

    /// Returns whether the timer is set.
    pub fn is_armed(&self) -> bool {
        self.0.is_some()
    }
}
