//! `curl`, against a minimal HTTP server.

use pelton::{Chunk, Connection, Io, Reactor, Reason};
use pelton_testing::{Log, On, on_every_engine};

use crate::process::{Input, Program};
use crate::{ends, listen, pattern, sum};

on_every_engine![
    curl_gets_an_answer,
    curl_gets_several_answers_over_one_connection,
    curl_posts_a_megabyte,
    curl_puts_a_large_file_with_expect_continue,
];

/// Answers each request with the length of its body and the sum of its bytes.
#[derive(Default)]
struct Http {
    log: Log,
    received: Vec<u8>,
    continued: bool,
}

impl Http {
    /// Takes a complete request from the buffer, and returns its body.
    fn take_request(&mut self, io: &mut Io<'_>) -> Option<Vec<u8>> {
        let end = self.received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.received[..end]).to_lowercase();
        let length = head.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap_or("0"));
        let length: usize = length.trim().parse().unwrap();
        if head.contains("expect: 100-continue") && !std::mem::replace(&mut self.continued, true) {
            io.send(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        }
        if self.received.len() < end + length {
            return None;
        }
        self.continued = false;
        let rest = self.received.split_off(end + length);
        let body = self.received.split_off(end);
        self.received = rest;
        Some(body)
    }
}

impl Connection for Http {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.received.extend_from_slice(&chunk);
        while let Some(body) = self.take_request(io) {
            let answer = format!("{} {}\n", body.len(), sum(&body));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            io.send(head.as_bytes()).unwrap();
            io.send(answer.as_bytes()).unwrap();
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(reason.to_string());
    }
}

/// Runs curl with these arguments, in which `URL` stands for the server's, and checks its output and that it used one
/// connection.
fn curl(on: On, arguments: &str, input: Vec<u8>, expected: &str) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Http { log: entries.clone(), ..Http::default() });
    let url = format!("http://127.0.0.1:{port}/");
    let mut words = vec!["--silent", "--show-error", "--http1.1", "--noproxy", "*", "--max-time", "20"];
    words.extend(arguments.split(' ').map(|word| if word == "URL" { &url } else { word }));
    let answer = Program::start("curl", &words).run(&mut reactor, Input::These(input)).text();
    assert_eq!(answer, expected);
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
}

fn curl_gets_an_answer(on: On) {
    curl(on, "URL", Vec::new(), "0 0\n");
}

fn curl_gets_several_answers_over_one_connection(on: On) {
    curl(on, "--data-binary abc URL URL URL", Vec::new(), "3 294\n3 294\n3 294\n");
}

fn curl_posts_a_megabyte(on: On) {
    let body = pattern(1_000_000);
    let expected = format!("1000000 {}\n", sum(&body));
    curl(on, "--data-binary @- URL", body, &expected);
}

fn curl_puts_a_large_file_with_expect_continue(on: On) {
    let body = pattern(2_000_000);
    let expected = format!("2000000 {}\n", sum(&body));
    curl(on, "--header Expect:100-continue --request PUT --data-binary @- URL", body, &expected);
}
