//! System calls of common operations, counted by `strace`.
//!
//! Each test runs itself again under `strace`, between two calls of `getppid` that serve as marks.
#![cfg(target_os = "linux")]

use std::io::{Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use pelton::{
    Address, Batch, CallbackKind, Chunk, Connection, ConnectionId, EngineKind, EventLoop, Guest, Interest, Io, Proxy,
    Reactor,
};
use pelton_testing::{Echo, child};

/// Engines that wait in the kernel, and their system calls for waiting.
const ENGINES: [(EngineKind, &[&str]); 3] = [
    (EngineKind::Epoll, &["epoll_wait", "epoll_pwait2"]),
    (EngineKind::Poll, &["ppoll"]),
    (EngineKind::Select, &["pselect6"]),
];

fn mark() {
    let _ = rustix::process::getppid();
}

/// Runs `act` in a child for each engine, and checks the system calls between the marks on the thread that acted. The engine's
/// own are called "wait".
fn calls(test: &str, act: fn(&mut EventLoop), check: impl Fn(Vec<String>)) {
    if let Some(name) = child::role() {
        let mut reactor = Reactor::builder().engine(name.parse().unwrap()).build().unwrap();
        reactor.turn(Some(Duration::ZERO)).unwrap();
        act(&mut reactor);
        std::process::exit(0);
    }
    for (engine, waits) in ENGINES {
        let trace = tempfile(test, engine);
        let output = Command::new("strace")
            .args(["-f", "-o", trace.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(child::CHILD, engine.name())
            .output()
            .expect("this test needs strace");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        let named = |name: String| if waits.contains(&name.as_str()) { "wait".to_owned() } else { name };
        check(between_marks(&text).into_iter().map(named).collect());
    }
}

fn tempfile(test: &str, engine: EngineKind) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("pelton-{}-{test}-{engine}.strace", std::process::id()))
}

/// The calls between the first two marks on the thread that made the marks.
fn between_marks(text: &str) -> Vec<String> {
    let calls = |line: &str| {
        let (thread, call) = line.split_once(' ')?;
        // A call that another thread's line interrupts is printed twice; the first line counts.
        let name = call.trim_start().split_once('(')?.0;
        (!name.starts_with('<')).then(|| (thread.to_owned(), name.to_owned()))
    };
    let all: Vec<(String, String)> = text.lines().filter_map(calls).collect();
    let (marking, _) = all.iter().find(|(_, name)| name == "getppid").expect("the first mark");
    let own = all.iter().filter(|(thread, _)| thread == marking).map(|(_, name)| name.clone());
    let mut from_mark = own.skip_while(|name| name != "getppid").skip(1).peekable();
    let mut found = Vec::new();
    while let Some(name) = from_mark.next_if(|name| name != "getppid") {
        found.push(name);
    }
    assert!(from_mark.next().is_some(), "the second mark is missing in\n{text}");
    found
}

#[test]
fn a_turn_with_nothing_to_do_makes_one_call() {
    calls(
        "a_turn_with_nothing_to_do_makes_one_call",
        |reactor| {
            reactor.after(Duration::from_secs(3600), |_| {});
            mark();
            for _ in 0..5 {
                reactor.turn(Some(Duration::ZERO)).unwrap();
                reactor.turn(Some(Duration::from_millis(1))).unwrap();
            }
            mark();
        },
        |made| {
            assert_eq!(made, vec!["wait"; 10]);
        },
    );
}

#[test]
fn a_sleeping_loop_makes_no_call_until_something_happens() {
    calls(
        "a_sleeping_loop_makes_no_call_until_something_happens",
        |reactor| {
            // One timer first, so that firing allocates nothing later.
            reactor.after(Duration::from_millis(10), |reactor| *reactor.state::<bool>() = true);
            reactor.run_until(|reactor| *reactor.state::<bool>()).unwrap();
            *reactor.state::<bool>() = false;
            reactor.after(Duration::from_millis(300), |reactor| *reactor.state::<bool>() = true);
            mark();
            reactor.run_until(|reactor| *reactor.state::<bool>()).unwrap();
            mark();
        },
        |made| {
            // The sleep, and the last turn's poll after the timer.
            assert_eq!(made, vec!["wait"; 2]);
        },
    );
}

#[test]
fn many_posts_to_a_sleeping_loop_wake_it_once() {
    calls(
        "many_posts_to_a_sleeping_loop_wake_it_once",
        |reactor| {
            assert!(reactor.next_deadline().is_none(), "no timer may wake the loop");
            let handle = reactor.handle();
            mark();
            for _ in 0..1_000 {
                handle.post(|_| {}).unwrap();
            }
            mark();
        },
        |made| {
            assert_eq!(made.iter().filter(|name| *name == "write").count(), 1, "{made:?}");
        },
    );
}

#[test]
fn posts_to_a_loop_that_is_awake_write_nothing() {
    calls(
        "posts_to_a_loop_that_is_awake_write_nothing",
        |reactor| {
            let handle = reactor.handle();
            // A few rounds first, so that the queue allocates nothing later.
            for _ in 0..5 {
                for _ in 0..200 {
                    handle.post(|_| {}).unwrap();
                }
                reactor.turn(Some(Duration::ZERO)).unwrap();
            }
            mark();
            for _ in 0..100 {
                handle.post(|_| {}).unwrap();
            }
            reactor.turn(Some(Duration::ZERO)).unwrap();
            mark();
        },
        |made| {
            assert_eq!(made, ["wait"]);
        },
    );
}

#[test]
fn ready_watch_costs_only_the_wait() {
    calls(
        "ready_watch_costs_only_the_wait",
        |reactor| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(b"x").unwrap();
            reactor.watch(&ours, Interest::READABLE, |reactor, _| *reactor.state::<u32>() += 1).unwrap();
            reactor.turn(Some(Duration::ZERO)).unwrap();
            mark();
            for _ in 0..5 {
                reactor.turn(None).unwrap();
            }
            mark();
            assert_eq!(*reactor.state::<u32>(), 6);
        },
        |made| {
            assert_eq!(made, vec!["wait"; 5]);
        },
    );
}

