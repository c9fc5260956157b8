//! Redis: the processor time of a message from publisher to subscriber, jobs per second of processor time, and how soon an idle
//! worker runs a job.
//!
//! Each contender is a process with a client of one server, which is a process of its own. It publishes and subscribes, or enqueues
//! and works, and its processor time is measured; the server's is not part of it. A contender reads how much to do from its
//! standard input, and answers with a line.

mod players;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::harness::{Better, Case, Contender, Contest, Reading, Side, Standing};
use crate::installed::{answer, is_installed};
use crate::machine::version;
use crate::mark::Mark;
use crate::process::cpu_time_of;

pub use players::{Playing, play};
use players::Kind;

const PELTON: &str = "pelton";
const FLOOR: &str = "raw commands";
const TOKIO: &str = "redis on tokio";
const IOREDIS: &str = "ioredis";
const BULLMQ: &str = "BullMQ";
const ARQ: &str = "arq";

/// Amount of work per window, and number of windows.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Windows per contender
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Messages per window
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..))]
    messages: u64,

    /// Jobs per window
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..))]
    jobs: u64,

    /// Parts to run, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "publish,jobs,latency")]
    only: Vec<Part>,

    /// Two small windows of everything: shows that it works; the numbers mean nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time per published and received message
    Publish,
    /// Jobs enqueued, run and acknowledged per second of processor time
    Jobs,
    /// 99th percentile of the time until an idle worker runs a job
    Latency,
}

impl Load {
    /// Returns whether this measures everything.
    pub fn is_whole(&self) -> bool {
        Part::value_variants().iter().all(|part| self.only.contains(part)) && !self.quick
    }
}

/// A server on a Unix socket in a temporary directory.
struct Broker {
    directory: TempDir,
    process: Child,
}

