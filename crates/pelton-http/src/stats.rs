//! What a server counts, and who is told of what it refuses by itself.

use std::cell::{Cell, OnceCell};

use pelton::Io;

use crate::Server;
use crate::wire::Refusal;

/// What a [server](Server) has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections that were taken on.
    pub accepted: u64,
    /// Connections that were answered with 503, for there were too many.
    pub turned_away: u64,
    /// Requests that were handed to the handler.
    pub requests: u64,
    /// What was refused before it was a request: malformed, too long, too late.
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
    /// What it has counted.
    pub fn stats(&self) -> ServerStats {
        self.shared.counts.stats.get()
    }

    /// Calls `callback` whenever something is answered that never was a request, and so no handler sees: it was malformed, too
    /// long or too late, or there were too many connections. For logs. Only the first such callback counts.
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
