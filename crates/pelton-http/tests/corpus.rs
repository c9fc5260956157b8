//! Valid and invalid requests, whole and split at every byte. The outcome must not depend on how they arrive.
//!
//! They reach [`HttpConnection`](pelton_http::HttpConnection) through a reactor and a socket pair, so each piece arrives alone.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::undated;
use pelton::{EventLoop, PanicPolicy, Reactor};
use pelton_http::wire::{ChunkLimits, HeadLimits};
use pelton_http::{BodyEvent, Request, Responder, Response, Server, Settings};

/// Answers with the parsed request.
fn describe(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    let fields: Vec<String> =
        request.fields().iter().map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value))).collect();
    let head = format!(
        "[{} {} {:?} {}]",
        request.method_name(),
        request.target(),
        request.host().unwrap_or("-"),
        fields.join("|")
    );
    let mut state = Some((head, Vec::new(), responder));
    request.body().read(reactor, move |reactor, event| match event {
        BodyEvent::Data(data) => state.as_mut().unwrap().1.extend_from_slice(data),
        BodyEvent::End(trailers) => {
            let (head, body, responder) = state.take().unwrap();
            let trailers: Vec<&str> = trailers.iter().map(|(name, _)| name).collect();
            let text = format!("{head} {:?} {trailers:?}", String::from_utf8_lossy(&body));
            responder.respond(reactor, Response::ok().body(text));
        }
        BodyEvent::Failed(error) => {
            let (_, _, responder) = state.take().unwrap();
            responder.respond(reactor, error.response());
        }
    });
}

/// A reactor with a server, to feed requests to.
struct Site {
    reactor: EventLoop,
    server: Server,
}

impl Site {
    fn new() -> Site {
        let head = HeadLimits { request_line: 60, header_bytes: 300, headers: 8 };
        let chunks = ChunkLimits { extensions: 40, trailers: head };
        let settings = Settings { head, chunks, body: 100, ..Settings::default() };
        let reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
        Site { reactor, server: Server::with_settings(describe, settings) }
    }

    /// Returns the answer to a stream in these pieces. Each is processed before the next arrives.
    fn answer(&mut self, pieces: &[&[u8]]) -> String {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        self.reactor.adopt(ours, self.server.connection()).unwrap();
        let mut turns = |count: usize| {
            for _ in 0..count {
                self.reactor.turn(Some(Duration::ZERO)).unwrap();
            }
        };
        turns(1);
        for piece in pieces {
            // The connection may be closed already.
            let _ = theirs.write_all(piece);
            turns(2);
        }
        let _ = theirs.shutdown(Shutdown::Write);
        turns(4);
        let mut answer = Vec::new();
        theirs.set_read_timeout(Some(common::DEADLINE)).unwrap();
        theirs.read_to_end(&mut answer).unwrap();
        undated(&String::from_utf8(answer).unwrap())
    }

