//! HTTP clients: processor time per request and per gigabyte, and memory of kept connections.
//!
//! Each client is a process with one thread on one core; the server is on the other. A client gets a line with a number of
//! requests, sends them, keeping a fixed number in flight, and answers with a line when all are answered.

mod loads;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::client::raise_descriptor_limit;
use crate::harness::{Better, Case, Contender, Contest, Reading, Side, Standing};
use crate::http::entrants;
use crate::http::servers::Kind as ServerKind;
use crate::http::stage::Stage;
use crate::installed::answer;
use crate::machine::{Place, pin, version};
use crate::mark::Mark;
use crate::process::{Server, cpu_time_of, memory_of};

use loads::Kind;
pub use loads::{Fetching, fetch};

const OURS: &str = "pelton";
const CURL: &str = "curl multi";

/// Numbers of requests in flight.
const IN_FLIGHT: [u32; 3] = [1, 64, 512];

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Requests per window; slower clients send a fraction
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,

    /// Size of the download, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    download: u64,

    /// Number of kept connections
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    idle: u32,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "plain,tls,download,memory")]
    only: Vec<Part>,

    /// Contenders, separated by commas [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per request
    Plain,
    /// The same over TLS
    Tls,
    /// Processor time of a large download
    Download,
    /// Bytes per kept connection
    Memory,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        let everybody = cfg!(feature = "client-peers") && self.contenders.is_empty();
        Part::value_variants().iter().all(|part| self.only.contains(part)) && !self.quick && everybody
    }

    fn effective(&self) -> Load {
        let mut load = self.clone();
        if load.quick {
            (load.windows, load.requests, load.download, load.idle) = (2, 600, 4, 50);
        }
        load
    }
}

#[derive(Clone)]
struct Entrant {
    name: &'static str,
    version: String,
    side: Side,
    kind: Kind,
    /// It sends this fraction of the requests in a window, because it takes longer.
    share: u32,
}

impl Entrant {
    /// Starts the client. It keeps this many requests for `url` in flight.
    fn start(&self, url: &str, in_flight: u32, stage: &Stage) -> Result<Fetcher> {
        let kind = self.kind.to_possible_value().context("a client without a name")?;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["client-load", kind.get_name(), url, &in_flight.to_string()]).arg(stage.chain());
        Fetcher::start(command).with_context(|| format!("start {}", self.name))
    }
}

/// A client that runs until this is dropped.
struct Fetcher {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Fetcher {
    fn start(mut command: Command) -> Result<Fetcher> {
        // It inherits the core from the thread that starts it.
        pin(Place::Loop)?;
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        pin(Place::Partner)?;
        let mut child = started.context("start a client")?;
        let orders = child.stdin.take().context("a client without standard input")?;
        let answers = BufReader::new(child.stdout.take().context("a client without standard output")?);
        Ok(Fetcher { child, orders, answers })
    }

    /// Sends requests, and waits for the responses. Returns the processor time in microseconds.
    fn fetch(&mut self, requests: u32) -> Result<f64> {
        let before = cpu_time_of(self.child.id())?;
        writeln!(self.orders, "{requests}").context("order requests")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("wait for a client")?;
        ensure!(line.trim() == requests.to_string(), "a client has answered {line:?} instead of {requests}");
        Ok((cpu_time_of(self.child.id())? - before).as_secs_f64() * 1e6)
    }

    fn memory(&self) -> Result<u64> {
        memory_of(self.child.id())
    }

    /// The number of its sockets.
    fn sockets(&self) -> Result<usize> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).context("count sockets")?;
        let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        // It may have exited already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns all contenders that are available on this machine. Prints which are missing.
fn contenders(load: &Load) -> Result<Vec<Entrant>> {
    let own = |name, package: &str, side, kind| Entrant { name, version: version(package), side, kind, share: 1 };
    let mut all = vec![own(OURS, "pelton-http", Side::Ours, Kind::Pelton)];
    #[cfg(feature = "client-peers")]
    {
        all.push(own("hyper", "hyper-util", Side::Peer, Kind::Hyper));
        all.push(own("reqwest", "reqwest", Side::Peer, Kind::Reqwest));
        let version = curl::Version::get().version().to_owned();
        all.push(Entrant { name: CURL, version, side: Side::Peer, kind: Kind::Curl, share: 1 });
    }
    if cfg!(not(feature = "client-peers")) {
        eprintln!("hyper, reqwest, curl: skipped: built without the feature client-peers");
    }
    let mut program = |name, kind, version: Option<String>, advice| match version {
        Some(version) => all.push(Entrant { name, version, side: Side::Peer, kind, share: 10 }),
        None => eprintln!("{name}: skipped: not installed ({advice})"),
    };
    let undici = answer("node", &["-p", "process.versions.undici"]);
    program("Node's undici", Kind::Node, undici.map(|text| text.trim().to_owned()), "apt-get install nodejs");
    let python = loads::python();
    let aiohttp =
        python.to_str().and_then(|python| answer(python, &["-c", "import aiohttp; print(aiohttp.__version__)"]));
    program("aiohttp", Kind::Aiohttp, aiohttp.map(|text| text.trim().to_owned()), "cargo xtask test --only tools");
    for name in &load.contenders {
        let names: Vec<&str> = all.iter().map(|entrant| entrant.name).collect();
        ensure!(names.contains(&&**name), "there is no contender {name:?}; the contenders are {}", names.join(", "));
    }
    all.retain(|entrant| load.contenders.is_empty() || load.contenders.iter().any(|name| name == entrant.name));
    Ok(all)
}

/// Runs the selected parts one after the other.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let load = &load.effective();
    pin(Place::Partner)?;
    raise_descriptor_limit(load.idle as usize + 400)?;
    let (entrants, stage) = (contenders(load)?, Stage::new()?);
    let mut standings = Vec::new();
    for part in &load.only {
        match part {
            Part::Plain | Part::Tls => {
                for in_flight in IN_FLIGHT {
                    standings.extend(requests(&entrants, &stage, *part, in_flight, load)?);
                }
            }
            Part::Download => standings.extend(download(&entrants, &stage, load)?),
            Part::Memory => standings.extend(memory(&entrants, &stage, load.idle)?),
        }
    }
    Ok(standings)
}

