//! The engine: it accepts operations, and completes them some turns later.
//!
//! The events of one source keep their order, as the contract of [`Engine`] demands; sending and receiving are ordered separately.
//! Events of different sources have no order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use pelton::{Address, ConnectOptions, Engine, ListenOptions, Park, Socket, Time};
use pelton_os::engine::{ListenEngine, StreamEngine};
use pelton_os::{Event, Forgotten, Intake, Outbox, Sending, Splice, StreamKind, Token, clock};

use crate::unsupported;

use super::Random;
use super::stream::{Outcomes, Stream};
use super::switchboard::{Alarm, End, Listener, Switchboard};

pub(super) struct MemoryEngine {
    board: &'static Switchboard,
    random: Random,
    /// The sources, sorted so that iteration is deterministic.
    sources: BTreeMap<Token, Source>,
    leaving: Vec<Leaving>,
    found: VecDeque<Event>,
    parking: Parking,
}

struct Source {
    role: Role,
    outcomes: Outcomes,
}

enum Role {
    Listener {
        listener: Listener,
        accepting: bool,
    },
    Connecting {
        address: Address,
        turns: usize,
    },
    Stream(Stream),
    /// Only its pending events are left.
    Spent,
}

/// A forgotten source, held until its pending events are delivered.
struct Leaving {
    token: Token,
    turns: usize,
    stale: VecDeque<Event>,
    _held: Option<Role>,
}

struct Parking {
    alarm: Arc<Alarm>,
    until: Option<Time>,
}

impl Park for Parking {
    fn block(&mut self) -> io::Result<()> {
        self.alarm.sleep(self.until.map(|until| until - clock::now()));
        Ok(())
    }
}

impl MemoryEngine {
    pub(super) fn new(board: &'static Switchboard, random: Random) -> MemoryEngine {
        MemoryEngine {
            board,
            random,
            sources: BTreeMap::new(),
            leaving: Vec::new(),
            found: VecDeque::new(),
            parking: Parking { alarm: Arc::default(), until: None },
        }
    }

    fn add(&mut self, token: Token, role: Role) {
        assert!(self.leaving.iter().all(|leaving| leaving.token.index() != token.index()), "{token:?} is still held");
        let before = self.sources.insert(token, Source { role, outcomes: Outcomes::new() });
        assert!(before.is_none(), "{token:?} is in use");
    }

    fn add_stream(&mut self, token: Token, end: End) {
        end.set_alarm(Some(&self.parking.alarm));
        self.add(token, Role::Stream(Stream::new(end)));
    }

