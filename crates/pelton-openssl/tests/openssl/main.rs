//! TLS with OpenSSL, against OpenSSL on blocking threads: on every engine, and on an engine over a network in memory that
//! completes everything late and in parts.

mod agreement;
mod endings;
mod settings;

use std::io::{self, Read, Write};
use std::sync::LazyLock;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Layered, Reactor, Reason};
use pelton_openssl::openssl::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};
use pelton_openssl::{Builder, Config};
use pelton_testing::{Authority, Issued, Log, Network, Peer, listen, run_with};

/// The authority that everyone trusts here.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("Pelton's tests"));

/// The certificate of the server.
static LOCALHOST: LazyLock<Issued> = LazyLock::new(|| AUTHORITY.issue(&["localhost", "127.0.0.1"]));

fn server() -> Builder {
    Config::server().certificate(&LOCALHOST.chain[..]).key(&LOCALHOST.key[..])
}

/// Writes a few bytes at a time, so that messages arrive in pieces.
struct Trickle {
    peer: Peer,
    step: usize,
}

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peer.read(buffer)
    }
}

impl Write for Trickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.peer.write(&bytes[..bytes.len().min(self.step)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.peer.flush()
    }
}

/// A client on a blocking thread that verifies the server.
fn blocking_client<S: Read + Write>(stream: S) -> SslStream<S> {
    let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
    let roots = pelton_openssl::openssl::x509::X509::from_pem(&AUTHORITY.pem).unwrap();
    connector.cert_store_mut().add_cert(roots).unwrap();
    connector.set_verify(SslVerifyMode::PEER);
    connector.build().connect("localhost", stream).ok().expect("the handshake succeeds")
}

/// Sends back what it receives, and logs everything else.
#[derive(Clone, Default)]
struct Recorder {
    log: Log,
    greeting: &'static [u8],
}

impl Recorder {
    fn logging(log: &Log) -> Recorder {
        Recorder { log: log.clone(), greeting: b"" }
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
        io.send_chunk(chunk).unwrap();
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

/// Puts TLS under a handler.
fn wrap(tls: &Config, handler: impl Connection) -> Layered {
    let layer = tls.layer().unwrap();
    Layered::new(handler, |io| io.push_layer(layer))
}

/// Listens with TLS, and gives every connection this handler.
fn serve(reactor: &mut EventLoop, tls: &Config, handler: Recorder) -> Address {
    let tls = tls.clone();
    listen(reactor, move |_| wrap(&tls, handler.clone()))
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

/// Turns the loop until all connections are over, and checks that nothing counts as queued.
fn run_out(reactor: &mut EventLoop) {
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.queued(), 0);
}

/// Sends some bytes, and returns as many that come back.
fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    back
}

/// Reads until the other side ends or resets.
fn read_out(peer: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = peer.read_to_end(&mut all);
    all
}
