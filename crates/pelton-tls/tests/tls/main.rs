//! TLS against rustls on blocking threads: on every engine, and on an engine over a network in memory that completes
//! everything late and in parts.

mod agreement;
mod environment;
mod floods;
mod manners;
mod opening;
mod reloading;
mod resumption;
mod starting;
mod trust;
mod users;

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use pelton::{Address, Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_testing::{Authority, Issued, Log, Network, Peer, listen, run_with};
use pelton_tls::rustls::crypto::ring::default_provider;
use pelton_tls::rustls::pki_types::pem::PemObject;
use pelton_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use pelton_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use pelton_tls::{Client, ClientBuilder, Server, ServerBuilder};

/// The authority that everyone trusts here.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("Pelton's tests"));

/// The certificate of the server.
static LOCALHOST: LazyLock<Issued> = LazyLock::new(|| AUTHORITY.issue(&["localhost", "127.0.0.1"]));

fn server_builder() -> ServerBuilder {
    Server::builder().certificate(&LOCALHOST.chain[..], &LOCALHOST.key[..])
}

fn server() -> Server {
    server_builder().build().unwrap()
}

fn client_builder() -> ClientBuilder {
    Client::builder().roots(&AUTHORITY.pem[..])
}

fn client() -> Client {
    client_builder().build().unwrap()
}

/// The configuration of a blocking client.
fn blocking_config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&AUTHORITY.pem).unwrap()).unwrap();
    ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// A client on a blocking thread.
type BlockingClient = StreamOwned<ClientConnection, Peer>;

fn blocking_client(peer: Peer, config: impl Into<Arc<ClientConfig>>) -> BlockingClient {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), peer)
}

/// A server on a blocking thread.
fn blocking_server(peer: Peer, issued: &Issued) -> StreamOwned<ServerConnection, Peer> {
    let chain = CertificateDer::pem_slice_iter(&issued.chain).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(&issued.key).unwrap();
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    StreamOwned::new(ServerConnection::new(config.into()).unwrap(), peer)
}

/// Sends back what it receives, and logs everything else.
#[derive(Clone, Default)]
struct Recorder {
    log: Log,
    /// Finishes first, when it has received this.
    finishes_after: &'static [u8],
    greeting: &'static [u8],
    quiet: bool,
}

impl Recorder {
    fn logging(log: &Log) -> Recorder {
        Recorder { log: log.clone(), ..Recorder::default() }
    }
}

impl Connection for Recorder {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.log.add("opened");
        io.send(self.greeting).unwrap();
    }

    fn layer_ready(&mut self, _: &mut Io<'_>) {
        self.log.add("layer ready");
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
        let finishes = !self.finishes_after.is_empty() && chunk.ends_with(self.finishes_after);
        if !self.quiet {
            io.send_chunk(chunk).unwrap();
        }
        if finishes {
            io.finish();
        }
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

/// Listens with TLS, and gives every connection this handler.
fn serve(reactor: &mut EventLoop, tls: &Server, handler: Recorder) -> Address {
    let tls = tls.clone();
    listen(reactor, move |_| tls.wrap(handler.clone()))
}

/// Turns the loop until a peer that has connected to it is done.
fn with_peer<T: Send + 'static>(
    reactor: &mut EventLoop,
    on: impl Network,
    address: &Address,
    act: impl FnOnce(Peer) -> T + Send + 'static,
) -> T {
    let address = address.clone();
    run_with(reactor, move || act(on.connect_peer(&address)))
}

/// Turns the loop until a blocking client that has connected to it is done.
fn with_client<T: Send + 'static>(
    reactor: &mut EventLoop,
    on: impl Network,
    address: &Address,
    config: impl Into<Arc<ClientConfig>> + Send + 'static,
    act: impl FnOnce(BlockingClient) -> T + Send + 'static,
) -> T {
    with_peer(reactor, on, address, |peer| act(blocking_client(peer, config)))
}

/// Turns the loop until all connections are over, and checks that nothing counts as queued.
fn run_out(reactor: &mut EventLoop) {
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.queued(), 0);
}

/// Sends some bytes, and returns as many that come back.
fn exchange<S: Read + Write>(stream: &mut S, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    back
}
