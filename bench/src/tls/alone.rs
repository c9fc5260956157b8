//! rustls alone: the cryptography of one echoed message, in memory, without sockets or a loop.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use crate::http::stage::Stage;

/// A client and a server that have shaken hands.
pub struct Alone {
    client: ClientConnection,
    server: ServerConnection,
    message: Vec<u8>,
}

impl Alone {
    pub fn new(stage: &Stage, size: usize) -> Result<Alone> {
        let client = Arc::new(crate::tls_client::trusting(&stage.chain())?);
        let server = super::config(&stage.chain(), &stage.key())?;
        let mut client = ClientConnection::new(client, ServerName::try_from("localhost")?)?;
        let mut server = ServerConnection::new(server)?;
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight)?;
            }
            take(flight.as_slice(), |input| server.read_tls(input).map(|_| ()))?;
            server.process_new_packets()?;
            let mut flight = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut flight)?;
            }
            take(flight.as_slice(), |input| client.read_tls(input).map(|_| ()))?;
            client.process_new_packets()?;
        }
        Ok(Alone { client, server, message: vec![b'x'; size] })
    }

    /// Returns the server's processor time for this many messages: to decrypt each, and to encrypt it again.
    pub fn echo(&mut self, messages: u64) -> Result<Duration> {
        let (mut wire, mut back) = (Vec::new(), Vec::new());
        let mut plain = vec![0; self.message.len()];
        let mut spent = Duration::ZERO;
        for _ in 0..messages {
            wire.clear();
            back.clear();
            self.client.writer().write_all(&self.message)?;
            while self.client.wants_write() {
                self.client.write_tls(&mut wire)?;
            }
            let before = used();
            let server = &mut self.server;
            take(wire.as_slice(), |input| {
                server.read_tls(input)?;
                server.process_new_packets().map(|_| ()).map_err(std::io::Error::other)
            })?;
            server.reader().read_exact(&mut plain).context("decrypt a message")?;
            server.writer().write_all(&plain).context("encrypt a message")?;
            while server.wants_write() {
                server.write_tls(&mut back)?;
            }
            spent += used() - before;
            ensure!(plain == self.message, "the message differs");
        }
        Ok(spent)
    }
}

/// Reads all of `input` with `read`.
fn take(mut input: &[u8], mut read: impl FnMut(&mut &[u8]) -> std::io::Result<()>) -> Result<()> {
    while !input.is_empty() {
        read(&mut input).context("pass on records")?;
    }
    Ok(())
}

/// Returns the processor time of this thread.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
