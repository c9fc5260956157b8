//! Reverse proxies: processor time per request that passes through.
//!
//! The proxy has a core to itself. The load and the server behind the proxy share the other one. That server is the floor, which
//! costs the least.

use std::net::SocketAddrV4;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::entrants::{self, Entrant, NGINX, OURS};
use super::requests;
use super::servers::Kind;
use super::stage::Stage;
use super::wrk::{Scheme, Shape};
use crate::harness::{Contest, Side};
use crate::machine::version;
use crate::mark::Mark;
use crate::process::Server;

/// How much processor time a request may need, relative to nginx.
const MOST: f64 = 1.0;

/// The command, with its log, metrics and limits.
const COMMAND: &str = "pelton serve";

/// The server behind the proxies, and the proxies.
pub struct Forwarding {
    _target: Server,
    proxies: Vec<(Entrant, Server)>,
}

impl Forwarding {
    pub fn start(stage: &Stage) -> Result<Forwarding> {
        let target = Server::start(entrants::command(Kind::Floor, stage)?).context("start the target")?;
        // It was started on the core of the proxies.
        let id = rustix::process::Pid::from_raw(i32::try_from(target.id())?);
        let here = rustix::thread::sched_getaffinity(None).context("ask for this thread's core")?;
        rustix::thread::sched_setaffinity(id, &here).context("move the target to the core of the load")?;
        let proxies = entrants().into_iter().map(|entrant| {
            let server = entrant.start_with(stage, &["--target".to_owned(), target.address.to_string()])?;
            Ok((entrant, server))
        });
        Ok(Forwarding { proxies: proxies.collect::<Result<_>>()?, _target: target })
    }

    /// Returns the contest for a short response, with this many connections.
    pub fn contest<'a>(&'a self, stage: &'a Stage, connections: u32, seconds: u32) -> Contest<'a> {
        let shape = Shape { scheme: Scheme::Http, path: "/hello", connections, depth: 1 };
        let marks = vec![Mark::AtMost { factor: MOST, against: NGINX }];
        let name = format!("forwarded × {connections}");
        requests::contest(self.proxies.iter().collect(), stage, shape, name, NGINX, marks, seconds)
    }
}

fn entrants() -> Vec<Entrant> {
    let mut all = vec![Entrant { name: OURS, version: version("pelton-http"), side: Side::Ours, kind: Kind::Forward }];
    if crate::proxy::pelton_command().exists() {
        all.push(Entrant {
            name: COMMAND,
            version: version("pelton-http"),
            side: Side::Ours,
            kind: Kind::ServeForward,
        });
    } else {
        eprintln!("{COMMAND}: skipped: not built (cargo build --release -p pelton-cli)");
    }
    match entrants::nginx_version() {
        Some(version) => all.push(Entrant { name: NGINX, version, side: Side::Peer, kind: Kind::NginxForward }),
        None => eprintln!("{NGINX}: skipped: not installed (apt-get install nginx-light)"),
    }
    all
}

/// The command that forwards to a server.
pub fn serve_command(port: u16, target: SocketAddrV4) -> Command {
    let mut command = Command::new(crate::proxy::pelton_command());
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--proxy", &format!("/=http://{target}")]);
    // Its own lines must not follow the port, which is all that is read.
    command.stdout(Stdio::null());
    command
}