impl Broker {
    fn start() -> Result<Broker> {
        let directory = tempfile::tempdir().context("make a directory")?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
        // BullMQ warns about anything else than this.
        command.args(["--maxmemory-policy", "noeviction"]);
        command.arg("--unixsocket").arg(directory.path().join("socket")).arg("--dir").arg(directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().context("start redis-server (apt-get install redis-server)")?;
        let broker = Broker { directory, process };
        let end = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(broker.socket()).is_err() {
            ensure!(Instant::now() < end, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(broker)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A contender's process.
struct Player {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Player {
    fn start(mut command: Command) -> Result<Player> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        let output = BufReader::new(process.stdout.take().context("a contender without standard output")?);
        Ok(Player { process, output })
    }

    /// Lets it do this much, and returns its answer, and its processor time.
    fn play(&mut self, count: u64) -> Result<(f64, Duration)> {
        let before = cpu_time_of(self.process.id())?;
        let input = self.process.stdin.as_mut().context("a contender without standard input")?;
        writeln!(input, "{count}").and_then(|()| input.flush()).context("tell a contender what to do")?;
        let mut line = String::new();
        self.output.read_line(&mut line).context("read a contender's answer")?;
        let answer = line.trim().parse().with_context(|| format!("not an answer of a contender: {line:?}"))?;
        Ok((answer, cpu_time_of(self.process.id())? - before))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Entrant {
    name: &'static str,
    version: String,
    side: Side,
    command: Command,
}

fn own(kind: Kind, socket: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    let kind = kind.to_possible_value().context("a contender without a name")?;
    command.arg("broker-player").arg(kind.get_name()).arg(socket);
    Ok(command)
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/broker")
}

/// Installs packages for Node below the target directory. Returns `None`, and prints why, if that is not possible.
fn node() -> Option<PathBuf> {
    let folder = target().join("node");
    if !is_installed("node") || !is_installed("npm") {
        eprintln!("{IOREDIS}, {BULLMQ}: skipped: not installed (apt-get install nodejs npm)");
        return None;
    }
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::write(folder.join("player.mjs"), include_str!("player.mjs")).ok()?;
    if !folder.join("node_modules/bullmq").exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "ioredis@5", "bullmq@5"]).current_dir(&folder);
        if !npm.stdin(Stdio::null()).status().is_ok_and(|status| status.success()) {
            eprintln!("{IOREDIS}, {BULLMQ}: skipped: npm could not install them");
            return None;
        }
    }
    Some(folder)
}

/// Installs packages for Python likewise.
fn python() -> Option<PathBuf> {
    let folder = target().join("python");
    let program = folder.join("bin/python");
    if !program.exists() || answer(program.to_str()?, &["-c", "import arq"]).is_none() {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
        let pip = folder.join("bin/pip");
        let installed = || Command::new(&pip).args(["install", "-q", "arq", "hiredis"]).status();
        if !made.is_ok_and(|status| status.success()) || !installed().is_ok_and(|status| status.success()) {
            eprintln!("{ARQ}: skipped: it could not be installed into a virtual environment");
            return None;
        }
    }
    std::fs::write(folder.join("player.py"), include_str!("player.py")).ok()?;
    Some(folder)
}

fn package_version(folder: &Path, package: &str) -> String {
    let text = std::fs::read_to_string(folder.join("node_modules").join(package).join("package.json"));
    let value = text.ok().and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    value.and_then(|value| Some(value["version"].as_str()?.to_owned())).unwrap_or_default()
}

/// Runs the selected parts one after the other.
pub fn run(load: &Load) -> Result<Vec<Standing>> {
    let mut load = load.clone();
    if load.quick {
        (load.windows, load.messages, load.jobs) = (2, 500, 200);
    }
    let (node, python) = (node(), python());
    let mut standings = Vec::new();
    for part in &load.only {
        let broker = Broker::start()?;
        let socket = broker.socket();
        let mut entrants = Vec::new();
        let mut ours = |name, side, kind| -> Result<()> {
            let version = if side == Side::Floor { "1".to_owned() } else { version(if name == TOKIO { "redis" } else { "pelton" }) };
            entrants.push(Entrant { name, version, side, command: own(kind, &socket)? });
            Ok(())
        };
        match part {
            Part::Publish => {
                ours(PELTON, Side::Ours, Kind::PeltonPublish)?;
                ours(FLOOR, Side::Floor, Kind::FloorPublish)?;
                ours(TOKIO, Side::Peer, Kind::TokioPublish)?;
            }
            Part::Jobs => {
                ours(PELTON, Side::Ours, Kind::PeltonJobs)?;
                ours(FLOOR, Side::Floor, Kind::FloorJobs)?;
            }
            Part::Latency => {
                ours(PELTON, Side::Ours, Kind::PeltonLatency)?;
                ours(FLOOR, Side::Floor, Kind::FloorLatency)?;
            }
        }
        if let Some(folder) = &node {
            let (name, mode, package) = match part {
                Part::Publish => (IOREDIS, "publish", "ioredis"),
                Part::Jobs => (BULLMQ, "jobs", "bullmq"),
                Part::Latency => (BULLMQ, "latency", "bullmq"),
            };
            let mut command = Command::new("node");
            command.current_dir(folder).arg("player.mjs").arg(mode).arg(&socket);
            entrants.push(Entrant { name, version: package_version(folder, package), side: Side::Peer, command });
        }
        if let (Some(folder), Part::Jobs | Part::Latency) = (&python, part) {
            let program = folder.join("bin/python");
            let script = "import importlib.metadata as m; print(m.version('arq'))";
            let version = program.to_str().and_then(|program| answer(program, &["-c", script])).unwrap_or_default();
            let mut command = Command::new(program);
            let mode = if *part == Part::Jobs { "jobs" } else { "latency" };
            command.arg(folder.join("player.py")).arg(mode).arg(&socket);
            entrants.push(Entrant { name: ARQ, version, side: Side::Peer, command });
        }
        standings.extend(contest(*part, entrants, &load)?);
    }
    Ok(standings)
}

fn contest(part: Part, entrants: Vec<Entrant>, load: &Load) -> Result<Vec<Standing>> {
    let (count, case) = match part {
        Part::Publish => {
            let case = Case::new("published and received, CPU", "µs", Better::Lower);
            (load.messages, case.mark(Mark::Times { factor: 0.8, against: vec![TOKIO] }))
        }
        Part::Jobs => {
            let case = Case::new("jobs per CPU second", "k/s", Better::Higher);
            (load.jobs, case.mark(Mark::Times { factor: 3.0, against: vec![BULLMQ] }))
        }
        Part::Latency => {
            let case = Case::new("idle queue, until a job runs, p99", "µs", Better::Lower);
            (load.jobs.min(500), case.mark(Mark::Above { at_most: 2000.0, contender: FLOOR }))
        }
    };
    let mut contenders = Vec::new();
    for Entrant { name, version, side, command } in entrants {
        let mut player = Player::start(command)?;
        contenders.push(Contender::new(name, version, side, move || {
            let (answer, cpu) = player.play(count).with_context(|| format!("measure {name}"))?;
            let value = match part {
                Part::Publish => cpu.as_secs_f64() * 1e6 / count as f64,
                Part::Jobs => count as f64 / cpu.as_secs_f64() / 1e3,
                Part::Latency => answer,
            };
            let cpu_us = Some(cpu.as_secs_f64() * 1e6 / count as f64);
            Ok(vec![Some(Reading { value, cpu_us, syscalls: None })])
        }));
    }
    Contest { name: case.name.clone(), cases: vec![case], contenders }.run(load.windows as usize)
}
