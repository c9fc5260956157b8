//! Sessions that are resumed.

use pelton_testing::{Log, Network, on_every_network};
use pelton_tls::rustls::HandshakeKind;
use pelton_tls::{ClientCertificates, Resumption};

use super::agreement::with_certificate;
use super::*;

on_every_network![
    a_session_is_resumed_with_a_ticket,
    a_session_is_resumed_from_the_servers_memory,
    resumption_can_be_turned_off,
    tickets_are_accepted_after_a_hand_over,
    a_client_on_the_loop_resumes_sessions,
    a_reload_ends_sessions_of_verified_clients,
    a_handshake_that_a_reload_overtakes_leaves_no_session,
    tickets_of_clients_are_not_accepted_after_a_hand_over_with_other_rules,
];

/// Connects twice with the same configuration to two servers. Returns how the second handshake was made.
fn second_handshake(on: impl Network, first: &Server, second: &Server) -> Option<HandshakeKind> {
    let mut reactor = on.reactor();
    let config = Arc::new(blocking_config());
    let mut kind = None;
    for tls in [first, second] {
        let address = serve(&mut reactor, tls, Recorder::default());
        kind = with_client(&mut reactor, on, &address, Arc::clone(&config), |mut stream| {
            assert_eq!(exchange(&mut stream, b"ping"), b"ping");
            stream.conn.handshake_kind()
        });
    }
    run_out(&mut reactor);
    kind
}

fn a_session_is_resumed_with_a_ticket(on: impl Network) {
    let tls = server();
    assert_eq!(second_handshake(on, &tls, &tls), Some(HandshakeKind::Resumed));
    assert_eq!((tls.stats().completed, tls.stats().resumed), (2, 1));
    assert_eq!(second_handshake(on, &server(), &server()), Some(HandshakeKind::Full), "other keys");
}

fn a_session_is_resumed_from_the_servers_memory(on: impl Network) {
    let tls = server_builder().resumption(Resumption::Stateful(10)).build().unwrap();
    assert_eq!(second_handshake(on, &tls, &tls), Some(HandshakeKind::Resumed));
    assert!(tls.export_ticket_keys().is_empty());
}

fn resumption_can_be_turned_off(on: impl Network) {
    let tls = server_builder().resumption(Resumption::Off).build().unwrap();
    assert_eq!(second_handshake(on, &tls, &tls), Some(HandshakeKind::Full));
    assert_eq!((tls.stats().completed, tls.stats().resumed), (2, 0));
}

fn tickets_are_accepted_after_a_hand_over(on: impl Network) {
    let (old, new) = (server(), server());
    new.import_ticket_keys(&old.export_ticket_keys()).unwrap();
    assert_eq!(second_handshake(on, &old, &new), Some(HandshakeKind::Resumed));
}

fn a_client_on_the_loop_resumes_sessions(on: impl Network) {
    let (server, client, log) = (server(), client(), Log::default());
    for resumed in 0..3 {
        let mut reactor = on.reactor();
        let address = serve(&mut reactor, &server, Recorder::default());
        let handler = Recorder { greeting: b"ping", quiet: true, finishes_after: b"ping", log: log.clone() };
        reactor.connect(&address, client.wrap("localhost", handler).unwrap()).unwrap();
        run_out(&mut reactor);
        assert_eq!(client.stats().resumed, resumed);
        let told = ["opened", "received ping", "peer finished", "closed: finished by the other side"];
        assert_eq!(log.take(), told);
    }
    assert_eq!(server.stats().resumed, 2);
}

fn a_reload_ends_sessions_of_verified_clients(on: impl Network) {
    let alice = AUTHORITY.issue(&["alice.example"]);
    for resumption in [Resumption::Tickets, Resumption::Stateful(10)] {
        let tls = server_builder()
            .client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required)
            .resumption(resumption)
            .build()
            .unwrap();
        let mut reactor = on.reactor();
        let address = serve(&mut reactor, &tls, Recorder::default());
        let config = Arc::new(with_certificate(&alice));
        for (reloads, expected) in [(false, 0), (false, 1), (true, 1), (false, 2)] {
            if reloads {
                tls.reload().unwrap();
            }
            with_client(&mut reactor, on, &address, Arc::clone(&config), |mut stream| {
                assert_eq!(exchange(&mut stream, b"ping"), b"ping");
            });
            assert_eq!(tls.stats().resumed, expected, "{resumption:?}");
        }
        run_out(&mut reactor);
    }
}

fn a_handshake_that_a_reload_overtakes_leaves_no_session(on: impl Network) {
    let alice = AUTHORITY.issue(&["alice.example"]);
    for resumption in [Resumption::Tickets, Resumption::Stateful(10)] {
        let tls = server_builder()
            .client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required)
            .resumption(resumption)
            .build()
            .unwrap();
        let mut reactor = on.reactor();
        let address = serve(&mut reactor, &tls, Recorder::default());
        let config = Arc::new(with_certificate(&alice));
        let reloading = tls.clone();
        with_client(&mut reactor, on, &address, Arc::clone(&config), move |mut stream| {
            // The server has answered the hello. The client's certificate, which may be revoked now, comes later.
            stream.conn.write_tls(&mut stream.sock).unwrap();
            while !stream.conn.wants_write() {
                stream.conn.read_tls(&mut stream.sock).unwrap();
                stream.conn.process_new_packets().unwrap();
            }
            reloading.reload().unwrap();
            assert_eq!(exchange(&mut stream, b"ping"), b"ping");
        });
        let kind = with_client(&mut reactor, on, &address, config, |mut stream| {
            assert_eq!(exchange(&mut stream, b"ping"), b"ping");
            stream.conn.handshake_kind()
        });
        assert_eq!(kind, Some(HandshakeKind::Full), "{resumption:?}");
        run_out(&mut reactor);
    }
}

fn tickets_of_clients_are_not_accepted_after_a_hand_over_with_other_rules(on: impl Network) {
    let (alice, bob) = (AUTHORITY.issue(&["alice.example"]), AUTHORITY.issue(&["bob.example"]));
    let verifying = || server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required);
    let cases = [
        (verifying(), HandshakeKind::Resumed),
        (verifying().revocation_list(AUTHORITY.revoke(&[&bob])), HandshakeKind::Full),
    ];
    for (builder, expected) in cases {
        let (old, new) = (verifying().build().unwrap(), builder.build().unwrap());
        new.import_ticket_keys(&old.export_ticket_keys()).unwrap();
        let mut reactor = on.reactor();
        let config = Arc::new(with_certificate(&alice));
        for (tls, expected) in [(&old, HandshakeKind::Full), (&new, expected)] {
            let address = serve(&mut reactor, tls, Recorder::default());
            let kind = with_client(&mut reactor, on, &address, Arc::clone(&config), |mut stream| {
                assert_eq!(exchange(&mut stream, b"ping"), b"ping");
                stream.conn.handshake_kind()
            });
            assert_eq!(kind, Some(expected));
        }
        run_out(&mut reactor);
    }
}
