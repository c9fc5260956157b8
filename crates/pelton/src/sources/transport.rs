//! The mechanism that connections and datagram sockets share: calling the handler, pausing, queueing for a flush, and
//! the end.

use std::io;
use std::panic::Location;

use pelton_os::Token;

use crate::reactor::callback::{CallbackKind, Outcome, Site, SourceId};
use crate::{Reactor, Reason};

/// The reasons for which a socket is not read from, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Pauses(u8);

impl Pauses {
    /// The handler has paused.
    pub(crate) const HANDLER: Pauses = Pauses(1);
    /// The byte budget of the reactor is exceeded.
    pub(crate) const BUDGET: Pauses = Pauses(2);
    /// The target that the connection is proxied to has no room.
    pub(crate) const TARGET: Pauses = Pauses(4);

    #[inline]
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn has(self, pause: Pauses) -> bool {
        self.0 & pause.0 != 0
    }

    /// Adds a reason. Returns whether it was new.
    pub(crate) fn add(&mut self, pause: Pauses) -> bool {
        let new = !self.has(pause);
        self.0 |= pause.0;
        new
    }

    pub(crate) fn remove(&mut self, pause: Pauses) {
        self.0 &= !pause.0;
    }
}

/// Who decides when a source takes in what has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// The reactor passes on what has arrived.
    Reactor,
    /// The handler fetches it from the engine.
    Handler,
    /// The handler fetches it from the reactor, because the engine takes it in on its own.
    HandlerFromHeld,
}

impl Control {
    /// Returns the control of a manual source, by the engine's answer to the request to leave input to the handler.
    pub(crate) fn manual(answer: &io::Result<()>) -> Control {
        if answer.is_ok() { Control::Handler } else { Control::HandlerFromHeld }
    }
}

/// A source with a handler that receives and sends.
pub(crate) trait Transport: 'static {
    type Handler: ?Sized;

    const KIND: CallbackKind;

    fn find(reactor: &mut Reactor, token: Token) -> Option<&mut Self>;

    fn id(token: Token) -> SourceId;

    fn location(&self) -> &'static Location<'static>;

    /// Returns the place of the handler. It is empty while the handler runs.
    fn handler(&mut self) -> &mut Option<Box<Self::Handler>>;

    fn pauses(&mut self) -> &mut Pauses;

    /// Returns whether the source is queued for the next flush.
    fn flush_queued(&mut self) -> &mut bool;

    /// Returns whether `closed` will be called next.
    fn is_over(&self) -> bool;

    fn set_over(&mut self);

    /// Returns whether another handler takes over when the current one has returned.
    fn hands_over(&self) -> bool {
        false
    }

    /// Starts or stops receiving in the engine, depending on the current state.
    fn update_receiving(reactor: &mut Reactor, token: Token);

    /// Returns whether the handler of a manual source has to fetch held input.
    fn has_held_input(&self) -> bool;

    /// Notifies the handler of a manual source that there is input.
    fn report_readable(reactor: &mut Reactor, token: Token);
}

/// The outcome of calling a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Called {
    /// The handler was not called because its source has ended or the handler is already running; or it panicked.
    No,
    Yes,
    /// Another handler takes over now.
    HandsOver,
}

impl Reactor {
    /// Calls the handler of a source, unless the source has ended or the handler is running. A panic ends the source.
    #[inline]
    pub(crate) fn call_transport<T: Transport>(
        &mut self,
        token: Token,
        call: impl FnOnce(&mut T::Handler, &mut Reactor),
    ) -> Called {
        let Some(source) = T::find(self, token).filter(|source| !source.is_over()) else { return Called::No };
        let Some(handler) = source.handler().take() else { return Called::No };
        let site = Site { kind: T::KIND, place: source.location(), source: Some(T::id(token)) };
        let mut called = Called::No;
        self.call_source(
            site,
            handler,
            |handler, reactor| call(&mut **handler, reactor),
            |reactor, handler, outcome| {
                // Put it back even if the source has ended: `closed` is still to be called.
                let mut hands_over = false;
                if let Some(source) = T::find(reactor, token) {
                    *source.handler() = Some(handler);
                    hands_over = source.hands_over();
                }
                match outcome {
                    Outcome::Returned if hands_over => called = Called::HandsOver,
                    Outcome::Returned => called = Called::Yes,
                    Outcome::Panicked => reactor.transport_is_over::<T>(token, Reason::Panicked),
                }
            },
        );
        called
    }

    /// Queues a source for the next flush.
    pub(crate) fn queue_flush_of<T: Transport>(&mut self, token: Token) {
        if let Some(source) = T::find(self, token)
            && !std::mem::replace(source.flush_queued(), true)
        {
            self.sources.flush_later(token);
        }
    }

    /// Marks a source as over, unless it already is. The reap phase notifies its handler.
    pub(crate) fn transport_is_over<T: Transport>(&mut self, token: Token, reason: Reason) {
        if let Some(source) = T::find(self, token)
            && !source.is_over()
        {
            source.set_over();
            self.sources.reap_later(token, reason);
        }
    }

    /// Ends a source before it returns, or when its running callback returns. Returns `false` if there is no such source.
    pub(crate) fn release_transport<T: Transport>(&mut self, token: Token) -> bool {
        let Some(source) = T::find(self, token) else { return false };
        if source.handler().is_none() {
            self.transport_is_over::<T>(token, Reason::Local);
        } else if !source.is_over() {
            source.set_over();
            self.reap_source(token, Reason::Local);
        } else if let Some(reason) = self.sources.take_over(token) {
            self.reap_source(token, reason);
        }
        true
    }

    /// Notifies the handler of a manual source of held input, now and in each turn until it is fetched.
    pub(crate) fn report_held_input<T: Transport>(&mut self, token: Token) {
        let has_input = |reactor: &mut Reactor| T::find(reactor, token).is_some_and(|source| source.has_held_input());
        if !has_input(self) {
            return;
        }
        T::report_readable(self, token);
        if has_input(self) {
            self.next_tick(move |reactor| reactor.queue_flush_of::<T>(token));
        }
    }

    /// Calls `closed` on the handler of a source that was removed, as its last callback.
    pub(crate) fn call_closed<H: ?Sized>(
        &mut self,
        site: Site,
        handler: Option<Box<H>>,
        closed: impl FnOnce(&mut H, &mut Reactor),
    ) {
        if let Some(mut handler) = handler {
            self.call_last(site, |reactor| closed(&mut handler, reactor));
        }
    }

    /// Stops reading from a source until its handler [resumes](Reactor::resume_transport).
    pub(crate) fn pause_transport<T: Transport>(&mut self, token: Token) {
        if let Some(source) = T::find(self, token) {
            source.pauses().add(Pauses::HANDLER);
            T::update_receiving(self, token);
        }
    }

    pub(crate) fn resume_transport<T: Transport>(&mut self, token: Token) {
        if let Some(source) = T::find(self, token) {
            source.pauses().remove(Pauses::HANDLER);
            T::update_receiving(self, token);
        }
    }

    pub(crate) fn transport_is_paused<T: Transport>(&mut self, token: Token) -> bool {
        T::find(self, token).is_some_and(|source| source.pauses().has(Pauses::HANDLER))
    }
}
