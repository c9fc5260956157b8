//! A client that connects, shakes hands, exchanges one message and closes, again and again.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};

use crate::client::Exchange;
use crate::process::Server;

pub struct Shaker {
    config: Arc<ClientConfig>,
    exchange: Exchange,
    resumes: bool,
    /// There is a session to resume.
    begun: bool,
}

impl Shaker {
    pub fn new(certificate: &Path, exchange: Exchange, resumes: bool) -> Result<Self> {
        let mut config = crate::tls_client::trusting(certificate)?;
        config.resumption = if resumes { Resumption::in_memory_sessions(16) } else { Resumption::disabled() };
        Ok(Self { config: Arc::new(config), exchange, resumes, begun: false })
    }

    /// Connects for this long. Returns the processor time of the server per connection, in microseconds.
    pub fn measure(&mut self, server: &Server, window: Duration) -> Result<f64> {
        // The first of a resuming client is a full one.
        self.run(server.address, Duration::ZERO)?;
        let before = server.cpu_time()?;
        let count = self.run(server.address, window)?;
        let cpu = server.cpu_time()? - before;
        Ok(cpu.as_secs_f64() * 1e6 / count as f64)
    }

    /// Connects for this long, and at least once. Returns how often.
    fn run(&mut self, server: SocketAddrV4, window: Duration) -> Result<u64> {
        let start = Instant::now();
        let mut count = 0;
        while count == 0 || start.elapsed() < window {
            self.once(server)?;
            count += 1;
        }
        Ok(count)
    }

    fn once(&mut self, server: SocketAddrV4) -> Result<()> {
        let socket = TcpStream::connect(server).context("connect")?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").context("name the server")?;
        let mut stream = StreamOwned::new(ClientConnection::new(self.config.clone(), name)?, socket);
        stream.write_all(&self.exchange.message).context("send a message")?;
        // Tickets come before the answer.
        let mut answer = vec![0; self.exchange.length];
        stream.read_exact(&mut answer).context("receive the answer")?;
        ensure!(answer.starts_with(&self.exchange.begins), "the answer differs");
        let resumed = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        ensure!(resumed == (self.resumes && self.begun), "resumed: {resumed}");
        self.begun = true;
        stream.conn.send_close_notify();
        stream.flush().context("close")
    }
}
