//! A connection that is kept up: connecting, greeting, receiving, and connecting again.
//!
//! A [`Link`] outlives its connections. What it is used for is a [`Role`]: answering commands in order, or delivering
//! published messages. `wire.rs` handles one connection, `greeting.rs` its first replies, and `scout.rs` asks a Sentinel where the
//! master is.

mod greeting;
mod scout;
mod wire;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton::{Backoff, Connection, ConnectionId, Endpoint, Io, Reactor, Reason, Time, TimerId, WaterMarks};

use self::scout::Scout;
use self::wire::Wire;
use crate::{ConfigError, Options, Protocol, ProtocolError, ServerError, Value};

/// What a link is used for. No method is called while the link or the role is borrowed.
pub(crate) trait Role: Sized + 'static {
    /// Called when a connection is ready for commands.
    fn ready(link: &Rc<Link<Self>>, io: &mut Io<'_>, protocol: Protocol);

    /// Called with each value that arrives.
    fn value(link: &Rc<Link<Self>>, io: &mut Io<'_>, value: Value) -> Result<(), ProtocolError>;

    /// Called when a connection has ended, or could not be established.
    fn down(link: &Rc<Link<Self>>, reactor: &mut Reactor, down: &Down);

    /// Returns whether nothing waits for the server.
    fn is_idle(&self) -> bool;
}

/// Why there is no connection.
pub(crate) struct Down {
    pub(crate) reason: Arc<str>,
    pub(crate) cause: Cause,
}

#[derive(Clone)]
pub(crate) enum Cause {
    /// It ended, or could not be established. There will be another.
    Outage,
    /// The server does not accept these settings. It is asked again later.
    Refused(ServerError),
    /// The server has sent nonsense.
    Nonsense(ProtocolError),
    /// There will be no other connection.
    Closed,
}

pub(crate) struct Link<R> {
    pub(crate) role: R,
    pub(crate) options: Options,
    #[cfg(feature = "tls")]
    tls: Option<pelton_tls::Client>,
    state: RefCell<State>,
}

struct State {
    stage: Stage,
    backoff: Backoff,
    /// The time limit of the current attempt, or the wait until the next.
    timer: Option<TimerId>,
    /// The number of the current attempt. A connection of an earlier one has no say.
    attempt: u64,
    /// Why there was no connection the last time.
    reason: Arc<str>,
    received_at: Time,
    counts: Counts,
}

/// Statistics of a link.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) connects: u64,
    pub(crate) outages: u64,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Waiting for the next attempt.
    Down,
    /// Without a connection because nothing needs one: the loop is draining.
    Resting,
    Connecting(ConnectionId),
    Ready(ConnectionId, Time),
    Closed,
}

impl<R: Role> Link<R> {
    pub(crate) fn new(role: R, options: Options) -> Result<Link<R>, ConfigError> {
        #[cfg(feature = "tls")]
        let tls = match &options.tls {
            Some(client) => Some(client.clone()),
            None if options.secure => Some(pelton_tls::Client::new()?),
            None => None,
        };
        #[cfg(feature = "tls")]
        if let Some(tls) = &tls {
            // A name that no certificate can have is an error now, not at each attempt.
            tls.layer_to(&options.target)?;
        }
        let state = State {
            stage: Stage::Down,
            backoff: options.backoff.clone(),
            timer: None,
            attempt: 0,
            reason: "it is being connected".into(),
            received_at: Time::ZERO,
            counts: Counts::default(),
        };
        let state = RefCell::new(state);
        Ok(Link {
            role,
            options,
            #[cfg(feature = "tls")]
            tls,
            state,
        })
    }

