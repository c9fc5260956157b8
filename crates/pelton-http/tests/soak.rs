//! A soak test: random clients request, wait, disconnect, reset and trickle. Nothing may leak.
//!
//! `PELTON_SOAK_SECONDS` sets the duration, and `PELTON_SOAK_SEED` repeats the random numbers of an earlier run, but not the
//! kernel's timing.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::DEADLINE;
use pelton::{Balance, Lane, PanicPolicy, Reactor, Stats, Targets, task};
use pelton_http::{
    Client, Files, Request, Responder, Response, ResponseStream, ReverseProxy, Router, SendState, Server, Settings,
    Upstream, client, deferred, plain, spawned,
};

/// The default duration.
const DEFAULT_SECONDS: u64 = 6;
const CLIENTS: usize = 8;
/// How often all clients stop, and leaks are checked for.
const PERIODS: u32 = 4;
/// How much the process may grow after the first period. Allocators keep some memory.
const MOST_GROWN: usize = 20_000_000;

/// A pseudo-random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

fn echo(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().collect(reactor, |reactor, body| match body {
        Ok(body) => responder.respond(reactor, Response::ok().body(body)),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

/// A body that is larger than the buffers of a client that disconnects.
fn stream(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    fn send_rest(reactor: &mut Reactor, stream: ResponseStream, from: usize) {
        for number in from..200 {
            match stream.send(reactor, vec![b's'; 5_000]) {
                Ok(SendState::Ready) => {}
                Ok(SendState::Full) => {
                    return stream.when_ready(reactor, move |reactor, stream| send_rest(reactor, stream, number + 1));
                }
                Err(_) => return,
            }
        }
        stream.finish(reactor);
    }
    let stream = responder.stream(reactor, Response::ok());
    send_rest(reactor, stream, 0);
}

fn router(files: Files) -> Router {
    let late = spawned(|_, _| async {
        task::sleep(Duration::from_millis(3)).await;
        "late\n"
    });
    Router::new()
        .get("/", plain(|_| "hello\n"))
        .post("/echo", echo)
        .get("/stream", stream)
        .get("/late", late)
        .post("/deferred", deferred(Lane::Cpu, |_, body| format!("{}\n", body.len())))
        .get("/files/{*rest}", files)
}

/// A proxy in front of the server, on the same loop. Returns its address.
fn front(site: &mut common::Site) -> (String, Arc<Targets>) {
    let mut targets = Targets::new(Balance::Least, 1_000_000, Duration::from_secs(1));
    let upstream = Arc::new(Upstream::new(&mut targets, [format!("http://{}", site.address)]).unwrap());
    let targets = Arc::new(targets);
    // Kept connections would look like leaks.
    let settings = client::Settings { idle: Duration::from_millis(20), ..client::Settings::default() };
    let proxy = ReverseProxy::balanced(&targets, &upstream).client(Client::with_settings(settings));
    let listener = Server::new(proxy).listen(&mut site.reactor, "127.0.0.1:0").unwrap();
    (site.reactor.listening_on(listener).unwrap().to_string(), targets)
}

/// A complete, valid request.
fn request(random: &mut Random) -> Vec<u8> {
    let body = vec![b'b'; [0, 10, 3_000, 200_000][random.below(4)]];
    match random.below(7) {
        0 => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        1 => b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        2 => b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        3 => b"GET /files/large HTTP/1.1\r\nHost: a\r\nRange: bytes=10-\r\n\r\n".to_vec(),
        4 => b"GET /files/small HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        5 => {
            let mut chunked = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for chunk in body.chunks(7_000) {
                chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend_from_slice(chunk);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\n\r\n");
            chunked
        }
        _ => {
            let path = ["/echo", "/deferred"][random.below(2)];
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
            [head.into_bytes(), body].concat()
        }
    }
}

/// Runs one connection from beginning to end. The server may close it at any time. Returns whether an answer arrived.
fn visit(address: &str, random: &mut Random) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    let requests: Vec<u8> = (0..random.below(4) + 1).flat_map(|_| request(random)).collect();
    // Nearly half of them disconnect early, and some send nonsense.
    let cut = if random.below(5) < 2 { random.below(requests.len()) } else { requests.len() };
    let mut sent = requests[..cut].to_vec();
    if random.below(10) == 0 && !sent.is_empty() {
        let place = random.below(sent.len());
        sent[place] = random.below(256) as u8;
    }
    for piece in sent.chunks([sent.len().max(1), 100_000, 1_000][random.below(3)]) {
        stream.write_all(piece)?;
    }
    match random.below(4) {
        0 => return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).map(|()| false),
        1 => return Ok(false),
        2 => stream.shutdown(Shutdown::Write)?,
        _ => {}
    }
    let mut room = vec![0; 20_000];
    let mut answered = false;
    for _ in 0..random.below(60) {
        match stream.read(&mut room) {
            Ok(1..) => answered = true,
            // A timeout or a reset may be the client's own fault.
            Ok(0) | Err(_) => break,
        }
    }
    Ok(answered)
}

/// The number of open descriptors. `None` on systems that do not tell.
fn open_descriptors() -> Option<usize> {
    cfg!(target_os = "linux").then(|| std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// The memory of the process. `None` on systems that do not tell.
fn resident_bytes() -> Option<usize> {
    cfg!(target_os = "linux").then(|| {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes * 1024
    })
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("PELTON_SOAK_SECONDS").unwrap_or(DEFAULT_SECONDS);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = number("PELTON_SOAK_SEED").unwrap_or(now.as_nanos() as u64);
    println!("for {seconds} s, PELTON_SOAK_SEED={seed}");

    let folder = std::env::temp_dir().join(format!("pelton-soak-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("files")).unwrap();
    std::fs::write(folder.join("files/small"), "small\n").unwrap();
    std::fs::write(folder.join("files/large"), vec![b'f'; 600_000]).unwrap();
    // A handler that panics fails the test.
    let reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let mut site = common::Site::new(reactor, router(Files::open(&folder).unwrap()), Settings::default());
    let (front, targets) = front(&mut site);

    let (visits, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (mut descriptors, mut resident) = (None, None);
    for period in 0..PERIODS {
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|client| {
                // Half of them come through the proxy.
                let address = if client % 2 == 0 { &site.address } else { &front };
                let (address, stop) = (address.clone(), stop.clone());
                let (visits, answered) = (visits.clone(), answered.clone());
                let mut random = Random(seed ^ (client + 1) << 40 ^ u64::from(period));
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        visits.fetch_add(1, Ordering::Relaxed);
                        // A single client may fail for its own reasons, but not all of them.
                        if visit(&address, &mut random).unwrap_or(false) {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(seconds) / PERIODS;
        while Instant::now() < until {
            site.reactor.turn(Some(Duration::from_millis(10))).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let ticking = site.reactor.every(Duration::from_millis(5), |_, _| {});
        site.run_until(|_| clients.iter().all(|client| client.is_finished()));
        clients.into_iter().for_each(|client| client.join().unwrap());
        site.run_until(|reactor| reactor.connection_count() == 0 && reactor.task_count() == 0);
        assert_eq!(targets.all()[0].busy(), 0, "forwarded requests were not ended");
        let lane_is_idle = |stats: &Stats| stats.lane(Lane::Files).running + stats.lane(Lane::Cpu).running == 0;
        site.run_until(|reactor| lane_is_idle(&reactor.stats()));
        site.reactor.cancel(ticking);
        println!(
            "{} visits, {} answered, {:?} descriptors, {:?} bytes",
            visits.load(Ordering::Relaxed),
            answered.load(Ordering::Relaxed),
            open_descriptors(),
            resident_bytes()
        );
        if period == 0 {
            (descriptors, resident) = (open_descriptors(), resident_bytes());
        }
        assert_eq!(open_descriptors(), descriptors, "descriptors leaked");
        if let (Some(now), Some(before)) = (resident_bytes(), resident) {
            let grown = now.saturating_sub(before);
            assert!(grown < MOST_GROWN, "the process has grown by {grown} bytes");
        }
    }
    let (visits, answered) = (visits.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
    // About a third of the clients send a valid request and wait for the answer.
    assert!(visits > 100 && answered > visits / 8, "of {visits} visits, {answered} were answered");
    assert_eq!(site.reactor.stats().panics, 0);
    // The server still works.
    let begun = Instant::now();
    assert!(site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("hello\n"));
    assert!(begun.elapsed() < DEADLINE);
    std::fs::remove_dir_all(&folder).unwrap();
}
