//! Both sides agree: in pieces, in the middle of a stream, on top of another layer, with large data.

use std::cell::RefCell;
use std::rc::Rc;

use pelton_openssl::{Roots, Tls, Version};
use pelton_testing::{on_every_network, pattern, run_until};

use super::*;

on_every_network![
    a_handshake_in_single_bytes_succeeds,
    a_large_exchange_arrives_whole,
    what_is_sent_before_the_handshake_arrives_after_it,
    tls_begins_in_the_middle_of_a_stream,
    tls_runs_on_top_of_tls,
    both_sides_of_the_layer_agree_in_every_version,
    a_client_verifies_the_name,
];

fn a_handshake_in_single_bytes_succeeds(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    for step in [1, 2, 7] {
        with_peer(&mut reactor, on, &address, move |peer| {
            let mut stream = blocking_client(Trickle { peer, step });
            assert_eq!(exchange(&mut stream, b"water"), b"water");
            stream.shutdown().unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        });
        run_out(&mut reactor);
        assert_eq!(
            log.take(),
            ["opened", "received water", "peer finished", "closed: finished by the other side"],
            "{step}"
        );
    }
}

fn a_large_exchange_arrives_whole(on: impl Network) {
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::default());
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        for size in [1, 16_383, 16_384, 16_385, 60_000] {
            assert!(exchange(&mut stream, &pattern(size)) == pattern(size), "{size}");
        }
    });
    run_out(&mut reactor);
}

fn what_is_sent_before_the_handshake_arrives_after_it(on: impl Network) {
    let mut reactor = on.reactor();
    let tls = server().build().unwrap();
    let handler = Recorder { greeting: b"welcome", ..Recorder::default() };
    let address = serve(&mut reactor, &tls, handler);
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        let mut greeting = [0; 7];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"welcome");
    });
    run_out(&mut reactor);
}

/// Begins TLS when it is asked to.
struct Switches {
    tls: Config,
    asked: Vec<u8>,
    switched: bool,
}

impl Connection for Switches {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        if self.switched {
            io.send_chunk(chunk).unwrap();
        } else {
            self.asked.extend_from_slice(&chunk);
            if self.asked == b"START" {
                io.send(b"GO").unwrap();
                io.push_layer(self.tls.layer().unwrap());
                self.switched = true;
            }
        }
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        io.send(b"secret").unwrap();
    }
}

fn tls_begins_in_the_middle_of_a_stream(on: impl Network) {
    let mut reactor = on.reactor();
    let tls = server().build().unwrap();
    let address = listen(&mut reactor, move |_| Switches { tls: tls.clone(), asked: Vec::new(), switched: false });
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"START").unwrap();
        let mut answer = [0; 2];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"GO", "it is plain");
        let mut stream = blocking_client(peer);
        let mut secret = [0; 6];
        stream.read_exact(&mut secret).unwrap();
        assert_eq!(&secret, b"secret");
        assert_eq!(exchange(&mut stream, b"more"), b"more");
    });
    run_out(&mut reactor);
}

fn tls_runs_on_top_of_tls(on: impl Network) {
    let mut reactor = on.reactor();
    let (below, above) = (server().build().unwrap(), server().build().unwrap());
    let address = listen(&mut reactor, move |_| {
        let layers = [below.layer().unwrap(), above.layer().unwrap()];
        Layered::new(Recorder::default(), |io| layers.into_iter().for_each(|layer| io.push_layer(layer)))
    });
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(blocking_client(peer));
        assert_eq!(exchange(&mut stream, &pattern(50_000)), pattern(50_000));
    });
    run_out(&mut reactor);
}

/// Records what was agreed on, and ends the connection.
struct Agreed(Rc<RefCell<Vec<String>>>);

impl Connection for Agreed {
    fn opened(&mut self, io: &mut Io<'_>) {
        let agreed = io.visit_layer(|tls: &mut Tls| {
            assert!(tls.is_open() && tls.cipher_bits().unwrap() >= 128);
            let certificate = tls.peer_certificate().map_or(0, |certificate| certificate.to_pem().unwrap().len());
            let name = tls.server_name().unwrap_or("no name");
            let (protocol, cipher) = (tls.protocol().unwrap(), tls.cipher_name().unwrap());
            format!("{protocol} {cipher} {name}{}", if certificate > 0 { ", certificate" } else { "" })
        });
        self.0.borrow_mut().push(agreed.unwrap());
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

fn both_sides_of_the_layer_agree_in_every_version(on: impl Network) {
    for (version, expected) in [
        (Version::Tls12, "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384 localhost"),
        (Version::Tls13, "TLSv1.3 TLS_AES_256_GCM_SHA384 localhost"),
    ] {
        let (mut reactor, agreed) = (on.reactor(), Rc::default());
        let tls = server().versions([version]).build().unwrap();
        let of_server = Rc::clone(&agreed);
        let address = listen(&mut reactor, move |_| wrap(&tls, Agreed(Rc::clone(&of_server))));
        let client = Config::client().build().unwrap().layer_to("localhost").unwrap();
        let handler = Layered::new(Agreed(Rc::clone(&agreed)), |io| io.push_layer(client));
        let id = reactor.connect(&address, handler).unwrap();
        run_until(&mut reactor, |_| agreed.borrow().len() == 2);
        reactor.end(id);
        run_out(&mut reactor);
        let mut agreed = agreed.take();
        agreed.sort();
        // The client sees a certificate, and OpenSSL tells it the name that it has sent.
        assert_eq!(agreed, [expected.to_owned(), format!("{expected}, certificate")]);
    }
}

fn a_client_verifies_the_name(on: impl Network) {
    let roots = || Roots::Pem(AUTHORITY.pem.clone());
    let expired = AUTHORITY.issue_expired(&["localhost"]);
    let stranger = Authority::new("a stranger").issue(&["localhost"]);
    for (issued, name, expected) in [
        (&*LOCALHOST, "localhost", "opened"),
        (&*LOCALHOST, "127.0.0.1", "opened"),
        (&*LOCALHOST, "other.example", "closed: TLS handshake: the certificate is not acceptable: hostname mismatch"),
        (&expired, "localhost", "closed: TLS handshake: the certificate is not acceptable: certificate has expired"),
        (
            &stranger,
            "localhost",
            "closed: TLS handshake: the certificate is not acceptable: unable to get local issuer certificate",
        ),
    ] {
        let (mut reactor, log) = (on.reactor(), Log::default());
        let tls = Config::server().certificate(&issued.chain[..]).key(&issued.key[..]).build().unwrap();
        let address = serve(&mut reactor, &tls, Recorder::default());
        let client = Config::client().roots(roots()).build().unwrap().layer_to(name).unwrap();
        let handler = Layered::new(Recorder::logging(&log), |io| io.push_layer(client));
        let id = reactor.connect(&address, handler).unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        reactor.end(id);
        run_out(&mut reactor);
        assert_eq!(log.take()[0], expected, "{name}");
    }
}
