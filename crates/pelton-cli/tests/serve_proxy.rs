//! `pelton serve --proxy`, with real servers behind it.

#![forbid(unsafe_code)]

mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton_testing::Authority;

use server::http::{Directory, curl};
use server::{DEADLINE, Server, eventually, socket_file};

/// A server that answers each request with its name and the request's head. Its threads end with the test's process.
fn target(name: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, count) = (stream.unwrap(), count.clone());
            std::thread::spawn(move || answer(name, &count, stream.try_clone().unwrap(), stream));
        }
    });
    (url, requests)
}

fn answer(name: &str, count: &AtomicUsize, input: impl Read, mut output: impl Write) {
    let mut head = format!("{name}\n");
    for line in BufReader::new(input).lines() {
        let Ok(line) = line else { return };
        head += &line;
        head.push('\n');
        if line.is_empty() {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
            if output.write_all(answer.as_bytes()).is_err() {
                return;
            }
            head = format!("{name}\n");
        }
    }
}

/// An address at which nobody listens.
fn nobody() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

#[test]
fn prefixes_are_forwarded_and_the_rest_is_served() {
    let directory = Directory::new("serve-proxy");
    std::fs::write(directory.file("index.html"), "files\n").unwrap();
    let files = directory.file("");
    let files = files.to_str().unwrap();
    let (url, _) = target("one");
    let (api, v1) = (format!("/api={url}"), format!("/old={url}/v1"));
    let arguments = [files, "--listen", "127.0.0.1:0", "--proxy", &api, "--proxy", &v1];
    let mut server = Server::start("serve", &arguments);
    assert!(server.said[0].contains(&api), "{:?}", server.said);
    let site = server.address(0).to_owned();
    let site = site.trim_end_matches('/');
    assert_eq!(curl(&[&format!("{site}/")]), "files\n");
    let answer = curl(&["-H", "X-Forwarded-For: 1.1.1.1", &format!("{site}/api/x?y")]);
    assert!(answer.starts_with("one\nGET /api/x?y HTTP/1.1\n"), "{answer}");
    assert!(answer.contains("X-Forwarded-For: 127.0.0.1\n") && !answer.contains("1.1.1.1"), "{answer}");
    assert!(curl(&[&format!("{site}/old/x")]).starts_with("one\nGET /v1/x HTTP/1.1\n"));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn trusted_networks_are_believed() {
    let (url, _) = target("one");
    let forwarding = format!("/={url}");
    let arguments = ["--listen", "127.0.0.1:0", "--proxy", &forwarding, "--trusted-proxy", "127.0.0.0/8"];
    let server = Server::start("serve", &arguments);
    let answer = curl(&["-H", "X-Forwarded-For: 192.0.2.1", server.address(0)]);
    assert!(answer.contains("X-Forwarded-For: 192.0.2.1, 127.0.0.1\n"), "{answer}");
}

#[test]
fn targets_are_balanced_checked_and_counted() {
    let ((one, first), (two, second), dead) = (target("one"), target("two"), nobody());
    let forwarding = format!("/={one},{two},{dead}");
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--workers",
        "2",
        "--proxy",
        &forwarding,
        "--balance",
        "round-robin",
        "--check-interval",
        "100ms",
    ];
    let mut server = Server::start_on(2, "serve", &arguments);
    server.log("a target is down");
    for _ in 0..20 {
        assert!(curl(&[server.address(0)]).contains("GET / HTTP/1.1"));
    }
    let counts = (first.load(Ordering::SeqCst), second.load(Ordering::SeqCst));
    assert_eq!((counts.0 + counts.1, counts.0), (20, 10), "{counts:?}");
    let metrics = curl(&[&format!("{}metrics", server.address(1))]);
    let name = |url: &str| url.trim_start_matches("http://").to_owned();
    assert!(metrics.contains(&format!("pelton_http_target_up{{target=\"{}\"}} 1\n", name(&one))), "{metrics}");
    assert!(metrics.contains(&format!("pelton_http_target_up{{target=\"{}\"}} 0\n", name(&dead))), "{metrics}");
    assert!(metrics.contains(&format!("pelton_http_target_responses_total{{target=\"{}\"}} 10\n", name(&two))));
    assert!(metrics.contains(&format!("pelton_http_target_requests{{target=\"{}\"}} 0\n", name(&two))));
}

