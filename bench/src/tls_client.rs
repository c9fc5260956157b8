//! A load over TLS: like [`Client`](crate::client::Client), over encrypted connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::client::{Exchange, event, opened, wait};

const EVENTS_PER_WAIT: usize = 64;

/// Returns the configuration of a client that trusts this certificate.
pub fn trusting(certificate: &Path) -> Result<ClientConfig> {
    let certificate = CertificateDer::from_pem_file(certificate)
        .map_err(|error| anyhow::anyhow!("read {}: {error}", certificate.display()))?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).context("trust the server's certificate")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

pub struct TlsClient {
    epoll: Epoll,
    connections: Vec<Connection>,
    exchange: Exchange,
    buffer: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    session: ClientConnection,
    /// Bytes received of the answer.
    received: usize,
    waits_for_room: bool,
}

impl TlsClient {
    /// Opens connections to a server with this certificate, and exchanges and checks a message on each.
    pub fn open(server: SocketAddrV4, certificate: &Path, count: usize, exchange: Exchange) -> Result<Self> {
        let config = Arc::new(trusting(certificate)?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
        let mut client = Self { epoll, connections: Vec::new(), exchange, buffer: vec![0; 64 << 10] };
        for number in 0..count {
            let socket = TcpStream::from(opened(server, number)?);
            let name = ServerName::try_from("localhost").context("name the server")?;
            let mut session = ClientConnection::new(config.clone(), name).context("begin TLS")?;
            // A message may be longer than the default limit.
            session.set_buffer_limit(None);
            socket.set_nonblocking(true)?;
            client.epoll.add(&socket, event(EpollFlags::EPOLLIN, number)).context("watch a connection")?;
            client.connections.push(Connection { socket, session, received: 0, waits_for_room: false });
        }
        client.converse(|sent| sent < count as u64, true).context("check the first answers")?;
        Ok(client)
    }

    /// Keeps a message in flight on every connection for this long, and ends when the last answer has arrived. Returns their
    /// number.
    pub fn run(&mut self, window: Duration) -> Result<(u64, Duration)> {
        let start = Instant::now();
        let messages = self.converse(|_| start.elapsed() < window, false)?;
        Ok((messages, start.elapsed()))
    }

    fn converse(&mut self, may_send: impl Fn(u64) -> bool, compare: bool) -> Result<u64> {
        let (mut sent, mut answered) = (0, 0);
        for number in 0..self.connections.len() {
            self.send(number)?;
            sent += 1;
        }
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        while answered < sent {
            for event in wait(&self.epoll, &mut events)? {
                let number = event.data() as usize;
                let whole = self.receive(number, compare)?;
                self.flush(number)?;
                if whole {
                    answered += 1;
                    if may_send(sent) {
                        self.send(number)?;
                        sent += 1;
                    }
                }
            }
        }
        Ok(answered)
    }

    fn send(&mut self, number: usize) -> Result<()> {
        self.connections[number].session.writer().write_all(&self.exchange.message).context("encrypt a message")?;
        self.flush(number)
    }

    /// Sends encrypted data, as far as there is room.
    fn flush(&mut self, number: usize) -> Result<()> {
        let Connection { socket, session, waits_for_room, .. } = &mut self.connections[number];
        while session.wants_write() {
            match session.write_tls(socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("send a message"),
            }
        }
        let waits = session.wants_write();
        if waits != *waits_for_room {
            *waits_for_room = waits;
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            self.epoll.modify(&*socket, &mut event(EpollFlags::EPOLLIN | room, number)).context("watch for room")?;
        }
        Ok(())
    }

    /// Decrypts input. Returns `true` if the answer is complete.
    fn receive(&mut self, number: usize, compare: bool) -> Result<bool> {
        let Connection { socket, session, received, .. } = &mut self.connections[number];
        match session.read_tls(socket) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("receive an answer"),
        }
        session.process_new_packets().context("decrypt an answer")?;
        loop {
            match session.reader().read(&mut self.buffer) {
                Ok(0) => anyhow::bail!("the server ended a connection"),
                Ok(count) => {
                    let after = *received + count;
                    let length = self.exchange.length;
                    ensure!(after <= length, "received {after} bytes instead of {length}");
                    let stated = self.exchange.begins.get(*received..).unwrap_or_default();
                    let same = stated.iter().zip(&self.buffer[..count]).all(|(stated, came)| stated == came);
                    ensure!(!compare || same, "the answer differs");
                    *received = after;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("decrypt an answer"),
            }
        }
        let whole = *received == self.exchange.length;
        if whole {
            *received = 0;
        }
        Ok(whole)
    }
}
