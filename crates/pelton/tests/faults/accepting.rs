//! Running out of descriptors.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pelton::{Address, Chunk, Connection, Io};
use pelton_testing::{EchoUntilQuit, On, child, descriptors, is_served, on_every_engine, run_until};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::scene::alone;

on_every_engine![
    without_descriptors_connections_are_refused_and_later_served_again,
    without_descriptors_new_connections_wait_for_closing_ones,
    without_descriptors_connecting_is_an_error_and_leaves_nothing,
    connections_are_accepted_during_a_long_turn,
];

const DEADLINE: Duration = Duration::from_secs(20);

/// The same test in a child process, killed when this is dropped.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(on: On, test: &str) -> Other {
        let mut command = child::command(&format!("accepting::{}::{test}", on.0), "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    /// Waits for a line that contains `what`, and returns the rest. Fails if the child ends first.
    fn says(&mut self, what: &str) -> String {
        let mut lines = self.lines.by_ref().map(|line| line.unwrap());
        let found = lines.find_map(|line| Some(line.split_once(what)?.1.trim_end_matches('.').to_owned()));
        found.unwrap_or_else(|| panic!("the child did not print {what:?}"))
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lowers the limit so that only this many more descriptors can be opened.
fn leave_room_for(count: u64) {
    let next = rustix::io::dup(io::stdout()).unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + count), maximum: Some(next + count) }).unwrap();
}

fn without_descriptors_connections_are_refused_and_later_served_again(on: On) {
    if child::role().is_some() {
        let mut reactor = on.reactor();
        let listener = reactor.listen("127.0.0.1:0", |_| EchoUntilQuit).unwrap();
        leave_room_for(3);
        println!("address: {}.", reactor.listening_on(listener).unwrap());
        reactor.run().unwrap();
        return;
    }
    let _alone = alone();
    let mut other = Other::start(on, "without_descriptors_connections_are_refused_and_later_served_again");
    let address = other.says("address: ");
    let mut streams: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let served = streams.iter_mut().filter_map(|stream| is_served(stream).then_some(())).count();
    assert!((1..=3).contains(&served), "{served} of 8 were served");
    drop(streams);
    let deadline = Instant::now() + DEADLINE;
    let mut again = loop {
        let mut stream = TcpStream::connect(&address).unwrap();
        if is_served(&mut stream) {
            break stream;
        }
        assert!(Instant::now() < deadline, "the server did not recover");
    };
    again.write_all(b"quit").unwrap();
    let turns: u64 = other.says("turns: ").parse().unwrap();
    assert!(turns < 500, "{turns} turns");
    other.ends_well();
}

/// Greets, and closes earlier connections.
struct Greeter;

#[derive(Default)]
struct Greeted(Vec<pelton::ConnectionId>);

impl Connection for Greeter {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(b"hello").unwrap();
        let id = io.id();
        for earlier in std::mem::replace(&mut io.reactor().state::<Greeted>().0, vec![id]) {
            if let Some(mut earlier) = io.reactor().connection(earlier) {
                earlier.close();
            }
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        io.reactor().stop();
    }
}

/// All connect at once, but there are descriptors for only a few. Each closes the previous one, which frees its descriptor only
/// at the end of the turn.
fn without_descriptors_new_connections_wait_for_closing_ones(on: On) {
    if child::role().is_some() {
        let mut reactor = on.reactor();
        let listener = reactor.listen("127.0.0.1:0", |_| Greeter).unwrap();
        leave_room_for(4);
        println!("address: {}.", reactor.listening_on(listener).unwrap());
        // The parent closes standard input when all are connected.
        io::stdin().read_line(&mut String::new()).unwrap();
        reactor.run().unwrap();
        return;
    }
    let _alone = alone();
    let mut other = Other::start(on, "without_descriptors_new_connections_wait_for_closing_ones");
    let address = other.says("address: ");
    let mut streams: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    drop(other.child.stdin.take());
    for stream in &mut streams {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello");
    }
    streams.last_mut().unwrap().write_all(b"quit").unwrap();
    other.ends_well();
}

fn without_descriptors_connecting_is_an_error_and_leaves_nothing(on: On) {
    if child::role().is_some() {
        let mut reactor = on.reactor();
        let listener = reactor.listen("127.0.0.1:0", |_| EchoUntilQuit).unwrap();
        let address: Address = reactor.listening_on(listener).unwrap().clone();
        let before = descriptors();
        // One descriptor is needed to count them.
        leave_room_for(1);
        let kept = reactor.connect(&address, EchoUntilQuit).unwrap();
        let error = reactor.connect(&address, EchoUntilQuit).unwrap_err().to_string();
        assert!(error.starts_with(&format!("connect to {address}: ")), "{error}");
        assert_eq!(reactor.connection_count(), 1);
        reactor.connection(kept).unwrap().close();
        reactor.turn(Some(Duration::ZERO)).unwrap();
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        assert_eq!(descriptors(), before);
        reactor.connect(&address, EchoUntilQuit).unwrap();
        println!("ended: well.");
        return;
    }
    let _alone = alone();
    let mut other = Other::start(on, "without_descriptors_connecting_is_an_error_and_leaves_nothing");
    assert_eq!(other.says("ended: "), "well");
    other.ends_well();
}

/// The number of slow callbacks in a turn, and how long each takes.
const SLOW: (usize, Duration) = (40, Duration::from_millis(3));

/// Keeps the loop busy; during the first callback, a client connects.
struct Slow(Address);

#[derive(Default)]
struct Seen {
    opened: usize,
    received: usize,
    /// How many callbacks had run when the late connection was opened.
    before_late: Option<usize>,
    late: Option<TcpStream>,
}

impl Connection for Slow {
    fn opened(&mut self, io: &mut Io<'_>) {
        let seen = io.reactor().state::<Seen>();
        seen.opened += 1;
        if seen.opened > SLOW.0 {
            seen.before_late = Some(seen.received);
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        let seen = io.reactor().state::<Seen>();
        seen.received += 1;
        if seen.received == 1 {
            seen.late = Some(TcpStream::connect(self.0.to_string()).unwrap());
        }
        let begun = Instant::now();
        while begun.elapsed() < SLOW.1 {}
    }
}

fn connections_are_accepted_during_a_long_turn(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let place: std::rc::Rc<std::cell::OnceCell<Address>> = Default::default();
    let known = place.clone();
    let listener = reactor.listen("127.0.0.1:0", move |_| Slow(known.get().unwrap().clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    place.set(address.clone()).unwrap();
    let mut clients: Vec<TcpStream> = (0..SLOW.0).map(|_| TcpStream::connect(address.to_string()).unwrap()).collect();
    run_until(&mut reactor, |reactor| reactor.state::<Seen>().opened == SLOW.0);
    clients.iter_mut().for_each(|client| client.write_all(b"?").unwrap());
    run_until(&mut reactor, |reactor| reactor.state::<Seen>().received == SLOW.0);
    let before = reactor.state::<Seen>().before_late;
    // The clock may be read for only one callback in sixteen, until slow ones are noticed.
    assert!(before.is_some_and(|count| count <= 25), "{before:?} of {} ran before it", SLOW.0);
}
