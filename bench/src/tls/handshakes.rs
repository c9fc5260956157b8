//! A client that connects, shakes hands, gets one byte echoed and closes, again and again.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};

pub struct Shaker {
    config: Arc<ClientConfig>,
    resumes: bool,
    /// There is a session to resume.
    begun: bool,
}

impl Shaker {
    pub fn new(certificate: &Path, resumes: bool) -> Result<Self> {
        let mut config = crate::tls_client::trusting(certificate)?;
        config.resumption = if resumes { Resumption::in_memory_sessions(16) } else { Resumption::disabled() };
        Ok(Self { config: Arc::new(config), resumes, begun: false })
    }

    /// Connects for this long, and at least once. Returns how often.
    pub fn run(&mut self, server: SocketAddrV4, window: Duration) -> Result<u64> {
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
        stream.write_all(b"x").context("send a byte")?;
        // Tickets come before the answer.
        stream.read_exact(&mut [0]).context("receive a byte")?;
        let resumed = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        ensure!(resumed == (self.resumes && self.begun), "resumed: {resumed}");
        self.begun = true;
        stream.conn.send_close_notify();
        stream.flush().context("close")
    }
}