    /// Connects, unless there is a connection or an attempt already.
    pub(crate) fn connect(self: &Rc<Self>, reactor: &mut Reactor) {
        let mut state = self.state.borrow_mut();
        if !matches!(state.stage, Stage::Down | Stage::Resting) {
            return;
        }
        let timer = state.timer.take();
        state.attempt += 1;
        let attempt = state.attempt;
        drop(state);
        if let Some(timer) = timer {
            reactor.cancel(timer);
        }
        let dialled = match &self.options.sentinels {
            None => self.dial(reactor, &self.options.target, Wire::new(self.clone(), attempt)),
            Some(sentinels) => {
                // Another one each time.
                let index = attempt.wrapping_sub(1) % sentinels.endpoints.len().max(1) as u64;
                let sentinel = sentinels.endpoints.get(index as usize).unwrap_or(&self.options.target);
                self.dial(reactor, sentinel, Scout::new(self.clone(), attempt))
            }
        };
        if let Some(id) = self.is_dialled(reactor, attempt, dialled) {
            let link = self.clone();
            let timer = reactor.after(self.options.connect_limit, move |reactor| link.connecting_is_late(reactor));
            let mut state = self.state.borrow_mut();
            state.stage = Stage::Connecting(id);
            state.timer = Some(timer);
        }
    }

    /// Connects to the master that a Sentinel has named. The time limit is that of the whole attempt.
    fn connect_to_master(self: &Rc<Self>, reactor: &mut Reactor, attempt: u64, master: &Endpoint) {
        {
            let state = self.state.borrow();
            if state.attempt != attempt || !matches!(state.stage, Stage::Connecting(_)) {
                return;
            }
        }
        let dialled = self.dial(reactor, master, Wire::new(self.clone(), attempt));
        if let Some(id) = self.is_dialled(reactor, attempt, dialled) {
            self.state.borrow_mut().stage = Stage::Connecting(id);
        }
    }

    fn is_dialled(
        self: &Rc<Self>,
        reactor: &mut Reactor,
        attempt: u64,
        dialled: Result<ConnectionId, pelton::Error>,
    ) -> Option<ConnectionId> {
        match dialled {
            Ok(id) => {
                if let Some(mut io) = reactor.connection(id) {
                    io.set_label(format!("redis {}", self.options.target));
                    // The role bounds what is queued, with an error that says so.
                    io.set_water_marks(WaterMarks { most: usize::MAX / 2, ..WaterMarks::default() });
                }
                return Some(id);
            }
            Err(pelton::Error::Stopped | pelton::Error::Forked) => self.close(reactor),
            Err(error) => self.is_over(reactor, attempt, &error.to_string(), Cause::Outage),
        }
        None
    }

    /// Connects if it has never been tried, or if there was no need.
    pub(crate) fn connect_if_new(self: &Rc<Self>, reactor: &mut Reactor) {
        let new = {
            let state = self.state.borrow();
            state.attempt == 0 || matches!(state.stage, Stage::Resting)
        };
        if new {
            self.connect(reactor);
        }
    }

