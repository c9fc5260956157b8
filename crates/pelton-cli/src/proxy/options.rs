//! The command line of `pelton proxy`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::{Address, Endpoint};

use crate::serve::admin::{self, is_loopback};
use crate::serve::options::mode;
use crate::serving::ServerOptions;
use crate::units;

/// The maximum number of connections: more than a process can have descriptors on most systems.
const MOST_CONNECTIONS: i64 = 5_000_000;

#[derive(Args)]
pub struct Options {
    /// Address to listen on: 0.0.0.0:443, [::]:443, unix:/path, unix:@name; port 0 picks a free one. May be repeated
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Target: 192.0.2.1:80, example.org:80, unix:/path. May be repeated, or a list separated by commas
    #[arg(long, short, value_name = "TARGET", value_delimiter = ',')]
    pub to: Vec<Endpoint>,

    /// Targets for TLS clients that ask for this name: NAME=TARGET. TLS is passed through, not terminated. The name may be
    /// *.example.org for all names below it. Clients that ask for no such name go to --to, or are closed. May be repeated
    #[arg(long, value_name = "NAME=TARGET", value_parser = by_name, conflicts_with = "tls_cert")]
    pub to_sni: Vec<(String, Endpoint)>,

    /// How a target is chosen
    #[arg(long, value_name = "HOW", default_value = "least")]
    pub balance: Balance,

    /// Permissions of the Unix sockets of --listen, in octal, such as 660; by default those that the umask leaves
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,

    #[command(flatten)]
    pub server: ServerOptions,

    #[command(flatten)]
    pub tls: Tls,

    #[command(flatten)]
    pub headers: Headers,

    #[command(flatten)]
    pub health: Health,

    #[command(flatten)]
    pub limits: Limits,

    /// Writes a line per connection to this file; `-` is standard output. SIGHUP reopens it
    #[arg(long, value_name = "PATH", help_heading = "Observability")]
    pub access_log: Option<PathBuf>,

    /// Serves /metrics (for Prometheus) and /health at this address: a loopback address or a Unix socket
    #[arg(long, value_name = "ADDRESS", help_heading = "Observability")]
    pub admin: Option<Address>,

    /// A name or address, without a port, by which clients may call the admin address besides localhost. May be repeated
    #[arg(long, value_name = "HOST", requires = "admin", value_parser = admin::host_name, help_heading = "Observability")]
    pub admin_host: Vec<String>,

    /// Permissions of an --admin Unix socket, in octal
    #[arg(long, value_name = "MODE", requires = "admin", value_parser = mode, default_value = "600", help_heading = "Observability")]
    pub admin_socket_mode: u32,

    /// Writes the process ID to this file once it serves, and removes the file at exit
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,

    /// User to become after the addresses are bound and the keys are read: a name of /etc/passwd, or a number. Linux only
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Group to become then; by default that of --user
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,

    /// How long connections may last after a signal to stop, or after a hand-over
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Shutdown")]
    pub drain_time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Balance {
    /// The target with the fewest connections
    Least,
    /// One after the other
    RoundRobin,
    /// By the client's address: a client gets the same target as long as that is up
    Hash,
}

#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub struct Tls {
    /// Certificate with its chain, as PEM: terminates TLS. May be repeated, each with its --tls-key; clients choose by name.
    /// SIGHUP reloads it, and so does a change of the file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Vec<PathBuf>,

    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Vec<PathBuf>,

    /// Speaks TLS to the targets, and verifies them against the system's authorities
    #[arg(long)]
    pub to_tls: bool,

    /// Verifies the targets against the authorities in this file instead, as PEM
    #[arg(long, value_name = "FILE", requires = "to_tls")]
    pub to_ca: Option<PathBuf>,

    /// Name to ask the targets for, and to verify; by default the host of the target
    #[arg(long, value_name = "NAME", requires = "to_tls")]
    pub to_name: Option<String>,

    /// Does not verify the targets: anyone who can redirect the connection can read and change everything
    #[arg(long, requires = "to_tls", conflicts_with = "to_ca")]
    pub to_insecure: bool,
}

#[derive(Args)]
#[command(next_help_heading = "PROXY protocol")]
pub struct Headers {
    /// Requires a PROXY header, version 1 or 2, from every client, and takes the client's address from it. Anybody who can
    /// connect can then claim any address, so only other proxies should be able to
    #[arg(long)]
    pub accept_proxy: bool,

    /// Sends a PROXY header of this version to the targets
    #[arg(long, value_name = "VERSION")]
    pub send_proxy: Option<Version>,

    /// How long a client may take to send its PROXY header, or its TLS hello for --to-sni
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration)]
    pub header_time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Version {
    /// A line of text
    V1,
    /// Binary
    V2,
}

#[derive(Args)]
#[command(next_help_heading = "Health")]
pub struct Health {
    /// Connects to each target this often, and does not use those that do not accept; 0 disables these checks
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    pub check_interval: Duration,

    /// Failures in a row after which a target is not used for --down-time, or until a check succeeds
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_failures: u32,

    /// How long a target that has failed is not used, without --check-interval
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration)]
    pub down_time: Duration,

    /// How many other targets are tried if connecting to one fails
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Most clients at a time, over all workers; further ones are closed. Lower if the process may not have enough descriptors,
    /// which is logged
    #[arg(long, value_name = "NUMBER", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    pub max_connections: u32,

    /// Most clients from one address (for IPv6, from one /64 network), over all workers; by default unlimited
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=MOST_CONNECTIONS))]
    pub max_connections_per_address: Option<u32>,

    /// How long connecting to a target may take, and every TLS handshake
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration)]
    pub connect_time: Duration,

    /// Closes a pair on which nothing was sent in either direction for this long; 0 disables this
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::duration)]
    pub idle_time: Duration,
}

fn by_name(text: &str) -> Result<(String, Endpoint), String> {
    let (name, target) = text.split_once('=').ok_or("give NAME=TARGET, such as www.example.org=192.0.2.1:443")?;
    let plain = name.strip_prefix("*.").unwrap_or(name);
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if plain.is_empty() || !plain.chars().all(fits) {
        return Err(format!("{name:?} is not a name; give www.example.org or *.example.org"));
    }
    Ok((name.to_ascii_lowercase(), target.parse().map_err(|error: pelton::BadEndpoint| error.to_string())?))
}

impl From<Balance> for pelton::Balance {
    fn from(balance: Balance) -> pelton::Balance {
        match balance {
            Balance::Least => pelton::Balance::Least,
            Balance::RoundRobin => pelton::Balance::RoundRobin,
            Balance::Hash => pelton::Balance::Hash,
        }
    }
}

impl Options {
    /// Checks the options for contradictions.
    pub fn check(&self) -> Result<(), String> {
        if self.to.is_empty() && self.to_sni.is_empty() {
            return Err("give at least one target: --to 192.0.2.1:80, or --to-sni NAME=TARGET".to_owned());
        }
        if self.tls.tls_cert.len() != self.tls.tls_key.len() {
            let (certs, keys) = (self.tls.tls_cert.len(), self.tls.tls_key.len());
            return Err(format!("each --tls-cert needs its --tls-key; there are {certs} and {keys}"));
        }
        if self.tls.to_tls && !self.to_sni.is_empty() {
            return Err("--to-sni passes TLS through, so --to-tls would encrypt twice".to_owned());
        }
        match &self.admin {
            Some(Address::Tcp(address)) if !is_loopback(address.ip()) => Err(format!(
                "--admin {address} can be reached from other machines; use a loopback address such as 127.0.0.1:{}",
                address.port()
            )),
            _ => Ok(()),
        }
    }
}
