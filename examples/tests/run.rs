//! Runs every example, and checks its output.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pelton_testing::child::send_lines;
use rustix::process::{Pid, Signal, kill_process};

/// An example that takes longer than this is considered hung.
const DEADLINE: Duration = Duration::from_secs(10);

/// The example's program.
macro_rules! example {
    ($name:literal) => {
        Command::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

/// A running example. Killed if its test fails.
struct Running {
    child: Child,
    /// Its output, on standard output and error.
    lines: Receiver<String>,
    printed: Vec<String>,
    deadline: Instant,
}

fn start(mut example: Command) -> Running {
    example.env_remove("PELTON_ENGINE").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = example.spawn().unwrap();
    let (sender, lines) = channel();
    send_lines(child.stdout.take().unwrap(), sender.clone());
    send_lines(child.stderr.take().unwrap(), sender);
    Running { child, lines, printed: Vec::new(), deadline: Instant::now() + DEADLINE }
}

impl Running {
    /// Waits for a line that contains this.
    fn expect(&mut self, part: &str) {
        while let Some(line) = self.next_line() {
            if line.contains(part) {
                return;
            }
        }
        panic!("it did not say {part:?}, but {:#?}", self.printed);
    }

    fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.printed.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("still running after {DEADLINE:?}; it said {:#?}", self.printed),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends.
    fn finish(mut self) -> (ExitStatus, Vec<String>) {
        while self.next_line().is_some() {}
        let status = self.child.wait().unwrap();
        (status, std::mem::take(&mut self.printed))
    }

    /// Waits until it ends, and checks that it succeeded.
    fn succeed(self) -> Vec<String> {
        let (status, printed) = self.finish();
        assert!(status.success(), "{status}, and it said {printed:#?}");
        printed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has already ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hello_timer_says_hello() {
    let printed = start(example!("hello-timer")).succeed();
    assert!(printed[0].starts_with("waiting, on "), "{printed:#?}");
    assert!(printed[1].starts_with("hello, after "), "{printed:#?}");
}

#[test]
fn ticker_misses_a_beat_and_stops_after_five() {
    let mut ticker = start(example!("ticker"));
    ticker.expect("beat 2 at");
    ticker.expect("missed");
    ticker.expect("beat 5 at");
    ticker.succeed();
}

#[test]
fn watch_stdin_counts_the_lines_of_a_pipe() {
    let mut example = example!("watch-stdin");
    example.stdin(Stdio::piped());
    let mut watching = start(example);
    let mut input = watching.child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    watching.expect("1 line so far");
    input.write_all(b"two\nthree\n").unwrap();
    watching.expect("3 lines so far");
    drop(input);
    watching.expect("the end, after 3 lines");
    watching.succeed();
}

#[test]
fn watch_stdin_explains_why_it_does_not_watch_a_file() {
    let mut example = example!("watch-stdin");
    example.stdin(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap());
    let mut watching = start(example);
    watching.expect("always ready");
    assert!(!watching.finish().0.success());
}

#[test]
fn cross_thread_post_loses_nothing() {
    let mut posting = start(example!("cross-thread-post"));
    posting.expect("the loop has counted 1229 primes");
    posting.succeed();
}

#[test]
fn signals_finishes_its_jobs_after_the_first_one() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut working = start(example!("signals"));
        working.expect("job 1 begins");
        working.signal(signal);
        working.expect("finishing 1 job");
        working.expect("job 1 is done");
        working.expect("Drained");
        working.succeed();
    }
}

#[test]
fn signals_stops_at_once_after_the_second_one() {
    let mut working = start(example!("signals"));
    working.expect("job 1 begins");
    working.signal(Signal::TERM);
    working.expect("finishing 1 job");
    working.signal(Signal::INT);
    working.expect("Stopped");
    let printed = working.succeed();
    assert!(!printed.iter().any(|line| line.contains("is done")), "{printed:#?}");
}

#[test]
fn foreign_loop_serves_both() {
    let mut embedding = start(example!("foreign-loop"));
    embedding.expect("the program reads 'a'");
    embedding.expect("the reactor's timer fires");
    embedding.expect("the program reads 'c'");
    embedding.expect("the reactor was stopped by another thread");
    embedding.succeed();
}

#[test]
fn stats_names_the_slow_callback_and_prints_its_numbers() {
    let printed = start(example!("stats")).succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("timer \"refresh the cache\" (examples/stats.rs:26:27) took"), "{printed:#?}");
    assert!(said("pelton_slow_callbacks_total 1"), "{printed:#?}");
}

#[test]
fn promises_come_to_the_same_as_callbacks() {
    let printed = start(example!("promises")).succeed();
    let lines = [
        "callbacks: ann owes 42",
        "a chain:   ann owes 42",
        "a chain:   nobody is number 3",
        "at once:   ann owes 42, bob owes 7, and number 3 is unknown",
    ];
    assert_eq!(printed, lines);
}

#[test]
fn channel_chat_is_heard_and_answered_on_every_loop() {
    let printed = start(example!("channel-chat")).succeed();
    let mut heard: Vec<&str> = printed.iter().filter_map(|line| line.strip_prefix("ann hears ")).collect();
    let place = |part: &str| heard.iter().position(|line| *line == part);
    assert!(place("bob: ?wheel") < place("bob: ?reactor"), "{printed:#?}");
    assert!(place("bob: ?reactor") < place("bot: reactor has 7 letters"), "{printed:#?}");
    heard.sort_unstable();
    let bot = ["bot: jet has 3 letters", "bot: reactor has 7 letters", "bot: wheel has 5 letters"];
    let people = ["bob: ?reactor", "bob: ?wheel", "cid: ?jet", "cid: hello"];
    assert_eq!(heard, [&people[..2], &bot[..], &people[2..]].concat(), "{printed:#?}");
    // One library is enough if the questions come slowly.
    assert!(printed.last().unwrap().starts_with("the room is closed: ann has heard 7 lines, and the bot used "));
}

#[test]
fn udp_time_is_answered_at_the_second_try() {
    let mut asking = start(example!("udp-time"));
    asking.expect("is ignored");
    asking.expect("answer 1: 1");
    asking.expect("answer 2: 1");
    asking.expect("nobody serves the time on 127.0.0.1:");
    asking.succeed();
}

#[test]
fn port_scanner_finds_its_own_ports() {
    let printed = start(example!("port-scanner")).succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("is open, and says \"220 one of ours\""), "{printed:#?}");
    assert!(printed.iter().any(|line| line.ends_with(" is open")), "{printed:#?}");
    assert!(said(" ports are open, "), "{printed:#?}");
}

