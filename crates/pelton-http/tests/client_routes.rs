//! How the client reaches servers: TLS, Unix sockets, redirects, proxies; and other protocols.

mod common;

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use common::scripted::Scripted;
use pelton::{Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_http::client::{Client, Error, ErrorKind, Proxies, Proxy, Request, Response, Settings};
use pelton_http::{Server, plain};
use pelton_testing::{Authority, On, on_every_engine, run_until};

on_every_engine![
    tls_is_verified,
    tls_closed_without_notice_is_an_error,
    unix_sockets_are_reached,
    redirects_are_followed,
    redirects_change_methods,
    redirects_across_origins_lose_secrets,
    redirects_in_circles_and_elsewhere_are_errors,
    redirected_bodies_are_skipped,
    http_proxies_forward,
    http_proxies_tunnel,
    socks_proxies_tunnel,
    broken_proxies_are_errors,
    protocols_are_switched,
];

fn fetch(reactor: &mut EventLoop, request: Request) -> Result<Response, Error> {
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    request.send(reactor, move |_, response| *slot.borrow_mut() = Some(response));
    run_until(reactor, |_| answer.borrow().is_some());
    answer.take().unwrap()
}

/// Serves over TLS, with a certificate for this name. Returns the port.
fn serve_tls(reactor: &mut EventLoop, authority: &Authority, name: &str) -> u16 {
    let issued = authority.issue(&[name]);
    let tls = pelton_tls::Server::builder().certificate(issued.chain, issued.key).build().unwrap();
    let server = Server::new(plain(|request| format!("secret {}", request.host().unwrap_or_default())));
    let listener = reactor.listen("127.0.0.1:0", move |_| tls.wrap(server.connection())).unwrap();
    match reactor.listening_on(listener).unwrap() {
        pelton::Address::Tcp(address) => address.port(),
        other => panic!("{other}"),
    }
}

fn trusting(authority: &Authority) -> Client {
    let tls = pelton_tls::Client::builder().roots(authority.pem.clone()).build().unwrap();
    Client::builder().tls(tls).build()
}

fn tls_is_verified(on: On) {
    let mut reactor = on.reactor();
    let authority = Authority::new("test");
    let port = serve_tls(&mut reactor, &authority, "localhost");
    let client = trusting(&authority);
    for _ in 0..3 {
        let response = fetch(&mut reactor, client.get(format!("https://localhost:{port}/"))).unwrap();
        assert_eq!(response.text(), format!("secret localhost:{port}"));
        assert_eq!(client.connections(&mut reactor), (1, 1));
    }
    let wrong_name = fetch(&mut reactor, client.get(format!("https://127.0.0.1:{port}/"))).unwrap_err();
    assert!(wrong_name.is_connect() && wrong_name.to_string().contains("certificate"), "{wrong_name}");
    let unknown = fetch(&mut reactor, trusting(&Authority::new("other")).get(format!("https://localhost:{port}/")));
    let unknown = unknown.unwrap_err();
    assert!(unknown.is_connect() && unknown.to_string().contains("UnknownIssuer"), "{unknown}");
    // A server without TLS.
    let plain = Scripted::closing_after("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let request = client.get(format!("https://localhost:{}/", plain.address().port()));
    assert!(fetch(&mut reactor, request.time_limit(Duration::from_millis(200))).is_err());
}

/// Forwards a TLS connection, but cuts it without the closing message.
fn tls_closed_without_notice_is_an_error(on: On) {
    let mut reactor = on.reactor();
    let authority = Authority::new("test");
    let issued = authority.issue(&["localhost"]);
    let tls = pelton_tls::Server::builder().certificate(issued.chain, issued.key).build().unwrap();
    struct Cut;
    impl Connection for Cut {
        fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
            io.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of a bo").unwrap();
        }
    }
    let listener = reactor.listen("127.0.0.1:0", move |_| tls.wrap(Cut)).unwrap();
    let target = reactor.listening_on(listener).unwrap().to_string();
    // Between both: forwards until some of the response was forwarded, then closes.
    let cutter = Scripted::new(move |visitor| {
        let server = TcpStream::connect(&target).unwrap();
        let (up, down) = (server.try_clone().unwrap(), visitor.stream.clone());
        let forward = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count) = (&*down).read(&mut buffer) {
                if count == 0 || (&up).write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        });
        let mut buffer = [0; 65536];
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while let Ok(count) = (&server).read(&mut buffer) {
            if count == 0 || !visitor.send(&buffer[..count]) {
                break;
            }
        }
        visitor.finish();
        visitor.wait_for_end();
        let _ = server.shutdown(std::net::Shutdown::Both);
        forward.join().unwrap();
    });
    let request = trusting(&authority).get(format!("https://localhost:{}/", cutter.address().port()));
    let error = fetch(&mut reactor, request).unwrap_err();
    let truncated = matches!(error.kind(), ErrorKind::Ended { reason: Reason::Truncated, begun: true });
    assert!(truncated, "{error}");
}

