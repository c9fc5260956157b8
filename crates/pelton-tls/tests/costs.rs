//! What TLS costs: allocations, memory and system calls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use pelton::{EventLoop, Reactor};
use pelton_testing::{Authority, Echo, listen};
use pelton_tls::rustls::crypto::ring::default_provider;
use pelton_tls::rustls::pki_types::pem::PemObject;
use pelton_tls::rustls::pki_types::{CertificateDer, ServerName};
use pelton_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use pelton_tls::{Server, ServerBuilder};

type Client = StreamOwned<ClientConnection, TcpStream>;

/// Listens with TLS, and returns an established connection to there.
struct Setting {
    reactor: EventLoop,
    address: String,
    config: Arc<ClientConfig>,
}

impl Setting {
    fn new(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Setting {
        let authority = Authority::new("costs");
        let issued = authority.issue(&["localhost"]);
        let tls = change(Server::builder().certificate(issued.chain, issued.key)).build().unwrap();
        let mut reactor = Reactor::new().unwrap();
        let address = listen(&mut reactor, move |_| tls.wrap(Echo)).to_string();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&authority.pem).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = pelton_tls::rustls::client::Resumption::disabled();
        Setting { reactor, address, config: Arc::new(config) }
    }

    /// Connects, and lets one message be echoed, with the loop on this thread.
    fn connect(&mut self) -> Client {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name).unwrap(), socket);
        while client.conn.is_handshaking() {
            let _ = client.conn.complete_io(&mut client.sock);
            self.reactor.turn(Some(Duration::ZERO)).unwrap();
        }
        self.echo(&mut client, b"warm");
        client
    }

    /// Sends a message and turns the loop until it has come back.
    fn echo(&mut self, client: &mut Client, message: &[u8]) {
        client.write_all(message).unwrap();
        let mut back = vec![0; message.len()];
        let mut received = 0;
        while received < message.len() {
            self.reactor.turn(Some(Duration::ZERO)).unwrap();
            match client.read(&mut back[received..]) {
                Ok(count) => received += count,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
            }
        }
        assert!(back == message);
    }
}

/// Counts the allocations of the turns in which the loop echoes a message of this size.
fn allocations_of_echo(setting: &mut Setting, size: usize) -> f64 {
    const ROUNDS: u64 = 100;
    let mut client = setting.connect();
    let message = vec![7; size];
    (0..20).for_each(|_| setting.echo(&mut client, &message));
    let mut total = 0;
    for _ in 0..ROUNDS {
        client.write_all(&message).unwrap();
        // One turn may not be enough for a large message.
        total += measure(|| {
            for _ in 0..4 {
                setting.reactor.turn(Some(Duration::ZERO)).unwrap();
            }
        })
        .count_total;
        let mut back = vec![0; size];
        let mut received = 0;
        while received < size {
            received += client.read(&mut back[received..]).unwrap_or(0);
            setting.reactor.turn(Some(Duration::ZERO)).unwrap();
        }
    }
    total as f64 / ROUNDS as f64
}

#[test]
fn an_echoed_message_allocates_only_what_rustls_does() {
    let mut setting = Setting::new(|builder| builder);
    // rustls allocates for each record that it decrypts, and for each that it encrypts.
    let small = allocations_of_echo(&mut setting, 64);
    println!("64 bytes: {small} allocations");
    assert!(small <= 2.1, "{small}");
    let large = allocations_of_echo(&mut setting, 16_000);
    println!("16,000 bytes: {large} allocations");
    assert!(large <= 8.0, "{large}");
}

#[test]
fn an_idle_connection_keeps_no_buffers() {
    const CONNECTIONS: usize = 50;
    let mut setting = Setting::new(|builder| builder);
    let warm: Vec<Client> = (0..10).map(|_| setting.connect()).collect();
    let mut clients = Vec::new();
    let with_clients = measure(|| clients = (0..CONNECTIONS).map(|_| setting.connect()).collect::<Vec<_>>());
    // What the clients keep is freed here, and the rest is the server's.
    let dropped = measure(|| drop(clients));
    let server = (with_clients.bytes_current + dropped.bytes_current) / CONNECTIONS as i64;
    println!("{server} bytes per idle connection");
    assert!((500..5_000).contains(&server), "{server} bytes");
    assert_eq!(setting.reactor.connection_count(), warm.len() + CONNECTIONS);
}

