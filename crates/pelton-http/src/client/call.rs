//! Calls: requests on their way, with their redirects and retries.
//!
//! A call outlives the connections that it uses. Its state is never borrowed while user code runs, so a callback may pause, cancel
//! or feed any call, its own included. A connection looks at the call again after every callback.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pelton::{ConnectionId, Reactor, Time, TimerId};

use super::Url;
use super::connection::ClientConnection;
use super::error::{Error, ErrorKind, TimeLimit};
use super::pool::Shared;
use super::request::{Parts, Payload, Verb};
use super::response::ResponseEvent;
use super::upgrade::Accept;
use crate::exchange::{Callback, Gone, SendState};
use crate::{Content, Method};

/// Above this many bytes that wait to be sent, a streamed body is [`SendState::Full`].
const HIGH: u64 = 256 * 1024;

pub(super) type Receiver = Box<dyn FnMut(&mut Reactor, ResponseEvent<'_>)>;

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It waits for a connection, or for its next attempt.
    Waiting,
    /// It is being exchanged on a connection.
    On(ConnectionId),
    /// It is over: its receiver was called for the last time, or it was cancelled.
    Over,
}

/// A request on its way.
pub(super) struct Call {
    pub(super) state: RefCell<State>,
    pub(super) outgoing: RefCell<Outgoing>,
    receiver: Cell<Option<Receiver>>,
    pub(super) place: Cell<Place>,
    pub(super) paused: Cell<bool>,
    /// The server has not agreed yet to receive the body.
    pub(super) awaits_consent: Cell<bool>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) parts: Option<Parts>,
    /// When everything must be done.
    pub(super) deadline: Option<Time>,
    whole: Duration,
    /// While it waits.
    timer: Option<TimerId>,
    pub(super) redirects: u32,
    /// Failed attempts over new connections, and over kept ones.
    pub(super) failures: u32,
    pub(super) stale: u32,
    /// Takes the connection if the protocol is switched.
    pub(super) accept: Option<Accept>,
}

/// A body that is sent in pieces.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) queue: VecDeque<Content>,
    pub(super) queued: u64,
    pub(super) finished: bool,
    /// Header lines after the last chunk.
    pub(super) trailers: Vec<u8>,
    /// Called when there is room.
    ready: Option<Callback>,
}

impl Default for Call {
    fn default() -> Call {
        Call {
            state: RefCell::default(),
            outgoing: RefCell::default(),
            receiver: Cell::default(),
            place: Cell::new(Place::Over),
            paused: Cell::new(false),
            awaits_consent: Cell::new(false),
        }
    }
}

impl Call {
    /// Starts a call. An error is reported in the next tick.
    pub(super) fn start(
        shared: &Rc<Shared>,
        reactor: &mut Reactor,
        mut parts: Parts,
        receiver: Receiver,
        accept: Option<Accept>,
    ) -> Rc<Call> {
        let call = shared.take_call();
        let whole = parts.limits.whole.unwrap_or(shared.settings().whole);
        let fault = parts.fault.take();
        {
            let state = &mut *call.state.borrow_mut();
            state.parts = Some(parts);
            // From a fresh reading: the caller may have been busy for long.
            state.deadline = whole.map(|whole| reactor.clock() + whole);
            state.whole = whole.unwrap_or_default();
            state.accept = accept;
        }
        call.receiver.set(Some(receiver));
        call.place.set(Place::Waiting);
        match fault {
            Some(fault) => shared.fail_later(reactor, call.clone(), *fault),
            None => shared.submit(reactor, call.clone()),
        }
        call
    }

    /// Prepares a finished call for another request. Keeps its memory.
    pub(super) fn clear(&self) {
        *self.state.borrow_mut() = State::default();
        let outgoing = &mut *self.outgoing.borrow_mut();
        outgoing.queue.clear();
        outgoing.trailers.clear();
        (outgoing.queued, outgoing.finished, outgoing.ready) = (0, false, None);
        self.receiver.take();
        self.paused.set(false);
        self.awaits_consent.set(false);
    }

    pub(super) fn is_over(&self) -> bool {
        self.place.get() == Place::Over
    }

    /// Passes an event to the receiver.
    pub(super) fn tell(&self, reactor: &mut Reactor, event: ResponseEvent<'_>) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver(reactor, event);
        if !self.is_over() {
            self.receiver.set(Some(receiver));
        }
    }

