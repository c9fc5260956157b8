//! Engines: how events come about and bytes move.
//!
//! The reactor speaks to an [`Engine`] and to nothing below it. It asks for operations, each named by the [`Token`] of the
//! source it is for, then [parks](Engine::park), then takes out, one at a time, the [`Event`]s that came of them. Nothing
//! above this line assumes readiness: an engine is free to complete operations late, in parts and in any order between
//! sources.
//!
//! | engine | how |
//! |---|---|
//! | [`ReadinessEngine`] | a [`Poller`](crate::poller::Poller) says what is ready, non-blocking system calls do the rest |

mod datagrams;
mod kind;
mod readiness;
mod streams;

use std::io;
use std::os::fd::BorrowedFd;
use std::task::Waker;

pub use kind::{EngineKind, Fallback, Opened, UnknownEngine, open, open_quietly};
pub use readiness::ReadinessEngine;

use crate::{
    Address, Chunk, ConnectOptions, Datagram, DatagramOptions, DatagramOutbox, DatagramSetting, Interest,
    ListenOptions, Mode, Outbox, Readiness, Socket, Time, Token,
};

/// The name of the environment variable that picks the engine.
pub const ENGINE_VARIABLE: &str = "PELTON_ENGINE";

/// What the reactor asks of the world.
pub trait Engine {
    /// The name that picks this engine.
    fn name(&self) -> &'static str;

    /// What time it is now.
    fn now(&self) -> Time;

    /// What ends a [`Park::block`], from any thread: the one under way, or else the next.
    fn waker(&self) -> Waker;

    /// Reports the readiness of a descriptor that stays its owner's. With [`Interest::NONE`] it stays silent until
    /// [`rewatch`](Engine::rewatch).
    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Changes what is reported of a watched descriptor, and arms it again if it was one-shot and has fired.
    fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Accepts connections on `address`: [`Event::Accepted`] for each.
    fn listen(&mut self, token: Token, address: &Address, options: &ListenOptions) -> io::Result<()> {
        no_streams(token, (address, options))
    }

    /// Takes over a listening socket, and accepts connections on it.
    fn adopt_listener(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        no_streams(token, socket)
    }

    /// Turns away a connection that waits to be accepted, and cannot be because there is no descriptor left: closes it without
    /// having served it.
    fn turn_away(&mut self, token: Token) {
        let _ = token;
    }

    /// Stops accepting for a while, or goes on.
    fn accept(&mut self, token: Token, on: bool) -> io::Result<()> {
        no_streams(token, on)
    }

    /// Looks for connections now, on all listeners that accept, instead of when a wait finds them: their events come
    /// [next](Engine::next). For turns that take long. An engine that hears of them without looking need not do anything.
    fn accept_again(&mut self) {}

    /// Connects to `address`: [`Event::Connected`], or [`Event::Ended`] if that fails. An error that is returned at once is
    /// not the other side's.
    fn connect(&mut self, token: Token, address: &Address, options: &ConnectOptions) -> io::Result<()> {
        no_streams(token, (address, options))
    }

