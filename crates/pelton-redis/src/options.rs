//! Where to connect to, as whom, and with which limits.

mod url;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pelton::{Backoff, Endpoint};

use crate::{ConfigError, Limits};

/// The version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// RESP2, which every server speaks.
    Resp2,
    /// RESP3, or RESP2 if the server does not know it (before Redis 6).
    #[default]
    Resp3,
}

/// The settings of a connection, parsed from a URL:
///
/// | URL | connects to |
/// |---|---|
/// | `redis://localhost` | port 6379 of a host, over TCP |
/// | `redis://user:password@host:6380/2` | another port, as an ACL user, database 2 |
/// | `rediss://host` | the same, with TLS (feature `tls`) |
/// | `unix:///run/redis.sock?db=2` | a Unix socket |
/// | `redis+sentinel://one,two:26380/name/2` | the master of this name, which one of these Sentinels (port 26379) knows |
///
/// Reserved characters in the user and the password are percent-encoded. `?protocol=resp2` avoids RESP3; `user`, `pass`
/// and `db` may also be parameters, as a Unix socket needs them.
///
/// ```
/// use pelton_redis::Options;
/// use std::time::Duration;
///
/// let options: Options = "redis://ana:p%40ss@localhost:6380/2".parse()?;
/// let options = options.time_limit(Duration::from_secs(1)).in_flight(1000);
/// assert_eq!(options.target().to_string(), "localhost:6380");
/// assert!(!format!("{options:?}").contains("p@ss"));
/// # Ok::<(), pelton_redis::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) target: Endpoint,
    pub(crate) sentinels: Option<Sentinels>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) secure: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<pelton_tls::Client>,
    pub(crate) protocol: Protocol,
    pub(crate) name: Option<String>,
    pub(crate) time_limit: Duration,
    pub(crate) connect_limit: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) in_flight: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) limits: Limits,
    pub(crate) backoff: Backoff,
}

/// Who knows where the master is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sentinels {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The name of the master.
    pub(crate) master: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Enough for a burst of a busy program, at about 100 bytes of memory each.
const IN_FLIGHT: usize = 16 * 1024;

/// Enough for a few large values.
const QUEUED_BYTES: usize = 64 << 20;

impl Options {
    /// Connects to this endpoint, with the defaults of everything else.
    pub fn new(target: impl Into<Endpoint>) -> Options {
        Options {
            target: target.into(),
            sentinels: None,
            user: None,
            password: None,
            database: 0,
            secure: false,
            #[cfg(feature = "tls")]
            tls: None,
            protocol: Protocol::default(),
            name: None,
            time_limit: Duration::from_secs(5),
            connect_limit: Duration::from_secs(5),
            heartbeat: Duration::from_secs(15),
            in_flight: IN_FLIGHT,
            queued_bytes: QUEUED_BYTES,
            limits: Limits::default(),
            // A broker that was restarted is back soon, and commands wait for it.
            backoff: Backoff::default().start(Duration::from_millis(50)).most(Duration::from_secs(5)),
        }
    }

    /// Connects to the master of this name, wherever it is: each attempt asks one of these Sentinels, in turn, and makes sure
    /// that the server is a master. After a failover, the connection to the old master is given up.
    pub fn sentinels(
        first: impl Into<Endpoint>,
        others: impl IntoIterator<Item = Endpoint>,
        master: impl Into<String>,
    ) -> Options {
        let first = first.into();
        let endpoints = std::iter::once(first.clone()).chain(others).collect();
        let sentinels = Sentinels { endpoints, master: master.into(), user: None, password: None };
        Options { sentinels: Some(sentinels), ..Options::new(first) }
    }

    /// Authenticates with a password at Sentinels that demand one, as this user or, without, as `default`.
    pub fn sentinel_password(mut self, user: Option<&str>, password: impl Into<String>) -> Options {
        if let Some(sentinels) = &mut self.sentinels {
            sentinels.user = user.map(Into::into);
            sentinels.password = Some(password.into());
        }
        self
    }

    /// Returns the endpoint, that of the first Sentinel if there are any.
    pub fn target(&self) -> &Endpoint {
        &self.target
    }

    /// Authenticates with a password, as the user `default`.
    pub fn password(mut self, password: impl Into<String>) -> Options {
        self.password = Some(password.into());
        self
    }

    /// Authenticates as an ACL user.
    pub fn user(mut self, user: impl Into<String>, password: impl Into<String>) -> Options {
        self.user = Some(user.into());
        self.password(password)
    }

    /// Selects a database. By default 0.
    pub fn database(mut self, database: u32) -> Options {
        self.database = database;
        self
    }

    /// Uses TLS with this configuration. For `rediss://` without one, the system decides whom to trust.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, client: pelton_tls::Client) -> Options {
        self.secure = true;
        self.tls = Some(client);
        self
    }

    /// Sets the version of the protocol. By default RESP3, if the server knows it.
    pub fn protocol(mut self, protocol: Protocol) -> Options {
        self.protocol = protocol;
        self
    }

    /// Names the connection for `CLIENT LIST`. Spaces and control characters are not allowed there and are replaced by `-`.
    pub fn name(mut self, name: impl AsRef<str>) -> Options {
        let fits = |letter: char| if letter.is_ascii_graphic() { letter } else { '-' };
        self.name = Some(name.as_ref().chars().map(fits).collect());
        self
    }

    /// Sets how long a command may take until its answer, including the time until there is a connection. By default 5
    /// seconds.
    ///
    /// If nothing at all arrives for as long while an answer is overdue, the connection is given up.
    pub fn time_limit(mut self, limit: Duration) -> Options {
        self.time_limit = limit;
        self
    }

    /// Sets how long connecting may take: looking up the name, TCP, TLS and the greeting together. By default 5 seconds.
    pub fn connect_limit(mut self, limit: Duration) -> Options {
        self.connect_limit = limit;
        self
    }

    /// Sets how long a subscriber's connection may be silent. It is then tested, and given up after as long again. By
    /// default 15 seconds.
    pub fn heartbeat(mut self, period: Duration) -> Options {
        self.heartbeat = period.max(Duration::from_millis(1));
        self
    }

    /// Sets how many commands may wait for an answer or a connection. By default 16,384. Others are refused with
    /// [`Error::Busy`](crate::Error::Busy).
    pub fn in_flight(mut self, most: usize) -> Options {
        self.in_flight = most.max(1);
        self
    }

    /// Sets how many bytes of commands may wait to be sent. By default 64 MiB. Others are refused with
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn queued_bytes(mut self, most: usize) -> Options {
        self.queued_bytes = most;
        self
    }

    /// Sets what the server may send.
    pub fn limits(mut self, limits: Limits) -> Options {
        self.limits = limits;
        self
    }

    /// Sets the waits between attempts to connect. By default 50 milliseconds to 5 seconds, growing.
    pub fn backoff(mut self, backoff: Backoff) -> Options {
        self.backoff = backoff;
        self
    }
}

impl FromStr for Options {
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Options, ConfigError> {
        url::parse(url).map_err(ConfigError::BadUrl)
    }
}

impl TryFrom<&str> for Options {
    type Error = ConfigError;

    fn try_from(url: &str) -> Result<Options, ConfigError> {
        url.parse()
    }
}

impl TryFrom<&String> for Options {
    type Error = ConfigError;

    fn try_from(url: &String) -> Result<Options, ConfigError> {
        url.parse()
    }
}

impl From<&Options> for Options {
    fn from(options: &Options) -> Options {
        options.clone()
    }
}

/// Without the password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("target", &self.target)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("secure", &self.secure)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
