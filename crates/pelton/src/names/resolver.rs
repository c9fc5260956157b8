//! Names: looked up off the loop.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::reconnect::Keeping;
use crate::reactor::slots::{Key, Slots};
use crate::threads::defer::{DeferFailure, DeferId, Drain, Where};
use crate::threads::lane::Lane;
use crate::{Error, Reactor};

/// How long an attempt to connect has for itself before the next one is begun beside it: what RFC 8305 recommends.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Less than this, RFC 8305 forbids: it would flood the network with attempts.
pub(crate) const SHORTEST_ATTEMPT_DELAY: Duration = Duration::from_millis(10);

/// Finds the addresses of a name. By default the [system](SystemResolver) does; a
/// [builder](crate::Builder::resolver) takes another, also as a closure:
///
/// ```
/// use pelton::Reactor;
///
/// let reactor = Reactor::builder()
///     .resolver(|host: &str, port: u16| match host {
///         "database" => Ok(vec![([127, 0, 0, 1], port).into()]),
///         _ => Err(std::io::Error::other("only the database is known here")),
///     })
///     .build()?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of `host`, the best first, each with `port`. It is called on a thread other than the loop's, on several at
    /// a time, and may block.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Whether [`resolve`](Resolver::resolve) may block. If it does not, as one that looks into a table does not, it
    /// is called on the loop, and no thread is needed.
    fn blocks(&self) -> bool {
        true
    }
}

impl<F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static> Resolver for F {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self(host, port)
    }
}

/// The system's own look-up, `getaddrinfo`: the hosts file, name servers and whatever else it is set up with. It sorts
/// addresses by what it knows of its routes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
#[error("look up {host}: {failure}")]
pub struct LookupError {
    /// The name.
    pub host: String,
    /// What went wrong.
    #[source]
    pub failure: LookupFailure,
}

/// What went wrong when a name was looked up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupFailure {
    /// The resolver said so.
    #[error("{0}")]
    Failed(#[source] io::Error),
    /// There is such a name, but it has no address.
    #[error("it has no address")]
    NoAddress,
    /// The resolver panicked.
    #[error("the resolver panicked: {0}")]
    Panicked(String),
    /// The process was forked while it was looked up, and this is the child.
    #[error("the process was forked meanwhile")]
    Forked,
}

/// Names a look-up, to [cancel](Reactor::cancel_lookup) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LookupId(pub(crate) Key);

/// What a builder settles.
pub(crate) struct NameSettings {
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) attempt_delay: Duration,
}

impl Default for NameSettings {
    fn default() -> NameSettings {
        NameSettings { resolver: Arc::new(SystemResolver), attempt_delay: ATTEMPT_DELAY }
    }
}

/// What a reactor has for connecting by name.
pub(crate) struct Names {
    resolver: Arc<dyn Resolver>,
    pub(crate) attempt_delay: Duration,
    /// What is connected again when it is over.
    pub(super) reconnects: Slots<Keeping>,
}

impl Names {
    pub(crate) fn new(settings: NameSettings) -> Names {
        let NameSettings { resolver, attempt_delay } = settings;
        Names { resolver, attempt_delay, reconnects: Slots::default() }
    }

    /// Stops reconnecting, and drops what was called for it.
    pub(crate) fn drop_reconnects(&mut self) {
        drop(std::mem::take(&mut self.reconnects));
    }
}

impl Reactor {
    /// Looks up the addresses of `host`, off the loop, then calls `then` with them, each with `port`, in the order in which
    /// the [resolver](crate::Builder::resolver) gives them: there is at least one. Never before this returns.
    ///
    /// Refused with [`Error::LaneFull`] if [too many](crate::Builder::lookups) wait already. [Draining](Reactor::drain) does
    /// not wait for it, unless `then` owns a [`Hold`](crate::Hold).
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// reactor.resolve("localhost", 80, |reactor, found| {
    ///     match found {
    ///         Ok(addresses) => println!("{addresses:?}"),
    ///         Err(error) => println!("{error}"),
    ///     }
    ///     reactor.stop();
    /// })?;
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn resolve(
        &mut self,
        host: &str,
        port: u16,
        then: impl FnOnce(&mut Reactor, Result<Vec<SocketAddr>, LookupError>) + 'static,
    ) -> Result<LookupId, Error> {
        self.check_not_forked()?;
        let resolver = self.names.resolver.clone();
        let to = if resolver.blocks() { Where::Lane(Lane::Names) } else { Where::Loop };
        let (wanted, name) = (host.to_owned(), host.to_owned());
        let look_up = move || resolver.resolve(&wanted, port);
        let deferred = self.defer_to(to, Drain::DoesNotWait, Location::caller(), look_up, move |reactor, outcome| {
            let failure = match outcome {
                Ok(Ok(addresses)) if !addresses.is_empty() => return then(reactor, Ok(addresses)),
                Ok(Ok(_)) => LookupFailure::NoAddress,
                Ok(Err(error)) => LookupFailure::Failed(error),
                Err(DeferFailure::Panicked(message)) => LookupFailure::Panicked(message),
                Err(DeferFailure::Forked) => LookupFailure::Forked,
            };
            then(reactor, Err(LookupError { host: name, failure }));
        });
        deferred.map(LookupId).map_err(|(_, refusal)| refusal.while_doing(format!("look up {host}")))
    }

    /// Forgets about a look-up: its callback is dropped, and it is not begun if it still waits for a thread. `false` if its
    /// callback has been called already.
    pub fn cancel_lookup(&mut self, lookup: LookupId) -> bool {
        let waits = self.deferred.waits(lookup.0);
        self.cancel_deferred(DeferId(lookup.0));
        waits
    }
}
