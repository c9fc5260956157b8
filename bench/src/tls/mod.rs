//! TLS: echo servers under load over encrypted connections, HTTPS, handshakes, and memory of idle connections.
//!
//! The floor is rustls on blocking threads, one per connection: what the cryptography and the system calls cost without a loop.
//! All servers have the same certificate. All except nginx, which has OpenSSL, use rustls with ring.

mod alone;
mod handshakes;
mod https;
mod servers;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::client::{Client, Exchange, Until};
use crate::harness::{Better, Case, Contender, Contest, Reading, Side, Standing};
use crate::http::stage::Stage;
use crate::http::wrk;
use crate::machine::{Place, pin, version};
use crate::mark::Mark;
use crate::process::Server;
use crate::tls_client::TlsClient;
use alone::Alone;
use handshakes::Shaker;
use servers::Kind;
pub use servers::{Serving, config, serve};

const FLOOR: &str = "rustls on threads";
/// Pelton's echo without TLS, plus rustls in memory.
const SUM: &str = "plain echo + rustls";
const OURS: &str = "pelton";
const TOKIO: &str = "tokio-rustls";

/// Bytes per message and connections of the echo part.
const SHAPES: [(usize, usize); 4] = [(64, 1), (64, 50), (16 << 10, 1), (16 << 10, 50)];

/// Bytes that rustls alone echoes in one window.
const ALONE: u64 = 8 << 20;

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
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "echo,requests,handshakes,memory")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per message, and rate
    Echo,
    /// Short responses and files over HTTPS: processor time per request, rate and latency; needs wrk
    Requests,
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

    fn start(&self, stage: &Stage) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        let kind = self.kind.to_possible_value().context("a server without a name")?;
        command.args(["tls-server", kind.get_name()]).arg(stage.chain()).arg(stage.key());
        Server::start(command).with_context(|| format!("start {}", self.name))
    }
}

/// Runs the selected parts one after the other. The calling thread generates the load.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    crate::client::raise_descriptor_limit(load.idle as usize + 200)?;
    let (stage, entrants, https) = (Stage::new()?, Entrant::all(), https::entrants());
    let (windows, window) = (load.windows as usize, Duration::from_millis(load.window));
    let mut standings = Vec::new();
    for part in &load.only {
        match part {
            Part::Echo => {
                for shape in SHAPES {
                    standings.extend(echo(&entrants, &stage, shape, window)?.run(windows)?);
                }
            }
            Part::Handshakes => {
                standings.extend(handshakes(&entrants, &stage, window)?.run(windows)?);
                let servers = https::start_all(&https, &stage)?;
                standings.extend(https::handshakes(&servers, &stage, window)?.run(windows)?);
            }
            Part::Requests if !wrk::is_installed() => {
                eprintln!("{}: not installed; skipping the measurements that need it (apt-get install wrk)", wrk::TOOL);
            }
            Part::Requests => {
                let servers = https::start_all(&https, &stage)?;
                for contest in https::requests(&servers, &stage, 1) {
                    standings.extend(if load.quick { contest.count()? } else { contest.run(windows)? });
                }
            }
            Part::Memory => {
                standings.extend(memory(&entrants, &stage, load.idle as usize)?);
                standings.extend(https::idle(&https, &stage, load.idle as usize).count()?);
            }
        }
    }
    Ok(standings)
}

fn reading(value: f64) -> Option<Reading> {
    Some(Reading { value, cpu_us: None, syscalls: None })
}

