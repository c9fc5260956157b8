//! Name lookups, off the loop.

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

/// How long to wait for a connection attempt before starting the next one in parallel, as RFC 8305 recommends.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// RFC 8305 forbids a shorter delay, which would flood the network with attempts.
pub(crate) const SHORTEST_ATTEMPT_DELAY: Duration = Duration::from_millis(10);

/// Looks up the addresses of a name. By default the [system](SystemResolver) does. A
/// [builder](crate::Builder::resolver) accepts another resolver, for example a closure:
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
    /// Returns the addresses of `host`, the best first, each with `port`. It is called on threads other than the
    /// loop's, possibly several at a time, and may block.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Returns whether [`resolve`](Resolver::resolve) may block. If not, as with a lookup in a table, it is called on
    /// the loop and needs no thread.
    fn blocks(&self) -> bool {
        true
    }
}

impl<F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static> Resolver for F {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self(host, port)
    }
}

/// The system's own lookup, `getaddrinfo`, which uses the hosts file, name servers and other configured sources. It
/// sorts addresses according to the system's routes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }
}

/// The error returned by a failed lookup.
#[derive(Debug, thiserror::Error)]
#[error("look up {host}: {failure}")]
pub struct LookupError {
    /// The name.
    pub host: String,
    /// The cause.
    #[source]
    pub failure: LookupFailure,
}

/// The cause of a failed lookup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupFailure {
    /// The resolver returned an error.
    #[error("{0}")]
    Failed(#[source] io::Error),
    /// The name exists but has no address.
    #[error("it has no address")]
    NoAddress,
    /// The resolver panicked.
    #[error("the resolver panicked: {0}")]
    Panicked(String),
    /// The process was forked during the lookup, and this is the child.
    #[error("the process was forked during the lookup")]
    Forked,
}

/// Identifies a lookup, to [cancel](Reactor::cancel_lookup) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LookupId(pub(crate) Key);

/// The settings made by the builder.
pub(crate) struct NameSettings {
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) attempt_delay: Duration,
}

impl Default for NameSettings {
    fn default() -> NameSettings {
        NameSettings { resolver: Arc::new(SystemResolver), attempt_delay: ATTEMPT_DELAY }
    }
}

/// A reactor's state for connecting by name.
pub(crate) struct Names {
    resolver: Arc<dyn Resolver>,
    pub(crate) attempt_delay: Duration,
    /// The reconnecting connections.
    pub(super) reconnects: Slots<Keeping>,
}

impl Names {
    pub(crate) fn new(settings: NameSettings) -> Names {
        let NameSettings { resolver, attempt_delay } = settings;
        Names { resolver, attempt_delay, reconnects: Slots::default() }
    }

    /// Stops reconnecting, and drops the callbacks.
    pub(crate) fn drop_reconnects(&mut self) {
        drop(std::mem::take(&mut self.reconnects));
    }
}

impl Reactor {
    /// Looks up the addresses of `host`, off the loop, then calls `then` with them, each with `port`, in the order of
    /// the [resolver](crate::Builder::resolver). There is at least one. `then` is never called before this returns.
    ///
    /// Fails with [`Error::LaneFull`] if [too many](crate::Builder::lookups) lookups are already waiting.
    /// [Draining](Reactor::drain) does not wait for a lookup, unless `then` owns a [`Hold`](crate::Hold).
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

    /// Cancels a lookup. Its callback is dropped, and it does not start if it is still waiting for a thread. Returns
    /// `false` if the callback has already been called.
    pub fn cancel_lookup(&mut self, lookup: LookupId) -> bool {
        let waits = self.deferred.waits(lookup.0);
        self.cancel_deferred(DeferId(lookup.0));
        waits
    }
}
