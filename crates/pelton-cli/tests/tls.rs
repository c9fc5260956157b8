//! `pelton serve` over TLS, with curl and openssl as clients.

#![forbid(unsafe_code)]

mod server;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pelton_testing::{Authority, Issued};
use rustix::process::Signal;

use server::Server;
use server::http::{Directory, Successor, curl};

/// Files of a server whose certificate is for these names.
struct Files {
    directory: Directory,
    authority: Authority,
}

impl Files {
    fn new(name: &str) -> Files {
        let files = Files { directory: Directory::new(name), authority: Authority::new("Pelton's tests") };
        fs::write(files.directory.file("authority.pem"), &files.authority.pem).unwrap();
        files.write("own", &files.authority.issue(&["localhost"]));
        files
    }

    fn write(&self, name: &str, issued: &Issued) {
        issued.write_to(self.directory.file("x").parent().unwrap(), name);
    }

    fn path(&self, name: &str) -> String {
        self.directory.file(name).to_str().unwrap().to_owned()
    }
}

/// Returns the port in a URL.
fn port(url: &str) -> &str {
    url.trim_end_matches('/').rsplit_once(':').unwrap().1
}

/// Runs curl, which may fail.
fn attempt(arguments: &[&str]) -> Output {
    let curl = Command::new("curl").args(["--silent", "--show-error", "--max-time", "20"]).args(arguments).output();
    curl.expect("curl is there")
}