#[test]
fn port_scanner_looks_up_names() {
    let mut example = example!("port-scanner");
    example.args(["localhost", "1", "3"]);
    let mut scanning = start(example);
    scanning.expect("of 3 ports are open");
    scanning.succeed();
}

#[test]
fn reconnecting_client_survives_a_server_that_hangs_up_and_one_that_is_gone() {
    let mut client = start(example!("reconnecting-client"));
    client.expect("attempt 1 got \"the time is 2\"");
    client.expect("finished by the other side; reconnecting in ");
    client.expect("the server goes away");
    client.expect("refused; reconnecting in ");
    client.expect("the server is back");
    client.expect("that was enough");
    client.succeed();
}

#[test]
fn echo_sends_everything_back() {
    let mut echo = start(example!("echo"));
    echo.expect("echoing on 127.0.0.1:");
    echo.expect("gets back \"water\"");
    echo.expect("gets back \"wheel\"");
    echo.expect("server: finished by the other side");
    echo.succeed();
}

#[test]
fn actors_keep_nobody_waiting_for_somebody_elses_work() {
    let printed = start(example!("actors")).succeed();
    let told: Vec<&str> = printed.iter().filter(|line| line.contains(" < ")).map(String::as_str).collect();
    assert_eq!(
        told,
        [
            "hasty    < 12 = 2 * 2 * 3",
            "hasty    < 97 = 97",
            "hasty    < error: water is not a number: invalid digit found in string",
            "patient  < 10000004400000259 = 100000007 * 100000037",
        ]
    );
}

#[test]
fn keyed_does_the_work_of_each_account_in_order() {
    let printed = start(example!("keyed")).succeed();
    assert!(printed.iter().any(|line| line.ends_with("the ledger of carol is gone")), "{printed:?}");
    let told: Vec<&str> = printed.iter().filter(|line| !line.contains("panicked")).map(String::as_str).collect();
    assert_eq!(told, ["alice: 100, 70, 75", "bob: 50, 30, 40", "carol: 10, 5", "0 keys are busy, 0 tasks wait"]);
}

#[test]
fn key_value_stores_and_answers() {
    let printed = start(example!("key-value")).succeed();
    let told: Vec<&str> = printed.iter().filter_map(|line| line.strip_prefix("< ")).collect();
    assert_eq!(told, ["stored", "pelton", "nothing", "error: set KEY VALUE, get KEY, or quit", "bye"]);
}