    /// Passes the last event to the receiver.
    pub(super) fn end(&self, reactor: &mut Reactor, event: ResponseEvent<'_>) {
        self.place.set(Place::Over);
        self.stop_waiting(reactor);
        self.tell(reactor, event);
        // Callbacks that will not be called may hold the exchange, and so this call.
        let ready = self.outgoing.borrow_mut().ready.take();
        let accept = self.state.borrow_mut().accept.take();
        drop((ready, accept));
    }

    pub(super) fn fail(&self, reactor: &mut Reactor, kind: ErrorKind) {
        if !self.is_over() {
            let error = self.error(kind);
            self.end(reactor, ResponseEvent::Failed(error));
        }
    }

    pub(super) fn error(&self, kind: ErrorKind) -> Error {
        let state = self.state.borrow();
        let method = state.parts.as_ref().map_or("", |parts| parts.verb.as_str());
        match (&kind, state.parts.as_ref().and_then(|parts| parts.url.as_ref())) {
            (ErrorKind::BadUrl(bad), _) => Error::new(method, bad.url.clone(), kind),
            (_, Some(url)) => Error::new(method, url.as_str(), kind),
            (_, None) => Error::new(method, "", kind),
        }
    }

    pub(super) fn url(&self) -> Url {
        let state = self.state.borrow();
        let url = state.parts.as_ref().and_then(|parts| parts.url.clone());
        // A call without a URL fails before it has a response.
        url.unwrap_or_else(|| Url::parse("http://unknown.invalid/").expect("the URL is valid"))
    }

    pub(super) fn method(&self) -> Cow<'static, str> {
        match self.state.borrow().parts.as_ref().map(|parts| &parts.verb) {
            Some(Verb::Known(method)) => Cow::Borrowed(method.as_str()),
            Some(Verb::Other(name)) => Cow::Owned(name.to_string()),
            None => Cow::Borrowed(Method::Other.as_str()),
        }
    }

    /// Which error it is when the whole time has passed.
    pub(super) fn too_late(&self) -> ErrorKind {
        ErrorKind::TimedOut { limit: TimeLimit::Whole, after: self.state.borrow().whole }
    }

    /// Makes the call fail if it waits beyond its deadline.
    pub(super) fn wait(self: &Rc<Self>, reactor: &mut Reactor) {
        self.place.set(Place::Waiting);
        let Some(deadline) = self.state.borrow().deadline else { return };
        let call = Rc::downgrade(self);
        let timer = reactor.at(deadline, move |reactor| {
            if let Some(call) = call.upgrade()
                && call.place.get() == Place::Waiting
            {
                call.state.borrow_mut().timer = None;
                call.fail(reactor, call.too_late());
            }
        });
        self.state.borrow_mut().timer = Some(timer);
    }

    pub(super) fn stop_waiting(&self, reactor: &mut Reactor) {
        let timer = self.state.borrow_mut().timer.take();
        if let Some(timer) = timer {
            reactor.cancel(timer);
        }
    }

    /// Takes the next piece of a streamed body, of at most `most` bytes.
    pub(super) fn next_piece(&self, most: usize) -> Option<Content> {
        let outgoing = &mut *self.outgoing.borrow_mut();
        let front = outgoing.queue.front_mut()?;
        let piece = front.split_to(most);
        if front.is_empty() {
            outgoing.queue.pop_front();
        }
        outgoing.queued -= piece.len();
        Some(piece)
    }

    /// Calls who waits for room, if there is some.
    pub(super) fn notify_room(&self, reactor: &mut Reactor) {
        if !matches!(self.place.get(), Place::On(_)) || self.awaits_consent.get() {
            return;
        }
        let ready = {
            let outgoing = &mut *self.outgoing.borrow_mut();
            if outgoing.queued < HIGH { outgoing.ready.take() } else { None }
        };
        if let Some(ready) = ready {
            ready(reactor);
        }
    }

    /// Whether a response that does not switch to another protocol is delivered like any other.
    pub(super) fn takes_refusals(&self) -> bool {
        self.state.borrow().parts.as_ref().is_some_and(|parts| parts.given.takes_refusals)
    }

    /// Whether the request can be sent again, body included.
    pub(super) fn may_repeat(&self) -> bool {
        let state = self.state.borrow();
        let Some(parts) = &state.parts else { return false };
        let has_body = !matches!(parts.payload, Payload::Stream(_));
        has_body && parts.repeatable.unwrap_or(parts.verb.is_idempotent())
    }
}

