//! What serving a file costs when it is known: no allocation, and no system call but those of the exchange.
#![cfg(target_os = "linux")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use allocation_counter::measure;
use common::tree::{Tree, noise};
use pelton::{EventLoop, Reactor};
use pelton_http::{FileSettings, Files, Server};

/// As browsers ask.
const FIELDS: &str = "HTTP/1.1\r\nHost: example.org\r\nUser-Agent: test\r\nAccept: */*\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en\r\n";

/// Set in the child: the file to ask for.
const CHILD: &str = "PELTON_TEST_CHILD";

/// A server, and a client that does not block.
struct Talk {
    reactor: EventLoop,
    client: TcpStream,
    _tree: Tree,
}

impl Talk {
    fn new() -> Talk {
        let tree = Tree::new();
        tree.write("1k.css", noise(1000));
        tree.write("32k.css", noise(32_000));
        tree.write("32k.css.br", noise(20_000));
        tree.write("100k.css", noise(100_000));
        let settings = FileSettings { valid: Duration::from_secs(3600), ..FileSettings::default() };
        let mut reactor = Reactor::new().unwrap();
        let server = Server::new(Files::with_settings(tree.path(), settings).unwrap());
        let listener = server.listen(&mut reactor, &"127.0.0.1:0".parse().unwrap()).unwrap();
        let client = TcpStream::connect(reactor.listening_on(listener).unwrap().to_string()).unwrap();
        client.set_nonblocking(true).unwrap();
        Talk { reactor, client, _tree: tree }
    }

    /// Asks, and turns the loop until `end` has come back.
    fn exchange(&mut self, request: &[u8], end: &[u8], buffer: &mut [u8]) {
        self.client.write_all(request).unwrap();
        let mut received = 0;
        while !buffer[..received].ends_with(end) {
            match self.client.read(&mut buffer[received..]) {
                Ok(0) => panic!("closed"),
                Ok(count) => received += count,
                Err(_) => self.reactor.turn(Some(Duration::from_millis(1))).unwrap(),
            }
        }
    }
}

fn request(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} {FIELDS}{fields}\r\n").into_bytes()
}

fn allocations(path: &str, fields: &str, end: &[u8]) -> u64 {
    let mut talk = Talk::new();
    let (request, mut buffer) = (request(path, fields), vec![0; 200_000]);
    let mut run = |times: usize| (0..times).for_each(|_| talk.exchange(&request, end, &mut buffer));
    run(50);
    measure(|| run(500)).count_total
}

#[test]
fn a_small_file_that_is_known_allocates_nothing() {
    assert_eq!(allocations("/1k.css", "", &noise(1000)[900..]), 0);
    assert_eq!(allocations("/32k.css", "", &noise(20_000)[19_900..]), 0);
    assert_eq!(allocations("/%31k.css", "If-None-Match: \"x\"\r\n", &noise(1000)[900..]), 0);
    assert_eq!(allocations("/1k.css", "If-None-Match: *\r\n", b"nosniff\r\n\r\n"), 0);
}

#[test]
fn a_large_file_that_is_known_allocates_once() {
    assert_eq!(allocations("/100k.css", "", &noise(100_000)[99_900..]), 500);
}

fn mark() {
    let _ = rustix::process::getppid();
}

/// The system calls of one exchange, from the wait to the answer, in a child under `strace`.
fn calls(test: &str, path: &str, end: &[u8]) -> Vec<String> {
    if let Ok(path) = std::env::var(CHILD) {
        let mut talk = Talk::new();
        let mut buffer = vec![0; 200_000];
        for _ in 0..10 {
            talk.exchange(&request(&path, ""), end_of(&path).as_slice(), &mut buffer);
        }
        talk.client.write_all(&request(&path, "")).unwrap();
        mark();
        talk.reactor.turn(None).unwrap();
        mark();
        std::process::exit(0);
    }
    assert_eq!(end, end_of(path));
    let name = path.trim_matches('/').replace('.', "-");
    let trace = std::env::temp_dir().join(format!("pelton-files-{}-{name}.strace", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-o", trace.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, path)
        .output()
        .expect("strace is needed for this test");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let names = text.lines().filter_map(|line| {
        let (thread, call) = line.split_once(' ')?;
        let name = call.trim_start().split_once('(')?.0;
        (!name.starts_with('<')).then(|| (thread.to_owned(), name.to_owned()))
    });
    let all: Vec<(String, String)> = names.collect();
    let marking = all.iter().find(|(_, name)| name == "getppid").expect("the first mark").0.clone();
    let own = all.into_iter().filter(|(thread, _)| *thread == marking).map(|(_, name)| name);
    own.skip_while(|name| name != "getppid").skip(1).take_while(|name| name != "getppid").collect()
}

fn end_of(path: &str) -> Vec<u8> {
    match path {
        "/1k.css" => noise(1000)[900..].to_vec(),
        "/32k.css" => noise(20_000)[19_900..].to_vec(),
        _ => noise(100_000)[99_900..].to_vec(),
    }
}

#[test]
fn a_small_file_that_is_known_costs_a_read_and_a_write() {
    let test = "a_small_file_that_is_known_costs_a_read_and_a_write";
    for path in ["/1k.css", "/32k.css"] {
        let made = calls(test, path, &end_of(path));
        assert!(made[0].starts_with("epoll_") && made[1] == "recvfrom" && made.len() == 3, "{path}: {made:?}");
        assert!(["sendto", "sendmsg"].contains(&made[2].as_str()), "{path}: {made:?}");
    }
}

/// Whether a piece is in memory is asked for every 64 KiB, and at its end.
#[test]
fn a_large_file_that_is_known_costs_a_few_looks_and_what_sends_it() {
    let made =
        calls("a_large_file_that_is_known_costs_a_few_looks_and_what_sends_it", "/100k.css", &end_of("/100k.css"));
    let looks = made.iter().filter(|name| *name == "preadv2").count();
    assert_eq!(looks, 3, "{made:?}");
    assert!(made.iter().all(|name| !name.starts_with("open") && !name.contains("stat")), "{made:?}");
    assert!(made.iter().any(|name| name == "sendfile"), "{made:?}");
}