#[test]
fn async_echo_sends_everything_back() {
    let mut echo = start(example!("async-echo"));
    echo.expect("gets back \"water\"");
    echo.expect("gets back \"wheel\"");
    echo.expect("nothing more arrives");
    echo.expect("server: the peer has finished");
    echo.succeed();
}

#[test]
fn chat_passes_on_what_is_said() {
    let printed = start(example!("chat")).succeed();
    let heard = |name: &str| -> Vec<&str> {
        printed.iter().filter_map(|line| line.strip_prefix(name)?.strip_prefix(" hears: ")).collect()
    };
    let ann = ["welcome, ann; you are alone", "bob has joined", "bob: hello and goodbye", "bob has left"];
    assert_eq!(heard("ann"), ann, "{printed:#?}");
    assert_eq!(heard("bob"), ["welcome, bob; here are ann", "ann: hello, bob"], "{printed:#?}");
    assert_eq!(printed.last().unwrap(), "the room is empty");
}

#[test]
fn defer_counts_primes_while_the_loop_ticks() {
    let mut counting = start(example!("defer"));
    counting.expect("one was cancelled in time");
    let printed = counting.succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("another piece failed: it panicked: there is no prime here"), "{printed:#?}");
    assert!(said("17984 primes below 200000, and "), "{printed:#?}");
    assert!(!said("never printed"), "{printed:#?}");
}

#[test]
fn files_writes_lists_reads_and_copies() {
    let mut files = start(example!("files"));
    files.expect("20 files are written");
    files.expect("20 files are found");
    files.expect("14 of 14 bytes are copied");
    files.expect("everything is removed again");
    let printed = files.succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("20 files are read"), "{printed:#?}");
    assert!(said("/missing: No such file or directory"), "{printed:#?}");
}

#[test]
fn hello_http_greets() {
    let mut server = start(example!("hello-http"));
    server.expect("http://127.0.0.1:");
    let address = server.printed[0].trim_start_matches("http://").trim_end_matches('/');
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.write_all(b"GET /ann HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello, ann\n"), "{answer}");
}

#[test]
fn http_promises_sends_what_a_file_lists_and_lets_nobody_out() {
    let pages = std::env::temp_dir().join(format!("pelton-http-promises-{}", std::process::id()));
    std::fs::create_dir_all(&pages).unwrap();
    for (name, text) in [("index", "one\ntwo\n"), ("one", "the first part\n"), ("two", "the second part\n")] {
        std::fs::write(pages.join(name), text).unwrap();
    }
    let mut example = example!("http-promises");
    example.arg(&pages);
    let mut server = start(example);
    server.expect("http://127.0.0.1:");
    let address = server.printed[0].trim_start_matches("http://").trim_end_matches("/pages/index").to_owned();
    let get = |path: &str| {
        let mut client = TcpStream::connect(&address).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(client).unwrap()
    };
    let page = get("/pages/index");
    assert!(page.ends_with("\r\n\r\n== one ==\nthe first part\n== two ==\nthe second part\n"), "{page}");
    let out =
        ["missing", "..%2f..%2fetc%2fhostname", "%2fetc%2fhostname", "%00", "one%2ftwo", "%2e", &"long".repeat(100)];
    for name in out {
        assert!(get(&format!("/pages/{name}")).starts_with("HTTP/1.1 404 "), "{name}");
    }
    std::fs::remove_dir_all(pages).unwrap();
}

#[test]
fn forward_holds_up_the_source_for_a_slow_client() {
    let mut forward = start(example!("forward"));
    forward.expect("33554432 bytes came through; at most ");
    let line = forward.printed.last().unwrap();
    let waited = line.split("at most ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    // The high-water mark plus one read.
    assert!((1..=128).contains(&waited.parse::<u32>().unwrap()), "{line}");
}

/// Starts a step, and returns it with its address.
fn start_step(mut step: Command) -> (Running, String) {
    step.arg("127.0.0.1:0");
    let mut server = start(step);
    server.expect("http://127.0.0.1:");
    let address = server.printed[0].trim_start_matches("http://").trim_end_matches('/').to_owned();
    (server, address)
}

/// Sends a request to a step, on a connection that is closed after it.
fn asked(address: &str, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client
}

fn answered(mut client: TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, text)| text.to_owned()).unwrap_or(answer)
}

#[test]
fn step_1_serves_one_client_after_the_other() {
    let (_server, address) = start_step(example!("step-1"));
    assert_eq!(answered(asked(&address, "/")), "hello\n");
    assert_eq!(answered(asked(&address, "/slow")), "at last\n");
    // A silent client blocks all others until it disconnects.
    let silent = TcpStream::connect(&address).unwrap();
    let mut other = asked(&address, "/");
    other.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(other.read(&mut [0]).is_err());
    drop(silent);
    other.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(answered(other), "hello\n");
}