fn echo<'a>(
    entrants: &[Entrant],
    stage: &'a Stage,
    (size, connections): (usize, usize),
    window: Duration,
) -> Result<Contest<'a>> {
    let bytes = if size < 1024 { format!("{size} B") } else { format!("{} KiB", size >> 10) };
    let name = format!("TLS echo {bytes} × {connections}");
    let cpu = Case::new(format!("{name}, CPU"), "µs", Better::Lower).relative_to(SUM);
    let rate = Case::new(format!("{name}, rate"), "k/s", Better::Higher).relative_to(FLOOR).table_only();
    let mut contenders = vec![sum(stage, (size, connections), window)?];
    for entrant in entrants {
        let server = entrant.start(stage)?;
        let mut client = TlsClient::open(server.address, &stage.chain(), connections, Exchange::echo(size))?;
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
        cpu.mark(Mark::AtMost { factor: 1.10, against: SUM }).mark(Mark::Times { factor: 1.0, against: vec![TOKIO] });
    Ok(Contest { name, cases: vec![cpu, rate], contenders })
}

/// Returns a contender that adds up what an echoed message costs without TLS, and what rustls takes for it in memory.
fn sum(stage: &Stage, (size, connections): (usize, usize), window: Duration) -> Result<Contender<'_>> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(["net-server", "pelton"]);
    let server = Server::start(command).context("start an echo server without TLS")?;
    let mut client = Client::open(server.address, connections, Exchange::echo(size))?;
    let mut alone = Alone::new(stage, size)?;
    Ok(Contender::new(SUM, version("rustls"), Side::Floor, move || {
        let before = server.cpu_time()?;
        let burst = client.run(Until::Elapsed(window)).context("keep messages in flight")?;
        let plain = (server.cpu_time()? - before).as_secs_f64() * 1e6 / burst.messages as f64;
        let messages = ALONE / size as u64;
        let alone = alone.echo(messages)?.as_secs_f64() * 1e6 / messages as f64;
        Ok(vec![reading(plain + alone), None])
    }))
}

fn handshakes<'a>(entrants: &[Entrant], stage: &'a Stage, window: Duration) -> Result<Contest<'a>> {
    let case = |what| {
        let case = Case::new(format!("TLS connection, {what} handshake, CPU"), "µs", Better::Lower);
        case.relative_to(FLOOR).mark(Mark::Times { factor: 1.0, against: vec![TOKIO] })
    };
    let mut contenders = Vec::new();
    for entrant in entrants {
        let server = entrant.start(stage)?;
        let shaker = |resumes| Shaker::new(&stage.chain(), Exchange::echo(1), resumes);
        let mut shakers = [shaker(false)?, shaker(true)?];
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            shakers.iter_mut().map(|shaker| Ok(reading(shaker.measure(&server, window)?))).collect()
        }));
    }
    Ok(Contest { name: "TLS handshakes".to_owned(), cases: vec![case("full"), case("resumed")], contenders })
}

fn memory(entrants: &[Entrant], stage: &Stage, idle: usize) -> Result<Vec<Standing>> {
    const WARM_UP: usize = 20;
    let contenders = entrants.iter().filter(|entrant| entrant.kind != Kind::Threads).map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let server = entrant.start(stage)?;
            Ok(vec![reading(grown(&server, stage, WARM_UP, idle, &Exchange::echo(64))?)])
        })
    });
    let case = Case::new(format!("idle TLS connections, {idle}"), "B each", Better::Lower).relative_to(TOKIO);
    let cases = vec![case.mark(Mark::Limit { at_most: MOST_IDLE })];
    Contest { name: "idle TLS connections".to_owned(), cases, contenders: contenders.collect() }.count()
}

/// Returns how many bytes a server grows per idle connection that has had one answer. All of them are held until it is
/// measured, and answer once more.
fn grown(server: &Server, stage: &Stage, warm_up: usize, idle: usize, exchange: &Exchange) -> Result<f64> {
    let open = |count| TlsClient::open(server.address, &stage.chain(), count, exchange.clone());
    let _warm = open(warm_up)?;
    let before = server.memory()?;
    let mut client = open(idle)?;
    let grown = server.memory()?.saturating_sub(before);
    client.run(Duration::ZERO).context("exchange another message on each idle connection")?;
    Ok(grown as f64 / idle as f64)
}
