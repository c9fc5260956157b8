//! Connections that open, do random things and close, for as long as requested, on every engine.
//!
//! One thread plays both sides: between turns of the loop it operates plain sockets that talk to the reactor's connections, and
//! handlers perform random operations on themselves and each other. All bytes of a direction are determined by the first one,
//! so lost, repeated or reordered bytes are detected. At intervals everything is closed, and then nothing may be left: no
//! connection, handler, descriptor or memory.
//!
//! `PELTON_CHURN_SECONDS` sets the duration for all engines together, and `PELTON_CHURN_SEED` repeats the random numbers of an
//! earlier run, but not the kernel's timing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pelton::{Address, Chunk, Connection, ConnectionId, EngineKind, EventLoop, Io, ListenerId, Reactor, Reason};
use pelton_testing::{On, descriptors, on_every_engine, poll, run_until};

on_every_engine![random_connections_leave_nothing_behind];

const SECONDS: &str = "PELTON_CHURN_SECONDS";
const SEED: &str = "PELTON_CHURN_SEED";
/// The default duration for all engines together.
const DEFAULT_SECONDS: u64 = 20;

/// How long a period lasts, until everything is closed and counted.
const PERIOD: Duration = Duration::from_millis(400);
/// After this many periods, memory that is kept for reuse should have been allocated.
const WARM_UP: usize = 3;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// The maximum number of open sockets per side.
const MOST_AT_ONCE: usize = 60;

/// Bytes that may remain at the end: the buffers that a reactor keeps for the next read, and a little more.
const MOST_KEPT: i64 = 400_000;
/// How much the process may grow after the first periods. Allocators keep some memory.
const MOST_GROWN: usize = 30_000_000;

const ON_PURPOSE: &str = "on purpose";

/// What all handlers share.
#[derive(Default)]
struct World {
    random: u64,
    live: Vec<ConnectionId>,
    /// The addresses to connect to: the reactor's own listeners, and the plain one.
    addresses: Vec<Address>,
    handlers: Rc<Cell<usize>>,
    /// The number of handlers created for connections.
    made: u64,
    opened: u64,
    closed: u64,
    bytes: u64,
    panics: u64,
    reasons: BTreeMap<String, u64>,
}

fn next(random: &mut u64, below: usize) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize % below
}

impl World {
    fn random(&mut self, below: usize) -> usize {
        next(&mut self.random, below)
    }

    fn size(&mut self) -> usize {
        let most = [300, 300, 5_000][self.random(3)];
        self.random(most) + 1
    }

    fn pick(&mut self) -> Option<ConnectionId> {
        let count = self.live.len();
        (count > 0).then(|| self.live[next(&mut self.random, count)])
    }
}

fn world(reactor: &mut Reactor) -> &mut World {
    reactor.state()
}

/// One direction of a connection: generates the bytes to send, or checks received ones.
#[derive(Clone, Copy, Default)]
struct Stretch {
    first: Option<u8>,
    position: usize,
}

impl Stretch {
    fn beginning_with(first: usize) -> Stretch {
        Stretch { first: Some(first as u8), position: 0 }
    }

    fn byte(first: u8, position: usize) -> u8 {
        first.wrapping_add((position as u8).wrapping_mul(7)).wrapping_add((position >> 8) as u8)
    }

    fn next(&mut self, count: usize) -> Vec<u8> {
        let start = self.position;
        self.position += count;
        let first = self.first.unwrap_or(0);
        (start..self.position).map(|position| Stretch::byte(first, position)).collect()
    }

    fn check(&mut self, bytes: &[u8]) {
        let Some(&begins) = bytes.first() else { return };
        let first = *self.first.get_or_insert(begins);
        for (offset, byte) in bytes.iter().enumerate() {
            let position = self.position + offset;
            assert_eq!(*byte, Stretch::byte(first, position), "at {position}");
        }
        self.position += bytes.len();
    }
}

/// A handler that performs random operations.
struct Restless {
    incoming: Stretch,
    outgoing: Stretch,
    /// How much more it sends than others. For some, that exceeds the kernel's buffers.
    factor: usize,
    opened: bool,
    over: bool,
    handlers: Rc<Cell<usize>>,
}

