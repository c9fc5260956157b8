//! The reverse proxy between hostile clients and hostile servers.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::scripted::Scripted;
use common::{Serve, Site, field, statuses};
use pelton_http::client::Settings as ClientSettings;
use pelton_http::{Client, ReverseProxy, Settings};
use pelton_testing::{On, on_every_engine};

on_every_engine![
    smuggled_requests_reach_no_server,
    lengths_are_set_anew,
    malformed_responses_are_502,
    responses_are_not_split,
    servers_that_do_not_answer_in_time_are_504,
    a_response_that_breaks_off_is_cut_off,
    a_response_until_the_end_of_an_old_connection_is_reset,
    a_client_that_goes_away_ends_the_request,
    a_client_that_goes_away_ends_a_long_response,
    a_client_that_goes_away_in_its_body_ends_the_request,
    slow_bodies_of_clients_are_refused,
    long_bodies_are_refused,
    a_server_that_resets_while_the_client_does_not_read_is_noticed,
    a_client_that_goes_away_while_protocols_are_switched,
    circles_end,
    every_cut_of_a_response_is_noticed,
];

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn proxy(server: &Scripted) -> ReverseProxy {
    ReverseProxy::to([format!("http://{}", server.address())]).unwrap()
}

fn impatient(server: &Scripted) -> ReverseProxy {
    let patience = Duration::from_millis(200);
    let settings = ClientSettings { head: patience, between: patience, connect: patience, ..ClientSettings::default() };
    proxy(server).client(Client::with_settings(settings))
}

/// A server that counts the requests that it understands, and how many bytes it gets.
fn counting() -> (Scripted, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let server = Scripted::new(move |visitor| {
        while visitor.request().is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
            visitor.send(OK);
        }
    });
    (server, count)
}

