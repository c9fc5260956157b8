//! The floor for HTTPS: rustls on blocking threads, one per connection. It parses heads, and gives all requests the same response.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::{ServerConnection, StreamOwned};

use super::super::stage::{CHAIN, KEY};
use super::floor::answer;
use super::listener;

/// Bytes that one read takes: a record.
const BUFFER: usize = 16 << 10;

pub fn serve(stage: &Path) -> Result<()> {
    let config = crate::tls::config(&stage.join(CHAIN), &stage.join(KEY))?;
    let listener = listener()?;
    listener.set_nonblocking(false).context("make a listener block")?;
    loop {
        let (socket, _) = listener.accept().context("accept a connection")?;
        socket.set_nodelay(true)?;
        let stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config))?, socket);
        std::thread::Builder::new().stack_size(256 << 10).spawn(move || respond(stream))?;
    }
}

/// Responds until the client ends the connection, in one way or another.
fn respond(mut stream: StreamOwned<ServerConnection, TcpStream>) {
    let (mut input, mut begun, mut answers) = (vec![0; BUFFER], Vec::new(), Vec::new());
    while let Ok(count @ 1..) = stream.read(&mut input) {
        begun.extend_from_slice(&input[..count]);
        answers.clear();
        let Some(used) = answer(&begun, &mut answers) else { break };
        begun.drain(..used);
        if stream.write_all(&answers).and_then(|()| stream.flush()).is_err() {
            break;
        }
    }
    // As the standard demands, and the others do. The client may be gone.
    stream.conn.send_close_notify();
    let _ = stream.flush();
}