    /// Takes over a connected stream. Nothing is received yet.
    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        no_streams(token, socket)
    }

    /// Receives what comes in, or stops: [`Event::Received`] for each piece, [`Event::Ended`] after the last;
    /// [`Event::Datagram`] for each datagram. What was on its way may still come after a stop.
    fn receive(&mut self, token: Token, on: bool) -> io::Result<()> {
        no_streams(token, on)
    }

    /// Sends what it can of the outbox and takes it out of there. If it is [`Sending::Busy`], [`Event::Sendable`] follows, or
    /// [`Event::Ended`] with an error; nothing more is handed to it before that. What it will send after it has returned, it
    /// takes with [`Outbox::take`], so that it counts as waiting until [`Event::Sendable`].
    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        no_streams(token, outbox)?;
        Ok(Sending::Idle)
    }

    /// Tells the other side that nothing more will be sent.
    fn finish(&mut self, token: Token) -> io::Result<()> {
        no_streams(token, ())
    }

    /// Whether something has come in on a stream that was not received yet, as far as can be told.
    fn has_unread(&self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// How many bytes of what a stream was given to send the other side has not taken yet, as far as can be told. A number that
    /// falls shows that the other side reads, although there is no room to send more. `None` if the engine cannot tell.
    ///
    /// The reactor asks when a time limit is about to be reached, not while there is traffic.
    fn undelivered(&self, token: Token) -> Option<u64> {
        let _ = token;
        None
    }

    /// Gives up a stream that has nothing to send: [`Event::Detached`] brings its socket, after what was received before
    /// that. The engine has then forgotten the source.
    fn detach(&mut self, token: Token) -> io::Result<()> {
        no_streams(token, ())
    }

    /// Receives datagrams on `address`: [`Event::Datagram`] for each. [`receive`](Engine::receive) stops that for a while.
    fn bind_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        no_datagrams(token, (address, options))
    }

    /// Exchanges datagrams with `address` alone, from which they are received at once.
    fn connect_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        no_datagrams(token, (address, options))
    }

    /// Takes over a datagram socket, bound or connected, and receives from it at once.
    fn adopt_datagrams(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        no_datagrams(token, socket)
    }

    /// Sends what it can of the outbox and takes it out of there. If it is [`Sending::Busy`], [`Event::Sendable`] follows;
    /// nothing more is handed to it before that. A datagram that cannot be sent is taken out too, and is no error here:
    /// [`Event::SendFailed`] tells, before that `Sendable`.
    fn send_datagrams(&mut self, token: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending> {
        no_datagrams(token, outbox)?;
        Ok(Sending::Idle)
    }

    /// Changes something about a datagram socket.
    fn set_datagrams(&mut self, token: Token, setting: DatagramSetting) -> io::Result<()> {
        no_datagrams(token, setting)
    }

    /// Where a stream, or a listener, is at this end.
    fn local_address(&self, token: Token) -> io::Result<Address> {
        Err(no_such_source(token))
    }

    /// Where a stream is at the other end.
    fn peer_address(&self, token: Token) -> io::Result<Address> {
        Err(no_such_source(token))
    }

    /// The descriptor of a stream or listener, to set options on. `None` if it has none.
    fn descriptor(&self, token: Token) -> Option<BorrowedFd<'_>> {
        let _ = token;
        None
    }

    /// Lets go of the source: nothing new is started for it. What is on its way may still come out of
    /// [`next`](Engine::next), and `token` must not be given to another source before [`Event::Gone`] said so.
    fn forget(&mut self, token: Token) -> Forgotten;

    /// Prepares to sleep until `until` (`None`: however long it takes) and gives the part that sleeps.
    ///
    /// It is separate, and `Send`, for embedders that have something of their own to do around the blocking part, such
    /// as letting go of an interpreter lock.
    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send);

    /// Takes out one event that parking has found.
    fn next(&mut self) -> Option<Event>;

    /// The descriptor that is readable while there are events, if the engine has one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// In a forked child: cuts the ties with the parent's kernel objects and carries everything over to new ones.
    fn after_fork(&mut self) -> io::Result<()>;
}

/// The part of a turn that may sleep. It runs no callbacks.
pub trait Park {
    /// Sleeps until there is an event, the agreed time has come, the waker is called or a signal arrives.
    fn block(&mut self) -> io::Result<()>;
}

/// What an engine has to say.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A watched descriptor is ready.
    Ready(Token, Readiness),
    /// A connection has come in.
    Accepted(Token, Socket),
    /// A connection that has come in could not be accepted, and still waits. If that was for want of descriptors, it can be
    /// [turned away](Engine::turn_away).
    AcceptFailed(Token, io::Error),
    /// The connection is established.
    Connected(Token),
    /// Bytes have come in.
    Received(Token, Chunk),
    /// Nothing more comes in: the other side has finished, or something went wrong.
    Ended(Token, io::Result<()>),
    /// There is room to send again.
    Sendable(Token),
    /// A datagram has come in.
    Datagram(Token, Datagram),
    /// A datagram could not be sent, to this address if it had one of its own; or the system has learnt that an earlier one
    /// did not arrive. The socket goes on.
    SendFailed(Token, Option<Address>, io::Error),
    /// A stream that was detached, and is nobody's now.
    Detached(Token, Socket),
    /// A source that was still [held](Forgotten::Held) when it was forgotten has been let go.
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
            | Event::Ended(token, _)
            | Event::Sendable(token)
            | Event::Datagram(token, _)
            | Event::SendFailed(token, ..)
            | Event::Detached(token, _)
            | Event::Gone(token) => *token,
        }
    }
}

/// Whether a forgotten source is done with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Forgotten {
    /// Nothing of it is left; its token will not be heard of again, except as stale events already found.
    Now,
    /// Operations are still in flight; [`Event::Gone`] follows.
    Held,
}

/// What became of [`Engine::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// Everything was sent.
    Idle,
    /// Something is left, and waits for room.
    Busy,
}

/// What engines without streams of their own answer.
fn no_streams<T>(_: Token, _: T) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this engine has no streams"))
}

/// What engines without datagrams answer.
fn no_datagrams<T>(_: Token, _: T) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this engine has no datagrams"))
}

fn no_such_source(token: Token) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{token:?} is no stream"))
}
