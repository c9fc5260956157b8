//! The command line of `pelton serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::{Address, LaneSettings};
use pelton_http::wire::HeadLimits;
use pelton_http::{FileSettings, Settings};

use super::admin::{self, is_loopback};
use super::descriptors::Budget;
use crate::serving::ServerOptions;
use crate::units;

/// Where to listen, unless something else is said.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// More memory, or a longer body, than any machine serves: 1 TiB.
const MOST_BYTES: u64 = 1 << 40;

/// More connections than a process can have descriptors on most systems.
const MOST_CONNECTIONS: i64 = 10_000_000;

/// What every client sends takes about so many bytes.
const LEAST_HEADER: u64 = 64;

/// A few responses have to fit.
const LEAST_QUEUED: u64 = 1 << 20;

/// No network is faster than 1 GiB a second for one body, as far as a limit on slow clients goes.
const MOST_BODY_RATE: u64 = 1 << 30;

/// Each takes some hundred bytes.
const MOST_WAITING: i64 = 1_000_000;

/// The largest number that all caches understand (RFC 9111, section 1.2.2).
const MOST_CACHE_SECONDS: i64 = i32::MAX as i64;

#[derive(Args)]
pub struct Options {
    /// The directory whose files are served. Without one, there is a page that says welcome
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Where to listen: 127.0.0.1:8080, [::]:8080, unix:/path, unix:@name; port 0 picks a free one. May be repeated. By default
    /// 127.0.0.1:8080, or the sockets that a service manager has opened
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// The permissions of the files of --listen's Unix sockets, in octal, such as 660; by default what the umask leaves
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,

    #[command(flatten)]
    pub server: ServerOptions,

    #[command(flatten)]
    pub files: FileOptions,

    #[command(flatten)]
    pub limits: Limits,

    /// Writes a line per request to this file; `-` is standard output. SIGHUP has it opened anew
    #[arg(long, value_name = "PATH", help_heading = "Seeing what happens")]
    pub access_log: Option<PathBuf>,

    /// The form of these lines
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Seeing what happens")]
    pub log_format: LogFormat,

    /// Answers /metrics (for Prometheus) and /health there. Loopback addresses and Unix sockets only, unless --admin-anywhere
    #[arg(long, value_name = "ADDRESS", help_heading = "Seeing what happens")]
    pub admin: Option<Address>,

    /// A name or address, without a port, that clients call the admin address by. May be repeated. By default those of this
    /// machine itself: localhost, 127.0.0.1, [::1]. A request for any other host is answered with 421, because a web page
    /// could have sent it. Unix sockets take any host
    #[arg(long, value_name = "HOST", requires = "admin", value_parser = admin::host_name, help_heading = "Seeing what happens")]
    pub admin_host: Vec<String>,

    /// The permissions of the file of an --admin Unix socket, in octal; by default 600
    #[arg(long, value_name = "MODE", requires = "admin", value_parser = mode, default_value = "600", help_heading = "Seeing what happens")]
    pub admin_socket_mode: u32,

    /// Lets --admin be an address that others can reach; everybody who reaches it can read the metrics. See --admin-host for what they call it
    #[arg(long, requires = "admin", help_heading = "Seeing what happens")]
    pub admin_anywhere: bool,

    /// Writes the number of the process to this file when it serves, and removes it at the end
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,

    /// How long everything that is in progress has to be finished, once it was told to end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Ending")]
    pub drain_time: Duration,

    /// How long idle connections then have to send one more request, which is answered with `Connection: close`; no longer than
    /// half of --drain-time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, help_heading = "Ending")]
    pub drain_idle: Duration,
}

#[derive(Args)]
#[command(next_help_heading = "Files")]
pub struct FileOptions {
    /// Lists directories that have no index
    #[arg(long, requires = "dir")]
    listing: bool,

    /// Serves files and directories whose names begin with a dot, too
    #[arg(long, requires = "dir")]
    hidden: bool,

    /// The file that stands for its directory
    #[arg(long, value_name = "NAME", default_value = "index.html", value_parser = file_name)]
    index: String,

