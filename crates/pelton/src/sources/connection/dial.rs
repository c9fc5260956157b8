//! Connects by name: looks the name up, then races its addresses.
//!
//! The race follows RFC 8305, "Happy Eyeballs". The addresses are tried one after the other, alternating between
//! families. Each attempt runs alone for a short time before the next one starts in parallel. The first connection
//! established wins, and the others are closed. So an unreachable address costs a quarter of a second, not the whole
//! connect limit.
//!
//! Each attempt is a source with its own token. The engine detaches the winner and adopts it under the connection's
//! token. So an engine knows nothing of races, and a handler has one connection from the start.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;

use pelton_os::{Address, ConnectOptions, Event, Socket, Token};

use super::stream::{ConnectionState, Stage};
use super::{Connection, ConnectionId, Reason};
use crate::reactor::source::{Kind, Source};
use crate::{Endpoint, Error, LookupError, LookupId, Reactor, TimerId};

/// A failed attempt to connect to one address of a name.
#[derive(Debug)]
pub struct FailedAttempt {
    /// The address.
    pub address: Address,
    /// The system error.
    pub error: io::Error,
}

/// Formats a list of attempts: `127.0.0.1:80: refused; [::1]:80: refused`.
pub(super) struct List<'a>(pub(super) &'a [FailedAttempt]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, FailedAttempt { address, error }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            match error.kind() {
                io::ErrorKind::ConnectionRefused => write!(f, "{separator}{address}: refused")?,
                _ => write!(f, "{separator}{address}: {error}")?,
            }
        }
        Ok(())
    }
}

/// The state of connecting by name, until the connection is established.
pub(super) struct Dial {
    target: Endpoint,
    options: ConnectOptions,
    lookup: Option<LookupId>,
    /// Addresses not tried yet.
    untried: VecDeque<SocketAddr>,
    /// Running attempts, in the order in which they started.
    running: Vec<(Token, Address)>,
    failed: Vec<FailedAttempt>,
    /// Starts the next attempt even if the last one is still running.
    timer: Option<TimerId>,
}

/// One of several parallel attempts to connect the connection with this token.
pub(crate) struct Attempt(Token);

impl Kind for Attempt {
    fn event(reactor: &mut Reactor, attempt: Token, event: Event) {
        match event {
            Event::Connected(_) => reactor.attempt_succeeded(attempt),
            Event::Ended(_, outcome) => reactor.attempt_ended(attempt, outcome),
            Event::Detached(_, socket) => reactor.attempt_is_detached(attempt, socket),
            other => reactor.unexpected_event(&other),
        }
    }
}

impl Reactor {
    /// Connects to a [name or address](Endpoint). The target is an `Endpoint`, a string (`example.org:80`,
    /// `127.0.0.1:80`, `[::1]:80`, `unix:/path`) or a pair of host and port (`("example.org", 80)`). The handler's
    /// [`opened`](Connection::opened) is called when the connection is established, or [`closed`](Connection::closed)
    /// if it fails; never before this method returns. Data can be sent immediately, and the connection can be closed at
    /// any time.
    ///
    /// The [resolver](crate::Builder::resolver) looks the name up on another thread. If the name has several addresses,
    /// they are raced. Address families alternate, starting with the family of the resolver's first address. The next
    /// attempt starts when one fails, or [250 milliseconds](crate::Builder::attempt_delay) after the last one started.
    /// The first connection established wins. [`Limit::Connect`](crate::Limit::Connect) covers the lookup and all
    /// attempts together.
    ///
    /// ```
    /// # use pelton::{Chunk, Connection, Io, Reactor, Reason};
    /// struct Client;
    ///
    /// impl Connection for Client {
    ///     fn opened(&mut self, io: &mut Io<'_>) {
    ///         println!("connected to {:?}", io.peer_address());
    ///     }
    ///
    ///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
    ///
    ///     fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
    ///         println!("{reason}");
    ///         reactor.stop();
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.connect_to("localhost:1", Client)?;
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    ///
    /// [`Reconnect`](crate::Reconnect) reconnects with growing delays. A simple client can also connect again in
    /// [`closed`](Connection::closed):
    ///
    /// ```
    /// # use pelton::{Chunk, Connection, Io, Reactor, Reason};
    /// # use std::time::Duration;
    /// # struct Client;
    /// impl Connection for Client {
    /// #   fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
    ///     fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
    ///         if !reactor.stopping() {
    ///             reactor.after(Duration::from_secs(1), |reactor| {
    ///                 reactor.connect_to("localhost:80", Client).ok();
    ///             });
    ///         }
    ///     }
    /// }
    /// ```
    #[track_caller]
    pub fn connect_to(
        &mut self,
        target: impl TryInto<Endpoint, Error: Into<Error>>,
        handler: impl Connection,
    ) -> Result<ConnectionId, Error> {
        self.connect_to_with(target, &ConnectOptions::default(), handler)
    }

