//! The command line of `pelton serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::Address;
use pelton_http::{FileSettings, Settings};

use crate::serving::ServerOptions;
use crate::units;

/// Where to listen, unless something else is said.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

#[derive(Args)]
pub struct Options {
    /// The directory whose files are served. Without one, there is a page that says welcome
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Where to listen: 127.0.0.1:8080, [::]:8080, unix:/path, unix:@name; port 0 picks a free one. May be repeated. By default
    /// 127.0.0.1:8080, or the sockets that a service manager has opened
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// The permissions of the files of Unix sockets, in octal, such as 660; by default what the umask leaves
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

    /// Lets --admin be an address that others can reach: whoever can may read the metrics
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
    #[arg(long, value_name = "SECONDS", requires = "dir")]
    cache_seconds: Option<u32>,

    /// Serves the directory that DIR leads to at the start, even if DIR is a link that is pointed elsewhere later; by default the link
    /// is followed again every second
    #[arg(long, requires = "dir")]
    pinned: bool,

    /// How much memory each worker may fill with small files
    #[arg(long, value_name = "SIZE", default_value = "16m", value_parser = units::size)]
    file_memory: u64,
}

fn file_name(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("write the name of a file".to_owned()),
        _ if text.contains('/') => Err("write the name of a file, without a directory".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

impl FileOptions {
    pub fn settings(&self) -> FileSettings {
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
            ..FileSettings::default()
        }
    }
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// How many connections there may be, of all workers together; more are answered with 503
    #[arg(long, value_name = "NUMBER", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// How many connections there may be from one address (with IPv6, from one /64 network), of all workers together; by default any
    /// number
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,

    /// After how many requests a connection is closed; by default it is not
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests: Option<u32>,

    /// How long the body of a request may be; longer ones are answered with 413
    #[arg(long, value_name = "SIZE", default_value = "2m", value_parser = units::size)]
    max_body: u64,

    /// How long the header fields of a request may be, all together; longer ones are answered with 431
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = units::size)]
    max_header: u64,

    /// How long a client may take to send the head of a request; one that takes longer is answered with 408
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::positive_duration)]
    header_time: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration)]
    idle_time: Duration,

    /// How slowly the body of a request may come, in bytes a second over ten seconds; a slower one is answered with 408
    #[arg(long, value_name = "SIZE", default_value = "240", value_parser = units::size)]
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

    /// What clients are allowed.
    pub fn settings(&self) -> Settings {
        let limits = &self.limits;
        let default = Settings::default();
        Settings {
            head: pelton_http::wire::HeadLimits {
                header_bytes: usize::try_from(limits.max_header).unwrap_or(usize::MAX),
                ..default.head
            },
            body: limits.max_body,
            header_time: limits.header_time,
            idle: limits.idle_time,
            body_rate: u32::try_from(limits.min_body_rate).unwrap_or(u32::MAX),
            requests: limits.max_requests,
            // What has begun by then has the rest of the time.
            drain_idle: self.drain_idle.min(self.drain_time / 2),
            connections: limits.max_connections as usize,
            connections_per_address: limits.max_connections_per_address.map(|number| number as usize),
            ..default
        }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or(address.is_loopback(), |address| address.is_loopback()),
    }
}