    /// For how many seconds browsers may keep files without asking again; by default they ask, and are told if nothing has
    /// changed
    #[arg(long, value_name = "SECONDS", requires = "dir", value_parser = clap::value_parser!(u32).range(..=MOST_CACHE_SECONDS))]
    cache_seconds: Option<u32>,

    /// Serves the directory that DIR leads to at the start, even if DIR is a link that is pointed elsewhere later; by default the link
    /// is followed again every second
    #[arg(long, requires = "dir")]
    pinned: bool,

    /// How much memory each worker may fill with small files; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "16m", value_parser = units::size_within(0..=MOST_BYTES))]
    file_memory: u64,

    /// How many names and pieces of files may wait for the disk, of each worker; requests for more are answered with 503
    #[arg(long, value_name = "NUMBER", default_value_t = LaneSettings::FILES.waiting as u32, value_parser = clap::value_parser!(u32).range(1..=MOST_WAITING))]
    file_queue: u32,
}

fn file_name(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("write the name of a file".to_owned()),
        _ if text.contains('/') => Err("write the name of a file, without a directory".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

impl FileOptions {
    /// The threads that wait for the disk, of each worker.
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
    /// How many connections there may be, of all workers together; more are answered with 503. Fewer if the process may not have
    /// as many descriptors, which is logged
    #[arg(long, value_name = "NUMBER", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    pub max_connections: u32,

    /// How many connections there may be from one address (with IPv6, from one /64 network), of all workers together; by default any
    /// number
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    max_connections_per_address: Option<u32>,

    /// After how many requests a connection is closed; by default it is not
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests: Option<u32>,

    /// How long the body of a request may be; longer ones are answered with 413. With 0, there may be none
    #[arg(long, value_name = "SIZE", default_value = "2m", value_parser = units::size_within(0..=MOST_BYTES))]
    max_body: u64,

    /// How long the header fields of a request may be, all together, from 64 bytes to 1 MiB; longer ones are answered with 431
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = units::size_within(LEAST_HEADER..=HeadLimits::MOST_BYTES as u64))]
    max_header: u64,

    /// How much memory of each worker may hold what waits to be sent. Over it, newcomers are answered with 503, and nothing more is read
    /// from the others
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = units::size_within(LEAST_QUEUED..=MOST_BYTES))]
    max_queued: u64,

    /// How long a client may take to send the head of a request; one that takes longer is answered with 408
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::positive_duration)]
    header_time: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration)]
    idle_time: Duration,

    /// How slowly the body of a request may come, in bytes a second over ten seconds; a slower one is answered with 408. With 0, one
    /// byte in ten seconds is enough
    #[arg(long, value_name = "SIZE", default_value = "240", value_parser = units::size_within(0..=MOST_BODY_RATE))]
    min_body_rate: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// The combined log format that most servers have, and the seconds that the answer took
    Text,
    /// An object per line
    Json,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("write up to three octal digits, such as 660".to_owned()),
    }
}

impl Options {
    /// What is wrong with the options taken together.
    pub fn check(&self) -> Result<(), String> {
        match &self.admin {
            Some(Address::Tcp(address)) if !self.admin_anywhere && !is_loopback(address.ip()) => Err(format!(
                "--admin {address} can be reached from other machines, which could then read the metrics; \
                 use a loopback address such as 127.0.0.1:{}, or say --admin-anywhere",
                address.port()
            )),
            _ => Ok(()),
        }
    }

    /// Where to listen, if nobody has opened sockets for us.
    pub fn default_address() -> Address {
        DEFAULT_ADDRESS.parse().expect("it is an address")
    }

    /// How many bytes may wait to be sent, on each worker.
    pub fn queued(&self) -> usize {
        in_memory(self.limits.max_queued)
    }

    /// What clients are allowed.
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
            // What has begun by then has the rest of the time.
            drain_idle: self.drain_idle.min(self.drain_time / 2),
            connections: budget.connections,
            connections_per_address: limits.max_connections_per_address.map(|number| number as usize),
            queued: self.queued(),
            turned_away: budget.turned_away,
            ..default
        }
    }
}

/// No more than an address space has.
fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
