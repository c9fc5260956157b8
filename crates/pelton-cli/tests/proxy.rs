//! `pelton proxy`, with real targets: forwarding, balancing, health, headers, TLS, limits and hand-over.

#![forbid(unsafe_code)]

mod server;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use pelton_testing::{Authority, pattern};
use rustix::process::Signal;

use server::http::{Directory, Successor, curl};
use server::{DEADLINE, Server, eventually, socket_file};

/// A target that answers each connection with its name, then echoes. Its threads end with the test's process.
fn target(name: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                stream.write_all(name.as_bytes())?;
                std::io::copy(&mut stream.try_clone()?, &mut stream)?;
                stream.shutdown(Shutdown::Write)
            });
        }
    });
    address
}

/// An address at which nobody listens.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn read(stream: &mut impl Read, count: usize) -> String {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Reads up to the end, in whatever way it comes.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    bytes
}

fn proxy(to: &str, more: &[&str]) -> Server {
    Server::start("proxy", &[&["--listen", "127.0.0.1:0", "--to", to], more].concat())
}

#[test]
fn bytes_and_half_closes_pass_in_both_directions() {
    let server = proxy(&target(""), &[]);
    let mut client = connect(server.address(0));
    let mut writer = client.try_clone().unwrap();
    let bytes = pattern(5_000_000);
    let sent = bytes.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == bytes);
    server.signal(Signal::TERM);
    server.succeed();
}

#[test]
fn targets_take_turns_and_one_that_refuses_is_passed_over() {
    let (a, b) = (target("a"), target("b"));
    let all = format!("{a},{},{b}", nobody());
    let server = proxy(&all, &["--balance", "round-robin", "--max-failures", "1"]);
    let mut heard: Vec<String> = (0..8).map(|_| read(&mut connect(server.address(0)), 1)).collect();
    heard.sort();
    heard.dedup();
    assert_eq!(heard, ["a", "b"]);
    // With no other target, the client is closed.
    let server = proxy(&nobody(), &[]);
    assert_eq!(rest(&mut connect(server.address(0))), b"");
}

#[test]
fn a_client_keeps_its_target_by_hash_and_least_connections_spread() {
    let all = format!("{},{},{}", target("a"), target("b"), target("c"));
    let server = proxy(&all, &["--balance", "hash"]);
    let first = read(&mut connect(server.address(0)), 1);
    assert!((0..5).all(|_| read(&mut connect(server.address(0)), 1) == first));
    let server = proxy(&all, &[]);
    let mut open: Vec<TcpStream> = (0..3).map(|_| connect(server.address(0))).collect();
    let mut heard: Vec<String> = open.iter_mut().map(|stream| read(stream, 1)).collect();
    heard.sort();
    assert_eq!(heard, ["a", "b", "c"]);
}

#[test]
fn unix_sockets_work_on_both_sides() {
    let (front, back) = (socket_file("proxy-front"), socket_file("proxy-back"));
    let listener = UnixListener::bind(&back).unwrap();
    let (listen, to) = (format!("unix:{}", front.display()), format!("unix:{}", back.display()));
    let server = Server::start("proxy", &["--listen", &listen, "--to", &to, "--send-proxy", "v1"]);
    let mut client = UnixStream::connect(&front).unwrap();
    client.write_all(b"hello").unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(read(&mut stream, 20), "PROXY UNKNOWN\r\nhello");
    drop((client, stream));
    server.signal(Signal::TERM);
    server.succeed();
    assert!(!front.exists());
    fs::remove_file(back).unwrap();
}

#[test]
fn headers_are_read_checked_and_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let log = Directory::new("proxy-headers");
    let path = log.file("log");
    let more =
        ["--accept-proxy", "--send-proxy", "v2", "--header-time", "300ms", "--access-log", path.to_str().unwrap()];
    let server = proxy(&to, &more);
    let mut client = connect(server.address(0));
    // In pieces, with data behind it.
    for piece in ["PROXY TCP4 192.0.2.7 ", "198.51.100.1 4711 443\r", "\nbehind"] {
        client.write_all(piece.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut stream, _) = listener.accept().unwrap();
    let mut header = [0; 28];
    stream.read_exact(&mut header).unwrap();
    let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\x12\x67\x01\xbb";
    assert_eq!(&header, expected);
    assert_eq!(read(&mut stream, 6), "behind");
    drop((client, stream));
    // Without a valid header, or too late, no target is bothered.
    for bad in ["GET / HTTP/1.1\r\n\r\n", "PROXY TCP4 1.2.3.4\r\n", "PROXY TCP4"] {
        let begun = Instant::now();
        let mut client = connect(server.address(0));
        client.write_all(bad.as_bytes()).unwrap();
        assert_eq!(rest(&mut client), b"", "{bad}");
        assert!(begun.elapsed() < DEADLINE / 2);
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "a target was connected to");
    let lines = eventually("all lines are written", || {
        let lines = fs::read_to_string(&path).unwrap_or_default();
        (lines.lines().count() == 4).then_some(lines)
    });
    assert!(lines.contains(&format!(" 192.0.2.7:4711 {to} - 6 0 ")), "{lines}");
    assert!(lines.contains("not a PROXY header\n") && lines.contains("no header or hello in time\n"), "{lines}");
}

