//! Datagrams exchanged with socat and Python.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use pelton::Address;
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run_until, run_with};

use super::{bind, logging, scratch, scripted};

on_every_engine![socat_is_answered, python_is_answered_and_asked,];

fn socat_is_answered(on: On) {
    let mut reactor = on.reactor();
    let (_, address) = bind(&mut reactor, Echo);
    let path = scratch(on, "socat.sock");
    let unix = reactor.bind_datagrams(&Address::Unix(path.clone()), Echo).unwrap();
    let client = scratch(on, "socat-client.sock");
    let peers = [format!("UDP4:{address}"), format!("UNIX-SENDTO:{},bind={}", path.display(), client.display())];
    for peer in peers {
        let back = run_with(&mut reactor, move || {
            let mut socat = Command::new("socat")
                .args(["-t", "0.3", "-", &peer])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this test needs socat");
            io::Write::write_all(socat.stdin.as_mut().unwrap(), b"hello, socat").unwrap();
            socat.wait_with_output().unwrap()
        });
        assert!(back.status.success(), "{back:?}");
        assert_eq!(String::from_utf8(back.stdout).unwrap(), "hello, socat");
    }
    reactor.datagrams(unix).unwrap().close();
    let _ = std::fs::remove_file(client);
    poll(&mut reactor);
}

/// Asks 200 times, with all sizes up to the largest, then answers once.
const PYTHON: &str = r#"
import socket, sys
port = int(sys.argv[1])
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(10)
asking.connect(("127.0.0.1", port))
for size in [0, 1, 65507] + list(range(2, 60000, 307)):
    sent = bytes(n % 256 for n in range(size))
    asking.send(sent)
    assert asking.recv(70000) == sent, size
answering = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answering.settimeout(10)
answering.bind(("127.0.0.1", 0))
asking.send(b"port %d" % answering.getsockname()[1])
question, address = answering.recvfrom(100)
answering.sendto(b"a parrot, to " + question, address)
"#;

fn python_is_answered_and_asked(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    let server = scripted(&log, move |io, datagram| match datagram.bytes.strip_prefix(b"port ") {
        None => io.send_chunk_to(&datagram.from, datagram.bytes).unwrap(),
        Some(port) => {
            let port = String::from_utf8_lossy(port).parse().unwrap();
            let there = Address::from(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
            let asking = io.reactor().connect_datagrams(&there, logging(&seen)).unwrap();
            io.reactor().datagrams(asking).unwrap().send(b"what is it?").unwrap();
        }
    });
    let (_, address) = bind(&mut reactor, server);
    let output = run_with(&mut reactor, move || {
        let port = address.port().to_string();
        Command::new("python3").args(["-c", PYTHON, &port]).output().expect("this test needs python3")
    });
    assert!(output.status.success(), "{output:?}");
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received a parrot, to what is it?"]);
}
