//! The echo servers with TLS, each a separate process: `pelton-bench tls-server NAME CHAIN KEY`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::process::{announce, end_with_parent, listener};

#[derive(Args)]
pub struct Serving {
    kind: Kind,
    chain: PathBuf,
    key: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Threads,
    Pelton,
    Tokio,
}

/// Bytes that one read takes, where each connection has its own buffer: a record.
const BUFFER: usize = 16 << 10;

/// Serves until the process is killed, which the kernel does when its parent exits.
pub fn serve(serving: &Serving) -> Result<()> {
    end_with_parent()?;
    match serving.kind {
        Kind::Threads => threads(config(&serving.chain, &serving.key)?),
        Kind::Pelton => pelton(serving),
        Kind::Tokio => tokio(config(&serving.chain, &serving.key)?),
    }
}

/// Returns the configuration of all servers on rustls that are not ours: tickets, and the same preferences.
pub fn config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| anyhow::anyhow!("read the certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| anyhow::anyhow!("read the key: {error}"))?;
    let mut config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.ignore_client_order = true;
    Ok(Arc::new(config))
}

fn threads(config: Arc<ServerConfig>) -> Result<()> {
    let listener: TcpListener = listener()?;
    listener.set_nonblocking(false).context("make a listener block")?;
    loop {
        let (socket, _) = listener.accept().context("accept a connection")?;
        socket.set_nodelay(true)?;
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config))?, socket);
        std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let mut buffer = vec![0; BUFFER];
            // The client ends it, in one way or another.
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).and_then(|()| stream.flush()).is_err() {
                    break;
                }
            }
            // As the standard demands, and the others do. The client may be gone.
            stream.conn.send_close_notify();
            let _ = stream.flush();
        })?;
    }
}

struct Echo;

impl ::pelton::Connection for Echo {
    fn received(&mut self, io: &mut ::pelton::Io<'_>, chunk: ::pelton::Chunk) {
        // A refused send closes the connection elsewhere.
        let _ = io.send_chunk(chunk);
    }
}

fn pelton(serving: &Serving) -> Result<()> {
    let tls = pelton_tls::Server::builder()
        .certificate(&serving.chain, &serving.key)
        .handshakes_in_flight(usize::MAX)
        .build()?;
    let mut reactor = ::pelton::Reactor::new()?;
    let listener = pelton_tls::listen(&mut reactor, "127.0.0.1:0", &tls, |_| Echo)?;
    let Some(::pelton::Address::Tcp(address)) = reactor.listening_on(listener) else {
        anyhow::bail!("not listening");
    };
    announce(address.port())?;
    reactor.run()?;
    Ok(())
}

fn tokio(config: Arc<ServerConfig>) -> Result<()> {
    use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().context("start tokio")?;
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    runtime.block_on(::tokio::task::LocalSet::new().run_until(async {
        let listener = ::tokio::net::TcpListener::from_std(listener()?).context("take a listener over")?;
        loop {
            let (socket, _) = listener.accept().await.context("accept a connection")?;
            socket.set_nodelay(true)?;
            let acceptor = acceptor.clone();
            ::tokio::task::spawn_local(async move {
                let Ok(mut stream) = acceptor.accept(socket).await else { return };
                let mut buffer = vec![0; BUFFER];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..count]).await.is_err() || stream.flush().await.is_err() {
                        break;
                    }
                }
                // As the standard demands, and the others do. The client may be gone.
                let _ = stream.shutdown().await;
            });
        }
    }))
}
