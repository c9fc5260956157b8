//! Connects client and server after a switch to another protocol.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Chunk, Connection, ConnectionId, Handle, Io, Limit, Proxy, Reactor, Reason};

/// One side of a tunnel. The reactor moves the bytes once both sides have left HTTP.
pub(super) struct Side {
    other: ConnectionId,
    tunnel: Rc<Tunnel>,
    handle: Handle,
}

struct Tunnel {
    /// One side waits for the other.
    waits: Cell<bool>,
    is_open: Cell<bool>,
    idle: Option<Duration>,
}

impl Side {
    /// Makes the handlers of both sides.
    pub(super) fn pair(
        reactor: &Reactor,
        front: ConnectionId,
        back: ConnectionId,
        idle: Option<Duration>,
    ) -> (Side, Side) {
        let tunnel = Rc::new(Tunnel { waits: Cell::new(false), is_open: Cell::new(false), idle });
        let side = |other| Side { other, tunnel: tunnel.clone(), handle: reactor.handle() };
        (side(back), side(front))
    }
}

impl Connection for Side {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.set_limit(Limit::Inactivity, self.tunnel.idle);
        if !self.tunnel.waits.replace(true) {
            // Input waits until there is somewhere to send it to.
            return io.pause();
        }
        match io.proxy_both(self.other, Proxy::new()) {
            Ok(()) => {
                self.tunnel.is_open.set(true);
                if let Some(mut other) = io.reactor().connection(self.other) {
                    other.resume();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the other side of a switched connection is gone");
                io.close();
            }
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        // Everything is proxied, and what follows the end has nowhere to go.
        io.close();
    }

    /// Lasts until the deadline of draining, or until one of the peers ends it.
    fn draining(&mut self, _: &mut Io<'_>) {}

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        if !self.tunnel.is_open.replace(true)
            && let Some(mut other) = reactor.connection(self.other)
        {
            other.close();
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It was dropped before it had a connection: the client has gone while the server agreed.
        if !self.tunnel.is_open.replace(true) {
            let other = self.other;
            // If the loop is gone, so are its connections.
            let _ = self.handle.post(move |reactor| {
                if let Some(mut other) = reactor.connection(other) {
                    other.close();
                }
            });
        }
    }
}
