//! Proxies: the processor time of a round trip, of a connection and of a gigabyte, and the memory of an idle pair.
//!
//! Each proxy is a process with one thread on one core. The load and the target share the other core. The target echoes; for
//! bulk transfers it only reads.

mod servers;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::client::{Client, Exchange, Until, come_and_go};
use crate::harness::{Better, Case, Contender, Contest, Reading, Side, Standing};
use crate::installed::answer;
use crate::machine::{Place, pin, version};
use crate::mark::Mark;
use crate::process::Server;

use servers::Kind;
pub use servers::{Serving, pelton_command, serve};

const LIBRARY: &str = "pelton library";
const COMMAND: &str = "pelton proxy";
const HAPROXY: &str = "HAProxy";
const SPLICING: &str = "HAProxy, splice";
const NGINX: &str = "nginx stream";
const SOCAT: &str = "socat";

/// Bytes per message of a round trip, and of the first message of a connection.
const SIZE: usize = 64;

/// Numbers of connections with a round trip at a time.
const SHAPES: [usize; 2] = [1, 50];

/// Number of concurrent short-lived clients.
const AT_ONCE: usize = 20;

/// Bytes per write and read of a bulk transfer.
const PIECE: usize = 256 << 10;

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Length of a window, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Bytes of a bulk transfer, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    bulk: u64,

    /// Number of idle pairs
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(2..))]
    idle: u32,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "echo,churn,bulk,memory")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per round trip
    Echo,
    /// Processor time per connection
    Churn,
    /// Processor time per gigabyte
    Bulk,
    /// Bytes per idle pair
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
            (load.windows, load.window, load.bulk, load.idle) = (2, 20, 8, 50);
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
    fn start(&self, target: SocketAddrV4, stage: &TempDir) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        let kind = self.kind.to_possible_value().context("a server without a name")?;
        command.args(["proxy-server", kind.get_name(), &target.to_string()]).arg(stage.path());
        let server = Server::start(command).with_context(|| format!("start {}", self.name))?;
        servers::wait_until_it_listens(server.address).with_context(|| format!("start {}", self.name))?;
        Ok(server)
    }
}

/// Returns all contenders that are available on this machine. Prints which are missing.
fn entrants() -> Vec<Entrant> {
    let mut entrants =
        vec![Entrant { name: LIBRARY, version: version("pelton"), side: Side::Ours, kind: Kind::Library }];
    let mut add = |name, side, kind, version: Option<String>, advice: &str| match version {
        Some(version) => entrants.push(Entrant { name, version, side, kind }),
        None => eprintln!("{name}: skipped: {advice}"),
    };
    let ours = servers::pelton_command();
    let ours = ours.to_str().and_then(|program| answer(program, &["--version"]));
    add(COMMAND, Side::Ours, Kind::Command, ours, "not built (cargo build --release -p pelton-cli)");
    let haproxy = answer("haproxy", &["-v"]).and_then(|text| text.split_whitespace().nth(2).map(str::to_owned));
    let advice = "not installed (apt-get install haproxy)";
    add(HAPROXY, Side::Peer, Kind::Haproxy, haproxy.clone(), advice);
    add(SPLICING, Side::Peer, Kind::HaproxySplice, haproxy, advice);
    let advice = "not installed (apt-get install nginx-light libnginx-mod-stream)";
    add(NGINX, Side::Peer, Kind::Nginx, nginx_version(), advice);
    let socat = answer("socat", &["-V"]);
    let socat = socat.and_then(|text| Some(text.split_once("socat version ")?.1.split_whitespace().next()?.to_owned()));
    add(SOCAT, Side::Peer, Kind::Socat, socat, "not installed (apt-get install socat)");
    entrants
}

/// Returns the version of nginx if it has the module that proxies streams.
fn nginx_version() -> Option<String> {
    std::fs::metadata("/usr/lib/nginx/modules/ngx_stream_module.so").ok()?;
    let output = Command::new("nginx").arg("-v").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stderr).ok()?;
    text.split_once('/')?.1.split_whitespace().next().map(str::to_owned)
}

/// Runs the selected parts one after the other. The calling thread generates the load.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    crate::client::raise_descriptor_limit(2 * load.idle as usize + 400)?;
    let (entrants, stage) = (entrants(), tempfile::tempdir().context("make a directory")?);
    let mut standings = Vec::new();
    for part in &load.only {
        match part {
            Part::Echo => {
                for connections in SHAPES {
                    standings.extend(echo(&entrants, &stage, connections, load)?);
                }
            }
            Part::Churn => standings.extend(churn(&entrants, &stage, load)?),
            Part::Bulk => standings.extend(bulk(&entrants, &stage, load)?),
            Part::Memory => standings.extend(memory(&entrants, &stage, load.idle as usize)?),
        }
    }
    Ok(standings)
}

fn reading(value: f64) -> Option<Reading> {
    Some(Reading { value, cpu_us: None, syscalls: None })
}

/// Starts the target: the floor's echo server, on the core of the load.
fn target() -> Result<Target> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(["net-server", "floor"]);
    Target::start(command)
}

/// A target on the partner's core.
struct Target {
    server: Server,
}

impl Target {
    fn start(command: Command) -> Result<Target> {
        let server = Server::start(command).context("start the target")?;
        // It was started on the proxies' core.
        let id = rustix::process::Pid::from_raw(i32::try_from(server.id())?);
        let here = rustix::thread::sched_getaffinity(None).context("ask for this thread's core")?;
        rustix::thread::sched_setaffinity(id, &here).context("move the target to the core of the load")?;
        Ok(Target { server })
    }