#[test]
fn posts_to_a_loop_woken_otherwise_write_nothing() {
    calls(
        "posts_to_a_loop_woken_otherwise_write_nothing",
        |reactor| {
            let handle = reactor.handle();
            handle.post(|_| {}).unwrap();
            *reactor.state::<bool>() = false;
            // The loop sleeps, and wakes for the timer, not for posts.
            reactor.after(Duration::from_millis(10), move |reactor| {
                mark();
                for _ in 0..10 {
                    handle.post(|_| {}).unwrap();
                }
                mark();
                *reactor.state::<bool>() = true;
            });
            reactor.run_until(|reactor| *reactor.state::<bool>()).unwrap();
        },
        |made| assert!(made.is_empty(), "{made:?}"),
    );
}

#[test]
fn an_echoed_message_costs_one_read_one_write_and_a_wait() {
    calls(
        "an_echoed_message_costs_one_read_one_write_and_a_wait",
        |reactor| {
            let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
            let address = reactor.listening_on(listener).unwrap().to_string();
            let mut client = TcpStream::connect(address).unwrap();
            for round in 0..10 {
                client.write_all(b"ping").unwrap();
                if round == 9 {
                    mark();
                    reactor.turn(None).unwrap();
                    mark();
                } else {
                    // The first message also accepts the connection.
                    while reactor.stats().calls(CallbackKind::Connection) < 3 + round {
                        reactor.turn(None).unwrap();
                    }
                }
                client.read_exact(&mut [0; 4]).unwrap();
            }
        },
        |made| assert_eq!(made, ["wait", "recvfrom", "sendto"]),
    );
}