fn smuggled_requests_reach_no_server(on: On) {
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let heads = [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding: chunked\x00\r\n",
        "Transfer\u{2010}Encoding: chunked\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n",
        "X: a\r\n\tContent-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "X: a\rContent-Length: 5\r\n",
        "X: a\nContent-Length: 5\r\n",
        "\r\nHost: b\r\n",
        "Host: b\r\n",
    ];
    let (server, count) = counting();
    let mut site = on.serve(proxy(&server));
    for head in heads {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n0\r\n\r\n{hidden}");
        let answer = site.ask(request);
        let expected: &[u16] = if head.starts_with("\r\n") { &[200, 400] } else { &[400] };
        let seen = statuses(&answer);
        assert!(seen == expected || (seen.len() == 1 && seen[0] >= 400), "{head:?}: {answer}");
    }
    // Only the one whose head ended early was a request.
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

fn lengths_are_set_anew(on: On) {
    let (heard, requests) = mpsc::channel();
    let heard = std::sync::Mutex::new(heard);
    let server = Scripted::new(move |visitor| {
        while let Some(request) = visitor.request() {
            heard.lock().unwrap().send(request).unwrap();
            visitor.send(OK);
        }
    });
    let mut site = on.serve(proxy(&server));
    // Naming the framing in Connection does not remove it.
    let answer = site
        .ask("POST / HTTP/1.1\r\nHost: a\r\nConnection: Content-Length, close, Host\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(statuses(&answer), [200]);
    let request = requests.recv().unwrap();
    assert_eq!((field(&request, "Content-Length"), field(&request, "Host")), (Some("5"), Some("a")), "{request}");
    assert!(request.ends_with("\r\n\r\nhello"), "{request}");
    site.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(field(&requests.recv().unwrap(), "Content-Length"), Some("0"));
}

fn malformed_responses_are_502(on: On) {
    for answer in [
        "",
        "rubbish\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 999 What\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nok",
    ] {
        let server = Scripted::closing_after(answer);
        let mut site = on.serve(proxy(&server));
        let seen = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(statuses(&seen), [502], "{answer:?}: {seen}");
    }
    let endless = Scripted::new(|visitor| {
        visitor.request();
        while visitor.send("HTTP/1.1 102 Processing\r\n\r\n") {}
    });
    let mut site = on.serve(proxy(&endless));
    let seen = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(statuses(&seen).last(), Some(&502));
    assert!(statuses(&seen).len() < 20, "{seen}");
}

fn responses_are_not_split(on: On) {
    // A second response that nobody has asked for is never taken for the answer to the next request.
    let server = Scripted::answering(format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"));
    let mut site = on.serve(proxy(&server));
    for _ in 0..3 {
        let answer = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(!answer.contains("forged") && statuses(&answer) == [200, 200], "{answer}");
    }
}

fn servers_that_do_not_answer_in_time_are_504(on: On) {
    let silent = Scripted::new(|visitor| {
        visitor.request();
        visitor.wait_for_end();
    });
    let mut site = on.serve(impatient(&silent));
    assert_eq!(statuses(&site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")), [504]);
    // One byte after the other does not help.
    let dripping = Scripted::new(|visitor| {
        visitor.request();
        for byte in OK.bytes().cycle() {
            std::thread::sleep(Duration::from_millis(50));
            if !visitor.send([byte]) {
                break;
            }
        }
    });
    let mut site = on.serve(impatient(&dripping));
    assert_eq!(statuses(&site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")), [504]);
}

fn a_response_that_breaks_off_is_cut_off(on: On) {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\nrubbish\r\n",
    ] {
        let server = Scripted::closing_after(answer);
        let mut site = on.serve(proxy(&server));
        // Without an end of the request: the connection is closed all the same.
        let seen = site.with_client(|mut client| {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            client.read_to_end()
        });
        assert_eq!(statuses(&seen), [200], "{seen}");
        assert!(seen.contains("some") && !seen.ends_with("0\r\n\r\n"), "{seen}");
    }
    // A server that stops in the middle is cut off after a while.
    let stalls = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        visitor.wait_for_end();
    });
    let mut site = on.serve(impatient(&stalls));
    assert!(site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("some"));
}

fn a_response_until_the_end_of_an_old_connection_is_reset(on: On) {
    let server = Scripted::closing_after("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n");
    let mut site = on.serve(proxy(&server));
    let outcome = site.with_client(|mut client| {
        client.send("GET / HTTP/1.0\r\n\r\n");
        let mut all = Vec::new();
        client.0.read_to_end(&mut all).map_err(|error| error.kind())
    });
    assert_eq!(outcome, Err(std::io::ErrorKind::ConnectionReset));
    // Without a length, the end of the connection is the end of the body, also in the other direction.
    let complete = Scripted::closing_after("HTTP/1.0 200 OK\r\n\r\nsome");
    let mut site = on.serve(proxy(&complete));
    assert!(site.ask("GET / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nsome"));
    assert!(site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("4\r\nsome\r\n0\r\n\r\n"));
}

/// A server that reports when its client has ended the connection.
fn ending(answer: &'static str) -> (Scripted, mpsc::Receiver<()>, mpsc::Receiver<()>) {
    let ((begun, begins), (ended, ends)) = (mpsc::channel(), mpsc::channel());
    let senders = std::sync::Mutex::new((begun, ended));
    let server = Scripted::new(move |visitor| {
        let mut buffer = [0; 4096];
        let _ = (&*visitor.stream).read(&mut buffer);
        senders.lock().unwrap().0.send(()).unwrap();
        visitor.send(answer);
        visitor.wait_for_end();
        senders.lock().unwrap().1.send(()).unwrap();
    });
    (server, begins, ends)
}

fn a_client_that_goes_away_ends_the_request(on: On) {
    let (server, begins, ends) = ending("");
    let mut site = on.serve(proxy(&server));
    site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        begins.recv().unwrap();
        client.reset();
        ends.recv_timeout(common::DEADLINE).unwrap();
    });
}

fn a_client_that_goes_away_ends_a_long_response(on: On) {
    let (server, _begins, ends) = ending("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
    let mut site = on.serve(proxy(&server));
    site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_until("ok\r\n");
        client.reset();
        ends.recv_timeout(common::DEADLINE).unwrap();
    });
}

fn a_client_that_goes_away_in_its_body_ends_the_request(on: On) {
    for finishes in [true, false] {
        let (server, begins, ends) = ending("");
        let mut site = on.serve(proxy(&server));
        site.with_client(move |mut client| {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nsome");
            begins.recv().unwrap();
            if finishes {
                client.finish();
                assert_eq!(statuses(&client.read_to_end()), [400]);
            } else {
                client.reset();
            }
            ends.recv_timeout(common::DEADLINE).unwrap();
        });
    }
}

fn slow_bodies_of_clients_are_refused(on: On) {
    let (server, _begins, ends) = ending("");
    let settings = Settings { body_window: Duration::from_millis(100), body_rate: 1000, ..Settings::default() };
    let mut site = on.serve_with(proxy(&server), settings);
    site.with_client(move |mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nsome");
        assert_eq!(statuses(&client.read_to_end()), [408]);
        ends.recv_timeout(common::DEADLINE).unwrap();
    });
}

