//! Certificates that change while a server runs.

use std::path::PathBuf;
use std::time::Duration;

use pelton_testing::{Log, run_until, run_with};
use pelton_tls::{Identity, Reload, Watching};

use super::*;

/// A directory that is deleted with this.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("pelton-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes a file the way tools do: completely, then renamed to its place.
fn replace(path: &std::path::Path, contents: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, contents).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// Connects, and returns the first name in the server's certificate.
fn name_at(reactor: &mut EventLoop, address: &Address) -> String {
    let address = address.to_string();
    run_with(reactor, move || {
        let mut stream = blocking_client(Peer::new(pelton_testing::dial(address)), {
            let mut config = blocking_config();
            config.resumption = pelton_tls::rustls::client::Resumption::disabled();
            config
        });
        // The name is wrong in some of these. The certificate is there nevertheless.
        let _ = stream.write_all(b"x");
        let certificates = stream.conn.peer_certificates().unwrap_or_default();
        let parsed = webpki::EndEntityCert::try_from(&certificates[0]).unwrap();
        parsed.valid_dns_names().next().unwrap().to_owned()
    })
}

#[test]
fn new_connections_use_reloaded_certificates_and_old_ones_stay() {
    let directory = Directory::new("reload");
    let names = |name| ["localhost", name].map(str::to_owned);
    let first = AUTHORITY.issue(&["localhost", "first.example"]);
    let (chain, key) = first.write_to(&directory.0, "server");
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let dialled = address.clone();
    let mut old = run_with(&mut reactor, move || {
        let mut stream = blocking_client(Peer::new(pelton_testing::dial(&dialled)), blocking_config());
        assert_eq!(exchange(&mut stream, b"before"), b"before");
        stream
    });
    assert_eq!(tls.certificates()[0].names, names("first.example"));
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Unchanged);

    let second = AUTHORITY.issue(&["localhost", "second.example"]);
    replace(&chain, &second.chain);
    // The pair does not match for a moment.
    let error = tls.reload_if_changed().unwrap_err();
    assert!(error.to_string().ends_with("server.key: the key does not belong to the certificate"), "{error}");
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Unchanged, "it is reported once");
    assert_eq!(tls.certificates()[0].names, names("first.example"));
    assert_eq!(name_at(&mut reactor, &address), "localhost");

    replace(&key, &second.key);
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Done);
    assert_eq!(tls.certificates()[0].names, names("second.example"));
    assert_ne!(tls.certificates()[0].key, tls.certificates()[0].fingerprint);
    run_with(&mut reactor, move || assert_eq!(exchange(&mut old, b"after"), b"after"));

    replace(&chain, b"broken");
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().ends_with("server.crt: there is no certificate in it"), "{error}");
    std::fs::remove_file(&key).unwrap();
    assert!(tls.reload().is_err());
    assert_eq!(tls.certificates()[0].names, names("second.example"), "the old one stays");
    assert_eq!(name_at(&mut reactor, &address), "localhost");
}

/// A server whose reloads are logged. The timer would come too late for a test.
fn watched(reactor: &mut EventLoop, tls: &Server) -> (Log, Watching) {
    let log = Log::default();
    let entries = log.clone();
    let watching = tls.watch(reactor, Duration::from_secs(3_600), move |_, outcome| match outcome {
        Ok(()) => entries.add("reloaded"),
        Err(error) => entries.add(error.to_string()),
    });
    (log, watching)
}

#[test]
fn a_watched_server_reloads_by_itself_and_reports_broken_files() {
    let directory = Directory::new("watch");
    let (chain, key) = LOCALHOST.write_to(&directory.0, "server");
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    // A change between loading and watching is noticed, too.
    replace(&chain, b"-----BEGIN CERTIFICATE-----\nrubbish");
    let mut reactor = Reactor::new().unwrap();
    let (log, watching) = watched(&mut reactor, &tls);
    run_until(&mut reactor, |_| !log.is_empty());
    let problem = log.take().remove(0);
    assert!(problem.contains("server.crt: no certificate: "), "{problem}");
    // As tools do it: a new file with the old name.
    replace(&chain, &LOCALHOST.chain);
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["reloaded"]);
    // In place, as some editors do.
    std::fs::write(&chain, b"rubbish").unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert!(log.take()[0].contains("there is no certificate in it"));
    // Deleted, and written anew.
    std::fs::remove_file(&chain).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert!(log.take()[0].starts_with("read "));
    let second = AUTHORITY.issue(&["second.example"]);
    second.write_to(&directory.0, "server");
    run_until(&mut reactor, |_| tls.certificates()[0].names == ["second.example"] && !log.is_empty());
    assert_eq!(log.take().last().unwrap(), "reloaded");
    watching.end(&mut reactor);
    assert_eq!((reactor.path_watch_count(), reactor.timer_count()), (0, 0));
    replace(&chain, &LOCALHOST.chain);
    for _ in 0..5 {
        reactor.turn(Some(Duration::from_millis(60))).unwrap();
    }
    assert!(log.is_empty());
}

