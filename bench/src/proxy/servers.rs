//! The proxies, each a separate process: `pelton-bench proxy-server NAME TARGET STAGE`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use clap::{Args, ValueEnum};
use pelton::{Chunk, Connection, Io, Proxy, Reactor};

use crate::process::{announce, end_with_parent, listener};

/// How long a program may take until it accepts.
const START: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct Serving {
    kind: Kind,
    target: SocketAddrV4,
    stage: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The library, with a handler that connects.
    Library,
    /// The command `pelton proxy`.
    Command,
    Haproxy,
    HaproxySplice,
    Nginx,
    Socat,
}

/// Proxies until the process is killed, which the kernel does when its parent exits.
pub fn serve(serving: &Serving) -> Result<()> {
    end_with_parent()?;
    let Serving { kind, target, stage } = serving;
    match kind {
        Kind::Library => library(*target),
        Kind::Command => {
            let port = free_port()?;
            let mut command = Command::new(pelton_command());
            command.args(["proxy", "--listen", &format!("127.0.0.1:{port}"), "--to", &target.to_string()]);
            // As many as the others may have.
            command.args(["--max-connections", "9000"]);
            // Its own lines must not follow the port, which is all that is read.
            command.stdout(std::process::Stdio::null());
            become_it(port, command)
        }
        Kind::Haproxy | Kind::HaproxySplice => {
            let splice = if *kind == Kind::HaproxySplice { "option splice-auto" } else { "" };
            let text = include_str!("peers/haproxy.cfg").replace("@SPLICE@", splice);
            let (port, path) = configured(stage, "haproxy.cfg", &text, *target)?;
            let mut command = Command::new("haproxy");
            command.args(["-db", "-q", "-f"]).arg(path);
            become_it(port, command)
        }
        Kind::Nginx => {
            let (port, path) = configured(stage, "nginx.conf", include_str!("peers/nginx.conf"), *target)?;
            let mut command = Command::new("nginx");
            command.arg("-p").arg(stage).arg("-c").arg(path).args(["-e", "stderr"]);
            become_it(port, command)
        }
        Kind::Socat => {
            let port = free_port()?;
            let mut command = Command::new("socat");
            // One connection per process: its children would not be measured.
            command.args(["-b", "65536"]);
            command.arg(format!("TCP4-LISTEN:{port},bind=127.0.0.1,reuseaddr,nodelay"));
            command.arg(format!("TCP4:{target},nodelay"));
            become_it(port, command)
        }
    }
}

/// Returns the path of the command, which `cargo xtask bench proxy` builds.
pub fn pelton_command() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/pelton")
}

struct Side {
    target: Option<SocketAddrV4>,
}

impl Connection for Side {
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(target) = self.target {
            let connected = io.reactor().connect(&std::net::SocketAddr::from(target).into(), Side { target: None });
            if connected.ok().and_then(|target| io.proxy_both(target, Proxy::new()).ok()).is_none() {
                io.close();
            }
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        io.close();
    }
}

fn library(target: SocketAddrV4) -> Result<()> {
    let mut reactor = Reactor::new()?;
    reactor.adopt_listener(listener()?, move |_| Side { target: Some(target) })?;
    reactor.run()?;
    Ok(())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Writes a configuration with a free port.
fn configured(stage: &Path, name: &str, text: &str, target: SocketAddrV4) -> Result<(u16, PathBuf)> {
    let port = free_port()?;
    let path = stage.join(format!("{port}-{name}"));
    let text = text.replace("@PORT@", &port.to_string()).replace("@TARGET@", &target.to_string());
    let text = text.replace("@STAGE@", &stage.display().to_string());
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok((port, path))
}

/// Announces the port and replaces this process with another program. Returns only if that fails.
fn become_it(port: u16, mut command: Command) -> Result<()> {
    announce(port)?;
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Error::new(command.exec()).context(format!("become {program}")))
}

/// Waits until a program listens, without connecting to it: some proxies accept only once.
pub fn wait_until_it_listens(address: SocketAddrV4) -> Result<()> {
    let wanted = format!(":{:04X} ", address.port());
    let deadline = Instant::now() + START;
    loop {
        let table = fs::read_to_string("/proc/net/tcp").context("read /proc/net/tcp")?;
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| format!("{local} ").ends_with(&wanted));
            local && words.nth(1) == Some("0A")
        };
        if table.lines().any(listens) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "nothing listens on {address} after {START:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects for a transfer in one direction.
pub fn connect(address: SocketAddrV4) -> Result<TcpStream> {
    TcpStream::connect(address).with_context(|| format!("connect to {address}"))
}