    /// Returns the answer, and checks that it does not depend on how the stream is split.
    fn answer_however_split(&mut self, stream: &[u8]) -> String {
        let whole = self.answer(&[stream]);
        let show = String::from_utf8_lossy(stream).into_owned();
        for cut in 1..stream.len() {
            let (one, two) = stream.split_at(cut);
            assert_eq!(self.answer(&[one, two]), whole, "{show:?} split at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(self.answer(&bytes), whole, "{show:?} byte by byte");
        whole
    }
}

/// The outcome of a stream of requests: the bodies of responses with status 200, the statuses of others.
fn outcomes(answer: &str) -> Vec<String> {
    let answers = answer.split("HTTP/1.1 ").skip(1);
    answers
        .map(|answer| match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("200") => body.to_owned(),
            _ => answer[..3].to_owned(),
        })
        .collect()
}

/// Streams of requests and their outcomes. Another request follows each refused one and must not be answered: that would be
/// smuggling.
const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

const GOOD: &[(&str, &[&str])] = &[
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &["[GET / \"a\" Host=a] \"\" []"]),
    ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &["[GET / \"a\" Host=a] \"\" []"]),
    ("GET / HTTP/1.0\r\n\r\n", &["[GET / \"-\" ] \"\" []"]),
    ("GET /a?b=c HTTP/1.1\r\nHOST:\t a:80 \t\r\nX:\r\n\r\n", &["[GET /a?b=c \"a:80\" HOST=a:80|X=] \"\" []"]),
    ("GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n", &["[GET http://b/c \"b\" Host=a] \"\" []"]),
    ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", &["[OPTIONS * \"a\" Host=a] \"\" []"]),
    (
        "X!#$%&'*+-.^_`|~1 / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        &["[X!#$%&'*+-.^_`|~1 / \"[::1]:80\" Host=[::1]:80] \"\" []"],
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        &["[POST / \"a\" Host=a|Content-Length=3] \"abc\" []"],
    ),
    ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", &["[GET / \"a\" Host=a|Content-Length=0] \"\" []"]),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=\"y;\"\r\nde\r\n0\r\nT: u\r\n\r\n",
        &["[POST / \"a\" Host=a|Transfer-Encoding=chunked] \"abcde\" [\"T\"]"],
    ),
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxyGET /3 HTTP/1.1\r\nHost: a\r\n\r\n",
        &[
            "[GET /1 \"a\" Host=a] \"\" []",
            "[POST /2 \"a\" Host=a|Content-Length=2] \"xy\" []",
            "[GET /3 \"a\" Host=a] \"\" []",
        ],
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\n",
        &["[GET / \"a\" Host=a|Connection=close] \"\" []"],
    ),
    // An incomplete request is not answered.
    ("GET / HTTP/1.1\r\nHost: a\r\n", &[]),
    ("", &[]),
    ("\r\n", &[]),
];

const BAD: &[(&str, &str)] = &[
    // Line endings and fields.
    ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET / HTTP/1.1\nHost: a\n\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\n\r\n", "400"),
    ("GET / HTTP/1.1\rHost: a\r\r", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n", "400"),
    ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    // Request lines.
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400"),
    ("GET / HTTP/1.1 x\r\nHost: a\r\n\r\n", "400"),
    ("GET /\r\nHost: a\r\n\r\n", "400"),
    ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"),
    ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", "505"),
    ("GET / HTTP/1.1x\r\nHost: a\r\n\r\n", "400"),
    ("GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /#x HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("\u{16}\u{3}\u{1}", "400"),
    // Hosts.
    ("GET / HTTP/1.1\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400"),
    ("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    // Lengths.
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3 \u{b}\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc", "417"),
    // Chunks.
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n0\r\n\r\n", "400"),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
        "400",
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n", "400"),
    // Limits.
    ("GET /0123456789012345678901234567890123456789012345678901234567890123456789 HTTP/1.1\r\nHost: a\r\n\r\n", "414"),
    ("GET / HTTP/1.1\r\nHost: a\r\n1:\r\n2:\r\n3:\r\n4:\r\n5:\r\n6:\r\n7:\r\n8:\r\n\r\n", "431"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", "413"),
];

#[test]
fn good_requests_are_parsed_however_they_are_split() {
    let mut site = Site::new();
    for (stream, expected) in GOOD {
        assert_eq!(outcomes(&site.answer_however_split(stream.as_bytes())), *expected, "{stream:?}");
    }
}

#[test]
fn bad_requests_are_refused_however_they_are_split_and_end_the_connection() {
    let mut site = Site::new();
    for (stream, status) in BAD {
        let answer = site.answer_however_split(format!("{stream}{NEXT}").as_bytes());
        assert_eq!(outcomes(&answer), [*status], "{stream:?}");
        assert!(answer.contains("Connection: close\r\n"), "{stream:?}: {answer}");
    }
}

#[test]
fn long_header_fields_are_refused_however_they_are_split() {
    let mut site = Site::new();
    let stream = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n{NEXT}", "x".repeat(300));
    assert_eq!(outcomes(&site.answer_however_split(stream.as_bytes())), ["431"]);
}

#[test]
fn refusals_follow_the_responses_to_earlier_requests() {
    let mut site = Site::new();
    for (stream, status) in BAD.iter().step_by(7) {
        let stream = format!("{NEXT}{stream}");
        let answer = outcomes(&site.answer(&[stream.as_bytes()]));
        assert_eq!(answer.len(), 2, "{stream:?}");
        assert!(answer[0].contains("/smuggled") && answer[1] == *status, "{stream:?}: {answer:?}");
    }
}