fn long_bodies_are_refused(on: On) {
    let (server, count) = counting();
    let mut site = on.serve_with(proxy(&server).body_limit(10), Settings::default());
    assert_eq!(statuses(&site.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")), [413]);
    let answer =
        site.ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n");
    assert_eq!(statuses(&answer), [413]);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

fn a_server_that_resets_while_the_client_does_not_read_is_noticed(on: On) {
    let (stuck, wait) = mpsc::channel();
    let stuck = std::sync::Mutex::new(stuck);
    let server = Scripted::new(move |visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        visitor.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let piece = vec![b'x'; 65536];
        while (&*visitor.stream).write_all(&piece).is_ok() {}
        visitor.reset();
        stuck.lock().unwrap().send(()).unwrap();
    });
    let mut site = on.serve(proxy(&server));
    let length = site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_until("\r\n\r\n");
        // Nothing is read before the server has filled everything in between.
        wait.recv_timeout(common::DEADLINE).unwrap();
        client.read_all().len()
    });
    assert!(length > 0 && length < 100_000_000, "{length}");
}

fn a_client_that_goes_away_while_protocols_are_switched(on: On) {
    let (server, begins, ends) = ending("");
    let mut site = on.serve(proxy(&server));
    site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n");
        begins.recv().unwrap();
        client.reset();
        ends.recv_timeout(common::DEADLINE).unwrap();
    });
    // A reset on one side is one on the other.
    let server = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 101 Switching\r\nUpgrade: chat\r\nConnection: upgrade\r\n\r\nhello");
        let mut bytes = [0; 5];
        (&*visitor.stream).read_exact(&mut bytes).unwrap();
        visitor.reset();
    });
    let mut site = on.serve(proxy(&server));
    let outcome = site.with_client(|mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n");
        client.read_until("hello");
        client.send("world");
        client.0.read(&mut [0; 10]).map_err(|error| error.kind())
    });
    assert_eq!(outcome, Err(std::io::ErrorKind::ConnectionReset));
}

fn circles_end(on: On) {
    // The proxy forwards to itself.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut reactor = on.reactor();
    let proxy = ReverseProxy::to([format!("http://{address}")]).unwrap();
    let server = pelton_http::Server::new(proxy);
    server.listen(&mut reactor, pelton::Address::Tcp(address)).unwrap();
    let mut site = Site { reactor, server, address: address.to_string() };
    assert_eq!(statuses(&site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")), [508]);
}

fn every_cut_of_a_response_is_noticed(on: On) {
    let whole = "HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    for end in 1..whole.len() {
        let server = Scripted::closing_after(&whole.as_bytes()[..end]);
        let mut site = on.serve(proxy(&server));
        let answer = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let is_complete = answer.ends_with("0\r\n\r\n") && answer.starts_with("HTTP/1.1 200");
        assert!(!is_complete && matches!(statuses(&answer)[..], [200] | [502]), "{end}: {answer}");
    }
}
