//! Clients that leave at random moments of a handshake or a session, for `PELTON_SOAK_SECONDS`, or one second.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pelton::{EventLoop, Reactor};
use pelton_testing::{Authority, Echo, descriptors, listen, pattern, run_until};
use pelton_tls::rustls::crypto::ring::default_provider;
use pelton_tls::rustls::pki_types::pem::PemObject;
use pelton_tls::rustls::pki_types::{CertificateDer, ServerName};
use pelton_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use pelton_tls::{Server, Stats};

/// A small generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A stream that is cut off after some bytes.
struct Cut {
    socket: TcpStream,
    left: usize,
}

impl Write for Cut {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(self.left);
        if count == 0 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let count = self.socket.write(&bytes[..count])?;
        self.left -= count;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Cut {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.socket.read(buffer)
    }
}

/// Does one of several things with a connection, most of them rude.
fn visit(address: &str, config: &Arc<ClientConfig>, random: &mut Random) {
    let mut socket = pelton_testing::dial(address);
    if random.below(2) == 0 {
        // Closing resets it.
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    }
    if random.below(8) == 0 {
        let _ = socket.write_all(&pattern(1 + random.below(2_000)));
        return;
    }
    // Within the first flight, the second one, or the session.
    let left = [400, 600, 20_000][random.below(3)];
    let left = 1 + random.below(left);
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, Cut { socket, left });
    let message = pattern(1 + random.below(5_000));
    let mut back = vec![0; message.len()];
    while stream.write_all(&message).and_then(|()| stream.flush()).is_ok() {
        match stream.read_exact(&mut back) {
            Ok(()) => assert!(back == message),
            Err(_) => return,
        }
    }
}

/// The clients' threads use memory, too, and what the allocator keeps varies.
const MOST_GROWN: u64 = 4 << 20;

/// Returns the private memory of this process that has been written to, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10
}

#[test]
fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    let seconds = std::env::var("PELTON_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let authority = Authority::new("soak");
    let issued = authority.issue(&["localhost"]);
    let tls = Server::builder().certificate(issued.chain, issued.key).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let shared = tls.clone();
    let address = listen(&mut reactor, move |_| shared.wrap(Echo)).to_string();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&authority.pem).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (config, ends) = (Arc::new(config), Arc::new(AtomicBool::new(false)));
    let before = descriptors();
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20 | 1;
    println!("seed {seed}");
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (address, config, ends) = (address.clone(), Arc::clone(&config), Arc::clone(&ends));
            std::thread::spawn(move || {
                let mut random = Random(seed.wrapping_mul(2 * number + 1));
                while !ends.load(Relaxed) {
                    visit(&address, &config, &mut random);
                }
            })
        })
        .collect();
    // By the middle, everything that is kept has been allocated once.
    let start = Instant::now();
    let run_for = |reactor: &mut EventLoop, time: Duration| {
        while start.elapsed() < time {
            reactor.turn(Some(Duration::from_millis(10))).unwrap();
        }
    };
    run_for(&mut reactor, Duration::from_secs(seconds) / 2);
    let in_the_middle = memory();
    run_for(&mut reactor, Duration::from_secs(seconds));
    let grown = memory().saturating_sub(in_the_middle);
    ends.store(true, Relaxed);
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |reactor| {
        clients.iter().all(|client| client.is_finished()) && reactor.connection_count() == 0
    });
    reactor.cancel(waiting);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let stats: Stats = tls.stats();
    println!("{stats:?}");
    assert!(stats.completed > 10 && stats.resumed > 0 && stats.all_failed() > 10, "{stats:?}");
    assert_eq!((stats.in_flight, reactor.queued()), (0, 0));
    assert_eq!(descriptors(), before);
    println!("grown by {} KiB in the second half", grown >> 10);
    // A second is too short for the middle to mean anything. A leak of 50 bytes per connection would show in a minute.
    assert!(seconds < 20 || grown < MOST_GROWN, "{grown} bytes");
}
