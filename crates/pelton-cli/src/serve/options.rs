//! The command line of `pelton serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::{Address, LaneSettings};
use pelton_http::wire::HeadLimits;
use pelton_http::{FileSettings, Settings};

use super::admin::{self, is_loopback};
use super::descriptors::Budget;
use super::proxy::ProxyOptions;
use super::tls::TlsOptions;
use crate::serving::ServerOptions;
use crate::units;

/// Default address.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// The maximum for memory and body sizes: 1 TiB, more than any machine serves.
const MOST_BYTES: u64 = 1 << 40;

/// The maximum number of connections: more than a process can have descriptors on most systems.
const MOST_CONNECTIONS: i64 = 10_000_000;

/// The minimum for the header limit, in bytes: every client sends about this much.
const LEAST_HEADER: u64 = 64;

/// The minimum for queued output, in bytes: a few responses must fit.
const LEAST_QUEUED: u64 = 1 << 20;

/// The upper bound of `--min-body-rate`, in bytes per second: no network sends one body faster than 1 GiB per second.
const MOST_BODY_RATE: u64 = 1 << 30;

/// The maximum number of requests that may wait for the disk. Each takes a few hundred bytes.
const MOST_WAITING: i64 = 1_000_000;

/// The largest number that all caches support (RFC 9111, section 1.2.2).
const MOST_CACHE_SECONDS: i64 = i32::MAX as i64;

#[derive(Args)]
pub struct Options {
    /// Directory to serve. Without it, pelton serves a welcome page
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Address to listen on: 127.0.0.1:8080, [::]:8080, unix:/path, unix:@name; port 0 picks a free one. May be repeated. By
    /// default 127.0.0.1:8080, or the sockets passed by a service manager
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Permissions of the Unix sockets of --listen, in octal, such as 660; by default those that the umask leaves
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,

    #[command(flatten)]
    pub server: ServerOptions,

    #[command(flatten)]
    pub files: FileOptions,

    #[command(flatten)]
    pub tls: TlsOptions,

    #[command(flatten)]
    pub proxy: ProxyOptions,

    #[command(flatten)]
    pub limits: Limits,

    /// Writes a line per request to this file; `-` is standard output. SIGHUP reopens it
    #[arg(long, value_name = "PATH", help_heading = "Observability")]
    pub access_log: Option<PathBuf>,

    /// Format of these lines
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Observability")]
    pub log_format: LogFormat,

    /// Serves /metrics (for Prometheus) and /health at this address: a loopback address or a Unix socket, unless --admin-anywhere
    #[arg(long, value_name = "ADDRESS", help_heading = "Observability")]
    pub admin: Option<Address>,

    /// A name or address, without a port, by which clients may call the admin address. May be repeated. By default localhost,
    /// 127.0.0.1 and [::1]. A request for any other host is answered with 421, because a web page could have sent it. Unix
    /// sockets accept any host
    #[arg(long, value_name = "HOST", requires = "admin", value_parser = admin::host_name, help_heading = "Observability")]
    pub admin_host: Vec<String>,

    /// Permissions of an --admin Unix socket, in octal
    #[arg(long, value_name = "MODE", requires = "admin", value_parser = mode, default_value = "600", help_heading = "Observability")]
    pub admin_socket_mode: u32,

    /// Allows an --admin address that other machines can reach; everybody who reaches it can read the metrics. See --admin-host
    /// for its names
    #[arg(long, requires = "admin", help_heading = "Observability")]
    pub admin_anywhere: bool,

    /// Writes the process ID to this file once it serves, and removes the file at exit
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,

    /// User to become after the addresses are bound and the keys are read: a name of /etc/passwd, or a number. Linux only
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Group to become then; by default that of --user
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,

    /// How long requests in progress may take to finish after a signal to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Shutdown")]
    pub drain_time: Duration,

    /// How long idle connections may then still send one request, which is answered with `Connection: close`; at most half of
    /// --drain-time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, help_heading = "Shutdown")]
    pub drain_idle: Duration,
}

#[derive(Args)]
#[command(next_help_heading = "Files")]
pub struct FileOptions {
    /// Lists directories that have no index file
    #[arg(long, requires = "dir")]
    listing: bool,

    /// Serves files and directories whose names begin with a dot
    #[arg(long, requires = "dir")]
    hidden: bool,

    /// File served for its directory
    #[arg(long, value_name = "NAME", default_value = "index.html", value_parser = file_name)]
    index: String,

    /// How many seconds browsers may cache files without revalidating; by default they revalidate each time
    #[arg(long, value_name = "SECONDS", requires = "dir", value_parser = clap::value_parser!(u32).range(..=MOST_CACHE_SECONDS))]
    cache_seconds: Option<u32>,

    /// Serves the directory that DIR resolves to at the start, even if DIR is a link that changes later; by default the link is
    /// followed again every second
    #[arg(long, requires = "dir")]
    pinned: bool,

