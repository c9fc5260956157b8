//! Bodies of requests and responses: streamed, compressed, in parts, as events.

mod common;

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::scripted::Scripted;
use pelton::{EventLoop, Reactor};
use pelton_http::SendState;
use pelton_http::client::{
    Client, Error, ErrorKind, Exchange, Multipart, Request, Response, ResponseEvent, Settings, SourceEvent,
};
use pelton_testing::{On, block_on, on_every_engine, pattern, run_until};

on_every_engine![
    streamed_bodies_are_sent_with_back_pressure,
    lengths_of_streamed_bodies_are_checked,
    bodies_wait_for_consent,
    refused_bodies_are_not_sent,
    silent_servers_get_the_body_anyway,
    compressed_responses_are_decompressed,
    bombs_are_refused,
    broken_compression_is_an_error,
    compressed_responses_can_be_paused,
    multipart_forms_are_sent,
    tasks_read_in_pieces,
    events_are_received_again_after_an_end,
    sources_that_are_none_are_not_asked_again,
];

fn fetch(reactor: &mut EventLoop, request: Request) -> Result<Response, Error> {
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    request.send(reactor, move |_, response| *slot.borrow_mut() = Some(response));
    run_until(reactor, |_| answer.borrow().is_some());
    answer.take().unwrap()
}

fn send_all(reactor: &mut Reactor, exchange: Exchange, body: Rc<Vec<u8>>, mut at: usize, peak: Rc<Cell<usize>>) {
    while at < body.len() {
        let end = body.len().min(at + 50_000);
        let state = exchange.send(reactor, body[at..end].to_vec()).unwrap();
        at = end;
        peak.set(peak.get() + 1);
        if state == SendState::Full {
            let again = exchange.clone();
            return exchange.when_ready(reactor, move |reactor| send_all(reactor, again, body, at, peak));
        }
    }
    exchange.finish(reactor);
}

fn streamed_bodies_are_sent_with_back_pressure(on: On) {
    let mut reactor = on.reactor();
    for length in [None, Some(12_000_000)] {
        // Waits before it reads, so that the body has to wait.
        let server = Scripted::new(move |visitor| {
            std::thread::sleep(Duration::from_millis(30));
            let mut hash = 0u64;
            let (mut all, mut buffer) = (Vec::new(), [0; 65536]);
            loop {
                let count = (&*visitor.stream).read(&mut buffer).unwrap();
                all.extend_from_slice(&buffer[..count]);
                let is_complete = match length {
                    None => all.ends_with(b"\r\n0\r\n\r\n"),
                    Some(length) => {
                        all.len() > length as usize && {
                            let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                            all.len() == end + length as usize
                        }
                    }
                };
                if is_complete {
                    break;
                }
            }
            let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut rest = &all[end..];
            let mut body = Vec::new();
            if length.is_some() {
                body.extend_from_slice(rest);
            } else {
                loop {
                    let line = rest.windows(2).position(|two| two == b"\r\n").unwrap();
                    let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
                    body.extend_from_slice(&rest[line + 2..line + 2 + size]);
                    rest = &rest[line + 2 + size + 2..];
                    if size == 0 {
                        break;
                    }
                }
            }
            for byte in body {
                hash = hash.wrapping_mul(31).wrapping_add(u64::from(byte));
            }
            let text = hash.to_string();
            visitor.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
            visitor.wait_for_end();
        });
        let body = Rc::new(pattern(12_000_000));
        let hash = body.iter().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let answer = Rc::new(RefCell::new(None));
        let slot = answer.clone();
        let request = Client::new().put(server.url()).streamed_body(length);
        let exchange = request.send(&mut reactor, move |_, response| *slot.borrow_mut() = Some(response));
        let sent = Rc::new(Cell::new(0));
        send_all(&mut reactor, exchange, body, 0, sent.clone());
        assert!(sent.get() < 100, "it was full after {} pieces", sent.get());
        run_until(&mut reactor, |_| answer.borrow().is_some());
        assert_eq!(answer.take().unwrap().unwrap().text(), hash.to_string());
    }
}