#[test]
fn files_are_served_with_tls_by_name_and_plain_http_is_redirected() {
    let files = Files::new("tls");
    files.write("other", &files.authority.issue(&["other.example"]));
    let (cert, key, other, other_key, authority) = (
        files.path("own.crt"),
        files.path("own.key"),
        files.path("other.crt"),
        files.path("other.key"),
        files.path("authority.pem"),
    );
    let (site, large) = (files.path("site"), "x".repeat(3_000_000));
    fs::create_dir(&site).unwrap();
    fs::write(Path::new(&site).join("index.html"), "water").unwrap();
    fs::write(Path::new(&site).join("large"), &large).unwrap();
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-cert", &other, "--tls-key", &other_key];
    let more = ["--hsts", "3600", "--redirect-http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "2"];
    let arguments = [&[&site[..], "--listen", "127.0.0.1:0"], &tls[..], &more].concat();
    let mut server = Server::start_on(3, "serve", &arguments);
    let port = port(server.address(0)).to_owned();
    assert!(server.address(0).starts_with("https://"), "{:?}", server.said);
    let (here, there) = (format!("localhost:{port}:127.0.0.1"), format!("other.example:{port}:127.0.0.1"));
    let trusted = ["--cacert", &authority, "--resolve", &here, "--resolve", &there];
    let get = |more: &[&str]| curl(&[&trusted[..], more].concat());

    let (url, other) = (format!("https://localhost:{port}/"), format!("https://other.example:{port}/"));
    assert_eq!(get(&[&url]), "water");
    assert_eq!(get(&[&other]), "water", "another certificate");
    assert!(get(&[&format!("{url}large")]) == large);
    let head = get(&["--head", "--http1.1", &url]).to_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("strict-transport-security: max-age=3600\r\n"), "{head}");

    let redirect = server.address(1).trim_end_matches('\n').replace("127.0.0.1", "localhost");
    let head = get(&["-4", "--head", &format!("{redirect}some/where?a=b")]).to_lowercase();
    let to = format!("location: https://localhost:{port}/some/where?a=b\r\n");
    assert!(head.starts_with("http/1.1 308") && head.contains(&to), "{head}");
    assert!(!head.contains("strict-transport"), "{head}");
    assert_eq!(get(&["-4", "--location", &redirect]), "water");

    // Plain HTTP at the address of TLS.
    let plain = attempt(&[&format!("http://127.0.0.1:{port}/")]);
    assert!(!plain.status.success());
    let metrics = curl(&[&format!("{}metrics", server.address(2))]);
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!(value("pelton_tls_handshakes_total "), 5.0);
    assert_eq!(value("pelton_tls_handshakes_failed_total{reason=\"protocol\"}"), 1.0);
    assert!(value("pelton_tls_certificate_expiry_days{name=\"other.example\"") > 1_000.0);
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn a_self_signed_certificate_is_made_and_its_fingerprint_printed() {
    let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--tls-self-signed"]);
    let printed = server.prints();
    let fingerprint = printed.trim().rsplit_once(' ').unwrap().1.to_owned();
    assert!(fingerprint.len() == 64 && printed.starts_with("self-signed certificate"), "{printed}");
    let url = server.address(0).to_owned();
    assert!(curl(&["--insecure", &url]).contains("Pelton"));
    assert_eq!(attempt(&[&url]).status.code(), Some(60), "nobody trusts it");
    let shown = Command::new("sh")
        .args([
            "-c",
            "openssl s_client -connect \"$0\" </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256",
        ])
        .arg(format!("127.0.0.1:{}", port(&url)))
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap().replace(':', "").to_lowercase();
    assert!(shown.contains(&fingerprint), "{shown}");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn certificates_are_reloaded_and_a_broken_one_is_reported() {
    let files = Files::new("tls-reload");
    let (cert, key, authority) = (files.path("own.crt"), files.path("own.key"), files.path("authority.pem"));
    let options = ["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--log-level", "info"];
    let mut server = Server::start("serve", &options);
    let port = port(server.address(0)).to_owned();
    let get = |name: &str| {
        let resolve = format!("{name}:{port}:127.0.0.1");
        attempt(&["--cacert", &authority, "--resolve", &resolve, &format!("https://{name}:{port}/")]).status.code()
    };
    assert_eq!((get("localhost"), get("new.example")), (Some(0), Some(60)));
    // By itself, when the files change.
    files.write("own", &files.authority.issue(&["new.example"]));
    server.log("certificates reloaded");
    assert_eq!((get("localhost"), get("new.example")), (Some(60), Some(0)));
    // By a signal, too.
    server.signal(Signal::HUP);
    server.log("certificates reloaded");
    fs::write(&cert, "broken").unwrap();
    server.signal(Signal::HUP);
    let line = server.log("the old ones stay in use");
    assert!(line.contains("own.crt: there is no certificate in it"), "{line}");
    assert_eq!(get("new.example"), Some(0));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn clients_without_a_certificate_are_rejected_if_one_is_required() {
    let files = Files::new("tls-clients");
    let (cert, key, authority) = (files.path("own.crt"), files.path("own.key"), files.path("authority.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &authority, "--tls-min-version", "1.3"];
    let mut server = Server::start("serve", &[&["--listen", "127.0.0.1:0"], &tls[..]].concat());
    let port = port(server.address(0)).to_owned();
    let (url, here) = (format!("https://localhost:{port}/"), format!("localhost:{port}:127.0.0.1"));
    let trusted = ["--cacert", &authority, "--resolve", &here, &url];
    assert!(!attempt(&trusted).status.success());
    let own = ["--cert", &cert, "--key", &key];
    assert!(curl(&[&trusted[..], &own].concat()).contains("Pelton"));
    let old = attempt(&[&trusted[..], &own, &["--tls-max", "1.2"]].concat());
    assert!(!old.status.success(), "{old:?}");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

/// Connects with openssl and this file of a session. Returns its output.
fn openssl(port: &str, option: &str, session: &str) -> String {
    let mut command = Command::new("sh");
    let script =
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | timeout 20 openssl s_client -ign_eof -connect \"$0\" \"$1\" \"$2\"";
    command.args(["-c", script, &format!("127.0.0.1:{port}"), option, session]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn sessions_are_resumed_after_a_hand_over() {
    let files = Files::new("tls-hand-over");
    let (cert, key, pid_file, session) =
        (files.path("own.crt"), files.path("own.key"), files.directory.file("pid"), files.path("session"));
    let options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--pid-file", pid_file.to_str().unwrap()];
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let mut server = Server::start_on(2, "serve", &[&options[..], &tls].concat());
    let port = port(server.address(0)).to_owned();
    let first = openssl(&port, "-sess_out", &session);
    assert!(first.contains("New, TLSv1.3") && first.contains("Pelton"), "{first}");
    server.signal(Signal::USR2);
    let successor = Successor::of(&pid_file, server.id());
    assert_eq!(server.code(), 0);
    let second = openssl(&port, "-sess_in", &session);
    assert!(second.contains("Reused, TLSv1.3") && second.contains("Pelton"), "{second}");
    let metrics = curl(&[&format!("{}metrics", server.address(1))]);
    assert!(metrics.contains("\npelton_tls_resumed_total 1\n"), "{metrics}");
    successor.signal(Signal::TERM);
    server::eventually("the last process ends", || (!pid_file.exists()).then_some(()));
}

#[cfg(target_os = "linux")]
#[test]
fn root_is_given_up_after_the_keys_are_read() {
    if !rustix::process::geteuid().is_root() {
        // Nothing can be given up.
        return;
    }
    let files = Files::new("tls-user");
    let (cert, key) = (files.path("own.crt"), files.path("own.key"));
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&key, private).unwrap();
    let tls = ["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--log-level", "info"];
    let more = ["--user", "nobody", "--group", "65534", "--workers", "2", "--access-log", "/dev/null"];
    let mut server = Server::start("serve", &[&tls[..], &more].concat());
    let threads: Vec<_> = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().collect();
    assert!(threads.len() >= 4, "the main one, two workers, the log");
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        for ids in [field("Uid:"), field("Gid:")] {
            assert_eq!(ids.split_whitespace().collect::<Vec<_>>(), ["65534"; 4]);
        }
        assert_eq!((field("Groups:").as_str(), field("CapEff:").as_str()), ("65534", "0000000000000000"));
    }
    assert!(curl(&["--insecure", server.address(0)]).contains("Pelton"));
    // The key cannot be read any more. The one in memory is still used.
    server.signal(Signal::HUP);
    let line = server.log("the old ones stay in use");
    assert!(line.contains("own.key: Permission denied"), "{line}");
    assert!(curl(&["--insecure", server.address(0)]).contains("Pelton"));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let files = Files::new("tls-options");
    let (cert, key) = (files.path("own.crt"), files.path("own.key"));
    let refused = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pelton")).arg("serve").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, code, problem) in [
        (&["--tls-cert", &cert][..], 2, "--tls-key"),
        (&["--tls-cert", &cert, "--tls-cert", &cert, "--tls-key", &key], 2, "there are 2 and 1"),
        (&["--listen", "127.0.0.1:0", "--user", "no such user"], 2, "--user no such user: there is no such user"),
        (&["--hsts", "60"], 2, "--hsts needs a certificate"),
        (&["--redirect-http", "127.0.0.1:0"], 2, "--redirect-http needs a certificate"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", &key, "--tls-key", &key], 1, "there is no certificate in it"),
        (&["--listen", "127.0.0.1:0", "--tls-dir", "/nowhere"], 1, "read /nowhere"),
    ] {
        let (status, text) = refused(arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {text}");
        assert!(text.contains(problem), "{arguments:?}: {text}");
    }
}

#[test]
fn unix_sockets_and_the_admin_address_speak_tls() {
    let files = Files::new("tls-unix");
    let (cert, key, authority) = (files.path("own.crt"), files.path("own.key"), files.path("authority.pem"));
    let (socket, admin) = (server::socket_file("tls-serve"), server::socket_file("tls-admin"));
    let (listen, admin_at) = (format!("unix:{}", socket.display()), format!("unix:{}", admin.display()));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--admin-tls"];
    let trusted = |socket: &Path, url: &str| {
        curl(&["--cacert", &authority, "--unix-socket", socket.to_str().unwrap(), "--http1.1", url])
    };
    let mut server = Server::start_on(2, "serve", &[&["--listen", &listen, "--admin", &admin_at], &tls[..]].concat());
    assert!(trusted(&socket, "https://localhost/").contains("Pelton"));
    assert_eq!(trusted(&admin, "https://localhost/health"), "ok\n");
    let plain = attempt(&["--unix-socket", admin.to_str().unwrap(), "http://localhost/health"]);
    assert!(!plain.status.success(), "{plain:?}");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);

    let here = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut server = Server::start_on(2, "serve", &[&here, &tls[..]].concat());
    let url = server.address(1).to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{:?}", server.said);
    let (port, resolve) = (port(&url), format!("localhost:{}:127.0.0.1", port(&url)));
    let get = |path: &str| {
        curl(&["--cacert", &authority, "--resolve", &resolve, &format!("https://localhost:{port}/{path}")])
    };
    assert_eq!(get("health"), "ok\n");
    // Clients of the admin address are not among those of the server.
    assert!(get("metrics").contains("\npelton_tls_handshakes_total 0\n"));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn a_directory_of_pairs_is_served_and_new_ones_are_noticed() {
    let files = Files::new("tls-dir");
    let pairs = files.directory.file("pairs");
    fs::create_dir(&pairs).unwrap();
    files.authority.issue(&["a.example"]).write_to(&pairs, "a");
    let authority = files.path("authority.pem");
    let options = ["--listen", "127.0.0.1:0", "--tls-dir", pairs.to_str().unwrap(), "--log-level", "info"];
    let mut server = Server::start("serve", &options);
    let port = port(server.address(0)).to_owned();
    let get = |name: &str| {
        let resolve = format!("{name}:{port}:127.0.0.1");
        attempt(&["--cacert", &authority, "--resolve", &resolve, &format!("https://{name}:{port}/")]).status.code()
    };
    assert_eq!((get("a.example"), get("b.example")), (Some(0), Some(60)));
    files.authority.issue(&["b.example"]).write_to(&pairs, "b");
    server::eventually("the new pair is loaded", || (get("b.example") == Some(0)).then_some(()));
    assert_eq!(get("a.example"), Some(0));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn a_certificate_of_the_client_may_be_optional_and_has_to_be_valid() {
    let files = Files::new("tls-optional");
    let (cert, key, authority) = (files.path("own.crt"), files.path("own.key"), files.path("authority.pem"));
    files.write("stranger", &Authority::new("another one").issue(&["stranger.example"]));
    let (stranger, strangers) = (files.path("stranger.crt"), files.path("stranger.key"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &authority, "--tls-client-cert", "optional"];
    let mut server = Server::start("serve", &[&["--listen", "127.0.0.1:0"], &tls[..]].concat());
    let port = port(server.address(0)).to_owned();
    let (url, here) = (format!("https://localhost:{port}/"), format!("localhost:{port}:127.0.0.1"));
    let trusted = ["--cacert", &authority, "--resolve", &here, &url];
    assert!(curl(&trusted).contains("Pelton"));
    assert!(curl(&[&trusted[..], &["--cert", &cert, "--key", &key]].concat()).contains("Pelton"));
    let rejected = attempt(&[&trusted[..], &["--cert", &stranger, "--key", &strangers]].concat());
    assert!(!rejected.status.success(), "{rejected:?}");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn an_ocsp_response_is_sent_to_clients_that_ask() {
    let files = Files::new("tls-ocsp");
    let (cert, key, ocsp) = (files.path("own.crt"), files.path("own.key"), files.path("own.ocsp"));
    let (authority, authority_key) = (files.path("authority.pem"), files.path("authority.key"));
    fs::write(&authority_key, files.authority.key()).unwrap();
    fs::write(files.path("index"), "").unwrap();
    let mut responder = Command::new("openssl");
    responder.args(["ocsp", "-index", &files.path("index"), "-CA", &authority, "-issuer", &authority, "-cert", &cert]);
    responder.args(["-rsigner", &authority, "-rkey", &authority_key, "-ndays", "1", "-respout", &ocsp]);
    let made = responder.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ocsp", &ocsp];
    let mut server = Server::start("serve", &[&["--listen", "127.0.0.1:0"], &tls[..]].concat());
    let script = "openssl s_client -status -connect \"$0\" </dev/null 2>&1";
    let mut openssl = Command::new("sh");
    openssl.args(["-c", script, &format!("127.0.0.1:{}", port(server.address(0)))]);
    let said = String::from_utf8_lossy(&openssl.output().unwrap().stdout).into_owned();
    assert!(said.contains("OCSP Response Status: successful"), "{said}");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    fs::write(&ocsp, "not a response").unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_pelton")).arg("serve").args(tls).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("own.ocsp: this is not an OCSP response"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_flood_of_handshakes_leaves_descriptors_for_clients_and_the_admin_address() {
    use std::io::Read;
    use std::net::TcpStream;

    let files = Files::new("tls-flood");
    let (cert, key, authority) = (files.path("own.crt"), files.path("own.key"), files.path("authority.pem"));
    let options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "1"];
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let mut server = Server::start_after("ulimit -n 64", 2, "serve", &[&options[..], &tls].concat());
    let address = format!("127.0.0.1:{}", port(server.address(0)));
    let mut admitted = tls_client(&authority, &address);
    assert!(server::http::ask(&mut admitted, "/").0.starts_with("HTTP/1.1 200 "));

    // They never say anything. The bound refuses some of them, the others keep their places.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let metrics = || curl(&[&format!("{}metrics", server.address(1))]);
    let refused = || {
        let metrics = metrics();
        let line = metrics.lines().find(|line| line.contains("failed_total{reason=\"refused\"}")).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()
    };
    let refused = server::eventually("all are accepted or refused", || (refused() > 80).then(refused));
    assert!(server::http::ask(&mut admitted, "/").0.starts_with("HTTP/1.1 200 "));
    assert_eq!(curl(&[&format!("{}health", server.address(1))]), "ok\n");
    for stream in &silent {
        stream.set_nonblocking(true).unwrap();
    }
    // The refused ones notice at once: the end of the stream, or an alert, or a reset.
    let mut noticed = || {
        let over = |stream: &mut TcpStream| !matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        silent.iter_mut().filter_map(|stream| over(stream).then_some(())).count()
    };
    assert!(noticed() >= refused, "{refused} were refused");
    drop(silent);
    server::eventually("others are admitted again", || {
        let stream = TcpStream::connect(&address).ok()?;
        drop(stream);
        let get = attempt(&["--insecure", &format!("https://{address}/")]);
        get.status.success().then_some(())
    });
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    let log = server.whole_log();
    assert!(!log.iter().any(|line| line.contains("descriptors have run out")), "{log:#?}");
}

/// Connects with TLS.
fn tls_client(authority: &str, address: &str) -> impl std::io::Read + std::io::Write {
    use pelton_tls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use pelton_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring};

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let socket = std::net::TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(server::DEADLINE)).unwrap();
    StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), socket)
}
