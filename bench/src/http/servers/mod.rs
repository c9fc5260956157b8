//! The servers, each a separate process: `pelton-bench http-server NAME`.
//!
//! A server listens on a free port of the loopback interface, prints it on standard output, and serves until it is killed.
//! External programs are told where to listen, and replace this process.

#[cfg(feature = "http-peers")]
mod actix;
mod floor;
mod hyper;
#[cfg(feature = "http-peers")]
mod may;
mod ours;
mod programs;
mod threads;

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::process::{announce, end_with_parent, listener};

/// The response to every request.
const HELLO: &str = "Hello, world!\n";

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Floor,
    Pelton,
    Hyper,
    #[cfg(feature = "http-peers")]
    Actix,
    #[cfg(feature = "http-peers")]
    May,
    Nginx,
    Node,
    Apache,
    /// Pelton's library, forwarding.
    Forward,
    /// `pelton serve --proxy`.
    ServeForward,
    NginxForward,
}

/// Which server to run, and how.
#[derive(Args, Clone, Debug)]
pub struct Serving {
    kind: Kind,
    /// Directory with configurations, and files to serve
    #[arg(long, value_name = "DIR")]
    stage: PathBuf,
    /// Serve with TLS
    #[arg(long)]
    tls: bool,
    /// Most connections (pelton only)
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Where to forward to (proxies only)
    #[arg(long, value_name = "ADDRESS")]
    target: Option<SocketAddrV4>,
}

/// Serves until the process is killed, which the kernel does when its parent exits.
pub fn serve(serving: &Serving) -> Result<()> {
    // The setting survives exec.
    end_with_parent()?;
    let stage = &serving.stage;
    let target = || serving.target.context("a proxy needs a target");
    match serving.kind {
        // With TLS, the floor is another one.
        Kind::Floor if serving.tls => threads::serve(stage),
        Kind::Floor => floor::serve(),
        Kind::Pelton => ours::serve(stage, serving.tls, serving.connections),
        Kind::Hyper => hyper::serve(serving.tls.then_some(stage)),
        #[cfg(feature = "http-peers")]
        Kind::Actix => actix::serve(),
        #[cfg(feature = "http-peers")]
        Kind::May => may::serve(),
        Kind::Nginx => programs::nginx(stage, serving.tls),
        Kind::Node | Kind::Apache if serving.tls => bail!("this server is not measured with TLS"),
        Kind::Forward => ours::forward(target()?),
        Kind::ServeForward => programs::serve_forward(target()?),
        Kind::NginxForward => programs::nginx_forward(stage, target()?),
        Kind::Node => programs::node(),
        Kind::Apache => programs::apache(stage),
    }
}

/// Returns a free port, for servers that have to be told one. Another program may take it meanwhile, and then they fail.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("ask which port it is")?.port())
}
