//! Sessions that are resumed.

use pelton_testing::{Log, Network, on_every_network};
use pelton_tls::rustls::HandshakeKind;
use pelton_tls::{ClientCertificates, Resumption};

use super::*;

on_every_network![
    a_session_is_resumed_with_a_ticket,
    a_session_is_resumed_from_the_servers_memory,
    resumption_can_be_turned_off,
    tickets_are_accepted_after_a_hand_over,
    a_client_on_the_loop_resumes_sessions,
    a_reload_ends_sessions_of_verified_clients,
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
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&alice.chain).map(Result::unwrap).collect();
    for resumption in [Resumption::Tickets, Resumption::Stateful(10)] {
        let tls = server_builder()
            .client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required)
            .resumption(resumption)
            .build()
            .unwrap();
        let mut reactor = on.reactor();
        let address = serve(&mut reactor, &tls, Recorder::default());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&AUTHORITY.pem).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), PrivateKeyDer::from_pem_slice(&alice.key).unwrap())
            .unwrap();
        let config = Arc::new(config);
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
