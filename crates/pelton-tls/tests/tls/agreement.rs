//! What a handshake agrees on: certificates by name, protocols, and who the peer is.

use std::cell::RefCell;
use std::rc::Rc;

use pelton_testing::{Log, Network, listen, on_every_network};
use pelton_tls::rustls::{ProtocolVersion, pki_types::ServerName};
use pelton_tls::{ClientCertificates, Info, Pin};

use super::*;

on_every_network![
    the_certificate_is_chosen_by_name,
    the_protocol_is_chosen,
    the_handler_learns_who_the_client_is,
    a_client_without_a_certificate_is_let_in_if_it_is_optional,
    a_client_without_a_certificate_is_rejected_if_it_is_required,
    a_client_of_another_authority_is_rejected,
    a_revoked_client_is_rejected,
];

/// Notes what was agreed on, and says hello.
struct Asks(Rc<RefCell<Option<Info>>>);

impl Connection for Asks {
    fn opened(&mut self, io: &mut Io<'_>) {
        *self.0.borrow_mut() = pelton_tls::info(io);
        io.send(b"hello").unwrap();
        io.close_after_writing();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

/// Connects with a blocking client, and returns what the server's handler learns and the names in its certificate.
fn meet(on: impl Network, tls: &Server, name: &'static str, config: ClientConfig) -> (Option<Info>, Vec<String>) {
    let (mut reactor, seen) = (on.reactor(), Rc::default());
    let (notes, tls) = (Rc::clone(&seen), tls.clone());
    let address = listen(&mut reactor, move |_| tls.wrap(Asks(Rc::clone(&notes))));
    let certificate = with_peer(&mut reactor, on, &address, move |peer| {
        let name = ServerName::try_from(name).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), peer);
        let mut hello = Vec::new();
        stream.read_to_end(&mut hello).unwrap();
        assert_eq!(hello, b"hello");
        stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    });
    run_out(&mut reactor);
    let parsed = webpki::EndEntityCert::try_from(&certificate).unwrap();
    let names = parsed.valid_dns_names().map(str::to_owned).collect();
    (seen.take(), names)
}

fn the_certificate_is_chosen_by_name(on: impl Network) {
    let one = AUTHORITY.issue(&["one.example", "also.example"]);
    let wild = AUTHORITY.issue(&["*.wild.example"]);
    let exact = AUTHORITY.issue(&["exact.wild.example"]);
    let tls = server_builder()
        .certificate(one.chain, one.key)
        .certificate(wild.chain, wild.key)
        .certificate(exact.chain, exact.key)
        .build()
        .unwrap();
    let names: Vec<_> = tls.certificates().iter().map(|certificate| certificate.names.clone()).collect();
    assert_eq!(
        names,
        [vec!["localhost"], vec!["one.example", "also.example"], vec!["*.wild.example"], vec!["exact.wild.example"]]
    );
    for (name, expected) in [
        ("localhost", "localhost"),
        ("one.example", "one.example"),
        ("ALSO.example", "one.example"),
        ("any.wild.example", "*.wild.example"),
        ("exact.wild.example", "exact.wild.example"),
    ] {
        let (info, names) = meet(on, &tls, name, blocking_config());
        assert_eq!(names[0], expected, "{name}");
        assert_eq!(info.unwrap().server_name, Some(name.to_ascii_lowercase()));
    }
    // An address is not sent as a name.
    let (info, names) = meet(on, &tls, "127.0.0.1", blocking_config());
    assert_eq!((info.unwrap().server_name, names), (None, vec!["localhost".into()]));
}