    /// Connects like [`connect_to`](Reactor::connect_to), with [options](ConnectOptions) such as the local address.
    /// Addresses of another family than the local address are not tried.
    #[track_caller]
    pub fn connect_to_with(
        &mut self,
        target: impl TryInto<Endpoint, Error: Into<Error>>,
        options: &ConnectOptions,
        handler: impl Connection,
    ) -> Result<ConnectionId, Error> {
        let target = target.try_into().map_err(Into::into)?;
        self.dial(Location::caller(), target, options, Box::new(handler))
    }

    pub(crate) fn dial(
        &mut self,
        location: &'static Location<'static>,
        target: Endpoint,
        options: &ConnectOptions,
        handler: Box<dyn Connection>,
    ) -> Result<ConnectionId, Error> {
        let (host, port) = match &target {
            Endpoint::Address(address) => return self.connect_from(location, address, options, handler),
            Endpoint::Name { host, port } => (host.clone(), *port),
        };
        self.check_takes_on()?;
        let mut stream = ConnectionState::connecting(location, handler, self.clock());
        stream.extra().dial = Some(Box::new(Dial {
            target,
            options: options.clone(),
            lookup: None,
            untried: VecDeque::new(),
            running: Vec::new(),
            failed: Vec::new(),
            timer: None,
        }));
        let id = self.add_stream(stream);
        let lookup = self.resolve(&host, port, move |reactor, found| reactor.looked_up(id.0, found));
        match lookup {
            Ok(lookup) => {
                if let Some(dial) = self.dial_mut(id.0) {
                    dial.lookup = Some(lookup);
                }
                self.arm_limits(id.0);
                Ok(id)
            }
            Err(error) => {
                self.remove_stream(id);
                Err(error)
            }
        }
    }

    /// Returns the dialing state of a connection that is not established yet.
    fn dial_mut(&mut self, connection: Token) -> Option<&mut Dial> {
        let stream = self.stream_mut(connection).filter(|stream| stream.stage == Stage::Connecting)?;
        stream.extra.as_mut()?.dial.as_deref_mut()
    }

    fn looked_up(&mut self, connection: Token, found: Result<Vec<SocketAddr>, LookupError>) {
        let Some(dial) = self.dial_mut(connection) else { return };
        dial.lookup = None;
        match found {
            Err(error) => self.connection_is_over(connection, Reason::Unresolved(error)),
            Ok(addresses) => {
                dial.untried = alternate_families(addresses);
                dial.leave_out_other_families();
                match dial.untried.len() {
                    1 => self.connect_to_only_address(connection),
                    _ => self.begin_attempt(connection),
                }
            }
        }
    }

    /// Connects to a single address. There is no race, so the connection's own token is used.
    fn connect_to_only_address(&mut self, connection: Token) {
        let Some(Source::Connection(stream)) = self.sources.get_mut(connection) else { return };
        let Some(dial) = stream.extra.as_mut().and_then(|extra| extra.dial.as_deref_mut()) else { return };
        let Some(address) = dial.untried.pop_front().map(Address::Tcp) else { return };
        match self.engine.connect(connection, &address, &dial.options) {
            Ok(()) => dial.running.push((connection, address)),
            Err(error) => {
                dial.failed.push(FailedAttempt { address, error });
                self.all_failed(connection);
            }
        }
    }

    /// Tries the next address. If no address is left and no attempt is running, the connection fails.
    fn begin_attempt(&mut self, connection: Token) {
        let delay = self.names.attempt_delay;
        self.stop_attempt_timer(connection);
        loop {
            let Some(dial) = self.dial_mut(connection) else { return };
            let Some(address) = dial.untried.pop_front().map(Address::Tcp) else {
                if dial.running.is_empty() {
                    self.all_failed(connection);
                }
                return;
            };
            let options = dial.options.clone();
            let token = self.sources.insert(Source::Attempt(Attempt(connection)));
            let outcome = self.engine.connect(token, &address, &options);
            if outcome.is_err() {
                self.sources.remove(token);
            }
            let Some(dial) = self.dial_mut(connection) else { return };
            match outcome {
                Err(error) => dial.failed.push(FailedAttempt { address, error }),
                Ok(()) => {
                    dial.running.push((token, address));
                    if !dial.untried.is_empty() {
                        let timer = self.after(delay, move |reactor| {
                            if let Some(dial) = reactor.dial_mut(connection) {
                                dial.timer = None;
                                reactor.begin_attempt(connection);
                            }
                        });
                        if let Some(dial) = self.dial_mut(connection) {
                            dial.timer = Some(timer);
                        }
                    }
                    return;
                }
            }
        }
    }

    fn stop_attempt_timer(&mut self, connection: Token) {
        if let Some(timer) = self.dial_mut(connection).and_then(|dial| dial.timer.take()) {
            self.cancel(timer);
        }
    }

    fn connection_of_attempt(&self, attempt: Token) -> Option<Token> {
        match self.sources.get(attempt) {
            Some(Source::Attempt(Attempt(connection))) => Some(*connection),
            _ => None,
        }
    }

