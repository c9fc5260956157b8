//! Engines: where events come from and how bytes move.
//!
//! The reactor uses an [`Engine`] and nothing below it. It starts operations, each named by the [`Token`] of its source,
//! [parks](Engine::park), and then takes out the [`Event`]s that resulted, one at a time. Nothing above this module assumes
//! readiness: an engine may complete operations late, in parts, and in any order between sources.
//!
//! An engine implements five traits:
//!
//! | trait | what it covers |
//! |---|---|
//! | [`WatchEngine`] | readiness of descriptors that belong to somebody else |
//! | [`ListenEngine`] | accepting connections |
//! | [`StreamEngine`] | connecting, receiving and sending bytes |
//! | [`DatagramEngine`] | receiving and sending datagrams |
//! | [`Engine`] | the clock, waiting, taking out events, and what all sources share |
//!
//! There is one engine so far: [`ReadinessEngine`], on any [`Poller`](crate::poller::Poller). The poller reports what is ready
//! and non-blocking system calls do the rest.

mod kind;
mod operations;
mod readiness;

use std::io;
use std::os::fd::BorrowedFd;
use std::task::Waker;

pub use kind::{EngineKind, Fallback, Opened, UnknownEngine, open, open_quietly};
pub use operations::{DatagramEngine, ListenEngine, StreamEngine, WatchEngine};
pub use readiness::ReadinessEngine;

use crate::{Address, Chunk, Datagram, Readiness, Socket, Time, Token};

/// The environment variable that selects the engine.
pub const ENGINE_VARIABLE: &str = "PELTON_ENGINE";

/// Everything that the reactor asks of the outside world. The four supertraits hold the operations, by kind of source.
pub trait Engine: WatchEngine + ListenEngine + StreamEngine + DatagramEngine {
    /// Returns the name that selects this engine.
    fn name(&self) -> &'static str;

    /// Reads the clock.
    fn now(&self) -> Time;

    /// Returns a waker that ends a [`Park::block`] from any thread: the current one, or else the next.
    fn waker(&self) -> Waker;

    /// Prepares to sleep until `until` (`None`: without a limit) and returns the part that sleeps.
    ///
    /// That part is separate, and `Send`, so that an embedder can do something around it, such as releasing an interpreter
    /// lock.
    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send);

    /// Takes out one event.
    fn next(&mut self) -> Option<Event>;

    /// Drops a source of any kind. Nothing new is started for it, but events that were in flight may still come out of
    /// [`next`](Engine::next). After [`Forgotten::Held`], `token` stays in use until [`Event::Gone`].
    fn forget(&mut self, token: Token) -> Forgotten;

    /// Returns the local address of a stream, listener or datagram socket.
    fn local_address(&self, token: Token) -> io::Result<Address>;

    /// Returns the address of the other side of a stream or connected datagram socket.
    fn peer_address(&self, token: Token) -> io::Result<Address>;

    /// Returns the descriptor of a stream, listener or datagram socket, to set options on. `None` if it has none.
    fn descriptor(&self, token: Token) -> Option<BorrowedFd<'_>>;

    /// Returns a descriptor that is readable while there are events. `None` if the engine has none.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns whether the next wait will not sleep although the [descriptor](Engine::as_fd) is not readable.
    fn has_events(&self) -> bool;

    /// In a forked child: replaces the kernel objects that are shared with the parent, and registers every source with the new
    /// ones.
    fn after_fork(&mut self) -> io::Result<()>;
}

/// The part of a turn that may sleep. It runs no callbacks.
pub trait Park {
    /// Sleeps until there is an event, the agreed time has come, the waker is called or a signal arrives.
    fn block(&mut self) -> io::Result<()>;
}

/// What happened to a source.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A watched descriptor is ready.
    Ready(Token, Readiness),
    /// A listener has accepted a connection.
    Accepted(Token, Socket),
    /// A connection could not be accepted and is still waiting. If the process has run out of descriptors, it can be
    /// [turned away](ListenEngine::turn_away).
    AcceptFailed(Token, io::Error),
    /// The connection is established.
    Connected(Token),
    /// Bytes have arrived.
    Received(Token, Chunk),
    /// A source whose input is fetched manually has some: a [stream](StreamEngine::receive_manually) bytes, its end or an error,
    /// a [listener](ListenEngine::accept_manually) a connection, a [datagram socket](DatagramEngine::receive_datagrams_manually)
    /// a datagram.
    Receivable(Token),
    /// This many bytes have arrived in the pipe of a [spliced](StreamEngine::splice) stream.
    Spliced(Token, usize),
    /// Nothing more will arrive: the other side has finished, the stream has failed, or the owner of a borrowed descriptor has
    /// closed it.
    Ended(Token, io::Result<()>),
    /// There is room to send again.
    Sendable(Token),
    /// A datagram has arrived.
    Datagram(Token, Datagram),
    /// A datagram could not be sent, to this address if it had its own; or the system has learned that an earlier one was not
    /// delivered. The socket stays usable.
    SendFailed(Token, Option<Address>, io::Error),
    /// The socket of a stream that was detached.
    Detached(Token, Socket),
    /// A forgotten source that was [held](Forgotten::Held) has been released.
    Gone(Token),
}

impl Event {
    /// Returns the token of the source that the event is about.
    #[inline]
    pub fn token(&self) -> Token {
        match self {
            Event::Ready(token, _)
            | Event::Accepted(token, _)
            | Event::AcceptFailed(token, _)
            | Event::Connected(token)
            | Event::Received(token, _)
            | Event::Receivable(token)
            | Event::Spliced(token, _)
            | Event::Ended(token, _)
            | Event::Sendable(token)
            | Event::Datagram(token, _)
            | Event::SendFailed(token, ..)
            | Event::Detached(token, _)
            | Event::Gone(token) => *token,
        }
    }
}

/// Whether a source takes in what arrives for it: connections, bytes or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intake {
    /// The source takes in what arrives.
    On,
    /// The source takes nothing in: the engine leaves input waiting.
    Off,
}

impl Intake {
    /// Returns [`Intake::On`] if `condition` holds.
    pub fn on_if(condition: bool) -> Intake {
        if condition { Intake::On } else { Intake::Off }
    }
}

/// Whether a forgotten source is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Forgotten {
    /// Nothing of it is left. At most events that were already found still carry its token.
    Now,
    /// Operations are in flight. [`Event::Gone`] follows.
    Held,
}

/// The result of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// Everything was sent.
    Idle,
    /// Something is left and waits for room.
    Busy,
}

fn no_such_source(token: Token) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{token:?} is not a source of this engine"))
}
