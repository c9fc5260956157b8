//! TLS that begins in the middle of a stream.

use std::io::{BufRead, BufReader};

use pelton_testing::{Log, Network, listen, on_every_network, run_with};
use pelton_tls::StartTls;

use super::*;

on_every_network![
    a_server_starts_tls_when_it_is_asked_to,
    a_client_starts_tls_when_the_server_agrees,
    both_sides_start_tls,
];

/// Answers lines, and starts TLS when one of them asks for it.
struct Mail {
    tls: Option<Server>,
    line: Vec<u8>,
    log: Log,
}

impl Connection for Mail {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.line.extend_from_slice(&chunk);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let rest = self.line.split_off(end + 1);
            let line = String::from_utf8(std::mem::replace(&mut self.line, rest)).unwrap();
            self.log.add(format!("{} {}", line.trim_end(), if io.has_layers() { "encrypted" } else { "in clear" }));
            match self.tls.take_if(|_| line == "STARTTLS\n") {
                Some(tls) => {
                    io.send(b"go ahead\n").unwrap();
                    // What follows the line belongs to the handshake.
                    io.push_layer_with_unread(tls.layer(), std::mem::take(&mut self.line));
                }
                None => io.send(b"ok\n").unwrap(),
            }
        }
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        assert!(pelton_tls::info(io).is_some());
        self.log.add("ready");
    }
}

fn mail(reactor: &mut EventLoop, log: &Log) -> Address {
    let (tls, log) = (server(), log.clone());
    listen(reactor, move |_| Mail { tls: Some(tls.clone()), line: Vec::new(), log: log.clone() })
}

fn a_server_starts_tls_when_it_is_asked_to(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = mail(&mut reactor, &log);
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"HELLO\n").unwrap();
        assert_eq!(peer.read_some(3), b"ok\n");
        peer.write_all(b"STARTTLS\n").unwrap();
        assert_eq!(peer.read_some(9), b"go ahead\n");
        let mut stream = blocking_client(peer, blocking_config());
        stream.write_all(b"SECRET\n").unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok\n");
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["HELLO in clear", "STARTTLS in clear", "ready", "SECRET encrypted"]);
}

/// Asks for TLS, starts it, and says something.
struct Sender {
    tls: Client,
    log: Log,
}

impl Connection for Sender {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(b"STARTTLS\n").unwrap();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
        if io.has_layers() {
            return io.close_after_writing();
        }
        if chunk.ends_with(b"\n") {
            io.start_tls(self.tls.layer("localhost").unwrap());
        }
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        self.log.add("ready");
        io.send(b"SECRET\n").unwrap();
    }
}

fn a_client_starts_tls_when_the_server_agrees(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    reactor.connect(&listener.address(), Sender { tls: client(), log: log.clone() }).unwrap();
    run_with(&mut reactor, move || {
        let mut peer = listener.accept();
        assert_eq!(peer.read_some(9), b"STARTTLS\n");
        peer.write_all(b"go ahead\n").unwrap();
        let mut stream = BufReader::new(blocking_server(peer, &LOCALHOST));
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "SECRET\n");
        stream.get_mut().write_all(b"ok\n").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a closing message");
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["received go ahead\n", "ready", "received ok\n"]);
}

fn both_sides_start_tls(on: impl Network) {
    let (mut reactor, log, served) = (on.reactor(), Log::default(), Log::default());
    let address = mail(&mut reactor, &served);
    reactor.connect(&address, Sender { tls: client(), log: log.clone() }).unwrap();
    run_out(&mut reactor);
    assert_eq!(log.take(), ["received go ahead\n", "ready", "received ok\n"]);
    assert_eq!(served.take(), ["STARTTLS in clear", "ready", "SECRET encrypted"]);
}