#[test]
fn accepting_a_connection_costs_one_call_and_its_registration() {
    const CONNECTIONS: usize = 64;
    calls(
        "accepting_a_connection_costs_one_call_and_its_registration",
        |reactor| {
            let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
            let address = reactor.listening_on(listener).unwrap().to_string();
            let mut clients = Vec::new();
            mark();
            for count in 1..=CONNECTIONS {
                clients.push(TcpStream::connect(&address).unwrap());
                while reactor.connection_count() < count {
                    reactor.turn(None).unwrap();
                }
            }
            mark();
        },
        |made| {
            let count = |name: &str| made.iter().filter(|made| *made == name).count();
            // Waits that report the listener one after the other make it look for more than one connection, now and then.
            assert!((CONNECTIONS..CONNECTIONS + CONNECTIONS / 8).contains(&count("accept4")), "{made:?}");
            assert!([0, CONNECTIONS].contains(&count("epoll_ctl")), "{made:?}");
        },
    );
}

/// Proxies to a target, which it connects to.
struct ProxyTo(Address);

impl Connection for ProxyTo {
    fn opened(&mut self, io: &mut Io<'_>) {
        let server = io.reactor().connect(&self.0, Echo).unwrap();
        io.proxy_both(server, Proxy::new()).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        unreachable!("it is proxied");
    }
}

#[test]
fn a_proxied_connection_is_registered_twice_in_its_life() {
    calls(
        "a_proxied_connection_is_registered_twice_in_its_life",
        |reactor| {
            let back = TcpListener::bind("127.0.0.1:0").unwrap();
            let target = Address::from(back.local_addr().unwrap());
            let listener = reactor.listen("127.0.0.1:0", move |_| ProxyTo(target.clone())).unwrap();
            let address = reactor.listening_on(listener).unwrap().to_string();
            let target = std::thread::spawn(move || {
                for _ in 0..2 {
                    let mut server = back.accept().unwrap().0;
                    server.read_exact(&mut [0; 4]).unwrap();
                    server.write_all(b"pong").unwrap();
                    // The end of the client's stream.
                    assert_eq!(server.read(&mut [0; 4]).unwrap(), 0);
                }
            });
            // The first one allocates.
            for round in 0..2 {
                if round == 1 {
                    mark();
                }
                let client = std::thread::spawn({
                    let address = address.clone();
                    move || {
                        let mut client = TcpStream::connect(address).unwrap();
                        client.write_all(b"ping").unwrap();
                        client.read_exact(&mut [0; 4]).unwrap();
                    }
                });
                reactor.run_until(|reactor| reactor.connection_count() == 2).unwrap();
                reactor.run_until(|reactor| reactor.connection_count() == 0).unwrap();
                if round == 1 {
                    mark();
                }
                client.join().unwrap();
            }
            target.join().unwrap();
        },
        |made| {
            let mut made: Vec<_> = made.iter().map(String::as_str).filter(|name| *name != "wait").collect();
            let registered = made.iter().filter(|name| **name == "epoll_ctl").count();
            assert!([0, 2].contains(&registered), "{made:?}");
            let expected = ["accept4", "socket", "setsockopt", "connect", "recvfrom", "sendto", "shutdown", "close"];
            // Starting the client's thread, and an attempt to accept one more.
            made.retain(|name| expected.contains(name));
            let count = |name: &str| made.iter().filter(|made| **made == name).count();
            assert!(count("accept4") <= 2, "{made:?}");
            // Twice a message, and twice the end.
            assert_eq!((count("recvfrom"), count("sendto"), count("shutdown")), (4, 2, 2), "{made:?}");
            assert_eq!(
                (count("socket"), count("setsockopt"), count("connect"), count("close")),
                (1, 1, 1, 2),
                "{made:?}"
            );
        },
    );
}

/// Has this many batches of work.
struct Batches(u32);

impl Guest for Batches {
    fn has_work(&mut self) -> bool {
        self.0 > 0
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        self.0 -= 1;
        *reactor.state::<bool>() = self.0 == 0;
        Batch::MayContinue
    }
}