fn unix_sockets_are_reached(on: On) {
    let mut reactor = on.reactor();
    let path = std::env::temp_dir().join(format!("pelton-http-client-{}-{}.sock", std::process::id(), on.0.name()));
    let _ = std::fs::remove_file(&path);
    let server = Server::new(plain(|request| format!("{} {}", request.target(), request.host().unwrap_or_default())));
    server.listen(&mut reactor, format!("unix:{}", path.display()).as_str()).unwrap();
    let escaped = path.display().to_string().replace('/', "%2F");
    let response = fetch(&mut reactor, Client::new().get(format!("http+unix://{escaped}/status?x"))).unwrap();
    assert_eq!(response.text(), "/status?x localhost");
    drop(reactor);
    let _ = std::fs::remove_file(&path);
}

/// Answers with what it was asked, or with a redirect: `/301/to/there` leads to `/to/there`.
fn redirecting() -> Scripted {
    Scripted::new(|visitor| {
        while let Some(request) = visitor.request() {
            let target = request.split(' ').nth(1).unwrap().to_owned();
            let status = target.get(1..4).and_then(|status| status.parse::<u16>().ok()).filter(|status| *status >= 300);
            let answer = match status {
                Some(status) => {
                    let to = target[4..].replace("/to=", "");
                    format!("HTTP/1.1 {status} Away\r\nLocation: {to}\r\nContent-Length: 4\r\n\r\ngone")
                }
                None => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}", request.len()),
            };
            visitor.send(answer);
        }
    })
}

fn redirects_are_followed(on: On) {
    let mut reactor = on.reactor();
    let (server, client) = (redirecting(), Client::new());
    let base = server.url();
    for status in [301, 302, 303, 307, 308] {
        let response = fetch(&mut reactor, client.get(format!("{base}{status}/{status}/end"))).unwrap();
        assert!(response.text().starts_with("GET /end HTTP/1.1\r\n"), "{}", response.text());
        assert_eq!(response.url().as_str(), format!("{base}end"));
    }
    assert_eq!(server.accepted(), 1, "redirects keep the connection");
    let response = fetch(&mut reactor, client.get(format!("{base}302/end")).redirects(0)).unwrap();
    assert_eq!((response.status(), response.header("location")), (302, Some(&b"/end"[..])));
    let response = fetch(&mut reactor, client.get(format!("{base}304/end")));
    assert_eq!(response.map(|response| response.status()).unwrap_or(0), 304);
}

fn redirects_change_methods(on: On) {
    let mut reactor = on.reactor();
    let (server, client) = (redirecting(), Client::new());
    let base = server.url();
    for (status, method, expected) in [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
        (301, "PUT", "PUT"),
    ] {
        let request =
            client.get(format!("{base}{status}/end")).method(method).header("Content-Type", "x/y").body("abc");
        let text = fetch(&mut reactor, request).unwrap().text().into_owned();
        assert!(text.starts_with(&format!("{expected} /end ")), "{status} {method}: {text}");
        let has_body = expected != "GET";
        assert_eq!(text.ends_with("\r\n\r\nabc"), has_body, "{text}");
        assert_eq!(text.contains("Content-Type: x/y"), has_body, "{text}");
    }
}

fn redirects_across_origins_lose_secrets(on: On) {
    let mut reactor = on.reactor();
    let (one, two) = (redirecting(), redirecting());
    let secrets = |url: String| {
        let request = Client::new().get(url).bearer_auth("token").header("Cookie", "a=b").header("X-Kept", "yes");
        request.header("Proxy-Authorization", "x")
    };
    let away = fetch(&mut reactor, secrets(format!("{}302/to={}end", one.url(), two.url()))).unwrap();
    let text = away.text().to_lowercase();
    assert!(!text.contains("token") && !text.contains("cookie") && !text.contains("proxy-"), "{text}");
    assert!(text.contains("x-kept: yes") && text.contains(&format!("host: {}\r\n", two.address())), "{text}");
    let same = fetch(&mut reactor, secrets(format!("{}302/end", one.url()))).unwrap();
    assert!(same.text().contains("Bearer token") && same.text().contains("a=b"), "{}", same.text());
}