#[test]
fn headers_mean_nothing_unless_they_are_asked_for() {
    let server = proxy(&target(""), &[]);
    let mut client = connect(server.address(0));
    let header = "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";
    client.write_all(header.as_bytes()).unwrap();
    assert_eq!(read(&mut client, header.len()), header);
}

#[test]
fn tls_is_terminated_originated_and_passed_through_by_name() {
    let directory = Directory::new("proxy-tls");
    let authority = Authority::new("Pelton's tests");
    fs::write(directory.file("authority.pem"), &authority.pem).unwrap();
    let path = |name: &str| directory.file(name).to_str().unwrap().to_owned();
    for name in ["a", "b"] {
        let issued = authority.issue(&[&format!("{name}.example.org")]);
        issued.write_to(directory.file("x").parent().unwrap(), name);
    }
    // client -> to_tls -> by name -> terminates -> target
    let terminating = ["a", "b"].map(|name| {
        let (cert, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
        proxy(&target(name), &["--tls-cert", &cert, "--tls-key", &key])
    });
    let [a, b] = [0, 1].map(|index| terminating[index].address(0));
    let (to_a, to_b) = (format!("a.example.org={a}"), format!("*.example.org={b}"));
    let choosing = Server::start("proxy", &["--listen", "127.0.0.1:0", "--to-sni", &to_a, "--to-sni", &to_b]);
    let ca = path("authority.pem");
    for name in ["a", "b"] {
        let named = format!("{name}.example.org");
        let server = proxy(choosing.address(0), &["--to-tls", "--to-ca", &ca, "--to-name", &named]);
        let mut client = connect(server.address(0));
        client.write_all(b" echo").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut client), format!("{name} echo").as_bytes());
    }
    // A wrong name or authority is a target that fails.
    for more in [&["--to-ca", &ca, "--to-name", "c.example.org"][..], &["--to-name", "a.example.org"]] {
        let server = proxy(choosing.address(0), &[&["--to-tls"], more].concat());
        assert_eq!(rest(&mut connect(server.address(0))), b"");
    }
    // Neither do names without a target, or no TLS at all, reach one.
    let output = Command::new("openssl")
        .args(["s_client", "-connect", choosing.address(0), "-servername", "www.example.com"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl is there");
    assert!(!output.status.success());
    let mut plain = connect(choosing.address(0));
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(rest(&mut plain), b"");
}

#[test]
fn limits_hold() {
    let to = target("x");
    for more in [["--max-connections", "2"], ["--max-connections-per-address", "2"]] {
        let server = proxy(&to, &more);
        let mut open: Vec<TcpStream> = (0..2).map(|_| connect(server.address(0))).collect();
        open.iter_mut().for_each(|stream| assert_eq!(read(stream, 1), "x"));
        assert_eq!(rest(&mut connect(server.address(0))), b"", "{more:?}");
        // Room again when one has gone.
        drop(open.pop());
        eventually("there is room", || {
            let mut stream = connect(server.address(0));
            matches!(stream.read(&mut [0]), Ok(1)).then_some(())
        });
    }
    let server = proxy(&to, &["--idle-time", "200ms"]);
    let mut client = connect(server.address(0));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(100));
        client.write_all(b"not idle").unwrap();
    }
    assert_eq!(read(&mut client, 33), format!("x{}", "not idle".repeat(4)));
    assert_eq!(rest(&mut client), b"");
}

#[test]
fn a_target_that_does_not_answer_is_given_up_in_time() {
    // A full backlog: the kernel does not answer.
    let silent = pelton_testing::Network::silent_listener(pelton_testing::On(pelton::EngineKind::Poll));
    let all = format!("{},{}", silent.address(), target("b"));
    let server = proxy(&all, &["--balance", "round-robin", "--connect-time", "200ms"]);
    assert_eq!(read(&mut connect(server.address(0)), 1), "b");
}

