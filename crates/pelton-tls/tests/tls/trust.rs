//! Which servers a client accepts.

use pelton_testing::{Authority, Issued, Log, Network, on_every_network};
use pelton_tls::{ConfigError, Pin};

use super::*;

on_every_network![
    a_server_is_verified,
    a_pinned_key_is_required,
    a_self_signed_server_is_accepted_by_its_key,
    a_revoked_server_is_rejected,
    the_name_can_be_another_one,
    verification_can_be_turned_off,
];

/// Connects to a blocking server, and returns how that ended.
fn outcome(on: impl Network, tls: &Client, name: &str, issued: &Issued) -> String {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    let handler = tls.wrap(name, Recorder::logging(&log)).unwrap();
    reactor.connect(&listener.address(), handler).unwrap();
    let issued = issued.clone();
    let told = pelton_testing::run_with(&mut reactor, move || {
        let mut stream = blocking_server(listener.accept(), &issued);
        // What the server is told of a rejection is another test.
        let said = stream.write_all(b"hello").and_then(|()| stream.flush());
        stream.conn.send_close_notify();
        let _ = stream.flush();
        let heard = stream.read(&mut [0; 5]);
        said.and(heard.map(|_| ())).map_err(|error| error.to_string())
    });
    run_out(&mut reactor);
    let entries = log.take();
    match &entries[..] {
        [opened, received, ..] => {
            assert_eq!((opened.as_str(), received.as_str()), ("opened", "received hello"));
            assert_eq!(told, Ok(()));
            "accepted".into()
        }
        [reason] => {
            // The server reads the alert. It can be reset if it still has something to send.
            assert!(told.is_err());
            reason.clone()
        }
        [] => panic!("nothing happened"),
    }
}

fn a_server_is_verified(on: impl Network) {
    let other = Authority::new("Other");
    let tls = client();
    assert_eq!(outcome(on, &tls, "localhost", &LOCALHOST), "accepted");
    assert_eq!(outcome(on, &tls, "127.0.0.1", &LOCALHOST), "accepted");
    for (name, issued, problem) in [
        ("localhost", AUTHORITY.issue_expired(&["localhost"]), "sent the alert certificate_expired"),
        ("elsewhere", LOCALHOST.clone(), "sent the alert bad_certificate"),
        ("127.0.0.2", LOCALHOST.clone(), "sent the alert bad_certificate"),
        ("localhost", Issued::self_signed(&["localhost"]), "sent the alert unknown_ca"),
        ("localhost", other.issue(&["localhost"]), "sent the alert unknown_ca"),
    ] {
        let reason = outcome(on, &tls, name, &issued);
        assert!(reason.starts_with("closed: TLS: invalid peer certificate: "), "{reason}");
        assert!(reason.ends_with(problem), "{reason}");
    }
    assert_eq!((tls.stats().completed, tls.stats().failed(pelton_tls::Failure::Certificate)), (2, 5));
}

/// The hash of the public key in a certificate.
fn key_of(issued: &Issued) -> Pin {
    let server = Server::builder().certificate(&issued.chain[..], &issued.key[..]).build().unwrap();
    server.certificates()[0].key
}

fn a_pinned_key_is_required(on: impl Network) {
    let another = AUTHORITY.issue(&["localhost"]);
    let tls = client_builder().pin(key_of(&LOCALHOST)).build().unwrap();
    assert_eq!(outcome(on, &tls, "localhost", &LOCALHOST), "accepted");
    assert!(outcome(on, &tls, "localhost", &another).contains("ApplicationVerificationFailure"));
    // The rest is verified too.
    assert!(outcome(on, &tls, "elsewhere", &LOCALHOST).ends_with("bad_certificate"));
    let tls = client_builder().pin(key_of(&LOCALHOST)).pin(key_of(&another)).build().unwrap();
    assert_eq!(outcome(on, &tls, "localhost", &another), "accepted");
}

