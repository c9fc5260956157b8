//! Streams, large bodies, files and events, over real connections, on every engine.

mod common;

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use common::{On, Serve, on_every_engine, statuses, undated};
use pelton::{Bytes, Reactor};
use pelton_http::{Event, EventStream, Request, Responder, Response, ResponseFields, ResponseStream, SendState, plain};

on_every_engine![
    streams_are_chunked_with_trailers,
    stream_with_a_length_is_not_chunked,
    stream_of_the_wrong_length_is_cut_off,
    http_1_0_stream_ends_with_the_connection,
    stream_in_response_to_head_has_no_body,
    stream_waits_for_an_earlier_response,
    a_stream_waits_for_a_client_that_does_not_read,
    dropped_stream_closes_the_connection,
    a_stream_with_a_bad_head_is_a_500,
    large_body_is_sent_in_pieces,
    large_bodies_are_not_all_queued,
    file_range_is_sent,
    events_are_sent_as_they_happen,
];

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn streams_are_chunked_with_trailers(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let stream = responder.stream(reactor, Response::ok().header("Trailer", "Sum").body("zero "));
        stream.send(reactor, "one ").unwrap();
        stream.send(reactor, "").unwrap();
        reactor.after(Duration::from_millis(10), |reactor| {
            stream.send(reactor, "two").unwrap();
            let mut trailers = ResponseFields::default();
            trailers.append("Sum", "3");
            stream.finish_with_trailers(reactor, trailers);
        });
    };
    let answer = undated(&on.serve(handler).ask(GET.repeat(2)));
    let once = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n\
        5\r\nzero \r\n4\r\none \r\n3\r\ntwo\r\n0\r\nSum: 3\r\n\r\n";
    assert_eq!(answer, once.repeat(2));
}

fn stream_of(length: &'static str, sent: &'static str) -> impl Fn(&mut Reactor, Request<'_>, Responder) {
    move |reactor, _, responder| {
        let stream = responder.stream(reactor, Response::ok().header("Content-Length", length));
        let _ = stream.send(reactor, sent);
        stream.finish(reactor);
    }
}

fn stream_with_a_length_is_not_chunked(on: On) {
    let answer = undated(&on.serve(stream_of("5", "hello")).ask(GET.repeat(2)));
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".repeat(2));
}

fn stream_of_the_wrong_length_is_cut_off(on: On) {
    let short = undated(&on.serve(stream_of("6", "hello")).ask(GET.repeat(2)));
    assert_eq!(short, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", "the connection closes");
    let long = undated(&on.serve(stream_of("4", "hello")).ask(GET.repeat(2)));
    assert_eq!(long, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "the connection closes");
}

fn http_1_0_stream_ends_with_the_connection(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let stream = responder.stream(reactor, Response::ok().body("one "));
        stream.send(reactor, "two").unwrap();
        stream.finish(reactor);
    };
    let answer = undated(&on.serve(handler).ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\none two");
}

fn stream_in_response_to_head_has_no_body(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let stream = responder.stream(reactor, Response::ok().body("one "));
        stream.finish(reactor);
    };
    let answer = undated(&on.serve(handler).ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2)));
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".repeat(2));
}

fn stream_waits_for_an_earlier_response(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if request.path() == "/late" {
            reactor.after(Duration::from_millis(20), |reactor| responder.respond(reactor, Response::ok().body("late")));
        } else {
            let stream = responder.stream(reactor, Response::ok());
            stream.send(reactor, "stream").unwrap();
            stream.finish(reactor);
        }
    };
    let answer = undated(&on.serve(handler).ask("GET /late HTTP/1.1\r\nHost: a\r\n\r\n".to_owned() + GET));
    let expected = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nstream\r\n0\r\n\r\n";
    assert_eq!(answer, expected);
}

/// The number of pieces sent, and the total.
#[derive(Default)]
struct Sent(usize);

const PIECES: usize = 400;
const PIECE: usize = 100_000;

fn send_on(reactor: &mut Reactor, stream: ResponseStream) {
    while reactor.state::<Sent>().0 < PIECES {
        reactor.state::<Sent>().0 += 1;
        match stream.send(reactor, vec![b'x'; PIECE]) {
            Ok(SendState::Ready) => {}
            Ok(SendState::Full) => return stream.when_ready(reactor, send_on),
            Err(gone) => panic!("{gone}"),
        }
    }
    stream.finish(reactor);
}