fn lengths_of_streamed_bodies_are_checked(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| visitor.wait_for_end());
    for (pieces, finishes, why) in [
        (&["12345", "6789"][..], false, "the body of the request is longer than announced"),
        (&["123"], true, "the body of the request is 5 bytes shorter than announced"),
    ] {
        let answer = Rc::new(RefCell::new(None));
        let slot = answer.clone();
        let request = Client::new().put(server.url()).streamed_body(Some(8));
        let exchange = request.send(&mut reactor, move |_, response| *slot.borrow_mut() = Some(response));
        for piece in pieces {
            let _ = exchange.send(&mut reactor, *piece);
        }
        if finishes {
            exchange.finish(&mut reactor);
        }
        run_until(&mut reactor, |_| answer.borrow().is_some());
        let error = answer.take().unwrap().unwrap_err();
        assert!(error.to_string().ends_with(why), "{error}");
    }
}

/// Reads a head only.
fn head_of(visitor: &mut common::scripted::Visitor) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        (&*visitor.stream).read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn nothing_arrives(visitor: &mut common::scripted::Visitor) -> bool {
    visitor.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let arrived = (&*visitor.stream).read(&mut [0; 10]);
    visitor.stream.set_read_timeout(Some(pelton_testing::DEADLINE)).unwrap();
    arrived.is_err()
}

fn bodies_wait_for_consent(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        assert!(head_of(visitor).contains("Expect: 100-continue\r\n"));
        assert!(nothing_arrives(visitor));
        visitor.send("HTTP/1.1 100 Continue\r\n\r\n");
        let mut body = [0; 5];
        (&*visitor.stream).read_exact(&mut body).unwrap();
        assert_eq!(&body, b"hello");
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        visitor.wait_for_end();
    });
    let settings = Settings { continues: Duration::from_secs(20), ..Settings::default() };
    let client = Client::with_settings(settings);
    let response = fetch(&mut reactor, client.put(server.url()).body("hello").expect_continue()).unwrap();
    assert_eq!(response.body(), b"ok");
    assert_eq!(client.connections(&mut reactor), (1, 1));
}

fn refused_bodies_are_not_sent(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        head_of(visitor);
        visitor.send("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno");
        assert_eq!((&*visitor.stream).read(&mut [0; 10]).unwrap_or(0), 0, "no body, and the connection is closed");
    });
    let client = Client::new();
    let response = fetch(&mut reactor, client.put(server.url()).body("hello").expect_continue()).unwrap();
    assert_eq!(response.status(), 417);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn silent_servers_get_the_body_anyway(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let client = Client::with_settings(Settings { continues: Duration::from_millis(10), ..Settings::default() });
    let response = fetch(&mut reactor, client.put(server.url()).body("hello").expect_continue()).unwrap();
    assert_eq!(response.body(), b"ok");
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zstd(data: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
}

fn compressed(coding: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn compressed_responses_are_decompressed(on: On) {
    let mut reactor = on.reactor();
    let text = pattern(300_000);
    for (coding, body, expected) in [
        ("gzip", gzip(&text), &text[..]),
        ("zstd", zstd(&text), &text[..]),
        ("br", b"\x0b\x02\x80hello\x03".to_vec(), b"hello"),
        ("unknown", b"as it is".to_vec(), b"as it is"),
        ("gzip", Vec::new(), b""),
    ] {
        let server = Scripted::answering(compressed(coding, &body));
        let client = Client::new();
        for _ in 0..2 {
            let response = fetch(&mut reactor, client.get(server.url())).unwrap();
            assert!(response.body() == expected, "{coding}: {} bytes", response.body().len());
        }
        assert_eq!(server.accepted(), 1);
        // Who asks for a coding gets it.
        let raw = fetch(&mut reactor, client.get(server.url()).header("Accept-Encoding", coding)).unwrap();
        assert_eq!(raw.body(), body);
        assert_eq!(fetch(&mut reactor, client.head(server.url())).unwrap().body(), b"");
    }
}

fn bombs_are_refused(on: On) {
    let mut reactor = on.reactor();
    // Blocks of four bytes that stand for 128 KiB each: together 128 GiB.
    let block = ((128u32 << 10) << 3 | 1 << 1).to_le_bytes();
    let blocks = [block[0], block[1], block[2], b'x'].repeat(1 << 20);
    let zstd_bomb = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3], &blocks[..]].concat();
    for (coding, bomb) in [("gzip", gzip(&vec![0; 8_000_000])), ("zstd", zstd_bomb)] {
        let server = Scripted::answering(compressed(coding, &bomb));
        let client = Client::with_settings(Settings { body: 1_000_000, ..Settings::default() });
        let error = fetch(&mut reactor, client.get(server.url())).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooLarge { limit: 1_000_000 }), "{error}");
        // Streams have a limit too.
        let client = Client::with_settings(Settings { decompressed: 1_000_000, ..Settings::default() });
        let outcome = Rc::new(RefCell::new((0, None)));
        let seen = outcome.clone();
        client.get(server.url()).stream(&mut reactor, move |_, event| match event {
            ResponseEvent::Data(data) => seen.borrow_mut().0 += data.len(),
            ResponseEvent::Failed(error) => seen.borrow_mut().1 = Some(error),
            ResponseEvent::End(_) => panic!("complete"),
            ResponseEvent::Interim(_) | ResponseEvent::Head(_) => {}
        });
        run_until(&mut reactor, |_| outcome.borrow().1.is_some());
        assert!(outcome.borrow().0 <= 1_000_000);
    }
}