    /// Memory that each worker may use to cache small files; 0 disables the cache
    #[arg(long, value_name = "SIZE", default_value = "16m", value_parser = units::size_within(0..=MOST_BYTES))]
    file_memory: u64,

    /// How many look-ups and reads of files may wait for the disk, per worker; further requests are answered with 503
    #[arg(long, value_name = "NUMBER", default_value_t = LaneSettings::FILES.waiting as u32, value_parser = clap::value_parser!(u32).range(1..=MOST_WAITING))]
    file_queue: u32,
}

fn file_name(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("give a file name".to_owned()),
        _ if text.contains('/') => Err("give a file name without a directory".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

impl FileOptions {
    /// The threads of each worker that wait for the disk.
    pub fn lane(&self, budget: &Budget) -> LaneSettings {
        LaneSettings { threads: budget.look_ups, waiting: self.file_queue as usize, ..LaneSettings::FILES }
    }

    pub fn settings(&self, budget: &Budget) -> FileSettings {
        let cache_control = match self.cache_seconds {
            Some(seconds) => format!("public, max-age={seconds}"),
            None => "no-cache".to_owned(),
        };
        FileSettings {
            listing: self.listing,
            hidden: self.hidden,
            pinned: self.pinned,
            index: Some(self.index.clone()),
            cache_control: Some(cache_control),
            memory: self.file_memory,
            open: budget.kept_files,
            descriptors: budget.open_files,
            ..FileSettings::default()
        }
    }
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Most connections, over all workers; further ones are answered with 503. Lower if the process may not have enough
    /// descriptors, which is logged
    #[arg(long, value_name = "NUMBER", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    pub max_connections: u32,

    /// Most connections from one address (for IPv6, from one /64 network), over all workers; by default unlimited
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    max_connections_per_address: Option<u32>,

    /// Closes a connection after this many requests; by default never
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests: Option<u32>,

    /// Longest body of a request; a longer one is answered with 413. 0 allows none
    #[arg(long, value_name = "SIZE", default_value = "2m", value_parser = units::size_within(0..=MOST_BYTES))]
    max_body: u64,

    /// Most bytes of a request's header fields together, from 64 bytes to 1 MiB; more are answered with 431
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = units::size_within(LEAST_HEADER..=HeadLimits::MOST_BYTES as u64))]
    max_header: u64,

    /// Memory for queued output, per worker. Above it, new connections are answered with 503, and no more is read from the others
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = units::size_within(LEAST_QUEUED..=MOST_BYTES))]
    max_queued: u64,

    /// How long a client may take to send the head of a request; a slower one is answered with 408
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::positive_duration)]
    header_time: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration)]
    idle_time: Duration,

    /// Lowest rate of a request body, in bytes per second over ten seconds; a slower one is answered with 408. With 0, one byte
    /// in ten seconds is enough
    #[arg(long, value_name = "SIZE", default_value = "240", value_parser = units::size_within(0..=MOST_BODY_RATE))]
    min_body_rate: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// The combined log format that most servers use, plus the response time in seconds
    Text,
    /// One JSON object per line
    Json,
}

pub fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("give up to three octal digits, such as 660".to_owned()),
    }
}

impl Options {
    /// Checks the options for contradictions.
    pub fn check(&self) -> Result<(), String> {
        self.tls.check()?;
        if let Some(dir) = self.dir.as_ref().filter(|_| self.proxy.takes_everything()) {
            return Err(format!("--proxy / forwards everything, so {} would never be served", dir.display()));
        }
        match &self.admin {
            Some(Address::Tcp(address)) if !self.admin_anywhere && !is_loopback(address.ip()) => Err(format!(
                "--admin {address} can be reached from other machines, which could then read the metrics; \
                 use a loopback address such as 127.0.0.1:{}, or add --admin-anywhere",
                address.port()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the address to listen on if no sockets were passed in.
    pub fn default_address() -> Address {
        DEFAULT_ADDRESS.parse().expect("a valid address")
    }

    /// Returns how many bytes may be queued, per worker.
    pub fn queued(&self) -> usize {
        in_memory(self.limits.max_queued)
    }

    /// Returns the limits for clients.
    pub fn settings(&self, budget: &Budget) -> Settings {
        let limits = &self.limits;
        let default = Settings::default();
        Settings {
            head: HeadLimits { header_bytes: in_memory(limits.max_header), ..default.head },
            body: limits.max_body,
            header_time: limits.header_time,
            idle: limits.idle_time,
            body_rate: u32::try_from(limits.min_body_rate).unwrap_or(u32::MAX),
            requests: limits.max_requests,
            // Requests that have begun by then get the rest of the time.
            drain_idle: self.drain_idle.min(self.drain_time / 2),
            connections: budget.connections,
            connections_per_address: limits.max_connections_per_address.map(|number| number as usize),
            queued: self.queued(),
            turned_away: budget.turned_away,
            ..default
        }
    }
}

/// Clamps a size to the address space.
fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