#[test]
fn failures_are_logged_with_their_cause() {
    let forwarding = format!("/={}", nobody());
    let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--proxy", &forwarding]);
    assert_eq!(curl(&["-s", "-o", "/dev/null", "-w", "%{http_code}", server.address(0)]), "502");
    let line = server.log("answered with 502");
    assert!(line.contains("refused") && line.contains("127.0.0.1:"), "{line}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let forwarding = format!("/=http://{}", listener.local_addr().unwrap());
    let arguments = ["--listen", "127.0.0.1:0", "--proxy", &forwarding, "--proxy-time", "200ms"];
    let mut server = Server::start("serve", &arguments);
    assert_eq!(curl(&["-s", "-o", "/dev/null", "-w", "%{http_code}", server.address(0)]), "504");
    assert!(server.log("answered with 504").contains("no response head was received within 200ms"));
}

#[test]
fn unix_sockets_and_https_are_reached() {
    let path = socket_file("serve-proxy");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer("unix", &AtomicUsize::new(0), stream.try_clone().unwrap(), stream));
        }
    });
    let authority = Authority::new("targets");
    let directory = Directory::new("serve-proxy-tls");
    let (chain, key, ca) = (directory.file("chain.pem"), directory.file("key.pem"), directory.file("ca.pem"));
    let leaf = authority.issue(&["localhost"]);
    std::fs::write(&chain, &leaf.chain).unwrap();
    std::fs::write(&key, &leaf.key).unwrap();
    std::fs::write(&ca, &authority.pem).unwrap();
    let secure = Server::start(
        "serve",
        &["--listen", "127.0.0.1:0", "--tls-cert", chain.to_str().unwrap(), "--tls-key", key.to_str().unwrap()],
    );
    let port = secure.address(0).trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let (socket, https) = (format!("/socket=unix:{}", path.display()), format!("/secure=https://localhost:{port}/"));
    let ca = ca.to_str().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--proxy", &socket, "--proxy", &https, "--proxy-ca", ca];
    let server = Server::start("serve", &arguments);
    let site = server.address(0).trim_end_matches('/');
    assert!(curl(&[&format!("{site}/socket/x")]).starts_with("unix\nGET /socket/x HTTP/1.1\n"));
    assert!(curl(&[&format!("{site}/secure/")]).contains("Pelton"));
    // Without the authority, the target is not trusted.
    let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--proxy", &https]);
    let site = server.address(0).trim_end_matches('/').to_owned();
    assert_eq!(curl(&["-s", "-o", "/dev/null", "-w", "%{http_code}", &format!("{site}/secure/")]), "502");
    assert!(server.log("answered with 502").contains("certificate"));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn requests_in_progress_are_finished_when_the_server_stops() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let forwarding = format!("/=http://{}", listener.local_addr().unwrap());
    let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--proxy", &forwarding]);
    let address = server.address(0).trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut back, _) = listener.accept().unwrap();
    back.read_exact(&mut [0; 10]).unwrap();
    server.signal(rustix::process::Signal::TERM);
    eventually("it does not accept any more", || {
        TcpStream::connect(client.peer_addr().unwrap()).is_err().then_some(())
    });
    back.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nlate") && answer.contains("Connection: close\r\n"), "{answer}");
    assert_eq!(server.code(), 0);
}

#[test]
fn contradictions_are_refused() {
    let refused = |arguments: &[&str], why: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pelton")).arg("serve").args(arguments).output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(why), "{arguments:?}: {text}");
    };
    refused(&["--proxy", "api=http://a"], "give a prefix and a target");
    refused(&["--proxy", "/api=file:///etc"], "neither http nor https");
    refused(&["/tmp", "--proxy", "/=http://127.0.0.1:1"], "would never be served");
    refused(&["--proxy", "/a=http://127.0.0.1:1", "--trusted-proxy", "10.0.0.1/8"], "is not a network");
    refused(&["--proxy", "/a=http://127.0.0.1:1", "--proxy", "/a=http://127.0.0.1:2/b"], "have a path, or none");
}
