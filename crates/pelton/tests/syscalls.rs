//! How many system calls things take, counted by `strace`.
//!
//! Each test runs itself again under `strace`, between two calls of `getppid` that serve as marks.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use pelton::{CallbackKind, EngineKind, EventLoop, Interest, Reactor};
use pelton_testing::{Echo, child};

/// Engines that wait in the kernel, and the calls that they wait with.
const ENGINES: [(EngineKind, &[&str]); 3] = [
    (EngineKind::Epoll, &["epoll_wait", "epoll_pwait2"]),
    (EngineKind::Poll, &["ppoll"]),
    (EngineKind::Select, &["pselect6"]),
];

fn mark() {
    let _ = rustix::process::getppid();
}

/// Has a child do `act`, for each engine, and checks the names of the system calls that it made between the marks, on the
/// thread that acted. The engine's own are called "wait".
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
            .expect("strace is needed for this test");
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

/// The names of the calls between the first two marks, on the thread that made them.
fn between_marks(text: &str) -> Vec<String> {
    let calls = |line: &str| {
        let (thread, call) = line.split_once(' ')?;
        // What was interrupted by another thread's line is told twice; the first time counts.
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
            // One timer first, for the memory that firing takes.
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
            assert!(reactor.next_deadline().is_none(), "posts are to wake it");
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
            // A few rounds first, for the memory that the queue takes.
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
fn a_watch_that_is_ready_costs_the_wait_alone() {
    calls(
        "a_watch_that_is_ready_costs_the_wait_alone",
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
fn posts_to_a_loop_that_something_else_has_woken_write_nothing() {
    calls(
        "posts_to_a_loop_that_something_else_has_woken_write_nothing",
        |reactor| {
            let handle = reactor.handle();
            handle.post(|_| {}).unwrap();
            *reactor.state::<bool>() = false;
            // The loop sleeps, ready to be woken by posts, and wakes for the timer.
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
                    // The first one is accepted on the way.
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
fn a_connection_that_comes_in_costs_one_call_and_what_watching_it_takes() {
    calls(
        "a_connection_that_comes_in_costs_one_call_and_what_watching_it_takes",
        |reactor| {
            let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
            let address = reactor.listening_on(listener).unwrap().to_string();
            let mut clients = Vec::new();
            for round in 0..10 {
                clients.push(TcpStream::connect(&address).unwrap());
                if round == 9 {
                    mark();
                }
                // Some engines take two turns, one of which finds out that no more have come.
                while reactor.connection_count() <= round {
                    reactor.turn(None).unwrap();
                }
                if round == 9 {
                    mark();
                }
            }
        },
        |mut made| {
            made.retain(|name| name != "wait" && name != "epoll_ctl");
            // The second finds that there are no more.
            assert_eq!(made, ["accept4", "accept4"]);
        },
    );
}
