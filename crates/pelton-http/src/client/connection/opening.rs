//! Establishes connections: the tunnel of a proxy, then TLS.

use pelton::{Io, Reactor};

use super::{ClientConnection, Phase};
use crate::client::error::{ErrorKind, TimeLimit};
use crate::client::proxy::{Handshake, Progress};
use crate::client::retry::Attempt;

impl ClientConnection {
    /// The connection is being established.
    pub(in crate::client) fn connecting(&mut self, io: &mut Io<'_>) {
        self.set_deadline(io);
    }

    pub(super) fn established(&mut self, io: &mut Io<'_>) {
        let Some(route) = self.shared.route(self.origin()) else { return io.close() };
        match &route.tunnel {
            None => self.secure(io),
            Some(tunnel) => {
                let mut out = Vec::new();
                self.handshake = Some(Box::new(Handshake::begin(tunnel, &mut out)));
                if io.send(&out).is_err() {
                    io.close();
                }
            }
        }
    }

    /// The proxy has answered; or the server has spoken before it was spoken to.
    pub(super) fn read_opening(&mut self, io: &mut Io<'_>, input: &[u8]) {
        let Some(handshake) = &mut self.handshake else {
            return self.cannot_open(io, ErrorKind::Malformed("a response before the request"));
        };
        let mut out = Vec::new();
        match handshake.receive(input, &mut out) {
            Ok(progress) => {
                if !out.is_empty() && io.send(&out).is_err() {
                    return io.close();
                }
                if progress == Progress::Open {
                    self.handshake = None;
                    self.secure(io);
                }
            }
            Err(why) => self.cannot_open(io, ErrorKind::Proxy(why.into())),
        }
    }

    /// Begins TLS, if the origin needs it.
    fn secure(&mut self, io: &mut Io<'_>) {
        let Some(route) = self.shared.route(self.origin()) else { return io.close() };
        let Some(name) = &route.tls else { return self.ready(io) };
        match self.shared.config().tls_layer(name) {
            #[cfg(feature = "tls")]
            Ok(layer) => io.push_layer(layer),
            #[cfg(not(feature = "tls"))]
            Ok(never) => match never {},
            Err(why) => self.cannot_open(io, ErrorKind::Tls(why.into())),
        }
    }

    /// The connection can take requests.
    pub(super) fn ready(&mut self, io: &mut Io<'_>) {
        self.shared.add(|stats| stats.opened += 1);
        self.take_next(io);
        self.shared.clone().supply(io.reactor(), self.origin());
    }

    fn cannot_open(&mut self, io: &mut Io<'_>, kind: ErrorKind) {
        io.close();
        self.opening_failed(io.reactor(), kind);
    }

    /// The connection cannot be established: one of the calls that wait fails.
    pub(super) fn opening_failed(&mut self, reactor: &mut Reactor, kind: ErrorKind) {
        self.phase = Phase::Closing;
        if let Some(call) = self.shared.connection_failed(self.origin()) {
            let attempt = Attempt { begun: false, kept: false };
            self.shared.clone().attempt_failed(reactor, call, attempt, kind);
        }
    }

    pub(super) fn opening_timed_out(&mut self, io: &mut Io<'_>) {
        let after = self.shared.settings().connect;
        self.cannot_open(io, ErrorKind::TimedOut { limit: TimeLimit::Connect, after });
    }
}