    /// Handles the winner: the engine detaches it, and the other attempts are closed.
    fn attempt_succeeded(&mut self, attempt: Token) {
        let Some(connection) = self.connection_of_attempt(attempt) else { return };
        if let Err(error) = self.engine.detach(attempt) {
            return self.attempt_ended(attempt, Err(error));
        }
        self.stop_attempt_timer(connection);
        let Some(dial) = self.dial_mut(connection) else { return };
        let (winner, losers) = std::mem::take(&mut dial.running).into_iter().partition(|(token, _)| *token == attempt);
        dial.running = winner;
        for (loser, _) in losers {
            self.end_source(loser);
        }
    }

    /// Handles a failed attempt: the next one starts immediately.
    fn attempt_ended(&mut self, attempt: Token, outcome: io::Result<()>) {
        let Some(connection) = self.connection_of_attempt(attempt) else { return };
        self.end_source(attempt);
        let Some(dial) = self.dial_mut(connection) else { return };
        let Some(index) = dial.running.iter().position(|(token, _)| *token == attempt) else { return };
        let (_, address) = dial.running.remove(index);
        let error = outcome.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
        dial.failed.push(FailedAttempt { address, error });
        self.begin_attempt(connection);
    }

    /// Turns the winner, which the engine has detached, into the connection.
    fn attempt_is_detached(&mut self, attempt: Token, socket: Socket) {
        let Some(connection) = self.connection_of_attempt(attempt) else { return };
        // Detaching has removed it from the engine.
        self.sources.retire(attempt);
        let Some(dial) = self.dial_mut(connection) else { return };
        dial.running.clear();
        match self.engine.adopt(connection, socket) {
            Ok(_) => {
                if let Some(stream) = self.stream_mut(connection) {
                    stream.extra().dial = None;
                }
                self.connection_is_open(connection);
            }
            Err(error) => self.connection_is_over(connection, Reason::Failed(error)),
        }
    }

    fn all_failed(&mut self, connection: Token) {
        if let Some(dial) = self.dial_mut(connection) {
            let (target, attempts) = (dial.target.clone(), std::mem::take(&mut dial.failed));
            self.connection_is_over(connection, Reason::AllFailed { target, attempts });
        }
    }

    /// Cancels the lookup and the attempts of a connection that has ended. Returns whether the connection's own token is
    /// unknown to the engine.
    pub(super) fn cancel_dial(&mut self, connection: Token) -> bool {
        let Some(dial) = self.stream_mut(connection).and_then(|stream| stream.extra.as_mut()?.dial.take()) else {
            return false;
        };
        if let Some(lookup) = dial.lookup {
            self.cancel_lookup(lookup);
        }
        if let Some(timer) = dial.timer {
            self.cancel(timer);
        }
        let mut unknown_to_engine = true;
        for (token, _) in dial.running {
            if token == connection {
                unknown_to_engine = false;
            } else {
                self.end_source(token);
            }
        }
        unknown_to_engine
    }
}

impl Dial {
    /// Returns why the only address could not be connected to.
    pub(super) fn into_reason(mut self, error: io::Error) -> Reason {
        let address = self.running.pop().map_or(Address::Unnamed, |(_, address)| address);
        self.failed.push(FailedAttempt { address, error });
        Reason::AllFailed { target: self.target, attempts: self.failed }
    }

    /// Drops addresses of another family than the local address: a socket bound to one family cannot connect to the
    /// other.
    fn leave_out_other_families(&mut self) {
        let Some(Address::Tcp(from)) = self.options.bind_address().cloned() else { return };
        for address in std::mem::take(&mut self.untried) {
            if address.is_ipv4() == from.is_ipv4() {
                self.untried.push_back(address);
            } else {
                let text = format!("not of the same address family as {from}");
                let error = io::Error::new(io::ErrorKind::AddrNotAvailable, text);
                self.failed.push(FailedAttempt { address: address.into(), error });
            }
        }
    }
}

/// Returns the distinct addresses with alternating families, starting with the family of the first. Within a family,
/// the resolver's order is kept.
fn alternate_families(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let mut known = Vec::new();
    for address in addresses {
        // Linear search: there are only a few.
        if !known.contains(&address) {
            known.push(address);
        }
    }
    let (first, second): (Vec<_>, Vec<_>) = known.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = VecDeque::new();
    loop {
        let (one, other) = (first.next(), second.next());
        if one.is_none() && other.is_none() {
            return turns;
        }
        turns.extend(one);
        turns.extend(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_beginning_with_that_of_the_first_address() {
        let turns = |addresses: &[&str]| -> Vec<String> {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            alternate_families(addresses).iter().map(ToString::to_string).collect()
        };
        assert!(turns(&[]).is_empty());
        assert_eq!(
            turns(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]),
            ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]
        );
        assert_eq!(turns(&["1.1.1.1:1", "2.2.2.2:1", "[::1]:1"]), ["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"]);
        assert_eq!(turns(&["1.1.1.1:1", "[::1]:1", "1.1.1.1:1", "[::1]:1"]), ["1.1.1.1:1", "[::1]:1"]);
    }
}