#[cfg(target_os = "linux")]
#[test]
fn an_echoed_message_costs_one_read_one_write_and_a_wait() {
    use pelton_testing::child;
    const NAME: &str = "an_echoed_message_costs_one_read_one_write_and_a_wait";
    const ROUNDS: usize = 10;
    if child::role().is_some() {
        let mut setting = Setting::new(|builder| builder);
        let mut client = setting.connect();
        for _ in 0..ROUNDS {
            client.write_all(b"water").unwrap();
            // The marks between which the calls count.
            let _ = rustix::process::getppid();
            setting.reactor.turn(None).unwrap();
            let _ = rustix::process::getppid();
            client.read_exact(&mut [0; 5]).unwrap();
        }
        std::process::exit(0);
    }
    let turns = traced(NAME);
    assert_eq!(turns.len(), ROUNDS);
    for turn in turns {
        let [wait, read, write] = &turn[..] else { panic!("{turn:?}") };
        assert!(wait.starts_with("epoll_"), "{turn:?}");
        assert!(is_read(read) && is_write(write), "{turn:?}");
    }
}

fn is_read(name: &str) -> bool {
    ["read", "recvfrom"].contains(&name)
}

fn is_write(name: &str) -> bool {
    ["write", "sendto", "writev", "sendmsg"].contains(&name)
}

/// Runs a test in a child under strace. Returns the system calls between each two calls of `getppid`.
#[cfg(target_os = "linux")]
fn traced(name: &str) -> Vec<Vec<String>> {
    use pelton_testing::child;
    let trace = std::env::temp_dir().join(format!("pelton-tls-{}-{name}.strace", std::process::id()));
    let output = std::process::Command::new("strace")
        .args(["-f", "-o", trace.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(child::CHILD, "traced")
        .output()
        .expect("strace is needed for this test");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_once(' ')?.1.trim().split('(').next()).collect();
    let turns = names.split(|name| *name == "getppid").skip(1).step_by(2);
    turns.map(|turn| turn.iter().map(|name| (*name).to_owned()).collect()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn the_end_of_a_handshake_goes_out_with_the_first_answer() {
    use pelton_testing::child;
    const NAME: &str = "the_end_of_a_handshake_goes_out_with_the_first_answer";
    if child::role().is_some() {
        let mut setting = Setting::new(|builder| builder);
        drop(setting.connect());
        let mut socket = TcpStream::connect(&setting.address).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(&setting.config), name).unwrap();
        client.write_tls(&mut socket).unwrap();
        socket.set_nonblocking(true).unwrap();
        while client.is_handshaking() {
            setting.reactor.turn(Some(Duration::ZERO)).unwrap();
            if client.read_tls(&mut socket).is_ok() {
                client.process_new_packets().unwrap();
            }
        }
        // The client's last message, and the request behind it.
        client.writer().write_all(b"water").unwrap();
        client.write_tls(&mut socket).unwrap();
        assert!(!client.wants_write());
        let _ = rustix::process::getppid();
        setting.reactor.turn(None).unwrap();
        let _ = rustix::process::getppid();
        let mut answer = [0; 5];
        client.read_tls(&mut socket).unwrap();
        client.process_new_packets().unwrap();
        client.reader().read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"water");
        std::process::exit(0);
    }
    let [turn] = &traced(NAME)[..] else { panic!() };
    let count = |counts: fn(&str) -> bool| turn.iter().filter(|name| counts(name)).count();
    // Tickets and the answer are written together.
    assert_eq!((count(is_read), count(is_write)), (1, 1), "{turn:?}");
    // Their randomness: three for each of two tickets.
    assert_eq!(turn.len(), 3 + count(|name| name == "getrandom"), "{turn:?}");
}