#[test]
fn checks_notice_targets_that_go_and_come_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let more = ["--check-interval", "50ms", "--admin", "127.0.0.1:0"];
    let server = Server::start_on(2, "proxy", &[&["--listen", "127.0.0.1:0", "--to", &to], &more[..]].concat());
    let admin = server.address(1).to_owned();
    let health = |wanted: &str| {
        eventually("health changes", || (curl(&[&format!("{admin}health")]) == wanted).then_some(()));
    };
    health("ok\n");
    drop(listener);
    health("no target is up\n");
    assert!(curl(&[&format!("{admin}metrics")]).contains(&format!("pelton_proxy_target_up{{target=\"{to}\"}} 0\n")));
    let _listener = TcpListener::bind(&to).unwrap();
    health("ok\n");
    let metrics = curl(&[&format!("{admin}metrics")]);
    assert!(metrics.contains("pelton_proxy_clients 0\n"), "{metrics}");
    // The statistics of the workers' reactors, as in `serve`.
    let turns = metrics.lines().find_map(|line| line.strip_prefix("pelton_turns_total{worker=\"0\"} "));
    assert!(turns.is_some_and(|turns| turns.parse::<u64>().unwrap() > 0), "{metrics}");
}

#[test]
#[cfg(target_os = "linux")]
fn checks_of_a_target_that_does_not_answer_do_not_pile_up() {
    let silent = pelton_testing::Network::silent_listener(pelton_testing::On(pelton::EngineKind::Poll));
    let alive = TcpListener::bind("127.0.0.1:0").unwrap();
    let all = format!("{},{}", silent.address(), alive.local_addr().unwrap());
    let server = proxy(&all, &["--check-interval", "5ms", "--connect-time", "30s"]);
    // The other target has been checked often by now.
    for _ in 0..100 {
        drop(alive.accept().unwrap());
    }
    let open = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    assert!(open < 40, "{open} descriptors");
}

#[test]
fn a_name_that_no_target_can_have_is_refused_at_the_start() {
    let to = nobody();
    let tls = ["--listen", "127.0.0.1:0", "--to", &to, "--to-tls", "--to-insecure", "--to-name", "a b"];
    let output = Command::new(env!("CARGO_BIN_EXE_pelton")).arg("proxy").args(tls).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("\"a b\" is not a name"), "{said}");
}

#[test]
fn draining_waits_for_connections_and_a_deadline_cuts_them_off() {
    let to = target("x");
    let mut server = proxy(&to, &[]);
    let mut client = connect(server.address(0));
    assert_eq!(read(&mut client, 1), "x");
    server.signal(Signal::TERM);
    eventually("no more are accepted", || TcpStream::connect(server.address(0)).is_err().then_some(()));
    client.write_all(b"still here").unwrap();
    assert_eq!(read(&mut client, 10), "still here");
    assert!(server.is_running());
    drop(client);
    assert_eq!(server.code(), 0);

    let mut server = proxy(&to, &["--drain-time", "100ms"]);
    let mut client = connect(server.address(0));
    assert_eq!(read(&mut client, 1), "x");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 4);
    assert_eq!(rest(&mut client), b"");
}

#[test]
fn another_process_takes_over_and_connections_last() {
    let directory = Directory::new("proxy-handover");
    let pid_file = directory.file("pelton.pid");
    let to = target("x");
    let mut server = proxy(&to, &["--pid-file", pid_file.to_str().unwrap(), "--log-level", "info"]);
    let mut client = connect(server.address(0));
    assert_eq!(read(&mut client, 1), "x");
    server.signal(Signal::USR2);
    let successor = Successor::of(&pid_file, server.id());
    for _ in 0..10 {
        assert_eq!(read(&mut connect(server.address(0)), 1), "x");
    }
    client.write_all(b"old").unwrap();
    assert_eq!(read(&mut client, 3), "old");
    drop(client);
    assert_eq!(server.code(), 0);
    assert_eq!(read(&mut connect(server.address(0)), 1), "x");
    successor.signal(Signal::TERM);
    eventually("the successor ends", || (!pid_file.exists()).then_some(()));
}

#[test]
fn contradictions_are_explained() {
    for (arguments, part) in [
        (&["--listen", "127.0.0.1:0"][..], "at least one target"),
        (&["--to", "127.0.0.1:1"], "at least one address"),
        (&["--listen", "127.0.0.1:0", "--to-sni", "nonsense"], "NAME=TARGET"),
        (&["--listen", "127.0.0.1:0", "--to-sni", "a b=127.0.0.1:1"], "is not a name"),
        (&["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--admin", "0.0.0.0:1"], "other machines"),
        (&["--listen", "127.0.0.1:0", "--to-sni", "a=127.0.0.1:1", "--to-tls"], "encrypt twice"),
        (&["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--idle-time", "5"], "unit"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pelton")).arg("proxy").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