impl Restless {
    fn new(reactor: &mut Reactor) -> Restless {
        let world = world(reactor);
        world.handlers.set(world.handlers.get() + 1);
        world.made += 1;
        let outgoing = Stretch::beginning_with(world.random(256));
        let factor = if world.random(15) == 0 { 50 } else { 1 };
        let handlers = world.handlers.clone();
        Restless { incoming: Stretch::default(), outgoing, factor, opened: false, over: false, handlers }
    }

    fn send(&mut self, io: &mut Io<'_>) {
        let size = world(io.reactor()).size() * self.factor;
        let before = self.outgoing;
        let bytes = self.outgoing.next(size);
        let sent = if size.is_multiple_of(2) { io.send(&bytes) } else { io.send_bytes(bytes) };
        if sent.is_err() {
            self.outgoing = before;
        }
    }

    fn react(&mut self, io: &mut Io<'_>) {
        assert!(self.opened && !self.over, "called before it was opened or after it was closed");
        for _ in 0..world(io.reactor()).random(3) {
            match world(io.reactor()).random(60) {
                0..30 => (0..self.factor.min(3)).for_each(|_| self.send(io)),
                30..33 => io.pause(),
                33..39 => io.resume(),
                39..42 => io.finish(),
                42..45 => io.close_after_writing(),
                45..47 => io.close(),
                47..54 => disturb(io.reactor()),
                54..57 => call(io.reactor()),
                57 => {
                    world(io.reactor()).panics += 1;
                    std::panic::panic_any(ON_PURPOSE);
                }
                _ => {}
            }
        }
    }
}

/// Performs an operation on a random connection, from outside or from another's callback.
fn disturb(reactor: &mut Reactor) {
    let Some(id) = world(reactor).pick() else { return };
    match world(reactor).random(8) {
        0..3 => {
            // Not its own, whose handler is running.
            reactor.visit(id, |other: &mut Restless, io| other.send(io));
        }
        what => {
            let Some(mut other) = reactor.connection(id) else { return };
            match what {
                3 => other.pause(),
                4..6 => other.resume(),
                6 => other.close_after_writing(),
                _ => other.close(),
            }
        }
    }
}

/// Connects to a random address, if there are not too many connections.
fn call(reactor: &mut Reactor) {
    let count = world(reactor).addresses.len();
    if count == 0 || world(reactor).handlers.get() > MOST_AT_ONCE {
        return;
    }
    let number = world(reactor).random(count);
    let address = world(reactor).addresses[number].clone();
    let handler = Restless::new(reactor);
    match reactor.connect(&address, handler) {
        Ok(id) => world(reactor).live.push(id),
        Err(error) => {
            world(reactor).made -= 1;
            // All ports may still be in use, or the queue of a Unix listener may be full.
            let error = io::Error::from(error);
            assert!(matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::WouldBlock), "{error}");
        }
    }
}

impl Connection for Restless {
    fn opened(&mut self, io: &mut Io<'_>) {
        assert!(!self.opened && !self.over);
        self.opened = true;
        let id = io.id();
        let world = world(io.reactor());
        world.opened += 1;
        if !world.live.contains(&id) {
            world.live.push(id);
        }
        self.react(io);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.incoming.check(&chunk);
        world(io.reactor()).bytes += chunk.len() as u64;
        self.react(io);
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        self.react(io);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        match world(io.reactor()).random(4) {
            0 => io.finish(),
            1 => self.react(io),
            _ => io.close_after_writing(),
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        assert!(!std::mem::replace(&mut self.over, true), "closed twice");
        let world = world(reactor);
        world.closed += 1;
        *world.reasons.entry(reason.to_string()).or_default() += 1;
        assert!(!matches!(reason, Reason::Failed(_)), "{reason}");
        match world.random(60) {
            0..3 => disturb(reactor),
            3 => {
                world.panics += 1;
                std::panic::panic_any(ON_PURPOSE);
            }
            _ => {}
        }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.handlers.set(self.handlers.get() - 1);
    }
}

/// The other side of a connection: a plain socket.
struct Plain {
    stream: Stream,
    incoming: Stretch,
    outgoing: Stretch,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Whether to keep the socket.
enum Fate {
    Stays,
    Goes,
}

impl Plain {
    fn new(stream: Stream, first: usize) -> Plain {
        match &stream {
            Stream::Tcp(stream) => {
                stream.set_nonblocking(true).unwrap();
                // Some have small buffers, so that writes stop at arbitrary positions.
                if first.is_multiple_of(4) {
                    socket2::SockRef::from(stream).set_recv_buffer_size(4_096).unwrap();
                }
            }
            Stream::Unix(stream) => stream.set_nonblocking(true).unwrap(),
        }
        Plain { stream, incoming: Stretch::default(), outgoing: Stretch::beginning_with(first) }
    }

