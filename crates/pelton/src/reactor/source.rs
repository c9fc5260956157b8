//! The table of sources: everything that the engine reports events about.
//!
//! To add a kind of source, give it a folder or a file in `sources/`, implement [`Kind`] there, and add a line to the table.
//! The turn, draining and shutdown find it there.

use pelton_os::{Event, Forgotten, Token};

use super::Reactor;
use super::slots::{Key, Slots};
use crate::Fault;
use crate::sources::connection::{Attempt, ConnectionState, Reason};
use crate::sources::datagram::DatagramSocket;
use crate::sources::listener::Listener;
use crate::sources::signals::SignalSocket;
use crate::sources::watch::Watch;

/// What the reactor does with the sources of one kind. It is implemented by what is kept of such a source.
pub(crate) trait Kind {
    /// Handles an event that the engine reports about the source.
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        let _ = token;
        reactor.unexpected_event(&event);
    }

    /// Does what other callbacks have left to be done, in the flush phase: see [`Sources::flush_later`].
    fn flush(_: &mut Reactor, _: Token) {}

    /// Lets go of a source that is over, and tells its handler why: see [`Sources::reap_later`].
    fn reap(_: &mut Reactor, _: Token, _: Reason) {}

    /// Asks the source to end, because the reactor drains.
    fn drain(_: &mut Reactor, _: Token) {}

    /// Ends the source, because the reactor shuts down. A source that does nothing here is dropped after all handlers were
    /// told.
    fn shut_down(_: &mut Reactor, _: Token) {}
}