    fn address(&self) -> SocketAddrV4 {
        self.server.address
    }
}

/// The promise: as cheap as the best of the others.
fn as_good_as_the_best(case: Case) -> Case {
    case.mark(Mark::Times { factor: 1.0, against: vec![HAPROXY, SPLICING, NGINX, SOCAT] })
}

fn echo(entrants: &[Entrant], stage: &TempDir, connections: usize, load: &Load) -> Result<Vec<Standing>> {
    let name = format!("proxied round trip {SIZE} B × {connections}");
    let case = as_good_as_the_best(Case::new(format!("{name}, CPU"), "µs", Better::Lower));
    let (window, target) = (Duration::from_millis(load.window), target()?);
    let mut contenders = Vec::new();
    for entrant in entrants {
        // socat forwards one connection; splicing is for bulk.
        if entrant.kind == Kind::HaproxySplice || (entrant.kind == Kind::Socat && connections > 1) {
            continue;
        }
        let proxy = entrant.start(target.address(), stage)?;
        let mut client = Client::open(proxy.address, connections, Exchange::echo(SIZE))?;
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let before = proxy.cpu_time()?;
            let burst = client.run(Until::Elapsed(window)).context("keep messages in flight")?;
            let cpu = proxy.cpu_time()? - before;
            Ok(vec![reading(cpu.as_secs_f64() * 1e6 / burst.messages as f64)])
        }));
    }
    Contest { name, cases: vec![case], contenders }.run(load.windows as usize)
}

fn churn(entrants: &[Entrant], stage: &TempDir, load: &Load) -> Result<Vec<Standing>> {
    let case = as_good_as_the_best(Case::new("proxied connection with one message, CPU", "µs", Better::Lower));
    let (window, target) = (Duration::from_millis(load.window), target()?);
    let mut contenders = Vec::new();
    for entrant in entrants {
        if matches!(entrant.kind, Kind::HaproxySplice | Kind::Socat) {
            continue;
        }
        let proxy = entrant.start(target.address(), stage)?;
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let before = proxy.cpu_time()?;
            let (served, _) = come_and_go(proxy.address, AT_ONCE, window)?;
            let cpu = proxy.cpu_time()? - before;
            Ok(vec![reading(cpu.as_secs_f64() * 1e6 / served as f64)])
        }));
    }
    Contest { name: "proxied connections".to_owned(), cases: vec![case], contenders }.run(load.windows as usize)
}

fn bulk(entrants: &[Entrant], stage: &TempDir, load: &Load) -> Result<Vec<Standing>> {
    let case = as_good_as_the_best(Case::new("proxied bulk transfer, CPU", "ms/GB", Better::Lower));
    let bytes = load.bulk << 20;
    let mut contenders = Vec::new();
    for entrant in entrants {
        let sink = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen for a transfer")?;
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, sink.local_addr()?.port());
        let lasting = (entrant.kind != Kind::Socat).then(|| entrant.start(to, stage)).transpose()?;
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            // socat ends with its connection, and its processor time with it.
            let started;
            let proxy = match &lasting {
                Some(proxy) => proxy,
                None => {
                    started = entrant.start(to, stage)?;
                    &started
                }
            };
            let mut client = servers::connect(proxy.address)?;
            let (mut at_target, _) = sink.accept().context("accept a transfer")?;
            let before = proxy.cpu_time()?;
            let sending = std::thread::spawn(move || -> std::io::Result<std::net::TcpStream> {
                let piece = vec![7; PIECE];
                for _ in 0..bytes / PIECE as u64 {
                    client.write_all(&piece)?;
                }
                Ok(client)
            });
            let (mut count, mut piece) = (0, vec![0; PIECE]);
            while count < bytes {
                let read = at_target.read(&mut piece).context("receive a transfer")?;
                ensure!(read > 0, "a transfer ended after {count} of {bytes} bytes");
                count += read as u64;
            }
            let cpu = proxy.cpu_time()? - before;
            let client = sending.join().expect("the sender does not panic").context("send a transfer")?;
            client.shutdown(Shutdown::Both).ok();
            Ok(vec![reading(cpu.as_secs_f64() * 1e3 * 1e9 / bytes as f64)])
        }));
    }
    Contest { name: "proxied bulk transfer".to_owned(), cases: vec![case], contenders }.run(load.windows as usize)
}

fn memory(entrants: &[Entrant], stage: &TempDir, idle: usize) -> Result<Vec<Standing>> {
    const WARM_UP: usize = 20;
    let target = target()?;
    let target = &target;
    let several = entrants.iter().filter(|entrant| !matches!(entrant.kind, Kind::HaproxySplice | Kind::Socat));
    let contenders = several.map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let proxy = entrant.start(target.address(), stage)?;
            drop(Client::open(proxy.address, WARM_UP, Exchange::echo(SIZE))?);
            let mut client = Client::open(proxy.address, 1, Exchange::echo(SIZE))?;
            let before = proxy.memory()?;
            client.grow(proxy.address, idle)?;
            let grown = proxy.memory()?.saturating_sub(before);
            Ok(vec![reading(grown as f64 / (idle - 1) as f64)])
        })
    });
    let case = Case::new(format!("idle proxied pairs, {idle}"), "B each", Better::Lower).relative_to(HAPROXY);
    let cases = vec![case.mark(Mark::Times { factor: 1.0, against: vec![HAPROXY] })];
    Contest { name: "idle proxied pairs".to_owned(), cases, contenders: contenders.collect() }.count()
}