fn the_protocol_is_chosen(on: impl Network) {
    let tls = server_builder().alpn("first").alpn("second").build().unwrap();
    let meet = |protocols: &[&str]| {
        let mut config = blocking_config();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        meet(on, &tls, "localhost", config).0.unwrap()
    };
    assert_eq!(meet(&["second", "first"]).alpn.as_deref(), Some(&b"first"[..]), "the server prefers it");
    assert_eq!(meet(&["other", "second"]).alpn.as_deref(), Some(&b"second"[..]));
    let info = meet(&[]);
    assert_eq!((info.alpn, info.version), (None, ProtocolVersion::TLSv1_3));
    // Without a common protocol, there is no session.
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    let mut config = blocking_config();
    config.alpn_protocols = vec![b"other".to_vec()];
    with_client(&mut reactor, on, &address, config, |mut stream| {
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    });
    run_out(&mut reactor);
    let [reason] = &log.take()[..] else { panic!() };
    assert!(reason.ends_with("sent the alert no_application_protocol"), "{reason}");
}

/// The configuration of a blocking client that presents a certificate.
pub(super) fn with_certificate(issued: &Issued) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&AUTHORITY.pem).unwrap()).unwrap();
    let chain = CertificateDer::pem_slice_iter(&issued.chain).map(Result::unwrap).collect();
    ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&issued.key).unwrap())
        .unwrap()
}

fn the_handler_learns_who_the_client_is(on: impl Network) {
    let alice = AUTHORITY.issue(&["alice.example"]);
    for which in [ClientCertificates::Optional, ClientCertificates::Required] {
        let tls = server_builder().client_certificates(&AUTHORITY.pem[..], which).build().unwrap();
        let info = meet(on, &tls, "localhost", with_certificate(&alice)).0.unwrap();
        assert_eq!(info.peer_names(), ["alice.example"]);
        let der = CertificateDer::from_pem_slice(&alice.chain).unwrap();
        assert_eq!(info.peer_fingerprint(), Some(Pin::of(&der)));
        assert!(info.peer_key().is_some_and(|key| key != Pin::of(&der)));
    }
}

fn a_client_without_a_certificate_is_let_in_if_it_is_optional(on: impl Network) {
    let tls = server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Optional).build().unwrap();
    let info = meet(on, &tls, "localhost", blocking_config()).0.unwrap();
    assert!(info.peer_certificates.is_empty() && info.peer_names().is_empty() && info.peer_key().is_none());
}

/// Returns why the server rejects a client, and what the client is told.
fn rejection(on: impl Network, tls: &Server, config: ClientConfig) -> (String, String) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, tls, Recorder::logging(&log));
    let told =
        with_client(&mut reactor, on, &address, config, |mut stream| stream.read(&mut [0]).unwrap_err().to_string());
    run_out(&mut reactor);
    let [reason] = &log.take()[..] else { panic!() };
    (reason.clone(), told)
}

fn a_client_without_a_certificate_is_rejected_if_it_is_required(on: impl Network) {
    let tls = server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required).build().unwrap();
    let (reason, told) = rejection(on, &tls, blocking_config());
    assert_eq!(reason, "closed: TLS: peer sent no certificates");
    assert!(told.contains("CertificateRequired"), "{told}");
    assert_eq!(tls.stats().failed(pelton_tls::Failure::Certificate), 1);
}

fn a_client_of_another_authority_is_rejected(on: impl Network) {
    let mallory = Authority::new("Mallory").issue(&["alice.example"]);
    let tls = server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Optional).build().unwrap();
    let (reason, told) = rejection(on, &tls, with_certificate(&mallory));
    assert!(reason.contains("UnknownIssuer") && reason.ends_with("sent the alert unknown_ca"), "{reason}");
    assert!(told.contains("UnknownCA"), "{told}");
}

fn a_revoked_client_is_rejected(on: impl Network) {
    let (good, bad) = (AUTHORITY.issue(&["good.example"]), AUTHORITY.issue(&["bad.example"]));
    let tls = server_builder()
        .client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required)
        .revocation_list(AUTHORITY.revoke(&[&bad]))
        .build()
        .unwrap();
    assert_eq!(meet(on, &tls, "localhost", with_certificate(&good)).0.unwrap().peer_names(), ["good.example"]);
    let (reason, told) = rejection(on, &tls, with_certificate(&bad));
    assert!(reason.contains("Revoked") && reason.ends_with("sent the alert certificate_revoked"), "{reason}");
    assert!(told.contains("CertificateRevoked"), "{told}");
}
