//! Server counters, and the callback for refusals.

use std::cell::{Cell, OnceCell};

use pelton::Io;

use crate::Server;
use crate::wire::Refusal;

/// Counters of a [server](Server) since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Accepted connections.
    pub accepted: u64,
    /// Connections that got a 503 because there were too many.
    pub turned_away: u64,
    /// Requests passed to the handler.
    pub requests: u64,
    /// Input refused before it reached the handler: malformed, too long, or too late.
    pub refused: u64,
}

pub(crate) type OnRefusal = Box<dyn Fn(&mut Io<'_>, Refusal)>;

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) stats: Cell<ServerStats>,
    on_refusal: OnceCell<OnRefusal>,
}

impl Counts {
    pub(crate) fn count(&self, change: impl FnOnce(&mut ServerStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    pub(crate) fn tell(&self, io: &mut Io<'_>, refusal: Refusal) {
        if let Some(callback) = self.on_refusal.get() {
            callback(io, refusal);
        }
    }
}

impl Server {
    /// Returns the counters.
    pub fn stats(&self) -> ServerStats {
        self.shared.counts.stats.get()
    }

    /// Calls `callback` whenever the server refuses something before a handler sees it: malformed, too long or late input, or too
    /// many connections. Intended for logs. Only the first callback is used.
    ///
    /// ```
    /// use pelton_http::{Server, plain};
    ///
    /// let server = Server::new(plain(|_| "hello\n"));
    /// server.on_refusal(|io, refusal| eprintln!("{:?}: {refusal}", io.peer_address()));
    /// ```
    pub fn on_refusal(&self, callback: impl Fn(&mut Io<'_>, Refusal) + 'static) {
        let _ = self.shared.counts.on_refusal.set(Box::new(callback));
    }
}
