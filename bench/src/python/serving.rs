//! Rows that need a load: echo servers of several kinds, with messages of several sizes, over eight connections.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::plain::PlainClient;
use super::worker::{Python, Refused, Worker};
use crate::client::{Client, Exchange, Until};
use crate::harness::Reading;
use crate::process::cpu_time_of;
use crate::tls_client::TlsClient;

const CONNECTIONS: usize = 8;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    pub name: &'static str,
    /// The server, by its name in `bench/python/servers.py`.
    pub kind: &'static str,
    pub size: usize,
    pub from: From,
}

/// The source of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// This process, as fast as possible.
    Rust,
    /// A Python process with default sockets, to a server with a default C library.
    Python,
}

impl Serving {
    const fn new(name: &'static str, kind: &'static str, size: usize) -> Serving {
        Serving { name, kind, size, from: From::Rust }
    }

    const fn from_python(name: &'static str, kind: &'static str, size: usize) -> Serving {
        Serving { name, kind, size, from: From::Python }
    }
}

pub const ROWS: [Serving; 14] = [
    Serving::new("raw sock_* 1K × 8", "sockets", 1 << 10),
    Serving::new("streams 1K × 8", "streams", 1 << 10),
    Serving::new("streams 10K × 8", "streams", 10 << 10),
    Serving::new("protocol 1K × 8", "protocol", 1 << 10),
    Serving::new("protocol 10K × 8", "protocol", 10 << 10),
    Serving::new("protocol 100K × 8", "protocol", 100 << 10),
    Serving::new("buffered 1K × 8", "buffered", 1 << 10),
    Serving::new("unix protocol 1K × 8", "unix", 1 << 10),
    Serving::new("unix protocol 100K × 8", "unix", 100 << 10),
    Serving::new("TLS protocol 1K × 8", "tls", 1 << 10),
    Serving::new("TLS protocol 100K × 8", "tls", 100 << 10),
    Serving::new("UDP 1K × 8", "datagrams", 1 << 10),
    Serving::from_python("Python client, TLS 100K × 8", "tls", 100 << 10),
    Serving::from_python("Python client, buffered 100K × 8", "copying", 100 << 10),
];

/// A server of one loop under load. It serves until this is dropped.
pub struct Served {
    worker: Rc<RefCell<Worker>>,
    load: Load,
}

enum Load {
    Plain(Client),
    Tls(TlsClient),
    Python(PlainClient),
}

impl Served {
    /// Makes a loop serve, and connects to it.
    pub fn start(worker: &Rc<RefCell<Worker>>, row: Serving, python: &Python) -> Result<Result<Served, Refused>> {
        let at = match worker.borrow_mut().serve(row.kind)? {
            Ok(at) => at,
            Err(refused) => return Ok(Err(refused)),
        };
        match connect(row, &at, python) {
            Ok(load) => Ok(Ok(Served { worker: worker.clone(), load })),
            Err(error) => {
                worker.borrow_mut().end()?;
                Ok(Err(Refused(format!("it listens at {at}, but: {error:#}"))))
            }
        }
    }

    /// Runs one window: messages per second, and processor time per message of all threads of the server's process.
    pub fn window(&mut self, window: Duration) -> Result<Reading> {
        let process = self.worker.borrow().id();
        let before = cpu_time_of(process)?;
        let (messages, wall) = match &mut self.load {
            Load::Plain(client) => {
                let burst = client.run(Until::Elapsed(window))?;
                (burst.messages, burst.wall)
            }
            Load::Tls(client) => client.run(window)?,
            Load::Python(client) => client.run(window)?,
        };
        let used = cpu_time_of(process)? - before;
        let cpu_us = used.as_secs_f64() * 1e6 / messages as f64;
        Ok(Reading { value: messages as f64 / wall.as_secs_f64(), cpu_us: Some(cpu_us), syscalls: None })
    }

    /// Ends the server.
    pub fn end(self) -> Result<()> {
        drop(self.load);
        self.worker.borrow_mut().end()
    }
}

fn connect(row: Serving, at: &Value, python: &Python) -> Result<Load> {
    let exchange = Exchange::echo(row.size);
    if let Some(path) = at.as_str() {
        let sockets: Result<Vec<OwnedFd>, _> =
            (0..CONNECTIONS).map(|_| UnixStream::connect(path).map(OwnedFd::from)).collect();
        return Ok(Load::Plain(Client::over(sockets?, exchange)?));
    }
    let server = address(at)?;
    if row.from == From::Python {
        let tls = row.kind == "tls";
        return Ok(Load::Python(PlainClient::open(python, server.port(), row.size, CONNECTIONS, tls)?));
    }
    match row.kind {
        "datagrams" => {
            let socket = |_| {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.connect(server)?;
                Ok(OwnedFd::from(socket))
            };
            let sockets: std::io::Result<Vec<OwnedFd>> = (0..CONNECTIONS).map(socket).collect();
            Ok(Load::Plain(Client::over(sockets?, exchange)?))
        }
        "tls" => {
            let certificate = Path::new(env!("CARGO_MANIFEST_DIR")).join(super::CERTIFICATE);
            Ok(Load::Tls(TlsClient::open(server, &certificate, CONNECTIONS, exchange)?))
        }
        _ => Ok(Load::Plain(Client::open(server, CONNECTIONS, exchange)?)),
    }
}

/// Parses the address of a server.
pub fn address(at: &Value) -> Result<SocketAddrV4> {
    let port = at.as_u64().and_then(|port| u16::try_from(port).ok());
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.with_context(|| format!("{at} is no port"))?))
}
