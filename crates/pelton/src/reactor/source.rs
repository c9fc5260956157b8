//! The table of sources: everything that the engine reports events about.

use pelton_os::Token;

use crate::reactor::slots::Key;
use crate::sources::connection::Stream;
use crate::sources::datagram::DatagramSocket;
use crate::sources::listener::Listener;
use crate::sources::watch::Watch;

/// What events come from: everything that has a [`Token`].
pub(crate) enum Source {
    Watch(Watch),
    Connection(Stream),
    /// One of several ways to connect a connection, whose token this is.
    Attempt(Token),
    Listener(Box<Listener>),
    Datagrams(Box<DatagramSocket>),
    /// The socket that signals come in by.
    Signals,
    /// Ended, but the engine has not let go of it yet.
    Leaving,
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
