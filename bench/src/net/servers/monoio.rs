//! monoio, on either of its drivers: a task per connection, with a buffer of its own.

use anyhow::{Context, Result};
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

use super::{OWN_BUFFER, listener};

pub fn serve_on_epoll() -> Result<()> {
    RuntimeBuilder::<LegacyDriver>::new().build().context("make a monoio runtime on epoll")?.block_on(accept())
}

pub fn serve_on_uring() -> Result<()> {
    RuntimeBuilder::<IoUringDriver>::new().build().context("make a monoio runtime on io_uring")?.block_on(accept())
}

async fn accept() -> Result<()> {
    let listener = TcpListener::from_std(listener()?).context("hand a listener to monoio")?;
    loop {
        let (stream, _) = listener.accept().await.context("accept a connection")?;
        stream.set_nodelay(true).context("send without delay")?;
        monoio::spawn(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) {
    // The length of a rented buffer is what was read into it.
    let mut buffer = Vec::with_capacity(OWN_BUFFER);
    loop {
        let (read, full) = stream.read(buffer).await;
        let Ok(1..) = read else { return };
        let (written, sent) = stream.write_all(full).await;
        if written.is_err() {
            return;
        }
        buffer = sent;
    }
}