fn a_stream_waits_for_a_client_that_does_not_read(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let length = (PIECES * PIECE).to_string();
        let stream = responder.stream(reactor, Response::ok().header("Content-Length", length));
        send_on(reactor, stream);
    };
    let mut site = on.serve(handler);
    let mut client = common::Client::connect(&site.address);
    client.send(GET);
    // Until the stream makes no more progress.
    let (mut last, mut since) = (0, site.reactor.clock());
    let ticking = site.reactor.every(Duration::from_millis(5), |_, _| {});
    site.run_until(|reactor| {
        let (sent, now) = (reactor.state::<Sent>().0, reactor.clock());
        if sent != last {
            (last, since) = (sent, now);
        }
        last > 0 && now - since > Duration::from_millis(100)
    });
    site.reactor.cancel(ticking);
    assert!(last < PIECES, "everything was sent to a client that does not read");
    assert!(site.reactor.queued() < 1_000_000, "{} bytes are queued", site.reactor.queued());
    let received = site.run(move |_| {
        let head = client.read_until("\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200"));
        client.read_exactly(PIECES * PIECE).len()
    });
    assert_eq!(received, PIECES * PIECE);
}

fn dropped_stream_closes_the_connection(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let stream = responder.stream(reactor, Response::ok());
        stream.send(reactor, "some").unwrap();
    };
    let answer = undated(&on.serve(handler).ask(GET.repeat(2)));
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n", "without an end");
}

fn a_stream_with_a_bad_head_is_a_500(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let stream = responder.stream(reactor, Response::ok().header("A", "b\nc"));
        let _ = stream.send(reactor, "some");
        stream.finish(reactor);
    };
    let answer = on.serve(handler).ask(GET.repeat(2));
    assert_eq!(statuses(&answer), [500], "{answer}");
    assert!(!answer.contains("some"), "{answer}");
}

fn large_body_is_sent_in_pieces(on: On) {
    // More than may be queued on a connection.
    let body = Bytes::from(vec![b'x'; 40_000_000]);
    let sent = body.clone();
    let mut site = on.serve(plain(move |_| Response::ok().body(body.clone())));
    let received = site.ask(GET);
    let (head, body) = received.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Length: 40000000"));
    assert!(body.as_bytes() == sent, "{} bytes", body.len());
}

fn large_bodies_are_not_all_queued(on: On) {
    let body = Bytes::from(vec![b'x'; 100_000]);
    let mut site = on.serve(plain(move |_| Response::ok().body(body.clone())));
    let mut client = common::Client::connect(&site.address);
    client.send(GET.repeat(300));
    // All responses together would be 30 MB. As many as fit are queued; the rest wait as requests.
    let (mut most, end) = (0, site.reactor.clock() + Duration::from_millis(200));
    site.reactor.after(Duration::from_millis(200), |_| {});
    site.run_until(|reactor| {
        most = most.max(reactor.queued());
        reactor.clock() >= end
    });
    assert!((1..1_000_000).contains(&most), "{most} bytes were queued");
    let received = site.run(move |_| {
        client.finish();
        client.read_to_end()
    });
    assert_eq!(statuses(&received).len(), 300);
    assert_eq!(received.bytes().filter(|byte| *byte == b'x').count(), 30_000_000);
}

fn file_range_is_sent(on: On) {
    let name = format!("pelton-http-{}-{}", std::process::id(), on.0.name());
    let path = std::env::temp_dir().join(name);
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let contents: Vec<u8> = (0..1_000_000u32).map(|number| b'a' + (number % 26) as u8).collect();
    file.write_all(&contents).unwrap();
    file.rewind().unwrap();
    let file = Arc::new(file);
    let mut site = on.serve(plain(move |_| Response::new(206).file(file.clone(), 26, 900_000)));
    let received = site.ask(GET.repeat(3));
    assert_eq!(statuses(&received), [206; 3]);
    let expected = str::from_utf8(&contents[26..900_026]).unwrap();
    assert_eq!(received.matches(expected).count(), 3);
    let head = site.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.contains("Content-Length: 900000\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

fn events_are_sent_as_they_happen(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let events = EventStream::start(reactor, responder);
        events.comment(reactor, "hello").unwrap();
        let mut left = Some(events);
        let mut number = 0;
        reactor.every(Duration::from_millis(5), move |reactor, beat| {
            number += 1;
            let event = Event::new(format!("number {number}"));
            if let Some(events) = left.as_ref() {
                events.send(reactor, &event).unwrap();
            }
            if number == 3 {
                left.take().unwrap().into_stream().finish(reactor);
                reactor.cancel(beat.timer);
            }
        });
    };
    let mut site = on.serve(handler);
    let text = site.curl("-N URL/", Vec::new());
    assert_eq!(text, ": hello\n\ndata: number 1\n\ndata: number 2\n\ndata: number 3\n\n");
}