fn redirects_in_circles_and_elsewhere_are_errors(on: On) {
    let mut reactor = on.reactor();
    let circle = Scripted::answering("HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n");
    let error = fetch(&mut reactor, Client::new().get(circle.url())).unwrap_err();
    assert!(error.to_string().ends_with("redirected to \"/again\": too many redirects"), "{error}");
    for (to, why) in [
        ("file:///etc/passwd", "the scheme is neither http nor https"),
        ("http+unix://%2Frun%2Fdocker.sock/", "a redirect must not lead to a Unix socket"),
        ("http://a:99999/", "the port is invalid"),
        ("http://127.1/", "the IPv4 address is invalid"),
    ] {
        let server = Scripted::answering(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"));
        let error = fetch(&mut reactor, Client::new().get(server.url())).unwrap_err();
        assert!(error.to_string().ends_with(&format!("redirected to {to:?}: {why}")), "{error}");
    }
    let several =
        Scripted::answering("HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n");
    assert!(fetch(&mut reactor, Client::new().get(several.url())).is_err());
    let nowhere = Scripted::answering("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(fetch(&mut reactor, Client::new().get(nowhere.url())).unwrap().status(), 302);
    // From https to http.
    let authority = Authority::new("test");
    let issued = authority.issue(&["localhost"]);
    let tls = pelton_tls::Server::builder().certificate(issued.chain, issued.key).build().unwrap();
    let server = Server::new(plain(|_| pelton_http::Response::redirect(302, "http://localhost/")));
    let listener = reactor.listen("127.0.0.1:0", move |_| tls.wrap(server.connection())).unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string().replace("127.0.0.1", "localhost");
    let error = fetch(&mut reactor, trusting(&authority).get(format!("https://{address}/"))).unwrap_err();
    assert!(error.to_string().ends_with("it leads from https to http"), "{error}");
}

fn redirected_bodies_are_skipped(on: On) {
    let mut reactor = on.reactor();
    let end = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    for length in [50_000, 1_000_000] {
        let body = "x".repeat(length);
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: {length}\r\n\r\n", end.url());
        let server = Scripted::answering(head + &body);
        let client = Client::new();
        assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"ok");
        // A long body is not worth reading: the connection is closed.
        let open = if length > 65536 { 1 } else { 2 };
        run_until(&mut reactor, |reactor| client.connections(reactor) == (open, open));
    }
}

fn through(proxy: &str) -> Client {
    Client::builder().proxies(Proxies::all(Proxy::new(proxy).unwrap())).build()
}

fn http_proxies_forward(on: On) {
    let mut reactor = on.reactor();
    let proxy = redirecting();
    let client = through(&format!("http://user:word@{}", proxy.address()));
    let text = fetch(&mut reactor, client.get("http://unreachable.invalid/path?x")).unwrap().text().into_owned();
    assert!(
        text.starts_with("GET http://unreachable.invalid/path?x HTTP/1.1\r\nHost: unreachable.invalid\r\n"),
        "{text}"
    );
    assert!(text.contains("Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n"), "{text}");
}

/// A proxy that opens one tunnel to `target` after the handshake of `open`.
fn tunnelling(target: String, open: fn(&mut common::scripted::Visitor)) -> Scripted {
    Scripted::new(move |visitor| {
        open(visitor);
        let server = TcpStream::connect(&target).unwrap();
        let (up, down) = (server.try_clone().unwrap(), visitor.stream.clone());
        let forward = std::thread::spawn(move || {
            let _ = std::io::copy(&mut &*down, &mut &up);
            let _ = up.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut &server, &mut &*visitor.stream);
        let _ = visitor.stream.shutdown(std::net::Shutdown::Both);
        forward.join().unwrap();
    })
}

fn http_proxies_tunnel(on: On) {
    let mut reactor = on.reactor();
    let authority = Authority::new("test");
    let port = serve_tls(&mut reactor, &authority, "far.invalid");
    let proxy = tunnelling(format!("127.0.0.1:{port}"), |visitor| {
        let request = visitor.request().unwrap();
        assert_eq!(request, "CONNECT far.invalid:443 HTTP/1.1\r\nHost: far.invalid:443\r\n\r\n");
        visitor.send("HTTP/1.1 200 Connection established\r\n\r\n");
    });
    let tls = pelton_tls::Client::builder().roots(authority.pem.clone()).build().unwrap();
    let proxies = Proxies::all(Proxy::new(&proxy.url()).unwrap());
    let client = Client::builder().tls(tls).proxies(proxies).build();
    for _ in 0..2 {
        assert_eq!(fetch(&mut reactor, client.get("https://far.invalid/")).unwrap().text(), "secret far.invalid");
    }
    assert_eq!(proxy.accepted(), 1);
    client.close_idle(&mut reactor);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn socks_proxies_tunnel(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfar");
    let proxy = tunnelling(server.address().to_string(), |visitor| {
        let read = |count: usize| {
            let mut bytes = vec![0; count];
            (&*visitor.stream).read_exact(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(4), b"\x05\x02\x00\x02");
        (&*visitor.stream).write_all(b"\x05\x02").unwrap();
        assert_eq!(read(9), b"\x01\x03the\x03key");
        (&*visitor.stream).write_all(b"\x01\x00").unwrap();
        assert_eq!(read(18), b"\x05\x01\x00\x03\x0bfar.invalid\x00\x50");
        (&*visitor.stream).write_all(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00").unwrap();
    });
    let client = through(&format!("socks5://the:key@{}", proxy.address()));
    assert_eq!(fetch(&mut reactor, client.get("http://far.invalid/")).unwrap().text(), "far");
    client.close_idle(&mut reactor);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn broken_proxies_are_errors(on: On) {
    let mut reactor = on.reactor();
    for (answer, why) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "CONNECT was answered with status 407",
        ),
        ("HTTP/1.1 200 OK\r\n\r\nearly", "unexpected data after the response"),
        ("rubbish\r\n\r\n", "the response does not begin with HTTP/1."),
    ] {
        let proxy = Scripted::answering(answer);
        let error = fetch(&mut reactor, through(&proxy.url()).get("https://a.invalid/")).unwrap_err();
        assert_eq!(error.to_string(), format!("GET https://a.invalid/: proxy: {why}"));
    }
    let proxy = Scripted::new(|visitor| visitor.wait_for_end());
    let settings = Settings { connect: Duration::from_millis(20), ..Settings::default() };
    let proxies = Proxies::all(Proxy::new(&format!("socks5://{}", proxy.address())).unwrap());
    let client = Client::builder().settings(settings).proxies(proxies).build();
    assert!(fetch(&mut reactor, client.get("http://a.invalid/")).unwrap_err().is_timeout());
}

fn protocols_are_switched(on: On) {
    struct Shout {
        heard: Rc<RefCell<Vec<u8>>>,
    }
    impl Connection for Shout {
        fn opened(&mut self, io: &mut Io<'_>) {
            io.send(b"hello").unwrap();
        }
        fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
            self.heard.borrow_mut().extend_from_slice(&chunk);
        }
    }
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        let request = visitor.request().unwrap();
        assert!(request.contains("Upgrade: shout\r\n") && request.contains("Connection: upgrade\r\n"), "{request}");
        visitor.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: shout\r\nConnection: Upgrade\r\n\r\nfirst,");
        let mut word = [0; 5];
        (&*visitor.stream).read_exact(&mut word).unwrap();
        visitor.send(word.to_ascii_uppercase());
        visitor.wait_for_end();
    });
    let heard = Rc::new(RefCell::new(Vec::new()));
    let shout = Shout { heard: heard.clone() };
    let client = Client::new();
    let never = |_: &mut Reactor, error: Error| panic!("{error}");
    client.get(server.url()).upgrade(
        &mut reactor,
        "shout",
        |_, head| {
            assert_eq!(head.fields().text("upgrade"), Some("shout"));
            Some(Box::new(shout))
        },
        never,
    );
    run_until(&mut reactor, |_| heard.borrow().as_slice() == b"first,HELLO");
    assert_eq!(client.connections(&mut reactor), (0, 0), "it does not belong to the pool any more");
    // A server that does not want to.
    let unwilling = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let failed = Rc::new(Cell::new(false));
    let flag = failed.clone();
    client.get(unwilling.url()).upgrade(
        &mut reactor,
        "shout",
        |_, _| None,
        move |_, error| {
            assert!(matches!(error.kind(), ErrorKind::NotSwitched(200)), "{error}");
            flag.set(true);
        },
    );
    run_until(&mut reactor, |_| failed.get());
}
