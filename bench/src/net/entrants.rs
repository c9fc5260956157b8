//! The contenders: the servers of this binary, and those that need an interpreter, if it is installed.

use std::process::Command;

use anyhow::{Context, Result};

use super::servers::Kind;
use crate::harness::Side;
use crate::installed::answer;
use crate::machine::version;

pub const FLOOR: &str = "floor";
/// The floor again: its distance from the first shows how large a difference must be to mean anything.
pub const FLOOR_AGAIN: &str = "floor again";
pub const OURS: &str = "pelton";

/// An echo server that can be started.
#[derive(Clone, Debug)]
pub struct Entrant {
    pub name: &'static str,
    pub version: String,
    pub side: Side,
    program: Program,
}

#[derive(Clone, Debug)]
enum Program {
    /// This binary, as another process.
    Own(Kind),
    /// An interpreter, and its program.
    Script { interpreter: &'static str, text: &'static str },
}

impl Entrant {
    fn own(name: &'static str, package: &str, side: Side, kind: Kind) -> Self {
        Self { name, version: version(package), side, program: Program::Own(kind) }
    }

    /// Returns which of the servers in this binary it is.
    pub fn kind(&self) -> Option<Kind> {
        match self.program {
            Program::Own(kind) => Some(kind),
            Program::Script { .. } => None,
        }
    }

    /// Returns the command that starts the server.
    pub fn command(&self) -> Result<Command> {
        match &self.program {
            Program::Own(kind) => own_command(*kind),
            Program::Script { interpreter, text } => {
                let mut command = Command::new(interpreter);
                command.arg("-e").arg(text);
                Ok(command)
            }
        }
    }
}

/// Returns the command that starts a server of this binary.
pub fn own_command(kind: Kind) -> Result<Command> {
    use clap::ValueEnum;
    let name = kind.to_possible_value().context("a server without a name")?;
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg("net-server").arg(name.get_name());
    Ok(command)
}

/// Returns all contenders that are available on this machine, the floor first, and a line about each that is not.
pub fn all() -> (Vec<Entrant>, Vec<String>) {
    let mut entrants = vec![
        Entrant::own(FLOOR, "rustix", Side::Floor, Kind::Floor),
        Entrant::own(FLOOR_AGAIN, "rustix", Side::Floor, Kind::Floor),
        Entrant::own(OURS, "pelton", Side::Ours, Kind::Pelton),
        Entrant::own("tokio", "tokio", Side::Peer, Kind::Tokio),
        Entrant::own("mio", "mio", Side::Peer, Kind::Mio),
        Entrant::own("calloop", "calloop", Side::Peer, Kind::Calloop),
        Entrant::own("monoio epoll", "monoio", Side::Peer, Kind::MonoioEpoll),
        Entrant::own("monoio io_uring", "monoio", Side::Peer, Kind::MonoioUring),
    ];
    let mut missing = Vec::new();
    let mut script = |name, interpreter, text, question: &[&str]| match answer(interpreter, question) {
        Some(version) => {
            let program = Program::Script { interpreter, text };
            entrants.push(Entrant { name, version, side: Side::Peer, program });
        }
        None => missing.push(format!("{name}: not installed")),
    };
    script("Node", "node", include_str!("peers/echo.js"), &["--version"]);
    let version_of_eventmachine = ["-e", "require 'eventmachine'; print EventMachine::VERSION"];
    script("EventMachine", "ruby", include_str!("peers/echo.rb"), &version_of_eventmachine);
    (entrants, missing)
}
