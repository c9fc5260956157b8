//! A client on the loop with other servers.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Child;

use pelton_testing::{Log, On, eventually, on_every_engine};
use pelton_tls::Client;

use super::*;

on_every_engine![openssl_serves, gnutls_serves, python_serves];

/// A server that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and waits until it listens on this port.
fn start(program: &str, arguments: &[&str], port: u16) -> Running {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    eventually("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    Running(child)
}

/// Returns a port that is free at the moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends a line, and finishes when an answer has come.
struct Asks(Log);

impl Connection for Asks {
    fn opened(&mut self, io: &mut Io<'_>) {
        let info = pelton_tls::info(io).unwrap();
        self.0.add(format!("{:?}, resumed: {}", info.version, info.resumed));
        io.send(b"water\n").unwrap();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.0.received(&chunk);
        if chunk.ends_with(b"\n") {
            io.close_after_writing();
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(reason.to_string());
    }
}

/// Connects to a server, and returns what happened.
fn ask(reactor: &mut EventLoop, tls: &Client, port: u16) -> Vec<String> {
    let log = Log::default();
    pelton_tls::connect(reactor, format!("127.0.0.1:{port}").as_str(), tls, Asks(log.clone())).unwrap();
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == 0);
    log.take()
}

fn openssl_serves(on: On) {
    let (mut reactor, files, port) = (on.reactor(), Files::new(&LOCALHOST), free_port());
    let accept = format!("127.0.0.1:{port}");
    for (version, name) in [("-tls1_3", "TLSv1_3"), ("-tls1_2", "TLSv1_2")] {
        let arguments = ["s_server", "-accept", &accept, "-cert", &files.chain, "-key", &files.key, "-rev", version];
        let _running = start("openssl", &arguments, port);
        let tls = Client::builder().roots(&files.authority[..]).build().unwrap();
        let entries = ask(&mut reactor, &tls, port);
        assert_eq!(entries[..2], [format!("{name}, resumed: false"), "received retaw\n".into()]);
        let entries = ask(&mut reactor, &tls, port);
        assert_eq!(entries[..2], [format!("{name}, resumed: true"), "received retaw\n".into()]);
        let tls = Client::builder().roots(&files.authority[..]).name("elsewhere").build().unwrap();
        let [reason] = &ask(&mut reactor, &tls, port)[..] else { panic!() };
        assert!(reason.contains("not valid for"), "{reason}");
        // Without a matching authority.
        let tls = Client::builder().roots(pelton_testing::Authority::new("Other").pem).build().unwrap();
        let [reason] = &ask(&mut reactor, &tls, port)[..] else { panic!() };
        assert!(reason.ends_with("sent the alert unknown_ca"), "{reason}");
    }
}

fn gnutls_serves(on: On) {
    let (mut reactor, files, port) = (on.reactor(), Files::new(&LOCALHOST), free_port());
    let (chain, key) = (format!("--x509certfile={}", files.chain), format!("--x509keyfile={}", files.key));
    let _running = start("gnutls-serv", &["--echo", "-q", "-p", &port.to_string(), &chain, &key], port);
    let tls = Client::builder().roots(&files.authority[..]).build().unwrap();
    let entries = ask(&mut reactor, &tls, port);
    assert_eq!(entries[..2], ["TLSv1_3, resumed: false", "received water\n"]);
}

const SERVES: &str = r#"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    with context.wrap_socket(connection, server_side=True) as tls:
        tls.sendall(b"you said " + tls.recv(100))
        # The client's closing message.
        assert tls.recv(100) == b""
        tls.unwrap()
    # Ends without a closing message.
    connection, _ = listener.accept()
    tls = context.wrap_socket(connection, server_side=True)
    tls.sendall(b"half of it")
    tls.recv(100)
    socket.socket.shutdown(tls, socket.SHUT_WR)
    socket.socket.recv(tls, 100)
"#;

fn python_serves(on: On) {
    let (mut reactor, files) = (on.reactor(), Files::new(&LOCALHOST));
    let mut command = Command::new("python3");
    command.args(["-c", SERVES, &files.chain, &files.key]).stdout(Stdio::piped());
    let mut running = Running(command.spawn().expect("python3 is needed for this test"));
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().parse().unwrap();
    let tls = Client::builder().roots(&files.authority[..]).build().unwrap();
    let entries = ask(&mut reactor, &tls, port);
    assert_eq!(entries[..2], ["TLSv1_3, resumed: false", "received you said water\n"]);
    let entries = ask(&mut reactor, &tls, port);
    assert_eq!(entries[1..], ["received half of it", "the stream was truncated"]);
}
