//! The cost of serving a cached file: no allocation, and no system calls but those of the exchange.
#![cfg(target_os = "linux")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use allocation_counter::measure;
use common::tree::{Tree, noise, settled};
use pelton::{EventLoop, Reactor};
use pelton_http::{FileSettings, Files, Server};

/// The fields that browsers send.
const FIELDS: &str = "HTTP/1.1\r\nHost: example.org\r\nUser-Agent: test\r\nAccept: */*\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en\r\n";

/// Set in the child: the scene to play.
const CHILD: &str = "PELTON_TEST_CHILD";

/// A server and a non-blocking client.
struct Talk {
    reactor: EventLoop,
    client: TcpStream,
    tree: Tree,
}

impl Talk {
    fn new() -> Talk {
        Talk::with(Duration::from_secs(3600))
    }

    fn with(valid: Duration) -> Talk {
        Talk::on(Tree::new(), valid)
    }

    fn on(tree: Tree, valid: Duration) -> Talk {
        tree.write("1k.css", noise(1000));
        tree.write("32k.css", noise(32_000));
        tree.write("32k.css.br", noise(20_000));
        tree.write("100k.css", noise(100_000));
        let settings = FileSettings { valid, listing: true, ..settled() };
        let mut reactor = Reactor::new().unwrap();
        let server = Server::new(Files::with_settings(tree.path(), settings).unwrap());
        let listener = server.listen(&mut reactor, "127.0.0.1:0").unwrap();
        let client = TcpStream::connect(reactor.listening_on(listener).unwrap().to_string()).unwrap();
        client.set_nonblocking(true).unwrap();
        Talk { reactor, client, tree }
    }

