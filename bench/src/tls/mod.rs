//! TLS: echo servers under load over encrypted connections, handshakes, and memory of idle connections.
//!
//! The floor is rustls on blocking threads, one per connection: what the cryptography and the system calls cost without a loop.
//! All servers use rustls with ring, and the same certificate.

mod handshakes;
mod servers;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::harness::{Better, Case, Contender, Contest, Reading, Side, Standing};
use crate::machine::{Place, pin, version};
use crate::mark::Mark;
use crate::process::Server;
use crate::tls_client::TlsClient;
use handshakes::Shaker;

use servers::Kind;
pub use servers::{Serving, serve};

const FLOOR: &str = "rustls on threads";
const OURS: &str = "pelton";
const TOKIO: &str = "tokio-rustls";

/// Bytes per message and connections of the echo part.
const SHAPES: [(usize, usize); 4] = [(64, 1), (64, 50), (16 << 10, 1), (16 << 10, 50)];

/// Most bytes that an idle connection may take: what the goal for connections with TLS says.
const MOST_IDLE: f64 = 16.0 * 1024.0;

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Length of a window, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..))]
    idle: u32,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "echo,handshakes,memory")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per message, and rate
    Echo,
    /// Processor time per connection with a full or a resumed handshake
    Handshakes,
    /// Bytes per idle connection
    Memory,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        Part::value_variants().iter().all(|part| self.only.contains(part)) && !self.quick
    }

    fn effective(&self) -> Load {
        let mut load = self.clone();
        if load.quick {
            (load.windows, load.window, load.idle) = (2, 20, 50);
        }
        load
    }
}

/// The certificate of all servers.
pub struct Certificate {
    directory: TempDir,
}

impl Certificate {
    fn make() -> Result<Certificate> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("make a certificate")?;
        let certificate = Certificate { directory: tempfile::tempdir().context("make a directory")? };
        std::fs::write(certificate.chain(), made.cert.pem()).context("write the certificate")?;
        std::fs::write(certificate.key(), made.signing_key.serialize_pem()).context("write the key")?;
        Ok(certificate)
    }

    fn chain(&self) -> std::path::PathBuf {
        self.directory.path().join("chain.pem")
    }

    fn key(&self) -> std::path::PathBuf {
        self.directory.path().join("key.pem")
    }
}

struct Entrant {
    name: &'static str,
    version: String,
    side: Side,
    kind: Kind,
}

impl Entrant {
    fn all() -> [Entrant; 3] {
        [
            Entrant { name: FLOOR, version: version("rustls"), side: Side::Floor, kind: Kind::Threads },
            Entrant { name: OURS, version: version("pelton-tls"), side: Side::Ours, kind: Kind::Pelton },
            Entrant { name: TOKIO, version: version("tokio-rustls"), side: Side::Peer, kind: Kind::Tokio },
        ]
    }

    fn start(&self, certificate: &Certificate) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        let kind = self.kind.to_possible_value().context("a server without a name")?;
        command.args(["tls-server", kind.get_name()]).arg(certificate.chain()).arg(certificate.key());
        Server::start(command).with_context(|| format!("start {}", self.name))
    }
}

/// Runs the selected parts one after the other. The calling thread generates the load.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    crate::client::raise_descriptor_limit(load.idle as usize + 200)?;
    let (certificate, entrants) = (Certificate::make()?, Entrant::all());
    let mut standings = Vec::new();
    for part in &load.only {
        match part {
            Part::Echo => {
                for shape in SHAPES {
                    standings.extend(echo(&entrants, &certificate, shape, load)?);
                }
            }
            Part::Handshakes => standings.extend(handshakes(&entrants, &certificate, load)?),
            Part::Memory => standings.extend(memory(&entrants, &certificate, load.idle as usize)?),
        }
    }
    Ok(standings)
}

fn reading(value: f64) -> Option<Reading> {
    Some(Reading { value, cpu_us: None, syscalls: None })
}

fn echo(
    entrants: &[Entrant],
    certificate: &Certificate,
    (size, connections): (usize, usize),
    load: &Load,
) -> Result<Vec<Standing>> {
    let bytes = if size < 1024 { format!("{size} B") } else { format!("{} KiB", size >> 10) };
    let name = format!("TLS echo {bytes} × {connections}");
    let cpu = Case::new(format!("{name}, CPU"), "µs", Better::Lower).relative_to(FLOOR);
    let rate = Case::new(format!("{name}, rate"), "k/s", Better::Higher).relative_to(FLOOR).table_only();
    let window = Duration::from_millis(load.window);
    let mut contenders = Vec::new();
    for entrant in entrants {
        let server = entrant.start(certificate)?;
        let mut client = TlsClient::open(server.address, &certificate.chain(), connections, size)?;
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let before = server.cpu_time()?;
            let (messages, wall) = client.run(window).context("keep messages in flight")?;
            let cpu = server.cpu_time()? - before;
            Ok(vec![
                reading(cpu.as_secs_f64() * 1e6 / messages as f64),
                reading(messages as f64 / 1e3 / wall.as_secs_f64()),
            ])
        }));
    }
    let cpu =
        cpu.mark(Mark::AtMost { factor: 1.10, against: FLOOR }).mark(Mark::Times { factor: 1.0, against: vec![TOKIO] });
    Contest { name, cases: vec![cpu, rate], contenders }.run(load.windows as usize)
}

fn handshakes(entrants: &[Entrant], certificate: &Certificate, load: &Load) -> Result<Vec<Standing>> {
    let case = |what| {
        let case = Case::new(format!("TLS connection, {what} handshake, CPU"), "µs", Better::Lower);
        case.relative_to(FLOOR).mark(Mark::Times { factor: 1.0, against: vec![TOKIO] })
    };
    let window = Duration::from_millis(load.window);
    let mut contenders = Vec::new();
    for entrant in entrants {
        let server = entrant.start(certificate)?;
        let mut shakers = [Shaker::new(&certificate.chain(), false)?, Shaker::new(&certificate.chain(), true)?];
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let mut readings = Vec::new();
            for shaker in &mut shakers {
                // The first of a resuming client is a full one.
                shaker.run(server.address, Duration::ZERO)?;
                let before = server.cpu_time()?;
                let count = shaker.run(server.address, window)?;
                let cpu = server.cpu_time()? - before;
                readings.push(reading(cpu.as_secs_f64() * 1e6 / count as f64));
            }
            Ok(readings)
        }));
    }
    let cases = vec![case("full"), case("resumed")];
    Contest { name: "TLS handshakes".to_owned(), cases, contenders }.run(load.windows as usize)
}

fn memory(entrants: &[Entrant], certificate: &Certificate, idle: usize) -> Result<Vec<Standing>> {
    const WARM_UP: usize = 20;
    let contenders = entrants.iter().filter(|entrant| entrant.kind != Kind::Threads).map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let server = entrant.start(certificate)?;
            let open = |count| TlsClient::open(server.address, &certificate.chain(), count, 64);
            let _warm = open(WARM_UP)?;
            let before = server.memory()?;
            let _idle = open(idle)?;
            let grown = server.memory()?.saturating_sub(before);
            Ok(vec![reading(grown as f64 / idle as f64)])
        })
    });
    let case = Case::new(format!("idle TLS connections, {idle}"), "B each", Better::Lower).relative_to(TOKIO);
    let cases = vec![case.mark(Mark::Limit { at_most: MOST_IDLE })];
    Contest { name: "idle TLS connections".to_owned(), cases, contenders: contenders.collect() }.count()
}
