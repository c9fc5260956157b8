//! Decides whether a failed request is sent again.

use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, Reactor};

use super::call::{Call, Place};
use super::error::ErrorKind;
use super::pool::Shared;

/// A request meets at most this many kept connections that have died. All of them may be dead after a restart of the server.
const STALE: u32 = 8;

/// What is known of an attempt that has failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// Some of the response has arrived.
    pub(super) begun: bool,
    /// The connection had been used before.
    pub(super) kept: bool,
}

impl Shared {
    /// An attempt has failed: the request is repeated if that is safe, or fails.
    pub(super) fn attempt_failed(
        self: &Rc<Self>,
        reactor: &mut Reactor,
        call: Rc<Call>,
        attempt: Attempt,
        kind: ErrorKind,
    ) {
        if call.is_over() {
            return self.keep_call(call);
        }
        // The server may have closed a kept connection just before the request arrived.
        let ended = matches!(kind, ErrorKind::Ended { .. });
        let unreached = matches!(kind, ErrorKind::Connect(_));
        if attempt.begun || !(ended || unreached) || !call.may_repeat() || reactor.stopping() {
            call.fail(reactor, kind);
            return self.keep_call(call);
        }
        let again = {
            let state = &mut *call.state.borrow_mut();
            if attempt.kept && state.stale < STALE {
                state.stale += 1;
                Some(Duration::ZERO)
            } else if state.failures < self.settings().retries {
                state.failures += 1;
                let mut backoff = Backoff::default();
                (0..state.failures).map(|_| backoff.next_wait()).last()
            } else {
                None
            }
        };
        let Some(wait) = again else {
            call.fail(reactor, kind);
            return self.keep_call(call);
        };
        call.place.set(Place::Waiting);
        if wait.is_zero() {
            return self.submit(reactor, call);
        }
        let shared = self.clone();
        call.wait(reactor);
        reactor.after(wait, move |reactor| {
            if !call.is_over() {
                call.stop_waiting(reactor);
                shared.submit(reactor, call);
            }
        });
    }
}