/// Starts a server on the core of the load.
fn server(kind: ServerKind, stage: &Stage, arguments: &[&str]) -> Result<Server> {
    let mut command = entrants::command(kind, stage)?;
    command.args(arguments);
    let server = Server::start(command).context("start a server")?;
    let id = rustix::process::Pid::from_raw(i32::try_from(server.id())?);
    let here = rustix::thread::sched_getaffinity(None).context("ask for this thread's core")?;
    rustix::thread::sched_setaffinity(id, &here).context("move the server to its core")?;
    Ok(server)
}

fn url(scheme: &str, address: SocketAddrV4, path: &str) -> String {
    // The certificate is for this name.
    let host = if scheme == "https" { "localhost".to_owned() } else { address.ip().to_string() };
    format!("{scheme}://{host}:{}{path}", address.port())
}

fn as_good_as_the_best(case: Case, entrants: &[Entrant]) -> Case {
    let peers = entrants.iter().filter(|entrant| entrant.side == Side::Peer).map(|entrant| entrant.name).collect();
    case.mark(Mark::Times { factor: 1.0, against: peers })
}

fn reading(value: f64) -> Option<Reading> {
    Some(Reading { value, cpu_us: None, syscalls: None })
}

fn requests(entrants: &[Entrant], stage: &Stage, part: Part, in_flight: u32, load: &Load) -> Result<Vec<Standing>> {
    let (server, scheme) = match part {
        Part::Tls => (server(ServerKind::Pelton, stage, &["--tls"])?, "https"),
        _ => (server(ServerKind::Floor, stage, &[])?, "http"),
    };
    let name = format!("{scheme} requests, {in_flight} in flight");
    let case = as_good_as_the_best(Case::new(format!("{name}, CPU"), "µs", Better::Lower), entrants);
    let url = url(scheme, server.address, "/hello");
    let mut contenders = Vec::new();
    for entrant in entrants {
        let mut fetcher = entrant.start(&url, in_flight, stage)?;
        // One at a time takes several times as long.
        let share = entrant.share * if in_flight == 1 { 4 } else { 1 };
        let count = (load.requests / share).max(in_flight);
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            Ok(vec![reading(fetcher.fetch(count)? / f64::from(count))])
        }));
    }
    Contest { name, cases: vec![case], contenders }.run(load.windows as usize)
}

fn download(entrants: &[Entrant], stage: &Stage, load: &Load) -> Result<Vec<Standing>> {
    let size = load.download << 20;
    let file = File::create(stage.path().join("files/large.bin")).context("make a large file")?;
    // It has no blocks on the disk.
    file.set_len(size).context("make a large file")?;
    let server = server(ServerKind::Pelton, stage, &[])?;
    let case = Case::new(format!("download of {} MiB, CPU", load.download), "ms", Better::Lower);
    let case = case.mark(Mark::Times { factor: 1.0, against: vec![CURL] });
    let url = url("http", server.address, "/large.bin");
    let mut contenders = Vec::new();
    for entrant in entrants {
        let mut fetcher = entrant.start(&url, 1, stage)?;
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            Ok(vec![reading(fetcher.fetch(1)? / 1e3)])
        }));
    }
    Contest { name: "download".to_owned(), cases: vec![case], contenders }.run(load.windows.min(5) as usize)
}

fn memory(entrants: &[Entrant], stage: &Stage, idle: u32) -> Result<Vec<Standing>> {
    let server = server(ServerKind::Floor, stage, &[])?;
    let url = url("http", server.address, "/hello");
    // This includes what the requests needed while they were in flight. `tests/client_cost.rs` counts an idle connection alone.
    let case =
        as_good_as_the_best(Case::new("memory after a burst, per kept connection", "B", Better::Lower), entrants);
    let url = &url;
    let contenders = entrants.iter().map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let mut fetcher = entrant.start(url, idle, stage)?;
            // Everything that does not depend on the number of connections is there after a few.
            fetcher.fetch(20)?;
            let (before, sockets) = (fetcher.memory()?, fetcher.sockets()?);
            fetcher.fetch(idle)?;
            let kept = fetcher.sockets()?.saturating_sub(sockets);
            ensure!(kept > idle as usize / 4, "{} has opened {kept} connections for {idle} requests", entrant.name);
            Ok(vec![reading(fetcher.memory()?.saturating_sub(before) as f64 / kept as f64)])
        })
    });
    Contest { name: "kept connections".to_owned(), cases: vec![case], contenders: contenders.collect() }.count()
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