#[test]
fn step_2_serves_others_while_one_says_nothing() {
    let (_server, address) = start_step(example!("step-2"));
    let _silent = TcpStream::connect(&address).unwrap();
    assert_eq!(answered(asked(&address, "/")), "hello\n");
    assert_eq!(answered(asked(&address, "/slow")), "at last\n");
    assert_eq!(answered(asked(&address, "/nothing")), "there is no such thing\n");
    // A connection stays open for the next request, however the requests are split.
    let mut client = TcpStream::connect(&address).unwrap();
    for piece in ["GET / HT", "TP/1.1\r\n\r\nGET /no HTTP/1.1\r\n\r", "\n"] {
        client.write_all(piece.as_bytes()).unwrap();
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 2, "{answers}");
}

#[test]
fn step_3_waits_for_many_at_once_and_reports() {
    let (mut server, address) = start_step(example!("step-3"));
    let begun = Instant::now();
    let clients: Vec<_> = (0..30).map(|_| asked(&address, "/slow")).collect();
    for client in clients {
        assert_eq!(answered(client), "at last\n");
    }
    // Sequentially they would take three seconds.
    assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
    server.expect("requests in the last second");
    server.expect("half of them took less than ");
}

#[test]
fn step_4_answers_in_several_steps() {
    let (_server, address) = start_step(example!("step-4"));
    for (path, answer) in [
        ("/", "hello\n"),
        ("/order", "ann has ordered a wheel for 42\n"),
        ("/order-nested", "ann has ordered a wheel for 42\n"),
        ("/order-of-nobody", "nobody is unknown\n"),
        ("/nothing", "there is no such thing\n"),
    ] {
        assert_eq!(answered(asked(&address, path)), answer, "{path}");
    }
}

#[test]
fn step_5_reads_files_beside_the_loop() {
    let (server, address) = start_step(example!("step-5"));
    for path in ["/file", "/file-on-the-loop"] {
        assert!(answered(asked(&address, path)).starts_with("a wheel is turned"), "{path}");
    }
    assert_eq!(answered(asked(&address, "/")), "hello\n");
    server.signal(Signal::TERM);
    server.succeed();
}

#[test]
fn no_example_is_left_out() {
    let this = include_str!("run.rs");
    let manifest = include_str!("../Cargo.toml");
    let readme = include_str!("../README.md");
    let files = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap().map(|entry| entry.unwrap().path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    for name in names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()) {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in Cargo.toml");
        assert!(this.contains(&format!("example!(\"{name}\")")), "{name} is not run by any test");
        assert!(readme.contains(&format!("| [`{name}`]({name}.rs) |")), "{name} is not in README.md");
    }
    for step in 1..=5 {
        assert!(manifest.contains(&format!("path = \"steps/{step}-")), "step {step} is not in Cargo.toml");
        assert!(this.contains(&format!("example!(\"step-{step}\")")), "step {step} is not run by any test");
    }
}

#[test]
fn static_site_serves_the_files_of_a_directory() {
    let mut example = example!("static-site");
    example.current_dir(env!("CARGO_MANIFEST_DIR"));
    let mut serving = start(example);
    let line = serving.next_line().unwrap();
    let address = line.strip_prefix("serving . on http://").unwrap().strip_suffix("/files/").unwrap();
    let get = |path: &str| {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(client).unwrap()
    };
    for (path, location) in [("/", "/files/"), ("/files", "/files/"), ("/files/steps", "/files/steps/")] {
        let redirect = get(path);
        assert!(redirect.contains(&format!("\r\nLocation: {location}\r\n")), "{redirect}");
    }
    let listing = get("/files/");
    assert!(listing.starts_with("HTTP/1.1 200 OK\r\n") && listing.contains("static-site.rs"), "{listing}");
    assert!(get("/files/steps/").contains("<h1>/files/steps/</h1>"));
    assert!(get("/files/static-site.rs").ends_with(include_str!("../static-site.rs")));
    assert!(get("/files/../Cargo.toml").starts_with("HTTP/1.1 404 "), "it leads out");
    assert!(get("/api/teams/red").ends_with("\r\n\r\nteam red\n"));
    assert!(get("/api/teams/red/greet/ann").ends_with("\r\n\r\nhello ann, of team red\n"));
    assert!(get("/api/teams/red/other").starts_with("HTTP/1.1 404 "));
}