    /// Sends a request and runs the loop until `end` has been received.
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
fn small_cached_file_allocates_nothing() {
    assert_eq!(allocations("/1k.css", "", &noise(1000)[900..]), 0);
    assert_eq!(allocations("/32k.css", "", &noise(20_000)[19_900..]), 0);
    assert_eq!(allocations("/%31k.css", "If-None-Match: \"x\"\r\n", &noise(1000)[900..]), 0);
    assert_eq!(allocations("/1k.css", "If-None-Match: *\r\n", b"nosniff\r\n\r\n"), 0);
}

#[test]
fn large_cached_file_allocates_once() {
    assert_eq!(allocations("/100k.css", "", &noise(100_000)[99_900..]), 500);
}

fn mark() {
    let _ = rustix::process::getppid();
}

/// Runs in a child under `strace`, between two marks.
type Scene = fn(&mut Talk, &mut [u8]);

/// The traced system calls of a scene, of the loop's thread and of the lanes.
struct Trace {
    own: Vec<String>,
    all: Vec<String>,
}

impl Trace {
    /// Runs this test again in a child, which plays only `scene`.
    fn of(test: &str, scene: &str) -> Trace {
        let trace = std::env::temp_dir().join(format!("pelton-files-{}-{scene}.strace", std::process::id()));
        let output = Command::new("strace")
            .args(["-f", "-o", trace.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, scene)
            .output()
            .expect("this test needs strace");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        let lines = text.lines().filter_map(|line| {
            let (thread, call) = line.split_once(' ')?;
            let call = call.trim_start();
            (call.contains('(') && !call.starts_with('<')).then_some((thread, call))
        });
        let all: Vec<(&str, &str)> = lines.collect();
        let mark = |(_, call): &(&str, &str)| call.starts_with("getppid(");
        let begin = all.iter().position(mark).expect("the first mark");
        let end = begin + 1 + all[begin + 1..].iter().position(mark).expect("the second mark");
        let thread = all[begin].0;
        let between = &all[begin + 1..end];
        let own = between.iter().filter(|(of, _)| *of == thread).map(|(_, call)| (*call).to_owned()).collect();
        Trace { own, all: between.iter().map(|(_, call)| (*call).to_owned()).collect() }
    }

    /// The names of the calls of the loop's thread.
    fn own_names(&self) -> Vec<&str> {
        self.own.iter().filter_map(|call| Some(call.split_once('(')?.0)).collect()
    }

    /// The names of the calls that concern files.
    fn file_names(&self) -> Vec<&str> {
        const FILES: [&str; 13] = [
            "open",
            "openat",
            "openat2",
            "stat",
            "fstat",
            "newfstatat",
            "statx",
            "close",
            "pread64",
            "preadv2",
            "fadvise64",
            "getdents64",
            "faccessat2",
        ];
        self.all.iter().filter_map(|call| Some(call.split_once('(')?.0)).filter(|name| FILES.contains(name)).collect()
    }

    fn count(&self, name: &str) -> usize {
        self.all.iter().filter(|call| call.strip_prefix(name).is_some_and(|rest| rest.starts_with('('))).count()
    }
}

/// In the child, plays the requested scene and exits.
fn play(scenes: &[(&str, Scene)]) {
    let Ok(wanted) = std::env::var(CHILD) else { return };
    let (_, scene) = scenes.iter().find(|(name, _)| *name == wanted).expect("a scene of this test");
    scene(&mut Talk::new(), &mut vec![0; 200_000]);
    std::process::exit(0);
}

/// A turn that answers a request for a cached file.
fn known(path: &'static str) -> impl Fn(&mut Talk, &mut [u8]) {
    move |talk, buffer| {
        for _ in 0..10 {
            talk.exchange(&request(path, ""), &end_of(path), buffer);
        }
        talk.client.write_all(&request(path, "")).unwrap();
        mark();
        talk.reactor.turn(None).unwrap();
        mark();
    }
}

fn end_of(path: &str) -> Vec<u8> {
    match path {
        "/1k.css" => noise(1000)[900..].to_vec(),
        "/32k.css" => noise(20_000)[19_900..].to_vec(),
        _ => noise(100_000)[99_900..].to_vec(),
    }
}

#[test]
fn small_cached_file_costs_one_read_and_one_write() {
    play(&[
        ("1k", |talk, buffer| known("/1k.css")(talk, buffer)),
        ("32k", |talk, buffer| known("/32k.css")(talk, buffer)),
    ]);
    for scene in ["1k", "32k"] {
        let trace = Trace::of("small_cached_file_costs_one_read_and_one_write", scene);
        let made = trace.own_names();
        assert!(made[0].starts_with("epoll_") && made[1] == "recvfrom" && made.len() == 3, "{scene}: {made:?}");
        assert!(["sendto", "sendmsg"].contains(&made[2]), "{scene}: {made:?}");
    }
}

/// One call checks that the file is unchanged, and one per 64 KiB checks that it is in memory.
#[test]
fn large_cached_file_costs_a_few_checks_and_sends() {
    play(&[("100k", |talk, buffer| known("/100k.css")(talk, buffer))]);
    let trace = Trace::of("large_cached_file_costs_a_few_checks_and_sends", "100k");
    let made = trace.own_names();
    assert_eq!(made[1..], ["recvfrom", "statx", "preadv2", "preadv2", "sendmsg", "sendfile"], "{made:?}");
}

#[test]
fn system_calls_of_a_look_up() {
    play(&[
        ("small", |talk, buffer| {
            talk.exchange(&request("/100k.css", ""), &end_of("/100k.css"), buffer);
            mark();
            talk.exchange(&request("/1k.css", ""), &end_of("/1k.css"), buffer);
            mark();
        }),
        ("large", |talk, buffer| {
            talk.exchange(&request("/1k.css", ""), &end_of("/1k.css"), buffer);
            mark();
            talk.exchange(&request("/100k.css", ""), &end_of("/100k.css"), buffer);
            mark();
        }),
        // Every request checks the cached file and the root.
        ("again", |talk, buffer| {
            *talk = Talk::with(Duration::ZERO);
            talk.exchange(&request("/1k.css", ""), &end_of("/1k.css"), buffer);
            mark();
            talk.exchange(&request("/1k.css", ""), &end_of("/1k.css"), buffer);
            mark();
        }),
        // The look-ups of four files.
        ("list", |talk, buffer| {
            talk.exchange(&request("/1k.css", ""), &end_of("/1k.css"), buffer);
            mark();
            talk.exchange(&request("/", ""), b"</html>\n", buffer);
            mark();
        }),
    ]);
    let looking = ["openat2", "statx"];
    let siblings = ["openat2"; 3];
    let opening = ["open", "close"];
    let entry = ["openat2", "statx", "faccessat2", "close"];
    for (scene, expected) in [
        ("small", [&looking[..], &siblings, &opening, &["pread64", "statx", "close"]].concat()),
        ("large", [&looking[..], &siblings, &opening, &["preadv2", "preadv2"]].concat()),
        ("again", [&opening[..], &looking, &siblings, &["close"]].concat()),
        // The index is looked up first.
        (
            "list",
            [
                &looking[..],
                &["openat2"],
                &opening,
                &["getdents64"],
                &entry,
                &entry,
                &entry,
                &entry,
                &["getdents64", "close"],
            ]
            .concat(),
        ),
    ] {
        assert_eq!(Trace::of("system_calls_of_a_look_up", scene).file_names(), expected, "{scene}");
    }
}

/// As many ranges as a request may have, none adjacent to another.
fn ranges(count: usize, length: usize) -> String {
    let ranges: Vec<String> = (0..count).map(|at| format!("{}-{}", at * 500_000, at * 500_000 + length - 1)).collect();
    format!("Range: bytes={}\r\n", ranges.join(","))
}

/// Requests parts of a file on disk that is not in memory.
fn cold(talk: &mut Talk, ranges: &str, end: &[u8]) {
    const SIZE: usize = 17_000_000;
    *talk = Talk::on(Tree::on_disk(), Duration::from_secs(3600));
    talk.tree.write("cold", noise(SIZE));
    let mut buffer = vec![0; 6_000_000];
    talk.exchange(&request("/cold", "Range: bytes=0-0\r\n"), &one_byte(SIZE), &mut buffer);
    assert!(talk.tree.forget("cold"));
    let request = request("/cold", ranges);
    mark();
    talk.exchange(&request, end, &mut buffer);
    mark();
}

/// The end of a response with the first byte.
fn one_byte(size: usize) -> Vec<u8> {
    [format!(" 0-0/{size}\r\n\r\n").as_bytes(), &noise(1)].concat()
}

/// The kernel is asked once to read what will be sent, and nothing else.
#[test]
fn ranges_of_an_uncached_file_read_nothing_else() {
    const AHEAD: u64 = 1 << 20;
    play(&[
        ("byte", |talk, _| cold(talk, &ranges(1, 1), &one_byte(17_000_000))),
        ("bytes", |talk, _| cold(talk, &ranges(32, 1), b"--\r\n")),
        ("long", |talk, _| cold(talk, "Range: bytes=1000-5000999\r\n", &noise(5_001_000)[5_000_900..])),
    ]);
    for scene in ["byte", "bytes"] {
        let trace = Trace::of("ranges_of_an_uncached_file_read_nothing_else", scene);
        assert_eq!(trace.count("fadvise64"), 0, "{scene}: {:?}", trace.all);
        assert!(trace.count("pread64") >= 1, "the file was in memory: {:?}", trace.all);
    }
    let trace = Trace::of("ranges_of_an_uncached_file_read_nothing_else", "long");
    let asked = trace.all.iter().filter_map(|call| call.strip_prefix("fadvise64("));
    let asked: Vec<(u64, u64)> = asked
        .map(|arguments| {
            let numbers: Vec<u64> =
                arguments.split(", ").skip(1).take(2).map(|number| number.parse().unwrap()).collect();
            (numbers[0], numbers[0] + numbers[1])
        })
        .collect();
    assert_eq!(asked[0], (1000, 1000 + (256 << 10) + AHEAD), "{asked:?}");
    assert!(asked.iter().all(|(start, end)| start < end && *end <= 5_001_000), "{asked:?}");
    assert!(asked.windows(2).all(|two| two[0].1 <= two[1].0), "asked twice: {asked:?}");
}