#[test]
fn symbolic_links_that_are_pointed_elsewhere_are_noticed() {
    use std::os::unix::fs::symlink;
    let directory = Directory::new("links");
    let [first, second, third] = ["first.example", "second.example", "third.example"].map(|name| {
        let issued = AUTHORITY.issue(&[name]);
        let path = directory.0.join(name);
        std::fs::create_dir(&path).unwrap();
        issued.write_to(&path, "tls");
        path
    });
    // As Kubernetes does it: tls.crt -> ..data/tls.crt, and ..data -> a directory that is replaced by a rename.
    symlink(&first, directory.0.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), directory.0.join(name)).unwrap();
    }
    let (chain, key) = (directory.0.join("tls.crt"), directory.0.join("tls.key"));
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let (log, _watching) = watched(&mut reactor, &tls);
    run_until(&mut reactor, |reactor| reactor.path_watch_count() == 2);
    symlink(&second, directory.0.join("..data_tmp")).unwrap();
    std::fs::rename(directory.0.join("..data_tmp"), directory.0.join("..data")).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["reloaded"]);
    assert_eq!(tls.certificates()[0].names, ["second.example"]);
    // As certbot does it: the link to the file itself is removed and made again.
    for name in ["tls.crt", "tls.key"] {
        std::fs::remove_file(directory.0.join(name)).unwrap();
        symlink(third.join(name), directory.0.join(name)).unwrap();
    }
    run_until(&mut reactor, |_| tls.certificates()[0].names == ["third.example"]);
}

#[test]
fn pairs_that_appear_below_a_watched_directory_are_loaded() {
    let directory = Directory::new("watched-pairs");
    AUTHORITY.issue(&["a.example"]).write_to(&directory.0, "a");
    let tls = Server::builder().directory(&directory.0).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let (_log, _watching) = watched(&mut reactor, &tls);
    run_until(&mut reactor, |reactor| reactor.path_watch_count() == 3);
    let names = |tls: &Server| tls.certificates().iter().map(|one| one.names[0].clone()).collect::<Vec<_>>();
    let below = directory.0.join("b.example");
    std::fs::create_dir(&below).unwrap();
    let issued = AUTHORITY.issue(&["b.example"]);
    std::fs::write(below.join("fullchain.pem"), &issued.chain).unwrap();
    std::fs::write(below.join("privkey.pem"), &issued.key).unwrap();
    run_until(&mut reactor, |_| names(&tls) == ["a.example", "b.example"]);
    // It is watched like the first.
    let renewed = AUTHORITY.issue(&["renewed.example"]);
    replace(&below.join("fullchain.pem"), &renewed.chain);
    replace(&below.join("privkey.pem"), &renewed.key);
    run_until(&mut reactor, |_| names(&tls) == ["a.example", "renewed.example"]);
}

#[test]
fn changes_that_the_system_does_not_report_are_found_by_the_timer() {
    let (directory, elsewhere) = (Directory::new("hard-links"), Directory::new("elsewhere"));
    let (chain, key) = LOCALHOST.write_to(&directory.0, "server");
    // A write through another name of the file is reported to the directory of that name only.
    let other = elsewhere.0.join("other");
    std::fs::hard_link(&chain, &other).unwrap();
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let log = Log::default();
    let entries = log.clone();
    let _watching = tls.watch(&mut reactor, Duration::from_millis(20), move |_, outcome| {
        entries.add(outcome.unwrap_err().to_string());
    });
    run_until(&mut reactor, |reactor| reactor.path_watch_count() == 2);
    std::fs::write(&other, b"broken").unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert!(log.take()[0].contains("there is no certificate in it"));
}

#[test]
fn threads_that_look_at_once_reload_a_change_once() {
    const THREADS: usize = 8;
    let directory = Directory::new("at-once");
    let (chain, key) = LOCALHOST.write_to(&directory.0, "server");
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    for _ in 0..20 {
        replace(&chain, &LOCALHOST.chain);
        let start = std::sync::Barrier::new(THREADS);
        let reloads = std::thread::scope(|scope| {
            let look = || {
                start.wait();
                tls.reload_if_changed().unwrap()
            };
            let looking: Vec<_> = (0..THREADS).map(|_| scope.spawn(look)).collect();
            looking.into_iter().map(|thread| thread.join().unwrap()).filter(|got| *got == Reload::Done).count()
        });
        assert_eq!(reloads, 1);
    }
}

