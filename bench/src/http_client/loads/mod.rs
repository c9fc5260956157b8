//! The clients, each a separate process: `pelton-bench client-load NAME URL IN-FLIGHT CERTIFICATE`.

#[cfg(feature = "client-peers")]
mod curl;
#[cfg(feature = "client-peers")]
mod hyper;
mod ours;
#[cfg(feature = "client-peers")]
mod reqwest;

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Error, Result};
use clap::{Args, ValueEnum};

use crate::process::end_with_parent;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Pelton,
    #[cfg(feature = "client-peers")]
    Hyper,
    #[cfg(feature = "client-peers")]
    Reqwest,
    #[cfg(feature = "client-peers")]
    Curl,
    Node,
    Aiohttp,
}

/// Which client to run, and how.
#[derive(Args, Clone, Debug)]
pub struct Fetching {
    kind: Kind,
    url: String,
    in_flight: u32,
    /// The certificate of the server, which is trusted
    certificate: PathBuf,
}

/// Sends requests as ordered, until the process is killed, which the kernel does when its parent exits.
pub fn fetch(fetching: &Fetching) -> Result<()> {
    end_with_parent()?;
    let (url, in_flight) = (fetching.url.as_str(), fetching.in_flight);
    match fetching.kind {
        Kind::Pelton => ours::fetch(url, in_flight, &fetching.certificate),
        #[cfg(feature = "client-peers")]
        Kind::Hyper => hyper::fetch(url, in_flight, &fetching.certificate),
        #[cfg(feature = "client-peers")]
        Kind::Reqwest => reqwest::fetch(url, in_flight, &fetching.certificate),
        #[cfg(feature = "client-peers")]
        Kind::Curl => curl::fetch(url, in_flight, &fetching.certificate),
        Kind::Node => {
            let mut node = Command::new("node");
            node.env("NODE_EXTRA_CA_CERTS", &fetching.certificate);
            become_it(node.args(["-e", include_str!("../peers/fetch.js"), url, &in_flight.to_string()]))
        }
        Kind::Aiohttp => {
            let mut python = Command::new(python());
            python.args(["-c", include_str!("../peers/fetch.py"), url, &in_flight.to_string()]);
            become_it(python.arg(&fetching.certificate))
        }
    }
}

/// The Python that `cargo xtask test` has made, with aiohttp.
pub fn python() -> PathBuf {
    super::root().join("target/peers/bin/python")
}

/// Replaces this process with another program. Returns only if that fails.
fn become_it(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Error::new(command.exec()).context(format!("become {program}")))
}

/// Calls `fetch` with the number of requests of each order, and confirms it.
fn obey(mut fetch: impl FnMut(u32) -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line.context("read an order")?;
        let count = line.trim().parse().with_context(|| format!("not a number of requests: {line:?}"))?;
        fetch(count)?;
        let mut out = std::io::stdout();
        writeln!(out, "{count}").and_then(|()| out.flush()).context("confirm an order")?;
    }
    Ok(())
}
