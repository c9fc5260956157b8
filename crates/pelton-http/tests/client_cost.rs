//! What requests and idle connections of the client cost: allocations, memory, system calls.

mod common;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use allocation_counter::measure;
use pelton::{EventLoop, Reactor};
use pelton_http::Client;
use pelton_http::client::{ResponseEvent, Settings};
use pelton_testing::child;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nServer: test\r\nDate: today\r\n\r\nhello\n";

thread_local! {
    static DONE: Cell<usize> = const { Cell::new(0) };
}

/// The peers of the client, which the tests answer themselves, on the same thread.
struct Peers {
    listener: TcpListener,
    streams: Vec<TcpStream>,
}

impl Peers {
    fn new() -> Peers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Peers { listener, streams: Vec::with_capacity(4096) }
    }

    fn url(&self) -> String {
        format!("http://{}/users/7", self.listener.local_addr().unwrap())
    }

    /// Answers every request that has arrived.
    fn answer(&mut self) {
        if let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            self.streams.push(stream);
        }
        let mut buffer = [0; 4096];
        for stream in &mut self.streams {
            if stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                stream.write_all(ANSWER).unwrap();
            }
        }
    }
}

/// Sends a request and runs the loop until it is answered. The receiver captures nothing, so nothing of it is allocated.
fn exchange(reactor: &mut EventLoop, client: &Client, url: &str, peers: &mut Peers) {
    let before = DONE.get();
    client.get(url).header("X-Test", "a value").stream(reactor, |_, event| match event {
        ResponseEvent::Interim(_) => {}
        ResponseEvent::Head(head) => assert_eq!(head.status(), 200),
        ResponseEvent::Data(data) => assert_eq!(data, b"hello\n"),
        ResponseEvent::End(_) => DONE.set(DONE.get() + 1),
        ResponseEvent::Failed(error) => panic!("{error}"),
    });
    while DONE.get() == before {
        reactor.turn(Some(Duration::from_millis(1))).unwrap();
        peers.answer();
    }
}

#[test]
fn requests_in_a_steady_state_allocate_nothing() {
    let (mut reactor, client, mut peers) = (Reactor::new().unwrap(), Client::new(), Peers::new());
    let url = peers.url();
    let mut run = |times: usize| (0..times).for_each(|_| exchange(&mut reactor, &client, &url, &mut peers));
    run(50);
    assert_eq!(measure(|| run(500)).count_total, 0);
}

#[test]
fn an_idle_connection_takes_less_than_400_bytes() {
    const COUNT: usize = 500;
    let settings = Settings { per_origin: 4 * COUNT, connections: 4 * COUNT, ..Settings::default() };
    let (mut reactor, client, mut peers) = (Reactor::new().unwrap(), Client::with_settings(settings), Peers::new());
    let url = peers.url();
    let mut grow = |reactor: &mut EventLoop| {
        let before = (DONE.get(), client.connections(reactor).0);
        for _ in 0..before.1 + COUNT {
            client.get(&url).stream(reactor, |_, event| match event {
                ResponseEvent::End(_) => DONE.set(DONE.get() + 1),
                ResponseEvent::Failed(error) => panic!("{error}"),
                _ => {}
            });
        }
        // Some connections may be established only when all requests are answered.
        while DONE.get() < before.0 + before.1 + COUNT || client.connections(reactor).1 < before.1 + COUNT {
            reactor.turn(Some(Duration::from_millis(1))).unwrap();
            peers.answer();
        }
        assert_eq!(client.connections(reactor), (before.1 + COUNT, before.1 + COUNT));
    };
    grow(&mut reactor);
    let bytes = measure(|| grow(&mut reactor)).bytes_current;
    let per_connection = bytes / COUNT as i64;
    println!("{per_connection} bytes per idle connection");
    assert!(per_connection <= 400, "{per_connection} bytes");
}

/// Runs itself again under `strace`, between two calls of `getppid` that serve as marks.
#[test]
#[cfg(target_os = "linux")]
fn a_small_request_makes_one_write_and_one_read() {
    const TEST: &str = "a_small_request_makes_one_write_and_one_read";
    const TIMES: usize = 20;
    if child::role().is_some() {
        let (mut reactor, client, mut peers) = (Reactor::new().unwrap(), Client::new(), Peers::new());
        let url = peers.url();
        exchange(&mut reactor, &client, &url, &mut peers);
        // Another thread answers, so that its system calls are not counted.
        let mut stream = peers.streams.pop().unwrap();
        stream.set_nonblocking(false).unwrap();
        let other = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                stream.write_all(ANSWER).unwrap();
            }
        });
        let _ = rustix::process::getppid();
        for number in 0..TIMES {
            client.post(&url).body("small").stream(&mut reactor, |_, event| match event {
                ResponseEvent::End(_) => DONE.set(DONE.get() + 1),
                ResponseEvent::Failed(error) => panic!("{error}"),
                _ => {}
            });
            while DONE.get() < number + 2 {
                reactor.turn(None).unwrap();
            }
        }
        let _ = rustix::process::getppid();
        drop(reactor);
        other.join().unwrap();
        std::process::exit(0);
    }
    let trace = std::env::temp_dir().join(format!("pelton-http-client-{}.strace", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-o", trace.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(child::CHILD, "client")
        .output()
        .expect("this test needs strace");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let calls: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let (thread, call) = line.split_once(' ')?;
            Some((thread, call.trim_start().split_once('(')?.0))
        })
        .filter(|(_, name)| !name.starts_with('<'))
        .collect();
    let (marking, _) = calls.iter().find(|(_, name)| *name == "getppid").unwrap();
    let mut own = calls.iter().filter(|(thread, _)| thread == marking).map(|(_, name)| *name);
    own.find(|name| *name == "getppid").unwrap();
    let made: Vec<&str> = own.take_while(|name| *name != "getppid").collect();
    let count = |names: &[&str]| made.iter().filter(|name| names.contains(name)).count();
    assert_eq!(count(&["write", "writev", "sendto", "sendmsg"]), TIMES, "{made:?}");
    assert_eq!(count(&["read", "readv", "recvfrom", "recvmsg"]), TIMES, "{made:?}");
    let waits = count(&["epoll_wait", "epoll_pwait2", "epoll_pwait"]);
    assert_eq!(made.len(), 2 * TIMES + waits, "nothing else: {made:?}");
}
