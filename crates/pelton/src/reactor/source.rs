//! The table of sources: everything that the engine reports events about.
//!
//! To add a kind of source, give it a folder or a file in `sources/` with a [`Kind`] in it, and a line in the table below.
//! The turn, draining and shutdown find it there.

use pelton_os::{Event, Forgotten, Token};

use super::Reactor;
use super::slots::{Key, Slots};
use crate::Fault;
use crate::sources::connection::{self, Reason, Stream};
use crate::sources::datagram::{self, DatagramSocket};
use crate::sources::listener::{self, Listener};
use crate::sources::signals;
use crate::sources::watch::{self, Watch};

/// What the reactor does with the sources of one kind.
pub(crate) struct Kind {
    /// Handles an event. The engine reports it by the token that is passed along.
    pub(crate) event: fn(&mut Reactor, Token, Event),
    /// Does what other callbacks have left to be done, in the flush phase: see [`Sources::flush_later`].
    pub(crate) flush: fn(&mut Reactor, Token),
    /// Lets go of a source that is over, and tells its handler why: see [`Sources::reap_later`].
    pub(crate) reap: fn(&mut Reactor, Token, Reason),
    /// Asks the source to end, because the reactor drains.
    pub(crate) drain: fn(&mut Reactor, Token),
    /// Ends the source, because the reactor shuts down. A source that does nothing here is dropped after all handlers were
    /// told.
    pub(crate) shut_down: fn(&mut Reactor, Token),
}

impl Kind {
    /// Handles nothing, and is dropped at the end.
    pub(crate) const PASSIVE: Kind = Kind {
        event: |reactor, _, event| reactor.unexpected_event(&event),
        flush: |_, _| {},
        reap: |_, _, _| {},
        drain: |_, _| {},
        shut_down: |_, _| {},
    };
}

/// Makes the table: what the reactor keeps of a source, and what it does with it.
macro_rules! table {
    ($($(#[$about:meta])* $name:ident($kept:ty) => $kind:expr,)*) => {
        /// A source, as the reactor keeps it.
        pub(crate) enum Source {
            $($(#[$about])* $name($kept),)*
        }

        /// The kinds of sources, as they are counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Counted {
            $($name,)*
        }

        static KINDS: [Kind; [$(Counted::$name),*].len()] = [$($kind),*];

        impl Source {
            #[inline]
            fn index(&self) -> usize {
                match self {
                    $(Source::$name(_) => Counted::$name as usize,)*
                }
            }
        }
    };
}

table! {
    /// A descriptor that stays its owner's.
    Watch(Watch) => watch::KIND,
    Connection(Stream) => connection::KIND,
    /// One of several ways to connect a connection, whose token this is.
    Attempt(Token) => connection::ATTEMPT,
    Listener(Box<Listener>) => listener::KIND,
    Datagrams(Box<DatagramSocket>) => datagram::KIND,
    /// The socket that signals come in by.
    Signals(()) => signals::KIND,
    /// Ended, but the engine has not let go of it yet.
    Leaving(()) => Kind::PASSIVE,
}

/// All sources of a reactor, by token.
#[derive(Default)]
pub(crate) struct Sources {
    slots: Slots<Source>,
    counts: [usize; KINDS.len()],
    /// Sources that a callback other than their own has left something to do for.
    pending: Vec<Token>,
    /// Sources that are over, and whose handlers have yet to be told.
    over: Vec<(Token, Reason)>,
}

impl Sources {
    pub(crate) fn insert(&mut self, source: Source) -> Token {
        self.counts[source.index()] += 1;
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
            self.counts[source.index()] -= 1;
        }
    }

    /// Removes a source that the engine has let go of. Its token is free when [`recycle`](Sources::recycle) is called: until
    /// then, events that are on their way find nobody.
    pub(crate) fn retire(&mut self, token: Token) {
        if let Some(source) = self.slots.retire(token.into()) {
            self.counts[source.index()] -= 1;
        }
    }

    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
    }

    /// Drops what is kept of a source that the engine has not let go of. Its token stays taken until the engine has.
    fn leave(&mut self, token: Token) {
        if let Some(source) = self.slots.get_mut(token.into()) {
            self.counts[source.index()] -= 1;
            self.counts[Counted::Leaving as usize] += 1;
            *source = Source::Leaving(());
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

    #[inline]
    fn kind(&self, token: Token) -> Option<&'static Kind> {
        self.get(token).map(|source| &KINDS[source.index()])
    }

    /// Has a source looked at in the next flush. It takes care not to be listed twice.
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
        let token = event.token();
        match (&event, self.sources.kind(token)) {
            (Event::Gone(_), _) => self.sources.retire(token),
            (_, Some(kind)) => (kind.event)(self, token, event),
            (_, None) => {}
        }
    }

    #[cold]
    pub(crate) fn unexpected_event(&mut self, event: &Event) {
        // One that is leaving was ended while the event was on its way.
        if !matches!(self.sources.get(event.token()), Some(Source::Leaving(()))) {
            self.report(Fault::new("engine", format_args!("an event that its source does not expect: {event:?}")));
        }
    }

    /// Looks at sources that callbacks other than their own have left something to do for.
    pub(super) fn flush_sources(&mut self) {
        // By number: this calls back, which may add more.
        let mut next = 0;
        while let Some(&token) = self.sources.pending.get(next) {
            next += 1;
            if let Some(kind) = self.sources.kind(token) {
                (kind.flush)(self, token);
            }
        }
        self.sources.pending.clear();
    }

    /// Lets go of sources that are over, and tells their handlers. Those that end meanwhile go too.
    pub(crate) fn reap_sources(&mut self) {
        while !self.sources.over.is_empty() {
            for (token, reason) in std::mem::take(&mut self.sources.over) {
                if let Some(kind) = self.sources.kind(token) {
                    (kind.reap)(self, token, reason);
                }
            }
        }
    }

    /// Asks all sources to end, so that the loop can.
    pub(super) fn drain_sources(&mut self) {
        for token in self.sources.tokens() {
            if let Some(kind) = self.sources.kind(token) {
                (kind.drain)(self, token);
            }
        }
    }

    /// Ends all sources that have handlers to tell, and tells them.
    pub(super) fn shut_down_sources(&mut self) {
        for token in self.sources.tokens() {
            if let Some(kind) = self.sources.kind(token) {
                (kind.shut_down)(self, token);
            }
        }
        self.reap_sources();
    }

    /// Ends all sources that are left.
    pub(super) fn end_sources(&mut self) {
        for token in self.sources.tokens() {
            // Those that are leaving have been forgotten already.
            if !matches!(self.sources.get(token), Some(Source::Leaving(()))) {
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
