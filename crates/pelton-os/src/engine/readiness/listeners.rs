//! Listeners on the readiness engine.

use std::fs::File;
use std::io;

use super::watches::Input;
use super::{ReadinessEngine, Role, Watch};
use crate::endpoint::Endpoint;
use crate::engine::{Event, Intake, ListenEngine, no_such_source};
use crate::poller::Poller;
use crate::socket::SystemSocket;
use crate::{Accepted, Address, Interest, ListenOptions, Socket, Token};

/// Connections that one listener accepts per turn, so that a flood of them does not starve other sources.
const ACCEPTS_PER_TURN: usize = 64;

#[derive(Default)]
pub(super) struct Listeners {
    /// The listener that is accepting, and how many more connections it may accept this turn.
    accepting: Option<(Token, usize)>,
    /// All listeners, and some that were forgotten.
    all: Vec<Listening>,
    /// Counts waits.
    waits: u64,
    /// Listeners to check although the poller did not report them.
    unchecked: Vec<Token>,
    /// A descriptor in reserve, to turn connections away with when there are no others left.
    spare: Option<File>,
}

/// How many connections a listener is expected to have.
///
/// An attempt to accept one more than there is costs as much as a tenth of a connection. So a listener accepts one per report,
/// since the poller reports it again if there are more. If it is reported by one wait after the other, there may be: it accepts
/// twice as many each time, until there are none left. Every attempt in vain makes it slower to try again.
struct Listening {
    token: Token,
    /// Connections to accept per report.
    accepts: usize,
    /// The wait that reported it last.
    reported_by: u64,
    /// How many waits in a row have reported it since it last accepted more.
    reports: u32,
    /// How many have to, until it accepts more.
    patience: u32,
}

/// The most reports after which a listener tries to accept more than one connection.
const MOST_PATIENCE: u32 = 15;

impl Listening {
    fn new(token: Token) -> Listening {
        Listening { token, accepts: 1, reported_by: 0, reports: 0, patience: 1 }
    }

    /// Returns how many connections to accept now that this wait has reported the listener.
    fn reported(&mut self, wait: u64) -> usize {
        let again = self.reported_by + 1 == wait;
        self.reported_by = wait;
        if !again {
            (self.accepts, self.reports) = (1, 0);
            return 1;
        }
        self.reports += 1;
        if self.reports >= self.patience {
            self.reports = 0;
            self.accepts = (2 * self.accepts).min(ACCEPTS_PER_TURN);
        }
        self.accepts
    }

    /// There was no connection left after it had accepted this many.
    fn found_none(&mut self, accepted: usize) {
        // More than one, but not as many as before, is no attempt in vain.
        self.patience = if accepted > 1 { 1 } else { (2 * self.patience + 1).min(MOST_PATIENCE) };
        (self.accepts, self.reports) = (accepted.max(1), 0);
    }
}

impl<P: Poller> ReadinessEngine<P> {
    fn add_listener(&mut self, token: Token, endpoint: Endpoint) -> io::Result<()> {
        if self.listeners.spare.is_none() {
            self.listeners.spare = Some(File::open("/dev/null")?);
        }
        self.register_endpoint(token, endpoint, Role::Listener)?;
        self.drop_forgotten_listeners();
        let Listeners { all, unchecked, .. } = &mut self.listeners;
        all.push(Listening::new(token));
        // Reserved now, so that `accept_again` does not allocate.
        unchecked.reserve(all.len().saturating_sub(unchecked.len()));
        Ok(())
    }

    fn drop_forgotten_listeners(&mut self) {
        let watches = &self.watches;
        self.listeners
            .all
            .retain(|listener| matches!(watches.get(listener.token), Some(Watch { role: Role::Listener(_), .. })));
    }

    /// The poller has reported a listener: returns its first connection.
    pub(super) fn listener_is_ready(&mut self, token: Token) -> Option<Event> {
        let wait = self.listeners.waits;
        let accepts = self.listening(token).map_or(ACCEPTS_PER_TURN, |listener| listener.reported(wait));
        self.listeners.accepting = Some((token, accepts));
        self.next_accepted()
    }