fn broken_compression_is_an_error(on: On) {
    let mut reactor = on.reactor();
    let whole = gzip(b"hello hello hello");
    for (coding, body) in [
        ("gzip", whole[..whole.len() - 5].to_vec()),
        ("gzip", b"not compressed".to_vec()),
        ("br", b"\x0b\x02\x80hel".to_vec()),
        ("zstd", b"not compressed".to_vec()),
    ] {
        let server = Scripted::answering(compressed(coding, &body));
        let error = fetch(&mut reactor, Client::new().get(server.url())).unwrap_err();
        assert_eq!(error.to_string(), format!("GET {}: the body is not valid {coding}", server.url()));
    }
}

fn compressed_responses_can_be_paused(on: On) {
    let mut reactor = on.reactor();
    let text = vec![b'x'; 5_000_000];
    let server = Scripted::answering(compressed("gzip", &gzip(&text)));
    let state = Rc::new((Cell::new(0), Cell::new(false), RefCell::new(None::<Exchange>)));
    let own = state.clone();
    let exchange = Client::new().get(server.url()).stream(&mut reactor, move |reactor, event| match event {
        ResponseEvent::Data(data) => {
            own.0.set(own.0.get() + data.len());
            let exchange = own.2.borrow().clone().unwrap();
            exchange.pause(reactor);
            reactor.next_tick(move |reactor| exchange.resume(reactor));
        }
        ResponseEvent::End(_) => own.1.set(true),
        ResponseEvent::Failed(error) => panic!("{error}"),
        ResponseEvent::Interim(_) | ResponseEvent::Head(_) => {}
    });
    *state.2.borrow_mut() = Some(exchange);
    run_until(&mut reactor, |_| state.1.get());
    assert_eq!(state.0.get(), 5_000_000);
}

fn multipart_forms_are_sent(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        while let Some(request) = visitor.request() {
            visitor.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}", request.len()));
        }
    });
    let path = std::env::temp_dir().join(format!("pelton-http-part-{}-{}", std::process::id(), on.0.name()));
    std::fs::write(&path, "from a file").unwrap();
    let form = Multipart::new()
        .text("title", "a note")
        .part("one\"\r\n", "x.txt", "text/plain", "y".repeat(10_000))
        .file("two", "z", "text/plain", std::fs::File::open(&path).unwrap());
    let text = fetch(&mut reactor, Client::new().post(server.url()).multipart(form)).unwrap().text().into_owned();
    std::fs::remove_file(&path).unwrap();
    let boundary = text.split("boundary=").nth(1).unwrap().split("\r\n").next().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let part = |head: &str, content: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let typed = "\r\nContent-Type: text/plain";
    let expected = part("name=\"title\"", "a note")
        + &part(&format!("name=\"one%22%0D%0A\"; filename=\"x.txt\"{typed}"), &"y".repeat(10_000))
        + &part(&format!("name=\"two\"; filename=\"z\"{typed}"), "from a file")
        + &format!("--{boundary}--\r\n");
    assert_eq!(body, expected);
}

