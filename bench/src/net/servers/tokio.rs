//! tokio on one thread: a task per connection, with a buffer of its own.

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{OWN_BUFFER, listener};

pub fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("make a tokio runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener()?).context("hand a listener to tokio")?;
        loop {
            let (stream, _) = listener.accept().await.context("accept a connection")?;
            stream.set_nodelay(true).context("send without delay")?;
            tokio::spawn(echo(stream));
        }
    })
}

async fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; OWN_BUFFER];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