    /// Returns whether there is a connection, or an attempt to make one.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state.borrow().stage, Stage::Connecting(_) | Stage::Ready(..))
    }

    fn dial(
        &self,
        reactor: &mut Reactor,
        target: &Endpoint,
        handler: impl Connection,
    ) -> Result<ConnectionId, pelton::Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let layer = tls.layer_to(target).map_err(|error| pelton::Error::System {
                doing: format!("connect to {target}"),
                error: std::io::Error::new(std::io::ErrorKind::InvalidInput, error),
            })?;
            return reactor.connect_to(target, pelton::Layered::new(handler, move |io| io.push_layer(layer)));
        }
        reactor.connect_to(target, handler)
    }

    fn connecting_is_late(&self, reactor: &mut Reactor) {
        let stage = {
            let mut state = self.state.borrow_mut();
            state.timer = None;
            state.stage
        };
        if let Stage::Connecting(id) = stage
            && let Some(mut io) = reactor.connection(id)
        {
            let after = self.options.connect_limit;
            io.close_with(Reason::layer(format!("the server did not accept the connection within {after:?}")));
        }
    }

    /// Records that the greeting is over.
    fn is_ready(self: &Rc<Self>, io: &mut Io<'_>, protocol: Protocol) {
        let now = io.reactor().now();
        let timer = {
            let mut state = self.state.borrow_mut();
            state.stage = Stage::Ready(io.id(), now);
            state.received_at = now;
            state.counts.connects += 1;
            state.timer.take()
        };
        if let Some(timer) = timer {
            io.reactor().cancel(timer);
        }
        R::ready(self, io, protocol);
    }

    /// Records the end of a connection, and schedules the next attempt.
    fn is_over(self: &Rc<Self>, reactor: &mut Reactor, attempt: u64, reason: &str, cause: Cause) {
        let reason: Arc<str> = reason.into();
        let mut state = self.state.borrow_mut();
        if state.attempt != attempt || matches!(state.stage, Stage::Closed) {
            return;
        }
        let up = match state.stage {
            Stage::Ready(_, since) => Some(reactor.now() - since),
            _ => None,
        };
        let resting = matches!(state.stage, Stage::Resting);
        let timer = state.timer.take();
        if !resting {
            state.stage = Stage::Down;
            state.counts.outages += 1;
            state.reason = reason.clone();
        }
        drop(state);
        if let Some(timer) = timer {
            reactor.cancel(timer);
        }
        // Answers may ask for more, so nothing is borrowed. The stage is such that this cannot connect twice.
        R::down(self, reactor, &Down { reason: reason.clone(), cause });
        let unneeded = (resting || reactor.stopping()) && self.role.is_idle();
        let mut state = self.state.borrow_mut();
        if unneeded && matches!(state.stage, Stage::Down) {
            state.stage = Stage::Resting;
        }
        if unneeded || !matches!(state.stage, Stage::Down | Stage::Resting) || state.timer.is_some() {
            return;
        }
        let wait = state.backoff.wait_after(up);
        drop(state);
        tracing::debug!(target = %self.options.target, %reason, ?wait, "connecting to Redis again");
        let link = self.clone();
        let timer = reactor.after(wait, move |reactor| {
            link.state.borrow_mut().timer = None;
            link.connect(reactor);
        });
        self.state.borrow_mut().timer = Some(timer);
    }

    /// Ends the connection. There will be no other.
    pub(crate) fn close(self: &Rc<Self>, reactor: &mut Reactor) {
        let (stage, timer) = {
            let mut state = self.state.borrow_mut();
            (std::mem::replace(&mut state.stage, Stage::Closed), state.timer.take())
        };
        if matches!(stage, Stage::Closed) {
            return;
        }
        if let Some(timer) = timer {
            reactor.cancel(timer);
        }
        if let Stage::Ready(id, _) | Stage::Connecting(id) = stage
            && let Some(mut io) = reactor.connection(id)
        {
            io.close_after_writing();
        }
        R::down(self, reactor, &Down { reason: "the client is closed".into(), cause: Cause::Closed });
    }

    /// Closes the connection of a draining loop, on which nothing waits. It is opened again if something needs it.
    fn rest(&self, io: &mut Io<'_>) {
        let mut state = self.state.borrow_mut();
        if matches!(state.stage, Stage::Ready(..)) {
            state.stage = Stage::Resting;
        }
        drop(state);
        io.close_after_writing();
    }

    /// Gives up the connection, and makes another.
    pub(crate) fn give_up(&self, reactor: &mut Reactor, why: String) {
        if let Some(id) = self.ready_connection()
            && let Some(mut io) = reactor.connection(id)
        {
            io.close_with(Reason::layer(why));
        }
    }

    pub(crate) fn ready_connection(&self) -> Option<ConnectionId> {
        match self.state.borrow().stage {
            Stage::Ready(id, _) => Some(id),
            _ => None,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state.borrow().stage, Stage::Closed)
    }

    pub(crate) fn is_resting(&self) -> bool {
        matches!(self.state.borrow().stage, Stage::Resting)
    }

    pub(crate) fn last_reason(&self) -> Arc<str> {
        self.state.borrow().reason.clone()
    }

    pub(crate) fn received_at(&self) -> Time {
        self.state.borrow().received_at
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// Returns whether a Sentinel tells where the master is.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.options.sentinels.is_some()
    }

    /// Returns how long the server may be silent while an answer is overdue.
    pub(crate) fn silence(&self) -> Duration {
        self.options.time_limit
    }
}