fn tasks_read_in_pieces(on: On) {
    let mut reactor = on.reactor();
    let body = pattern(3_000_000);
    let server = Scripted::answering([b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n", &body[..]].concat());
    let (client, url) = (Client::new(), server.url());
    let task = client.clone();
    let received = block_on(&mut reactor, async move {
        let mut incoming = task.get(&url).open().await?;
        assert_eq!((incoming.head().status(), incoming.head().header("content-length")), (200, Some(&b"3000000"[..])));
        let mut all = Vec::new();
        while let Some(piece) = incoming.next().await? {
            all.extend_from_slice(&piece);
            // Slower than the server.
            pelton::task::yield_now().await;
        }
        assert!(incoming.next().await?.is_none());
        let mut limited = task.get(&url).open().await?;
        assert!(matches!(limited.rest(1000).await.unwrap_err().kind(), ErrorKind::TooLarge { limit: 1000 }));
        drop(limited);
        // Dropped before its head has arrived, and in the middle of its body.
        drop(task.get(&url).open());
        drop(task.get(&url).open().await?);
        assert!(task.get("http://127.0.0.1:1/").open().await.is_err());
        Ok::<_, Error>(all)
    });
    assert!(received.unwrap() == body);
    run_until(&mut reactor, |reactor| client.connections(reactor).0 <= 1);
}

fn events_are_received_again_after_an_end(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        let request = visitor.request().unwrap();
        assert!(request.contains("Accept: text/event-stream\r\n"), "{request}");
        match visitor.number {
            0 => {
                assert!(!request.contains("Last-Event-ID"));
                visitor.send(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n\
                    retry: 5\nid: 7\ndata: one\n\ndata: unfin",
                );
            }
            1 => visitor.reset(),
            _ => {
                assert!(request.contains("Last-Event-ID: 7\r\n"), "{request}");
                visitor.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: add\ndata: two\n\n");
                visitor.wait_for_end();
            }
        }
    });
    let log = Rc::new(RefCell::new(Vec::new()));
    let seen = log.clone();
    let client = Client::new();
    let source = client.events(&mut reactor, server.url(), move |_, event| {
        seen.borrow_mut().push(match event {
            SourceEvent::Open => "open".to_owned(),
            SourceEvent::Message(message) => format!("{} {} {}", message.name, message.data, message.id),
            SourceEvent::Lost(_, wait) => format!("lost {wait:?}"),
            SourceEvent::Ended(error) => panic!("{error}"),
        });
    });
    run_until(&mut reactor, |_| log.borrow().len() == 6);
    let expected = ["open", "message one 7", "lost 5ms", "lost 5ms", "open", "add two 7"];
    assert_eq!(*log.borrow(), expected);
    assert!(source.is_open());
    source.close(&mut reactor);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
    assert_eq!(log.borrow().len(), 6);
}

fn sources_that_are_none_are_not_asked_again(on: On) {
    let mut reactor = on.reactor();
    for answer in [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno",
    ] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = Scripted::new(move |visitor| {
            while visitor.request().is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                visitor.send(answer);
            }
        });
        let ended = Rc::new(Cell::new(0));
        let flag = ended.clone();
        let source = Client::new().events(&mut reactor, server.url(), move |_, event| match event {
            SourceEvent::Ended(_) => flag.set(flag.get() + 1),
            other => panic!("{other:?}"),
        });
        run_until(&mut reactor, |_| ended.get() == 1);
        assert!(!source.is_open());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}