#[test]
fn batches_of_a_guest_cost_no_call_while_nothing_is_watched() {
    calls(
        "batches_of_a_guest_cost_no_call_while_nothing_is_watched",
        |reactor| {
            reactor.host(Batches(10_000)).unwrap();
            // The timer's memory, before the mark.
            reactor.after(Duration::from_secs(3600), |_| {});
            *reactor.state::<bool>() = false;
            mark();
            reactor.run_until(|reactor| *reactor.state::<bool>()).unwrap();
            mark();
        },
        |made| {
            // One per turn, which takes a hundred microseconds. Tracing makes the polls slow, but not the batches.
            assert!(made.iter().all(|name| name == "wait"), "{made:?}");
            assert!(made.len() < 1_000, "{} calls", made.len());
        },
    );
}

#[test]
fn batches_of_a_guest_cost_a_wait_each_while_something_is_watched() {
    calls(
        "batches_of_a_guest_cost_a_wait_each_while_something_is_watched",
        |reactor| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            reactor.watch(&ours, Interest::READABLE, |_, _| {}).unwrap();
            reactor.host(Batches(50)).unwrap();
            *reactor.state::<bool>() = false;
            mark();
            reactor.run_until(|reactor| *reactor.state::<bool>()).unwrap();
            mark();
        },
        |made| assert_eq!(made, vec!["wait"; 50]),
    );
}

#[test]
fn a_guest_that_sleeps_costs_a_poll_and_the_sleep() {
    calls(
        "a_guest_that_sleeps_costs_a_poll_and_the_sleep",
        |reactor| {
            reactor.host(Batches(0)).unwrap();
            reactor.turn(Some(Duration::from_millis(1))).unwrap();
            mark();
            reactor.turn(Some(Duration::from_millis(1))).unwrap();
            mark();
        },
        |made| assert_eq!(made, ["wait", "wait"]),
    );
}

/// Sends what it receives to another connection, at once.
struct Forward(ConnectionId);

impl Connection for Forward {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let to = self.0;
        let mut to = io.reactor().connection(to).unwrap();
        to.send_chunk(chunk).unwrap();
        to.flush();
    }
}

#[test]
fn a_message_through_pipes_costs_one_read_one_write_and_a_wait() {
    calls(
        "a_message_through_pipes_costs_one_read_one_write_and_a_wait",
        |reactor| {
            let ((reader, mut writer), (mut result, answer)) = (pipe().unwrap(), pipe().unwrap());
            let to = reactor.adopt(answer, Echo).unwrap();
            reactor.adopt(reader, Forward(to)).unwrap();
            for round in 0..10 {
                writer.write_all(b"ping").unwrap();
                if round == 9 {
                    mark();
                    reactor.turn(None).unwrap();
                    mark();
                } else {
                    // Two are opened on the way.
                    while reactor.stats().calls(CallbackKind::Connection) < 3 + round {
                        reactor.turn(None).unwrap();
                    }
                }
                result.read_exact(&mut [0; 4]).unwrap();
            }
        },
        // The flag against signals needs the newer call. It is the same kind of write.
        |made| assert!(made == ["wait", "read", "pwritev2"] || made == ["wait", "read", "writev"], "{made:?}"),
    );
}

#[test]
fn a_proxied_message_costs_one_read_one_write_and_a_wait() {
    calls(
        "a_proxied_message_costs_one_read_one_write_and_a_wait",
        |reactor| {
            let back = TcpListener::bind("127.0.0.1:0").unwrap();
            let target = Address::from(back.local_addr().unwrap());
            let listener = reactor.listen("127.0.0.1:0", move |_| ProxyTo(target.clone())).unwrap();
            let mut client = TcpStream::connect(reactor.listening_on(listener).unwrap().to_string()).unwrap();
            while reactor.stats().calls(CallbackKind::Connection) < 2 {
                reactor.turn(None).unwrap();
            }
            let mut server = back.accept().unwrap().0;
            for round in 0..10 {
                client.write_all(b"ping").unwrap();
                if round == 9 {
                    mark();
                }
                reactor.turn(None).unwrap();
                if round == 9 {
                    mark();
                }
                server.read_exact(&mut [0; 4]).unwrap();
            }
        },
        |made| assert_eq!(made, ["wait", "recvfrom", "sendto"]),
    );
}