/// A request on its way, to be controlled. Dropping it changes nothing.
#[derive(Clone)]
pub struct Exchange {
    shared: Rc<Shared>,
    call: Rc<Call>,
}

impl Exchange {
    pub(super) fn new(shared: Rc<Shared>, call: Rc<Call>) -> Exchange {
        Exchange { shared, call }
    }

    /// Whether the response is complete, or the request has failed or was cancelled.
    pub fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// Cancels the request. Its receiver is dropped, and is not called again.
    pub fn cancel(&self, reactor: &mut Reactor) {
        let place = self.call.place.replace(Place::Over);
        self.call.stop_waiting(reactor);
        self.forget();
        let Place::On(id) = place else { return };
        // If the connection's callback is running, it notices when that returns.
        reactor.visit(id, |connection: &mut ClientConnection, io| connection.check(io));
    }

    /// Cancels the request without access to the reactor.
    pub(super) fn abandon(&self) {
        let place = self.call.place.replace(Place::Over);
        self.forget();
        if let Place::On(id) = place {
            self.shared.post_check(id);
        }
    }

    fn forget(&self) {
        // User code is dropped outside of borrows.
        let receiver = self.call.receiver.take();
        let accept = self.call.state.borrow_mut().accept.take();
        let outgoing = std::mem::take(&mut *self.call.outgoing.borrow_mut());
        drop((receiver, accept, outgoing));
    }

    /// Stops reading the response, so that the server has to wait. Time while it is paused does not count towards the limit
    /// between two pieces.
    pub fn pause(&self, reactor: &mut Reactor) {
        if !self.call.paused.replace(true) {
            self.check(reactor);
        }
    }

    /// Resumes reading.
    pub fn resume(&self, reactor: &mut Reactor) {
        if self.call.paused.replace(false) {
            self.check(reactor);
        }
    }

    /// Sends a piece of a [streamed body](super::Request::streamed_body). Returns whether there is room for more. A piece sent while
    /// it is full is not lost, but is queued in memory.
    pub fn send(&self, reactor: &mut Reactor, content: impl Into<Content>) -> Result<SendState, Gone> {
        if self.call.is_over() {
            return Err(Gone);
        }
        let content = content.into();
        {
            let outgoing = &mut *self.call.outgoing.borrow_mut();
            if outgoing.finished {
                return Err(Gone);
            }
            if !content.is_empty() {
                outgoing.queued = outgoing.queued.saturating_add(content.len());
                outgoing.queue.push_back(content);
            }
        }
        self.check(reactor);
        if self.call.is_over() {
            return Err(Gone);
        }
        let full = self.call.outgoing.borrow().queued >= HIGH;
        Ok(if full { SendState::Full } else { SendState::Ready })
    }

    /// Calls `then` when there is room for more, or soon if there is. There is none before the request has a connection, or while
    /// it [waits for the server's consent](super::Request::expect_continue). If the request ends first, `then` is dropped.
    pub fn when_ready(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        if self.call.is_over() {
            return;
        }
        self.call.outgoing.borrow_mut().ready = Some(Box::new(then));
        let call = self.call.clone();
        reactor.next_tick(move |reactor| call.notify_room(reactor));
    }

    /// Ends a streamed body.
    pub fn finish(&self, reactor: &mut Reactor) {
        self.call.outgoing.borrow_mut().finished = true;
        self.check(reactor);
    }

    /// Ends a streamed body with these trailers, which are valid header lines. Only a chunked body has trailers.
    pub(crate) fn finish_with_trailers(&self, reactor: &mut Reactor, lines: &[u8]) {
        self.call.outgoing.borrow_mut().trailers.extend_from_slice(lines);
        self.finish(reactor);
    }

    /// Takes the request out of a call that has failed, to send it elsewhere.
    pub(crate) fn take_parts(&self) -> Option<Parts> {
        self.call.state.borrow_mut().parts.take()
    }

    pub(super) fn error(&self, kind: ErrorKind) -> Error {
        self.call.error(kind)
    }

    fn check(&self, reactor: &mut Reactor) {
        if let Place::On(id) = self.call.place.get() {
            reactor.visit(id, |connection: &mut ClientConnection, io| connection.check(io));
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({} {}, {:?})", self.call.method(), self.call.url(), self.call.place.get())
    }
}
