//! The steps of `docs/steps.md`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{DEADLINE, Running, start};

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
