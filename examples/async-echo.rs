//! The server and the client of `echo`, written with `async`.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin async-echo
//! echoing on 127.0.0.1:43175
//! client: sends "water"
//! client: gets back "water"
//! client: sends "wheel"
//! client: gets back "wheel"
//! client: nothing more arrives
//! server: the peer has finished
//! ```
//!
//! The same connections run underneath, on the same loop. A task reads the bytes that a handler would receive, and callbacks and
//! tasks can be mixed freely.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::net::{Listener, Stream};
use pelton::{Address, Reactor, task};

/// The server's side of a connection.
async fn echo(mut stream: Stream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            println!("server: the peer has finished");
            return Ok(());
        }
        // If the client does not read, this waits once about 64 KiB are queued, and nothing more is read.
        stream.write_all(&buffer[..count]).await?;
    }
}

/// The client's side.
async fn talk(address: &Address) -> io::Result<()> {
    let mut stream = Stream::connect(address).await?;
    for word in ["water", "wheel"] {
        println!("client: sends {word:?}");
        stream.write_all(word.as_bytes()).await?;
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back).await?;
        println!("client: gets back {:?}", String::from_utf8_lossy(&back));
    }
    // Cancelling a read loses nothing.
    if task::timeout(Duration::from_millis(20), stream.read(&mut [0])).await.is_err() {
        println!("client: nothing more arrives");
    }
    stream.close().await
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    reactor.block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse()?)?;
        let address = listener.local_address()?;
        println!("echoing on {address}");
        // This task runs concurrently, on the same thread.
        let server = task::spawn(async move { echo(listener.accept().await?).await });
        talk(&address).await?;
        server.await??;
        Ok::<(), Box<dyn Error>>(())
    })?
}
