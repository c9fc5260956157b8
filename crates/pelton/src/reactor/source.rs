//! The table of sources. A source is anything that the engine reports events about.
//!
//! To add a kind of source, create a file or folder in `sources/`, implement [`Kind`] there and add a line to the
//! table. The turn, draining and shutdown then include it.

use pelton_os::{Event, Forgotten, Token};

use super::Reactor;
use super::slots::{Key, Slots};
use crate::Fault;
use crate::sources::connection::{Attempt, ConnectionState, Reason};
use crate::sources::datagram::DatagramSocket;
use crate::sources::listener::Listener;
use crate::sources::path_watch::PathWatches;
use crate::sources::process::ChildProcess;
use crate::sources::process::watch::ProcessWatch;
use crate::sources::signals::SignalSocket;
use crate::sources::watch::Watch;

/// The operations of one kind of source. The type that stores such a source implements it.
pub(crate) trait Kind {
    /// Handles an event that the engine reports for the source.
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        let _ = token;
        reactor.unexpected_event(&event);
    }

    /// Runs in the flush phase, after [`Sources::flush_later`]: handles work that other callbacks left for the source.
    fn flush(_: &mut Reactor, _: Token) {}

    /// Runs after [`Sources::reap_later`]: releases a source that has ended and tells its handler the reason.
    fn reap(_: &mut Reactor, _: Token, _: Reason) {}

    /// Asks the source to end because the reactor is draining.
    fn drain(_: &mut Reactor, _: Token) {}

    /// Ends the source because the reactor is shutting down. Sources that do nothing here are dropped after all
    /// handlers were notified.
    fn shut_down(_: &mut Reactor, _: Token) {}
}

/// Defines the table: the kinds of sources and the type that stores each. That type's [`Kind`] has the operations.
macro_rules! table {
    ($($(#[$about:meta])* $name:ident($kept:ty),)*) => {
        /// A source, as the reactor stores it.
        pub(crate) enum Source {
            $($(#[$about])* $name($kept),)*
        }

        /// The kinds of sources, for counting.
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

        /// Each method calls its counterpart of the source's [`Kind`], unless the source has ended.
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

            pub(crate) fn reap_source(&mut self, token: Token, reason: Reason) {
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
    /// A descriptor that the caller owns.
    Watch(Watch),
    Connection(ConnectionState),
    /// One of several parallel attempts to connect a connection.
    Attempt(Attempt),
    Listener(Box<Listener>),
    Datagrams(Box<DatagramSocket>),
    /// The socket on which signals arrive.
    Signals(SignalSocket),
    /// All watches of files and directories. They share a descriptor.
    Paths(Box<PathWatches>),
    /// A process that somebody watches.
    Process(Box<ProcessWatch>),
    Child(Box<ChildProcess>),
    /// Ended, but not released by the engine yet.
    Leaving(Leaving),
}

/// Takes the place of a source that has ended while the engine still holds it.
pub(crate) struct Leaving;

impl Kind for Leaving {
    /// Ignores the event: the source ended after the engine had queued it.
    fn event(_: &mut Reactor, _: Token, _: Event) {}
}

/// All sources of a reactor, by token.
#[derive(Default)]
pub(crate) struct Sources {
    slots: Slots<Source>,
    counts: [usize; KINDS],
    /// Sources that other callbacks left work for.
    pending: Vec<Token>,
    /// Sources that are over and whose handlers have not been notified yet.
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

    /// Removes a source that was never registered with the engine. Its token can be reused immediately.
    pub(crate) fn remove(&mut self, token: Token) {
        if let Some(source) = self.slots.remove(token.into()) {
            self.counts[source.counted() as usize] -= 1;
        }
    }

    /// Removes a source that the engine has released. Its token can be reused after [`recycle`](Sources::recycle).
    /// Until then, queued events for it find no source.
    pub(crate) fn retire(&mut self, token: Token) {
        if let Some(source) = self.slots.retire(token.into()) {
            self.counts[source.counted() as usize] -= 1;
        }
    }

    /// Returns whether slots of ended sources may have to be [recycled](Sources::recycle).
    #[inline]
    pub(crate) fn any_ended(&self) -> bool {
        self.slots.any_vacant()
    }

    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
    }

    /// Drops the state of a source that the engine still holds. Its token stays in use until the engine releases it.
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

    /// Returns how many sources there are, of all kinds.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the tokens of all sources, for iteration while callbacks add and end sources.
    fn tokens(&self) -> Vec<Token> {
        self.iter().map(|(token, _)| token).collect()
    }

    /// Queues a source for the next flush. Its kind must make sure that it is not queued twice.
    pub(crate) fn flush_later(&mut self, token: Token) {
        self.pending.push(token);
    }

    /// Queues a source to be reaped in the next flush. Its kind must make sure that this happens once.
    pub(crate) fn reap_later(&mut self, token: Token, reason: Reason) {
        self.over.push((token, reason));
    }

    /// Takes back a request to reap a source, which is then reaped by the caller.
    pub(crate) fn take_over(&mut self, token: Token) -> Option<Reason> {
        let place = self.over.iter().position(|(over, _)| *over == token)?;
        Some(self.over.swap_remove(place).1)
    }

    /// Returns whether sources are over and will release their descriptors soon.
    pub(crate) fn any_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Returns whether there are sources to flush or reap.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.over.is_empty()
    }
}

impl Reactor {
    /// Passes an event to its source, unless an earlier callback has ended the source.
    #[inline]
    pub(super) fn handle_event(&mut self, event: Event) {
        match event {
            // Fast path: only connections receive bytes, so no lookup of the kind is needed.
            Event::Received(token, chunk) => self.connection_received(token, chunk),
            Event::Gone(token) => self.sources.retire(token),
            event => self.source_event(event.token(), event),
        }
    }

    #[cold]
    pub(crate) fn unexpected_event(&mut self, event: &Event) {
        self.report(Fault::new("engine", format_args!("unexpected event: {event:?}")));
    }

    /// Flushes the sources that other callbacks left work for.
    pub(super) fn flush_sources(&mut self) {
        // By index: callbacks may queue more.
        let mut next = 0;
        while let Some(&token) = self.sources.pending.get(next) {
            next += 1;
            self.flush_source(token);
        }
        self.sources.pending.clear();
    }

    /// Reaps sources that are over and notifies their handlers, including sources that end meanwhile.
    pub(crate) fn reap_sources(&mut self) {
        while !self.sources.over.is_empty() {
            for (token, reason) in std::mem::take(&mut self.sources.over) {
                self.reap_source(token, reason);
            }
        }
    }

    /// Asks all sources to end because the loop is draining.
    pub(super) fn drain_sources(&mut self) {
        for token in self.sources.tokens() {
            self.drain_source(token);
        }
    }

    /// Ends all sources that have handlers to notify, and notifies them.
    pub(super) fn shut_down_sources(&mut self) {
        for token in self.sources.tokens() {
            self.shut_down_source(token);
        }
        self.reap_sources();
    }

    /// Ends all remaining sources.
    pub(super) fn end_sources(&mut self) {
        for token in self.sources.tokens() {
            // The engine was already told to forget sources that are leaving.
            if !matches!(self.sources.get(token), Some(Source::Leaving(_))) {
                self.end_source(token);
            }
        }
    }

    /// Removes a source from the engine and from the table.
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