    fn dial(address: &Address, first: usize) -> Option<Plain> {
        let stream = match address {
            Address::Tcp(address) => Stream::Tcp(TcpStream::connect(address).ok()?),
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).ok()?),
            other => panic!("{other}"),
        };
        Some(Plain::new(stream, first))
    }

    fn write(&mut self, count: usize) -> Fate {
        let before = self.outgoing;
        let bytes = self.outgoing.next(count);
        let written = match &mut self.stream {
            Stream::Tcp(stream) => stream.write(&bytes),
            Stream::Unix(stream) => stream.write(&bytes),
        };
        self.outgoing = Stretch { position: before.position + *written.as_ref().unwrap_or(&0), ..before };
        match written {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Fate::Goes,
            _ => Fate::Stays,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Fate {
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        };
        match read {
            // The peer may have finished sending but still receive; this one is dropped soon enough.
            Ok(0) => Fate::Stays,
            Ok(count) => {
                self.incoming.check(&buffer[..count]);
                Fate::Stays
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Fate::Stays,
            Err(_) => Fate::Goes,
        }
    }

    /// Performs one random socket operation.
    fn act(&mut self, what: usize, size: usize, buffer: &mut [u8]) -> Fate {
        match what {
            0..8 => self.write(size),
            8..17 => self.read(&mut buffer[..size * 10]),
            17 => {
                match &self.stream {
                    Stream::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
                    Stream::Unix(stream) => drop(stream.shutdown(Shutdown::Write)),
                }
                Fate::Stays
            }
            18 => Fate::Goes,
            _ => {
                if let Stream::Tcp(stream) = &self.stream {
                    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
                Fate::Goes
            }
        }
    }
}

/// The state of one period: listeners and plain sockets.
struct Period {
    listeners: Vec<ListenerId>,
    plain_listener: TcpListener,
    addresses: Vec<Address>,
    plains: Vec<Plain>,
}

impl Period {
    fn begin(reactor: &mut EventLoop, path: &Path) -> Period {
        // New ports each time, because those of closed connections are not free immediately.
        let addresses = ["127.0.0.1:0".parse().unwrap(), Address::Unix(path.to_owned())];
        let listeners: Vec<ListenerId> =
            addresses.iter().map(|address| reactor.listen(address, Restless::new).unwrap()).collect();
        let own = listeners.iter().map(|listener| reactor.listening_on(*listener).unwrap().clone());
        let addresses: Vec<Address> = own.collect();
        let plain_listener = TcpListener::bind("127.0.0.1:0").unwrap();
        plain_listener.set_nonblocking(true).unwrap();
        let plain: SocketAddr = plain_listener.local_addr().unwrap();
        world(reactor).addresses = [&addresses[..], &[plain.into()]].concat();
        Period { listeners, plain_listener, addresses, plains: Vec::new() }
    }

    fn step(&mut self, reactor: &mut EventLoop, buffer: &mut [u8]) {
        let world = world(reactor);
        let first = world.random(256);
        if self.plains.len() < MOST_AT_ONCE {
            match world.random(8) {
                0 => {
                    let number = world.random(self.addresses.len());
                    self.plains.extend(Plain::dial(&self.addresses[number], first));
                }
                1 => {
                    let accepted = self.plain_listener.accept().ok();
                    self.plains.extend(accepted.map(|(stream, _)| Plain::new(Stream::Tcp(stream), first)));
                }
                _ => {}
            }
        }
        if !self.plains.is_empty() {
            let number = world.random(self.plains.len());
            let (what, size) = (world.random(20), world.size());
            if let Fate::Goes = self.plains[number].act(what, size, buffer) {
                self.plains.swap_remove(number);
            }
        }
        match world.random(30) {
            0 => call(reactor),
            1..4 => disturb(reactor),
            _ => {}
        }
        if reactor.state::<World>().random(3) == 0 {
            poll(reactor);
            // Ended connections are not picked any more.
            let mut live = std::mem::take(&mut world_of(reactor).live);
            live.retain(|id| reactor.connection(*id).is_some());
            world_of(reactor).live = live;
        }
    }

    /// Closes everything on both sides, in random order.
    fn end(self, reactor: &mut EventLoop) {
        for listener in self.listeners {
            assert!(reactor.end(listener));
        }
        drop((self.plain_listener, self.plains));
        world_of(reactor).addresses = Vec::new();
        poll(reactor);
        for id in std::mem::take(&mut world_of(reactor).live) {
            if let Some(mut io) = reactor.connection(id) {
                io.close();
            }
        }
        run_until(reactor, |reactor| reactor.connection_count() == 0);
        poll(reactor);
        world_of(reactor).live = Vec::new();
    }
}

fn world_of(reactor: &mut EventLoop) -> &mut World {
    world(reactor)
}

/// The resident memory of the process, in bytes.
fn resident() -> usize {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn seconds_per_engine() -> Duration {
    let seconds = std::env::var(SECONDS)
        .map_or(DEFAULT_SECONDS, |text| text.parse().unwrap_or_else(|_| panic!("{SECONDS} is {text:?}, not a number")));
    Duration::from_secs(seconds) / EngineKind::ALL.len() as u32
}

fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED} is {text:?}, not a number")),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64,
    }
}

/// Descriptors and memory are counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn random_connections_leave_nothing_behind(on: On) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::panic::set_hook(Box::new(|info| {
        if info.payload_as_str() != Some(ON_PURPOSE) {
            eprintln!("{info}");
        }
    }));
    let seed = seed();
    println!("{}: {SEED}={seed}", on.0);
    let mut reactor = on.catching();
    // Assertions in callbacks are caught, like all panics.
    reactor.on_fault(|reactor, fault| {
        if fault.message != ON_PURPOSE {
            reactor.put_state::<String>(fault.to_string());
        }
    });
    world_of(&mut reactor).random = seed;
    let path: PathBuf = std::env::temp_dir().join(format!("pelton-{}-churn-{}.sock", std::process::id(), on.0));
    let mut buffer = vec![0; 1 << 18];
    let (start, length) = (Instant::now(), seconds_per_engine());
    let mut said = start;
    let mut warm = None;
    let mut kept = 0;
    for period in 0.. {
        let over = start.elapsed() >= length && period > WARM_UP;
        if over || said.elapsed() >= PROGRESS {
            said = Instant::now();
            let World { opened, bytes, panics, ref reasons, .. } = *world_of(&mut reactor);
            println!(
                "{}: {:.0} s, {opened} opened, {} MB in, {panics} panics, {kept} bytes kept, {} MB resident, ended: {reasons:?}",
                on.0,
                start.elapsed().as_secs_f64(),
                bytes / 1_000_000,
                resident() / 1_000_000,
            );
        }
        if over {
            break;
        }
        let before = descriptors();
        // The first listener opens the reactor's spare descriptor, which stays open.
        let spare = usize::from(cfg!(target_os = "linux") && period == 0);
        let used = allocation_counter::measure(|| {
            let mut scene = Period::begin(&mut reactor, &path);
            let begun = Instant::now();
            while begun.elapsed() < PERIOD {
                scene.step(&mut reactor, &mut buffer);
                assert_eq!(reactor.try_state::<String>(), None, "with {SEED}={seed}");
            }
            scene.end(&mut reactor);
        });
        assert_eq!(reactor.try_state::<String>(), None, "with {SEED}={seed}");
        let World { made, closed, panics, ref handlers, .. } = *world_of(&mut reactor);
        assert_eq!(handlers.get(), 0, "handlers leaked, with {SEED}={seed}");
        assert_eq!(closed, made, "each is closed once, with {SEED}={seed}");
        assert_eq!(reactor.stats().panics, panics);
        assert_eq!(descriptors(), before + spare, "descriptors leaked, with {SEED}={seed}");
        match &warm {
            None if period >= WARM_UP => warm = Some(resident()),
            None => {}
            Some(warm) => {
                kept += used.bytes_current;
                assert!(kept <= MOST_KEPT, "{kept} bytes are left, with {SEED}={seed}");
                let grown = resident().saturating_sub(*warm);
                assert!(grown <= MOST_GROWN, "the process has grown by {grown} bytes, with {SEED}={seed}");
            }
        }
    }
    let World { opened, bytes, ref reasons, .. } = *world_of(&mut reactor);
    assert!(opened > 100 && bytes > 100_000 && reasons.len() >= 4, "too little activity: {opened}, {reasons:?}");
}