fn a_self_signed_server_is_accepted_by_its_key(on: impl Network) {
    let issued = Issued::self_signed(&["whatever"]);
    let tls = Client::builder().pin(key_of(&issued)).only_pins().build().unwrap();
    assert_eq!(outcome(on, &tls, "localhost", &issued), "accepted");
    assert!(outcome(on, &tls, "localhost", &LOCALHOST).contains("ApplicationVerificationFailure"));
}

fn a_revoked_server_is_rejected(on: impl Network) {
    let revoked = AUTHORITY.issue(&["localhost"]);
    let tls = client_builder().revocation_list(AUTHORITY.revoke(&[&revoked])).build().unwrap();
    assert_eq!(outcome(on, &tls, "localhost", &LOCALHOST), "accepted");
    assert!(outcome(on, &tls, "localhost", &revoked).ends_with("sent the alert certificate_revoked"));
}

fn the_name_can_be_another_one(on: impl Network) {
    let tls = client_builder().name("localhost").build().unwrap();
    assert_eq!(outcome(on, &tls, "elsewhere", &LOCALHOST), "accepted");
}

fn verification_can_be_turned_off(on: impl Network) {
    let tls = Client::builder().dangerous_without_verification().build().unwrap();
    assert_eq!(outcome(on, &tls, "elsewhere", &Issued::self_signed(&["whatever"])), "accepted");
}

#[test]
fn a_client_that_could_verify_nobody_is_not_built() {
    let error = Client::builder().only_pins().build().unwrap_err();
    assert!(error.to_string().starts_with("no public key is pinned"), "{error}");
    // Settings that would silently have no effect.
    let unverified = || Client::builder().dangerous_without_verification();
    let error = unverified().pin(Pin::of(b"key")).build().unwrap_err();
    assert!(error.to_string().starts_with("a pinned key has no effect"), "{error}");
    let pins_only = Client::builder().pin(Pin::of(b"key")).only_pins();
    for builder in [unverified(), pins_only] {
        let error = builder.revocation_list(AUTHORITY.revoke(&[])).build().unwrap_err();
        assert!(error.to_string().starts_with("a revocation list has no effect"), "{error}");
    }
    let error = Client::builder().roots(&b"nothing"[..]).build().unwrap_err();
    assert_eq!(error.to_string(), "PEM: there is no certificate in it");
    let error = Client::builder().roots("/nowhere/roots.pem").build().unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }));
    assert!(error.to_string().starts_with("read /nowhere/roots.pem: "), "{error}");
    let error = client().layer("no name").err().unwrap();
    assert_eq!(error.to_string(), "\"no name\" is not a name that a certificate can be issued for");
}

#[test]
fn a_server_without_a_usable_certificate_is_not_built() {
    let error = Server::builder().build().unwrap_err();
    assert!(matches!(error, ConfigError::NoCertificate));
    let other = AUTHORITY.issue(&["other.example"]);
    let error = Server::builder().certificate(&LOCALHOST.chain[..], other.key).build().unwrap_err();
    assert_eq!(error.to_string(), "PEM: the key does not belong to the certificate");
    let error = Server::builder().certificate(&LOCALHOST.chain[..], &LOCALHOST.chain[..]).build().unwrap_err();
    assert_eq!(error.to_string(), "PEM: there is no private key in it");
    let with_key = |key: &str| {
        let server = Server::builder().certificate(&LOCALHOST.chain[..], key.as_bytes());
        server.build().unwrap_err().to_string()
    };
    for encrypted in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMAA=\n-----END EC PRIVATE KEY-----\n",
    ] {
        assert_eq!(with_key(encrypted), "PEM: the private key is encrypted; `openssl pkey` decrypts it");
    }
    let cut = with_key("-----BEGIN PRIVATE KEY-----\nMAA=\n");
    assert!(cut.contains(r#"the line "-----END PRIVATE KEY-----" is missing"#), "{cut}");
    let error = server_builder().revocation_list(AUTHORITY.revoke(&[])).build().unwrap_err();
    assert!(error.to_string().starts_with("a revocation list has no effect"), "{error}");
}