#[test]
fn a_directory_has_pairs_by_name_and_new_ones_are_found() {
    let directory = Directory::new("pairs");
    AUTHORITY.issue(&["a.example"]).write_to(&directory.0, "a");
    let certbot = directory.0.join("b.example");
    std::fs::create_dir(&certbot).unwrap();
    let b = AUTHORITY.issue(&["b.example"]);
    std::fs::write(certbot.join("fullchain.pem"), b.chain).unwrap();
    std::fs::write(certbot.join("privkey.pem"), b.key).unwrap();
    std::fs::write(directory.0.join("README"), "nothing").unwrap();
    let tls = Server::builder().directory(&directory.0).build().unwrap();
    let names = || tls.certificates().iter().map(|certificate| certificate.names[0].clone()).collect::<Vec<_>>();
    assert_eq!(names(), ["a.example", "b.example"]);
    let days = tls.certificates()[0].time_left().as_secs() / 86_400;
    assert!(days > 365, "{days} days");
    AUTHORITY.issue_expired(&["c.example"]).write_to(&directory.0, "c");
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Done);
    assert_eq!(names(), ["a.example", "b.example", "c.example"]);
    assert_eq!(tls.certificates()[2].time_left(), Duration::ZERO);

    let empty = Directory::new("empty");
    let error = Server::builder().directory(&empty.0).build().unwrap_err();
    assert!(error.to_string().contains("there is no certificate with its key in it"), "{error}");
}

#[test]
fn an_ocsp_response_is_sent_along() {
    let directory = Directory::new("ocsp");
    let response = directory.0.join("server.ocsp");
    std::fs::write(&response, RESPONSE).unwrap();
    let identity = Identity::new(&LOCALHOST.chain[..], &LOCALHOST.key[..]).ocsp(&response);
    let tls = Server::builder().identity(identity).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let mut got = move || {
        let address = address.clone();
        run_with(&mut reactor, move || {
            let (config, got) = ocsp::config();
            let mut stream = blocking_client(Peer::new(pelton_testing::dial(address)), config);
            exchange(&mut stream, b"ping");
            got.lock().unwrap().clone()
        })
    };
    assert_eq!(got(), RESPONSE);
    // Half of it was written, or the authority's error was saved: the old one stays.
    for broken in [&RESPONSE[..5], b"", b"\x30\x03\x0a\x01\x03"] {
        std::fs::write(&response, broken).unwrap();
        let error = tls.reload().unwrap_err().to_string();
        assert!(error.contains("server.ocsp: this "), "{error}");
        assert_eq!(got(), RESPONSE);
    }
    std::fs::remove_file(&response).unwrap();
    assert!(tls.reload().unwrap_err().to_string().contains("server.ocsp"));
}

/// What looks like an OCSP response from the outside.
const RESPONSE: &[u8] = b"\x30\x0f\x0a\x01\x00\xa0\x0aa response";

#[test]
fn a_pipe_in_place_of_a_file_is_refused_and_the_next_file_is_read() {
    let directory = Directory::new("pipe");
    let (chain, key) = LOCALHOST.write_to(&directory.0, "server");
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    std::fs::remove_file(&chain).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&chain).status().unwrap().success());
    // Nobody writes into it.
    for attempt in [Server::reload, |tls: &Server| tls.reload_if_changed().map(|_| ())] {
        let error = attempt(&tls).unwrap_err().to_string();
        assert!(error.ends_with("server.crt: this is neither a file nor a directory"), "{error}");
    }
    std::fs::remove_file(&chain).unwrap();
    LOCALHOST.write_to(&directory.0, "server");
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Done);
}

#[test]
fn a_file_that_becomes_readable_is_read() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new("readable");
    let (chain, key) = LOCALHOST.write_to(&directory.0, "server");
    let tls = Server::builder().certificate(&chain, &key).build().unwrap();
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Unchanged);
    // Tests may run as root, who can read everything: only that it looks again matters.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Done);
    assert_eq!(tls.reload_if_changed().unwrap(), Reload::Unchanged);
}

/// A client that notes the OCSP response.
mod ocsp {
    use std::sync::Mutex;

    use pelton_tls::rustls::client::WebPkiServerVerifier;
    use pelton_tls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use pelton_tls::rustls::pki_types::UnixTime;
    use pelton_tls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

    use super::*;

    #[derive(Debug)]
    struct Notes(Arc<Mutex<Vec<u8>>>, Arc<WebPkiServerVerifier>);

    impl ServerCertVerifier for Notes {
        fn verify_server_cert(
            &self,
            certificate: &CertificateDer<'_>,
            chain: &[CertificateDer<'_>],
            name: &ServerName<'_>,
            ocsp: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            *self.0.lock().unwrap() = ocsp.to_vec();
            self.1.verify_server_cert(certificate, chain, name, &[], now)
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.1.verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.1.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.1.supported_verify_schemes()
        }
    }

    pub fn config() -> (ClientConfig, Arc<Mutex<Vec<u8>>>) {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&AUTHORITY.pem).unwrap()).unwrap();
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Notes(got.clone(), verifier)))
            .with_no_client_auth();
        (config, got)
    }
}
