//! The contenders: the servers of this binary, and external programs, if they are installed.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::servers::Kind;
use super::stage::Stage;
use crate::harness::Side;
use crate::installed::answer;
use crate::machine::version;
use crate::process::Server;

pub const FLOOR: &str = "floor";
/// The floor again: its distance from the first shows how large a difference must be to mean anything.
pub const FLOOR_AGAIN: &str = "floor again";
pub const OURS: &str = "pelton";
pub const NGINX: &str = "nginx";

/// How long a server may take until it listens.
const STARTING: Duration = Duration::from_secs(10);

/// A server that can be started.
#[derive(Clone, Debug)]
pub struct Entrant {
    pub name: &'static str,
    pub version: String,
    pub side: Side,
    pub kind: Kind,
}

impl Entrant {
    fn own(name: &'static str, package: &str, side: Side, kind: Kind) -> Self {
        Self { name, version: version(package), side, kind }
    }

    /// Starts the server and waits until it listens.
    pub fn start(&self, stage: &Stage) -> Result<Server> {
        self.start_with(stage, &[])
    }

    /// Like [`start`](Entrant::start), with more arguments.
    pub fn start_with(&self, stage: &Stage, arguments: &[String]) -> Result<Server> {
        let mut command = command(self.kind, stage)?;
        command.args(arguments);
        let server = Server::start(command).with_context(|| format!("start {}", self.name))?;
        // External programs begin to listen after their port was announced.
        let deadline = Instant::now() + STARTING;
        while TcpStream::connect(server.address).is_err() {
            ensure!(Instant::now() < deadline, "{} did not listen in time", self.name);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns whether it serves files.
    pub fn serves_files(&self) -> bool {
        matches!(self.kind, Kind::Pelton | Kind::Nginx | Kind::Apache)
    }
}

/// Returns the command that starts a server.
pub fn command(kind: Kind, stage: &Stage) -> Result<Command> {
    let name = kind.to_possible_value().context("a server without a name")?;
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg("http-server").arg(name.get_name()).arg("--stage").arg(stage.path());
    Ok(command)
}

/// Returns all contenders that are available on this machine, the floor first, and a line about each that is not.
pub fn all() -> (Vec<Entrant>, Vec<String>) {
    let mut entrants = vec![
        Entrant::own(FLOOR, "httparse", Side::Floor, Kind::Floor),
        Entrant::own(FLOOR_AGAIN, "httparse", Side::Floor, Kind::Floor),
        Entrant::own(OURS, "pelton-http", Side::Ours, Kind::Pelton),
        Entrant::own("hyper", "hyper", Side::Peer, Kind::Hyper),
        #[cfg(feature = "http-peers")]
        Entrant::own("actix-web", "actix-web", Side::Peer, Kind::Actix),
        #[cfg(feature = "http-peers")]
        Entrant::own("may_minihttp", "may_minihttp", Side::Peer, Kind::May),
    ];
    let mut missing = Vec::new();
    if cfg!(not(feature = "http-peers")) {
        missing.push("actix-web, may_minihttp: skipped: built without the feature http-peers".to_owned());
    }
    let mut program = |name, kind, version: Option<String>, package| match version {
        Some(version) => entrants.push(Entrant { name, version, side: Side::Peer, kind }),
        None => missing.push(format!("{name}: skipped: not installed (apt-get install {package})")),
    };
    program(NGINX, Kind::Nginx, nginx_version(), "nginx-light");
    program("Apache", Kind::Apache, apache_version(), "apache2");
    program("Node", Kind::Node, answer("node", &["--version"]), "nodejs");
    (entrants, missing)
}

/// Parses `nginx version: nginx/1.22.1`, which nginx prints on standard error.
pub fn nginx_version() -> Option<String> {
    let output = Command::new("nginx").arg("-v").stdin(Stdio::null()).output().ok()?;
    after_slash(&String::from_utf8(output.stderr).ok()?)
}

/// Parses `Server version: Apache/2.4.58 (Debian)`.
fn apache_version() -> Option<String> {
    after_slash(&answer("apache2", &["-v"])?)
}

fn after_slash(text: &str) -> Option<String> {
    let (_, version) = text.split_once('/')?;
    version.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_a_slash() {
        assert_eq!(after_slash("nginx version: nginx/1.22.1\n").as_deref(), Some("1.22.1"));
        assert_eq!(after_slash("Server version: Apache/2.4.58 (Debian)\nServer built: x").as_deref(), Some("2.4.58"));
        assert_eq!(after_slash("nothing"), None);
    }
}