/// Makes the table: what the reactor keeps of each kind of source. What it does with it is that type's [`Kind`].
macro_rules! table {
    ($($(#[$about:meta])* $name:ident($kept:ty),)*) => {
        /// A source, as the reactor keeps it.
        pub(crate) enum Source {
            $($(#[$about])* $name($kept),)*
        }

        /// The kinds of sources, as they are counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Counted {
            $($name,)*
        }

        const KINDS: usize = [$(Counted::$name),*].len();

        impl Source {
            fn counted(&self) -> Counted {
                match self {
                    $(Source::$name(_) => Counted::$name,)*
                }
            }
        }

        /// Each calls its namesake of the source's kind, unless the source has ended.
        impl Reactor {
            #[inline]
            fn source_event(&mut self, token: Token, event: Event) {
                match self.sources.get(token) {
                    $(Some(Source::$name(_)) => <$kept as Kind>::event(self, token, event),)*
                    None => {}
                }
            }

            fn flush_source(&mut self, token: Token) {
                match self.sources.get(token) {
                    $(Some(Source::$name(_)) => <$kept as Kind>::flush(self, token),)*
                    None => {}
                }
            }

            fn reap_source(&mut self, token: Token, reason: Reason) {
                match self.sources.get(token) {
                    $(Some(Source::$name(_)) => <$kept as Kind>::reap(self, token, reason),)*
                    None => {}
                }
            }

            fn drain_source(&mut self, token: Token) {
                match self.sources.get(token) {
                    $(Some(Source::$name(_)) => <$kept as Kind>::drain(self, token),)*
                    None => {}
                }
            }

            fn shut_down_source(&mut self, token: Token) {
                match self.sources.get(token) {
                    $(Some(Source::$name(_)) => <$kept as Kind>::shut_down(self, token),)*
                    None => {}
                }
            }
        }
    };
}

table! {
    /// A descriptor that stays its owner's.
    Watch(Watch),
    Connection(ConnectionState),
    /// One of several ways to connect a connection.
    Attempt(Attempt),
    Listener(Box<Listener>),
    Datagrams(Box<DatagramSocket>),
    /// The socket that signals come in by.
    Signals(SignalSocket),
    /// Ended, but the engine has not let go of it yet.
    Leaving(Leaving),
}

/// What is left of a source that has ended while the engine still holds it.
pub(crate) struct Leaving;

impl Kind for Leaving {
    /// It was ended while the event was on its way.
    fn event(_: &mut Reactor, _: Token, _: Event) {}
}

/// All sources of a reactor, by token.
#[derive(Default)]
pub(crate) struct Sources {
    slots: Slots<Source>,
    counts: [usize; KINDS],
    /// Sources that a callback other than their own has left something to do for.
    pending: Vec<Token>,
    /// Sources that are over, and whose handlers have yet to be told.
    over: Vec<(Token, Reason)>,
}

impl Sources {
    pub(crate) fn insert(&mut self, source: Source) -> Token {
        self.counts[source.counted() as usize] += 1;
        self.slots.insert(source).token()
    }

    #[inline]
    pub(crate) fn get(&self, token: Token) -> Option<&Source> {
        self.slots.get(token.into())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Source> {
        self.slots.get_mut(token.into())
    }

    /// Removes a source that the engine never heard of. Its token is free at once.
    pub(crate) fn remove(&mut self, token: Token) {
        if let Some(source) = self.slots.remove(token.into()) {
            self.counts[source.counted() as usize] -= 1;
        }
    }

    /// Removes a source that the engine has let go of. Its token is free when [`recycle`](Sources::recycle) is called: until
    /// then, events that are on their way find nobody.
    pub(crate) fn retire(&mut self, token: Token) {
        if let Some(source) = self.slots.retire(token.into()) {
            self.counts[source.counted() as usize] -= 1;
        }
    }

    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
    }

    /// Drops what is kept of a source that the engine has not let go of. Its token stays taken until the engine has.
    fn leave(&mut self, token: Token) {
        if let Some(source) = self.slots.get_mut(token.into()) {
            self.counts[source.counted() as usize] -= 1;
            self.counts[Counted::Leaving as usize] += 1;
            *source = Source::Leaving(Leaving);
        }
    }

    pub(crate) fn count(&self, kind: Counted) -> usize {
        self.counts[kind as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Source)> {
        self.slots.iter().map(|(key, source)| (key.token(), source))
    }

    /// The tokens of all sources, to go through them while callbacks add and end some.
    fn tokens(&self) -> Vec<Token> {
        self.iter().map(|(token, _)| token).collect()
    }

    /// Has a source looked at in the next flush. It takes care not to be flush_queued twice.
    pub(crate) fn flush_later(&mut self, token: Token) {
        self.pending.push(token);
    }

    /// Has a source reaped in the next flush. Its kind takes care that this happens once.
    pub(crate) fn reap_later(&mut self, token: Token, reason: Reason) {
        self.over.push((token, reason));
    }

    /// Whether some are over, and about to give their descriptors back.
    pub(crate) fn any_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Whether there is something to flush or reap.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.over.is_empty()
    }
}

impl Reactor {
    /// Hands an event to the source that it is about, unless that was ended by a callback before it.
    #[inline]
    pub(super) fn handle_event(&mut self, event: Event) {
        match event {
            // Fast path: only connections receive bytes, so there is no kind to look up.
            Event::Received(token, chunk) => self.connection_received(token, chunk),
            Event::Gone(token) => self.sources.retire(token),
            event => self.source_event(event.token(), event),
        }
    }

    #[cold]
    pub(crate) fn unexpected_event(&mut self, event: &Event) {
        self.report(Fault::new("engine", format_args!("an event that its source does not expect: {event:?}")));
    }

    /// Looks at sources that callbacks other than their own have left something to do for.
    pub(super) fn flush_sources(&mut self) {
        // By number: this calls back, which may add more.
        let mut next = 0;
        while let Some(&token) = self.sources.pending.get(next) {
            next += 1;
            self.flush_source(token);
        }
        self.sources.pending.clear();
    }

    /// Lets go of sources that are over, and tells their handlers. Those that end meanwhile go too.
    pub(crate) fn reap_sources(&mut self) {
        while !self.sources.over.is_empty() {
            for (token, reason) in std::mem::take(&mut self.sources.over) {
                self.reap_source(token, reason);
            }
        }
    }

    /// Asks all sources to end, so that the loop can.
    pub(super) fn drain_sources(&mut self) {
        for token in self.sources.tokens() {
            self.drain_source(token);
        }
    }

    /// Ends all sources that have handlers to tell, and tells them.
    pub(super) fn shut_down_sources(&mut self) {
        for token in self.sources.tokens() {
            self.shut_down_source(token);
        }
        self.reap_sources();
    }

    /// Ends all sources that are left.
    pub(super) fn end_sources(&mut self) {
        for token in self.sources.tokens() {
            // Those that are leaving have been forgotten already.
            if !matches!(self.sources.get(token), Some(Source::Leaving(_))) {
                self.end_source(token);
            }
        }
    }

    /// Removes a source, from the engine and from here.
    pub(crate) fn end_source(&mut self, token: Token) {
        match self.engine.forget(token) {
            Forgotten::Now => self.sources.retire(token),
            Forgotten::Held => self.sources.leave(token),
        }
    }
}

impl Key {
    pub(crate) fn token(self) -> Token {
        Token::new(self.index, self.generation)
    }
}

impl From<Token> for Key {
    fn from(token: Token) -> Key {
        Key { index: token.index(), generation: token.generation() }
    }
}