    fn listening(&mut self, token: Token) -> Option<&mut Listening> {
        self.listeners.all.iter_mut().find(|listener| listener.token == token)
    }

    /// A wait begins.
    pub(super) fn count_wait(&mut self) {
        self.listeners.waits += 1;
    }

    /// Accepts the next connection of the listener that is accepting, or of one that is unchecked.
    #[inline]
    pub(super) fn next_accepted(&mut self) -> Option<Event> {
        if self.listeners.accepting.is_none() && self.listeners.unchecked.is_empty() {
            return None;
        }
        self.accept_next()
    }

    fn accept_next(&mut self) -> Option<Event> {
        loop {
            if self.listeners.accepting.is_none() {
                let token = self.listeners.unchecked.pop()?;
                let accepts = |watch: &Watch| watch.interest.readable() && watch.input == Input::Received;
                let accepts = self.watches.get(token).is_some_and(accepts);
                self.listeners.accepting = accepts.then_some((token, ACCEPTS_PER_TURN));
            }
            let Some((token, left)) = self.listeners.accepting else { continue };
            self.listeners.accepting = (left > 1).then_some((token, left - 1));
            match self.accept_waiting(token) {
                None => {
                    self.listeners.accepting = None;
                    // One that was checked without a report may accept more than it expects.
                    if let Some(listener) = self.listening(token).filter(|listener| left <= listener.accepts) {
                        let accepted = listener.accepts - left;
                        listener.found_none(accepted);
                    }
                }
                event => return event,
            }
        }
    }

    fn accept_waiting(&mut self, token: Token) -> Option<Event> {
        loop {
            let Role::Listener(listener) = &self.watches.get(token)?.role else { return None };
            match listener.accept() {
                Ok(socket) => return Some(Event::Accepted(token, socket.into())),
                Err(_) if listener.is_closed_by_owner() => return self.owner_has_closed_unnoticed(token),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    // The connection was closed before it was accepted, or a signal came: try the next.
                    Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
                    _ => return Some(Event::AcceptFailed(token, error)),
                },
            }
        }
    }
}

impl<P: Poller> ListenEngine for ReadinessEngine<P> {
    fn listen(&mut self, token: Token, address: &Address, options: &ListenOptions) -> io::Result<()> {
        self.add_listener(token, Endpoint::Own(SystemSocket::listen(address, options)?))
    }

    fn adopt_listener(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.add_listener(token, socket.into_listener()?)
    }

    fn accept(&mut self, token: Token, intake: Intake) -> io::Result<()> {
        let interest = match intake {
            Intake::On => Interest::READABLE,
            Intake::Off => Interest::NONE,
        };
        self.set_interest(token, interest)
    }

    fn accept_manually(&mut self, token: Token) -> io::Result<()> {
        self.report_input(token)
    }

    fn accept_one(&mut self, token: Token) -> io::Result<Accepted> {
        match self.watches.get(token).map(|watch| &watch.role) {
            Some(Role::Listener(listener)) => listener.accept_from(),
            _ => Err(no_such_source(token)),
        }
    }

    fn accept_again(&mut self) {
        self.drop_forgotten_listeners();
        let Listeners { all, unchecked, .. } = &mut self.listeners;
        unchecked.clear();
        unchecked.extend(all.iter().map(|listener| listener.token));
    }

    /// A connection that cannot be accepted stays in the backlog and keeps the listener readable. So the spare descriptor is
    /// closed, the connection accepted in its place and closed at once: its other side learns immediately that it is refused.
    fn turn_away(&mut self, token: Token) {
        self.listeners.spare = None;
        if let Some(Role::Listener(listener)) = self.watches.get(token).map(|watch| &watch.role) {
            drop(listener.accept());
        }
        self.listeners.spare = File::open("/dev/null").ok();
    }
}