    fn stream(&mut self, token: Token) -> io::Result<(&mut Stream, &mut Random)> {
        match self.sources.get_mut(&token) {
            Some(Source { role: Role::Stream(stream), .. }) => Ok((stream, &mut self.random)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn end(&self, token: Token) -> io::Result<&End> {
        match self.sources.get(&token) {
            Some(Source { role: Role::Stream(stream), .. }) => Ok(&stream.end),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Advances every operation and collects the events that are due. Returns whether the next turn will find more without outside
    /// help.
    fn go_on(&mut self) -> bool {
        let mut tokens: Vec<Token> = self.sources.keys().copied().collect();
        for token in &tokens {
            self.operate(*token);
        }
        // Takes one event each from random sources, until none is due.
        while !tokens.is_empty() {
            let pick = self.random.below(tokens.len());
            match self.next_outcome(tokens[pick]) {
                Some(event) => self.found.push_back(event),
                None => drop(tokens.swap_remove(pick)),
            }
        }
        self.let_go();
        !self.leaving.is_empty() || self.sources.values().any(Source::is_under_way)
    }

    /// Advances the operations of one source.
    fn operate(&mut self, token: Token) {
        let MemoryEngine { random, sources, board, parking, .. } = self;
        let Some(Source { role, outcomes }) = sources.get_mut(&token) else { return };
        match role {
            Role::Listener { listener, accepting } => {
                if *accepting && let Some(end) = listener.try_accept() {
                    outcomes.push_back((random.below(4), Event::Accepted(token, Socket::custom(Box::new(end)))));
                }
            }
            Role::Connecting { turns: 0, address } => {
                let event = match board.connect(address) {
                    Ok(end) => {
                        end.set_alarm(Some(&parking.alarm));
                        *role = Role::Stream(Stream::new(end));
                        Event::Connected(token)
                    }
                    // The peer never answers.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return *role = Role::Spent,
                    Err(error) => {
                        *role = Role::Spent;
                        Event::Ended(token, Err(error))
                    }
                };
                outcomes.push_back((random.below(3), event));
            }
            Role::Connecting { turns, .. } => *turns -= 1,
            Role::Stream(stream) => stream.operate(token, outcomes, random),
            Role::Spent => {}
        }
    }

    /// The next event of a source, if it is due.
    fn next_outcome(&mut self, token: Token) -> Option<Event> {
        let source = self.sources.get_mut(&token)?;
        if let Role::Stream(stream) = &mut source.role
            && stream.sending.take_if(|sending| sending.is_over(&stream.end)).is_some()
        {
            return Some(Event::Sendable(token));
        }
        let (turns, _) = source.outcomes.front_mut()?;
        if *turns > 0 {
            *turns -= 1;
            return None;
        }
        let (_, event) = source.outcomes.pop_front()?;
        if matches!(event, Event::Detached(..)) {
            self.sources.remove(&token);
        }
        Some(event)
    }

    /// Delivers stale events of forgotten sources, and releases them.
    fn let_go(&mut self) {
        let MemoryEngine { leaving, found, .. } = self;
        leaving.retain_mut(|leaving| {
            found.extend(leaving.stale.pop_front());
            if leaving.turns > 0 || !leaving.stale.is_empty() {
                leaving.turns = leaving.turns.saturating_sub(1);
                return true;
            }
            found.push_back(Event::Gone(leaving.token));
            false
        });
    }
}

impl Source {
    /// Whether it will make progress by itself.
    fn is_under_way(&self) -> bool {
        let acts = match &self.role {
            Role::Connecting { .. } => true,
            Role::Stream(stream) => stream.is_under_way(),
            Role::Listener { .. } | Role::Spent => false,
        };
        acts || !self.outcomes.is_empty()
    }
}

unsupported!(watches for MemoryEngine);
unsupported!(datagrams for MemoryEngine);

impl ListenEngine for MemoryEngine {
    fn listen(&mut self, token: Token, address: &Address, _: &ListenOptions) -> io::Result<()> {
        let listener = self.board.listen(address)?;
        listener.set_alarm(&self.parking.alarm);
        self.add(token, Role::Listener { listener, accepting: true });
        Ok(())
    }

    fn accept(&mut self, token: Token, intake: Intake) -> io::Result<()> {
        match self.sources.get_mut(&token) {
            Some(Source { role: Role::Listener { accepting, .. }, .. }) => *accepting = intake == Intake::On,
            _ => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(())
    }

    fn adopt_listener(&mut self, _: Token, _: Socket) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    unsupported!(manual listening);

    fn accept_again(&mut self) {}

    fn turn_away(&mut self, _: Token) {}
}

impl StreamEngine for MemoryEngine {
    fn connect(&mut self, token: Token, address: &Address, _: &ConnectOptions) -> io::Result<()> {
        if *address == Address::Unnamed {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let turns = self.random.below(5);
        self.add(token, Role::Connecting { address: address.clone(), turns });
        Ok(())
    }

    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<StreamKind> {
        let end = socket.into_custom().ok().and_then(|socket| socket.downcast::<End>().ok());
        self.add_stream(token, *end.ok_or(io::ErrorKind::Unsupported)?);
        Ok(StreamKind::Socket)
    }

    fn receive(&mut self, token: Token, intake: Intake) -> io::Result<()> {
        self.stream(token)?.0.receiving = intake == Intake::On;
        Ok(())
    }

    unsupported!(manual streams);

    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        assert!(!outbox.is_empty(), "{token:?} has nothing to send");
        let (stream, random) = self.stream(token)?;
        stream.send(outbox, random)
    }

    fn finish(&mut self, token: Token) -> io::Result<()> {
        let (stream, random) = self.stream(token)?;
        assert!(stream.sending.is_none(), "{token:?} is still sending");
        stream.finishing = Some(random.below(3));
        Ok(())
    }

    fn reset_when_forgotten(&mut self, _: Token) {}

    fn undelivered(&self, token: Token) -> Option<u64> {
        match self.sources.get(&token) {
            Some(Source { role: Role::Stream(stream), .. }) => Some(stream.undelivered()),
            _ => None,
        }
    }

    fn detach(&mut self, token: Token) -> io::Result<()> {
        let MemoryEngine { random, sources, .. } = self;
        let Some(Source { role, outcomes }) = sources.get_mut(&token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let Role::Stream(stream) = std::mem::replace(role, Role::Spent) else {
            panic!("{token:?} is not a stream");
        };
        assert!(stream.sending.is_none(), "{token:?} is still sending");
        stream.end.set_alarm(None);
        outcomes.push_back((random.below(5), Event::Detached(token, Socket::custom(Box::new(stream.end)))));
        Ok(())
    }

    fn splice(&mut self, _: Token, _: Option<(Token, Rc<Splice>)>) -> bool {
        false
    }

    fn has_unread(&self, _: Token) -> bool {
        false
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn waker(&self) -> Waker {
        Waker::from(self.parking.alarm.clone())
    }

    fn local_address(&self, token: Token) -> io::Result<Address> {
        match self.sources.get(&token) {
            Some(Source { role: Role::Listener { listener, .. }, .. }) => Ok(listener.address().clone()),
            _ => Ok(self.end(token)?.local_address().clone()),
        }
    }

    fn peer_address(&self, token: Token) -> io::Result<Address> {
        Ok(self.end(token)?.peer_address().clone())
    }

    fn forget(&mut self, token: Token) -> Forgotten {
        assert!(self.leaving.iter().all(|leaving| leaving.token != token), "{token:?} is forgotten twice");
        let Some(source) = self.sources.remove(&token) else { return Forgotten::Now };
        if self.random.one_in(4) {
            return Forgotten::Now;
        }
        let mut stale: VecDeque<Event> = source.outcomes.into_iter().map(|(_, event)| event).collect();
        stale.truncate(self.random.below(4));
        let role = match source.role {
            // Frees the address for other listeners.
            Role::Listener { .. } => None,
            role => Some(role),
        };
        if let Some(Role::Stream(Stream { sending: Some(_), .. })) = role {
            stale.push_back(Event::Sendable(token));
        }
        let _held = role.filter(|_| self.random.one_in(2));
        self.leaving.push(Leaving { token, turns: self.random.below(6), stale, _held });
        Forgotten::Held
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        self.parking.alarm.forget_news();
        let under_way = self.go_on();
        self.parking.until = if under_way || !self.found.is_empty() { Some(Time::ZERO) } else { until };
        &mut self.parking
    }

    fn next(&mut self) -> Option<Event> {
        self.found.pop_front()
    }

    fn descriptor(&self, _: Token) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_events(&self) -> bool {
        false
    }

    fn after_fork(&mut self) -> io::Result<()> {
        Ok(())
    }
}
