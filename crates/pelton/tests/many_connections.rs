//! As many connections at once as one process may have descriptors, on every engine.
//!
//! The clients run in another process, because each connection takes a descriptor at both ends.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pelton::{Chunk, Connection, EngineKind, EventLoop, Handle, Io, Reactor, Reason};
use pelton_testing::{DEADLINE, On, child, descriptors, on_every_engine, run_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

on_every_engine![many_connections_are_held_echo_a_byte_each_and_leave_nothing];

/// How many connections to hold, if the process may have that many descriptors.
const MANY: usize = 15_000;
/// `select` supports descriptors below 1,024.
const MANY_FOR_SELECT: usize = 900;
/// Descriptors for other purposes.
const OTHERS: usize = 100;

/// A client has about 28,000 ports per destination address, and the queue of one listener should not be the bottleneck.
const LISTENERS: usize = 4;

/// How often each connection echoes a byte.
const ROUNDS: usize = 2;

/// The maximum memory of an idle connection in bytes, including its share of tables that grow by doubling.
const MOST_PER_CONNECTION: i64 = 500;

/// Raises the limit on descriptors to its maximum, and returns that.
fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Not every system allows the maximum that it reports.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// What has happened so far.
#[derive(Default)]
struct Counts {
    open: Cell<usize>,
    received: Cell<usize>,
    /// By the reason for which they ended.
    finished: Cell<usize>,
    reset: Cell<usize>,
}

fn add(count: &Cell<usize>, number: usize) {
    count.set(count.get() + number);
}

struct Echo(Rc<Counts>);

impl Connection for Echo {
    fn opened(&mut self, _: &mut Io<'_>) {
        add(&self.0.open, 1);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        add(&self.0.received, chunk.len());
        io.send_chunk(chunk).unwrap();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.open.set(self.0.open.get() - 1);
        add(if matches!(reason, Reason::Reset) { &self.0.reset } else { &self.0.finished }, 1);
    }
}

/// The clients: they execute commands, one per line, and report each completion.
fn be_clients(orders: &str) {
    raise_limit();
    let (count, addresses) = orders.split_once(' ').unwrap();
    let addresses: Vec<&str> = addresses.split(' ').collect();
    let mut streams = Vec::new();
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "connect" => {
                for number in 0..count.parse().unwrap() {
                    let stream = TcpStream::connect(addresses[number % addresses.len()]).unwrap();
                    stream.set_read_timeout(Some(DEADLINE)).unwrap();
                    streams.push(stream);
                }
            }
            "echo" => {
                // All of them write first, so that they are active at the same time.
                for (number, stream) in streams.iter_mut().enumerate() {
                    stream.write_all(&[number as u8]).unwrap();
                }
                for (number, stream) in streams.iter_mut().enumerate() {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(byte, [number as u8]);
                }
            }
            // Every other one with a reset.
            "close" => {
                for (number, stream) in streams.drain(..).enumerate() {
                    let linger = (number % 2 == 1).then_some(Duration::ZERO);
                    socket2::SockRef::from(&stream).set_linger(linger).unwrap();
                }
            }
            other => panic!("unknown command {other:?}"),
        }
        println!("done.");
    }
}

/// The process of the clients, killed when this is dropped.
struct Clients {
    child: Child,
    orders: ChildStdin,
}

/// How many commands the clients have completed.
#[derive(Default)]
struct Done(usize);

impl Clients {
    fn start(on: On, orders: String, handle: Handle) -> Clients {
        let test = format!("{}::many_connections_are_held_echo_a_byte_each_and_leave_nothing", on.0);
        let mut command = child::command(&test, &orders);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for _ in said.lines().map_while(Result::ok).filter(|line| line.ends_with("done.")) {
                // If the process is gone, the test has failed already.
                let _ = handle.post(|reactor| reactor.state::<Done>().0 += 1);
            }
        });
        Clients { child, orders }
    }

    /// Sends a command, and runs the loop until it is done and `so` holds.
    fn do_this(&mut self, order: &str, reactor: &mut EventLoop, so: impl Fn() -> bool) {
        let done = reactor.state::<Done>().0;
        writeln!(self.orders, "{order}").unwrap();
        run_until(reactor, |reactor| reactor.state::<Done>().0 > done && so());
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The limit and the number of open descriptors apply to the process.
static ALONE: Mutex<()> = Mutex::new(());

fn many_connections_are_held_echo_a_byte_each_and_leave_nothing(on: On) {
    if let Some(orders) = child::role() {
        return be_clients(&orders);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = if on.0 == EngineKind::Select { MANY_FOR_SELECT } else { MANY };
    let count = wanted.min(raise_limit().saturating_sub(OTHERS));
    if count < wanted {
        eprintln!("{count} connections instead of {wanted}: no more descriptors are available");
        assert!(count >= wanted.min(1_000), "too few connections for this test: raise the hard limit on descriptors");
    }
    let mut reactor = on.reactor();
    let counts = Rc::new(Counts::default());
    let mut orders = count.to_string();
    for _ in 0..LISTENERS {
        let counts = counts.clone();
        let listener = reactor.listen("127.0.0.1:0", move |_| Echo(counts.clone())).unwrap();
        orders += &format!(" {}", reactor.listening_on(listener).unwrap());
    }
    let mut clients = Clients::start(on, orders, reactor.handle());
    let before = descriptors();
    let start = Instant::now();
    let mut times = Vec::new();
    let mut took = |what: &str| times.push(format!("{what} {:?}", start.elapsed()));

    let held = allocation_counter::measure(|| {
        clients.do_this("connect", &mut reactor, || counts.open.get() == count);
    });
    took("connected");
    assert_eq!(reactor.connection_count(), count);
    let per_connection = held.bytes_current / count as i64;
    assert!(per_connection <= MOST_PER_CONNECTION, "{per_connection} bytes per connection");

    // Sending takes memory only temporarily: a connection that has sent uses no more than one that has not.
    let echoing = allocation_counter::measure(|| {
        for round in 1..=ROUNDS {
            clients.do_this("echo", &mut reactor, || counts.received.get() == round * count);
        }
    });
    took("echoed");
    assert!(echoing.bytes_current < 64 * count as i64 + 500_000, "{} bytes more after echoing", echoing.bytes_current);

    clients.do_this("close", &mut reactor, || counts.open.get() == 0);
    took("closed");
    assert_eq!((counts.finished.get(), counts.reset.get()), (count - count / 2, count / 2));
    assert_eq!(reactor.connection_count(), 0);
    assert_eq!(descriptors(), before);
    assert_eq!(reactor.stats().panics, 0);
    println!("{count} on {}: {} ({per_connection} bytes each)", on.0, times.join(", "));
}
