//! Web servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use super::{DEADLINE, start};

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
fn http_promises_sends_the_listed_files_and_no_name_escapes() {
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
    assert!(get("/files/static-site.rs").ends_with(include_str!("../../static-site.rs")));
    assert!(get("/files/../Cargo.toml").starts_with("HTTP/1.1 404 "), "outside the directory");
    assert!(get("/api/teams/red").ends_with("\r\n\r\nteam red\n"));
    assert!(get("/api/teams/red/greet/ann").ends_with("\r\n\r\nhello ann, of team red\n"));
    assert!(get("/api/teams/red/other").starts_with("HTTP/1.1 404 "));
}

#[test]
fn three_pages_are_fetched_in_three_styles() {
    for mut example in [example!("fetch-callbacks"), example!("fetch-promises"), example!("fetch-async")] {
        example.stdin(std::process::Stdio::null());
        let (status, printed) = start(example).finish();
        assert!(status.success(), "{printed:?}");
        for page in ["/one: 200, 3 bytes", "/two: 200, 3 bytes", "/three: 200, 5 bytes"] {
            assert!(printed.iter().any(|line| line.ends_with(page)), "{printed:?}");
        }
        assert_eq!(printed.last().unwrap(), "all pages: 11 bytes");
    }
}

#[test]
fn crawler_visits_every_page_once() {
    let (status, printed) = start(example!("crawler")).finish();
    assert!(status.success(), "{printed:?}");
    assert_eq!(printed.len(), 32);
    assert_eq!(printed.last().unwrap(), "31 pages of 1 host, at most 8 requests at once");
}

#[test]
fn streaming_proxy_forwards_both_bodies() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut example = example!("streaming-proxy");
    example.arg(format!("http://{}", listener.local_addr().unwrap()));
    let mut proxy = start(example);
    proxy.expect("forwards to");
    let address = proxy.printed[0].split(' ').next().unwrap().trim_start_matches("http://").to_owned();
    let target = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"the body") {
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\nX-From: target\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        stream.write_all(b"5\r\nhello\r\n0\r\n\r\n").unwrap();
        String::from_utf8(request).unwrap()
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = "PUT /a?b HTTP/1.1\r\nHost: a\r\nX-Kept: yes\r\nContent-Length: 8\r\nConnection: close\r\n\r\nthe body";
    client.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 Created\r\n") && answer.contains("X-From: target\r\n"), "{answer}");
    assert!(answer.contains("\r\nhello\r\n") || answer.ends_with("hello"), "{answer}");
    let request = target.join().unwrap();
    assert!(request.starts_with("PUT /a?b HTTP/1.1\r\nHost: a\r\n") && request.contains("X-Kept: yes"), "{request}");
}
