//! Clients and servers of TCP, UDP and TLS.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::start;

/// A server that sends back everything that it receives on one connection, until that ends.
fn echo_server() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    });
    (address, serving)
}

#[test]
fn netcat_sends_lines_and_prints_the_answers() {
    let (address, serving) = echo_server();
    let mut example = example!("netcat");
    example.arg(&address).stdin(Stdio::piped());
    let mut talking = start(example);
    let mut input = talking.child.stdin.take().unwrap();
    input.write_all(b"first\n").unwrap();
    talking.expect("first");
    input.write_all(b"second\nthird\n").unwrap();
    drop(input);
    talking.expect("third");
    talking.succeed();
    serving.join().unwrap();
}

#[test]
fn netcat_loses_nothing_when_both_sides_are_slow() {
    let (address, serving) = echo_server();
    let mut example = example!("netcat");
    let mut child = example.arg(&address).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let sent = pelton_testing::pattern(5_000_000);
    let (mut input, bytes) = (child.stdin.take().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let (mut output, mut received, mut buffer) = (child.stdout.take().unwrap(), Vec::new(), [0; 10_000]);
    while let count @ 1.. = output.read(&mut buffer).unwrap() {
        received.extend_from_slice(&buffer[..count]);
    }
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert!(child.wait().unwrap().success());
    writing.join().unwrap();
    serving.join().unwrap();
}

#[test]
fn netcat_sends_a_file() {
    let (address, serving) = echo_server();
    let mut example = example!("netcat");
    example.arg(&address).stdin(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap());
    let mut talking = start(example);
    talking.expect("name = \"pelton-examples\"");
    talking.succeed();
    serving.join().unwrap();
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
fn tls_echo_sends_everything_back() {
    let printed = start(example!("tls-echo")).succeed();
    let expected = ["client: connected with TLSv1_3 to [\"localhost\"]", "client: gets back \"water\""];
    assert_eq!(printed[..2], expected);
    assert_eq!(printed[2], "server: finished by the other side");
}

#[test]
fn an_https_handler_knows_its_client() {
    let printed = start(example!("https-clients")).succeed();
    assert_eq!(printed, ["HTTP/1.1 200 OK", "hello, alice.example"]);
}

#[test]
fn chat_delivers_messages() {
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
fn forward_slows_down_the_source_for_a_slow_client() {
    let mut forward = start(example!("forward"));
    forward.expect("33554432 bytes came through; at most ");
    let line = forward.printed.last().unwrap();
    let waited = line.split("at most ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    // The high-water mark plus one read.
    assert!((1..=128).contains(&waited.parse::<u32>().unwrap()), "{line}");
}

#[test]
fn proxy_forwards_both_ways_and_counts() {
    let (address, serving) = echo_server();
    let mut example = example!("proxy");
    example.args(["127.0.0.1:0", &address]);
    let mut proxy = start(example);
    proxy.expect("proxying ");
    let line = proxy.printed.last().unwrap();
    let front = line.split(' ').nth(1).unwrap().to_owned();
    let mut client = std::net::TcpStream::connect(front).unwrap();
    client.write_all(b"there and back").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = String::new();
    client.read_to_string(&mut back).unwrap();
    assert_eq!(back, "there and back");
    proxy.expect("14 bytes to the target: PeerFinished");
    serving.join().unwrap();
}
