//! HTTPS: short responses and files under wrk, handshakes, and idle connections.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::handshakes::Shaker;
use super::{FLOOR, MOST_IDLE, OURS, reading};
use crate::client::Exchange;
use crate::harness::{Better, Case, Contender, Contest, Side};
use crate::http::entrants::{self, Entrant, NGINX};
use crate::http::exchange;
use crate::http::requests;
use crate::http::servers::Kind;
use crate::http::stage::{LARGE, SMALL, Stage};
use crate::http::wrk::{Scheme, Shape};
use crate::mark::Mark;
use crate::process::Server;

const HYPER: &str = "hyper";

/// Connections of wrk.
const CONNECTIONS: u32 = 64;

/// Connections opened before the first measurement of memory, so that one-time allocations are done.
const WARM_UP: usize = 20;

/// Returns the servers of HTTPS, and prints which are missing.
pub fn entrants() -> Vec<Entrant> {
    let (all, missing) = entrants::all();
    missing.iter().filter(|line| line.starts_with(NGINX)).for_each(|line| eprintln!("{line}"));
    let wanted = |entrant: &Entrant| matches!(entrant.kind, Kind::Floor | Kind::Pelton | Kind::Hyper | Kind::Nginx);
    let mut chosen: Vec<Entrant> =
        all.into_iter().filter(|entrant| wanted(entrant) && entrant.name != entrants::FLOOR_AGAIN).collect();
    for entrant in &mut chosen {
        match entrant.kind {
            Kind::Floor => entrant.name = FLOOR,
            Kind::Pelton => entrant.name = OURS,
            _ => {}
        }
    }
    chosen
}

fn start(entrant: &Entrant, stage: &Stage) -> Result<Server> {
    entrant.start_with(stage, &["--tls".to_owned()])
}

/// Starts all servers.
pub fn start_all(entrants: &[Entrant], stage: &Stage) -> Result<Vec<(Entrant, Server)>> {
    entrants.iter().map(|entrant| Ok((entrant.clone(), start(entrant, stage)?))).collect()
}

/// Returns the contests of wrk: a short response, a small file and a large one.
pub fn requests<'a>(servers: &'a [(Entrant, Server)], stage: &'a Stage, seconds: u32) -> Vec<Contest<'a>> {
    let shape = |path| Shape { scheme: Scheme::Https, path, connections: CONNECTIONS, depth: 1 };
    let peers = vec![Mark::AtMost { factor: 1.0, against: NGINX }, Mark::Times { factor: 1.0, against: vec![HYPER] }];
    let name = format!("HTTPS hello × {CONNECTIONS}");
    let reference = if servers.iter().any(|(entrant, _)| entrant.name == NGINX) { NGINX } else { FLOOR };
    let hello = requests::contest(servers.iter().collect(), stage, shape("/hello"), name, reference, peers, seconds);
    let files = [SMALL, LARGE].map(|file| {
        let name = format!("HTTPS file of {} × {CONNECTIONS}", file.name);
        let servers = servers.iter().filter(|(entrant, _)| entrant.serves_files()).collect();
        let mark = Mark::AtMost { factor: 1.0, against: NGINX };
        requests::contest(servers, stage, shape(file.path), name, NGINX, vec![mark], seconds)
    });
    [hello].into_iter().chain(files).collect()
}

/// Asks a server for the short response over TLS.
fn tried(server: &Server, stage: &Stage) -> Result<Exchange> {
    let config = Arc::new(crate::tls_client::trusting(&stage.chain())?);
    let session = ClientConnection::new(config, ServerName::try_from("localhost")?)?;
    let stream = StreamOwned::new(session, exchange::connected(server.address)?);
    exchange::tried_over(stream, exchange::request(server.address, "/hello"))
}

/// Returns the contest of connections with one request each.
pub fn handshakes<'a>(servers: &'a [(Entrant, Server)], stage: &'a Stage, window: Duration) -> Result<Contest<'a>> {
    let case = |what| {
        let case = Case::new(format!("HTTPS connection, {what} handshake, CPU"), "µs", Better::Lower);
        case.relative_to(FLOOR).mark(Mark::Times { factor: 1.0, against: vec![NGINX, HYPER] })
    };
    let mut contenders = Vec::new();
    for (entrant, server) in servers {
        let exchange = tried(server, stage)?;
        let shaker = |resumes| Shaker::new(&stage.chain(), exchange.clone(), resumes);
        let mut shakers = [shaker(false)?, shaker(true)?];
        contenders.push(Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            shakers.iter_mut().map(|shaker| Ok(reading(shaker.measure(server, window)?))).collect()
        }));
    }
    Ok(Contest { name: "HTTPS handshakes".to_owned(), cases: vec![case("full"), case("resumed")], contenders })
}

/// Returns the contest of idle connections that have had one response each.
pub fn idle<'a>(entrants: &'a [Entrant], stage: &'a Stage, count: usize) -> Contest<'a> {
    let without_threads = entrants.iter().filter(|entrant| entrant.side != Side::Floor);
    let contenders = without_threads.map(|entrant| {
        Contender::new(entrant.name, entrant.version.clone(), entrant.side, move || {
            let server = start(entrant, stage)?;
            let exchange = tried(&server, stage)?;
            Ok(vec![reading(super::grown(&server, stage, WARM_UP, count, &exchange)?)])
        })
    });
    let case = Case::new(format!("idle HTTPS connections, {count}"), "B each", Better::Lower);
    let marks = [Mark::AtMost { factor: 1.0, against: NGINX }, Mark::Limit { at_most: MOST_IDLE }];
    let case = marks.into_iter().fold(case.relative_to(HYPER), Case::mark);
    Contest { name: "idle HTTPS connections".to_owned(), cases: vec![case], contenders: contenders.collect() }
}
