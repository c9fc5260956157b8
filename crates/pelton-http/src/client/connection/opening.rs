//! Establishes connections.

use pelton::{Io, Reactor};

use super::{ClientConnection, Phase};
use crate::client::error::{ErrorKind, TimeLimit};

impl ClientConnection {
    /// The connection is being established.
    pub(in crate::client) fn connecting(&mut self, io: &mut Io<'_>) {
        self.set_deadline(io);
    }

    pub(super) fn established(&mut self, io: &mut Io<'_>) {
        self.secure(io);
    }

    /// Begins TLS, if the origin needs it.
    pub(super) fn secure(&mut self, io: &mut Io<'_>) {
        let Some(route) = self.shared.route(self.origin()) else { return io.close() };
        if route.tls.is_none() {
            return self.ready(io);
        }
        io.close();
        self.opening_failed(io.reactor(), ErrorKind::Tls("not supported".into()));
    }

    /// The connection can take requests.
    pub(super) fn ready(&mut self, io: &mut Io<'_>) {
        self.take_next(io);
    }

    /// The peer has sent something before the connection was ready.
    pub(super) fn read_opening(&mut self, io: &mut Io<'_>, _: &[u8]) {
        io.close();
        self.opening_failed(io.reactor(), ErrorKind::Malformed("a response before the request"));
    }

    /// The connection cannot be established: one of the calls that wait fails.
    pub(super) fn opening_failed(&mut self, reactor: &mut Reactor, kind: ErrorKind) {
        self.phase = Phase::Closing;
        if let Some(call) = self.shared.connection_failed(self.origin()) {
            let attempt = crate::client::retry::Attempt { begun: false, kept: false };
            self.shared.clone().attempt_failed(reactor, call, attempt, kind);
        }
    }

    pub(super) fn opening_timed_out(&mut self, io: &mut Io<'_>) {
        io.close();
        let after = self.shared.settings().connect;
        self.opening_failed(io.reactor(), ErrorKind::TimedOut { limit: TimeLimit::Connect, after });
    }
}
