//! Other clients of a server on the loop.

use pelton_testing::{Authority, Log, On, listen, on_every_engine};
use pelton_tls::ClientCertificates;

use super::*;

on_every_engine![
    openssl_talks_with_every_version,
    openssl_resumes_a_session,
    openssl_is_told_about_old_versions,
    openssl_may_ask_for_another_handshake,
    openssl_presents_a_certificate,
    gnutls_talks,
    curl_gets_and_posts,
    curl_gets_what_the_end_of_the_stream_ends,
    python_talks_and_closes_politely,
    python_notices_what_is_wrong,
];

fn openssl(reactor: &mut EventLoop, port: &str, files: &Files, more: &[&str], input: &str) -> Ended {
    let to = format!("localhost:{port}");
    let verify = ["-CAfile", &files.authority, "-verify_return_error", "-servername", "localhost"];
    let arguments = [&["s_client", "-connect", &to, "-4"], &verify[..], more].concat();
    run(reactor, "openssl", &arguments, input)
}

fn openssl_talks_with_every_version(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().alpn("http/1.1").build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    for (version, name) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let arguments = [version, "-alpn", "h2,http/1.1", "-ign_eof", "-nocommands"];
        let ended = openssl(&mut reactor, &port, &files, &arguments, "water\nwheel\nquit\n");
        assert!(ended.succeeded, "{ended:?}");
        for expected in
            ["you said water\n", "you said wheel\n", name, "Verify return code: 0", "ALPN protocol: http/1.1", "closed"]
        {
            assert!(ended.output.contains(expected), "{expected}: {ended:?}");
        }
        assert!(!ended.output.contains("unexpected eof"), "{ended:?}");
    }
    assert_eq!(tls.stats().completed, 2);
}

fn openssl_resumes_a_session(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    for version in ["-tls1_3", "-tls1_2"] {
        let session = files.path("session");
        let first = ["-sess_out", &session, version, "-ign_eof", "-nocommands"];
        let ended = openssl(&mut reactor, &port, &files, &first, "water\nquit\n");
        assert!(ended.output.contains("New, TLS"), "{ended:?}");
        let second = ["-sess_in", &session, version, "-ign_eof", "-nocommands"];
        let ended = openssl(&mut reactor, &port, &files, &second, "wheel\nquit\n");
        assert!(ended.succeeded && ended.output.contains("Reused, TLS"), "{ended:?}");
        assert!(ended.output.contains("you said wheel"), "{ended:?}");
    }
    assert_eq!((tls.stats().completed, tls.stats().resumed), (4, 2));
}

fn openssl_is_told_about_old_versions(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    for version in ["-tls1", "-tls1_1"] {
        // Recent versions of OpenSSL need persuasion to offer these.
        let arguments = [version, "-cipher", "ALL:@SECLEVEL=0"];
        let ended = openssl(&mut reactor, &port, &files, &arguments, "");
        // A hello of that time lacks extensions, which rustls misses first.
        assert!(!ended.succeeded && ended.output.contains("alert handshake failure"), "{ended:?}");
        let reason = log.take().remove(0);
        assert!(reason.ends_with("sent the alert handshake_failure"), "{reason}");
    }
    let ended = openssl(&mut reactor, &port, &files, &["-tls1_2", "-cipher", "AES128-SHA"], "");
    assert!(!ended.succeeded && ended.output.contains("handshake failure"), "{ended:?}");
    assert_eq!(tls.stats().completed, 0);
}

fn openssl_may_ask_for_another_handshake(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    // A read that begins with R begins a new handshake in TLS 1.2. The server does not take part. In TLS 1.3, K asks for
    // new keys, and everything goes on.
    let script = r#"{ echo "$1"; sleep 0.2; echo water; sleep 0.2; } |
        openssl s_client -connect "localhost:$2" -4 -servername localhost -CAfile "$3" "$4""#;
    let mut ask = |letter, version| {
        let arguments = ["-c", script, "sh", letter, &port, &files.authority, version];
        run(&mut reactor, "sh", &arguments, "")
    };
    let ended = ask("R", "-tls1_2");
    assert!(ended.output.contains("RENEGOTIATING") && ended.output.contains("no renegotiation"), "{ended:?}");
    let ended = ask("K", "-tls1_3");
    assert!(ended.output.contains("KEYUPDATE") && ended.output.contains("you said water"), "{ended:?}");
    assert_eq!(tls.stats().completed, 2, "no third handshake");
}

fn openssl_presents_a_certificate(on: On) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required).build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    let alice = Files::new(&AUTHORITY.issue(&["alice.example"]));
    let mallory = Files::new(&Authority::new("Mallory").issue(&["alice.example"]));
    let with = |files: &Files, reactor: &mut EventLoop| {
        let arguments = ["-cert", &files.chain, "-key", &files.key, "-ign_eof", "-nocommands"];
        openssl(reactor, &port, files, &arguments, "water\nquit\n")
    };
    let ended = with(&alice, &mut reactor);
    assert!(ended.succeeded && ended.output.contains("you said water"), "{ended:?}");
    let ended = with(&mallory, &mut reactor);
    assert!(ended.output.contains("alert unknown ca"), "{ended:?}");
    let ended = openssl(&mut reactor, &port, &alice, &["-ign_eof"], "water\nquit\n");
    assert!(ended.output.contains("alert certificate required"), "{ended:?}");
}

fn gnutls_talks(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().alpn("http/1.1").build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    for priority in ["NORMAL", "NORMAL:-VERS-ALL:+VERS-TLS1.2", "NORMAL:-GROUP-ALL:+GROUP-SECP384R1"] {
        let authority = format!("--x509cafile={}", files.authority);
        let priority = format!("--priority={priority}");
        let arguments = [&authority, &priority, "--alpn=http/1.1", "-p", &port, "localhost"];
        let ended = run(&mut reactor, "gnutls-cli", &arguments, "water\nquit\n");
        assert!(ended.succeeded && ended.output.contains("The certificate is trusted"), "{ended:?}");
        assert!(ended.output.contains("you said water"), "{ended:?}");
    }
    assert_eq!(tls.stats().completed, 3);
}

/// Answers every request with its length, and keeps the connection, or closes it where the body has no length.
struct Http {
    received: Vec<u8>,
    ends: bool,
}

impl Connection for Http {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.received.extend_from_slice(&chunk);
        let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") else { return };
        let head = String::from_utf8_lossy(&self.received[..end]).to_lowercase();
        let length = head.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap_or("0"));
        let length: usize = length.parse().unwrap();
        if self.received.len() < end + 4 + length {
            return;
        }
        self.received.clear();
        if self.ends {
            io.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").unwrap();
            io.send(&vec![b'w'; 200_000]).unwrap();
            return io.close_after_writing();
        }
        let answer = format!("{length} bytes");
        io.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).unwrap();
    }
}

fn serve_http(reactor: &mut EventLoop, tls: &Server, ends: bool) -> String {
    let tls = tls.clone();
    let address = listen(reactor, move |_| tls.wrap(Http { received: Vec::new(), ends }));
    format!("https://localhost:{}/", address.to_string().rsplit_once(':').unwrap().1)
}

fn curl_gets_and_posts(on: On) {
    let (mut reactor, files) = (on.reactor(), Files::new(&LOCALHOST));
    let tls = server_builder().alpn("http/1.1").build().unwrap();
    let url = serve_http(&mut reactor, &tls, false);
    let curl = |reactor: &mut EventLoop, more: &[&str]| {
        let arguments = [&["-sS", "-4", "--cacert", &files.authority], more].concat();
        run(reactor, "curl", &arguments, "")
    };
    let ended = curl(&mut reactor, &[&url, &url]);
    assert_eq!((ended.succeeded, ended.output.as_str()), (true, "0 bytes0 bytes"));
    assert_eq!(tls.stats().completed, 1, "the connection was kept");
    let large = files.path("large");
    std::fs::write(&large, vec![b'x'; 1_000_000]).unwrap();
    let data = format!("@{large}");
    let ended = curl(&mut reactor, &["-H", "Expect:", "--data-binary", &data, &url]);
    assert_eq!((ended.succeeded, ended.output.as_str()), (true, "1000000 bytes"));
    let wrong = url.replace("localhost", "other.example");
    let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1;
    let resolve = format!("other.example:{port}:127.0.0.1");
    let ended = curl(&mut reactor, &["--resolve", &resolve, &wrong]);
    assert!(!ended.succeeded && ended.output.contains("curl: (60)"), "{ended:?}");
    let ended = run(&mut reactor, "curl", &["-sS", "-4", &url], "");
    assert!(!ended.succeeded && ended.output.contains("curl: (60)"), "{ended:?}");
}

fn curl_gets_what_the_end_of_the_stream_ends(on: On) {
    let (mut reactor, files) = (on.reactor(), Files::new(&LOCALHOST));
    let url = serve_http(&mut reactor, &server_builder().build().unwrap(), true);
    let ended = run(&mut reactor, "curl", &["-sS", "-4", "--cacert", &files.authority, &url], "");
    assert_eq!((ended.succeeded, ended.output.len()), (true, 200_000));
}

const TALKS: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.set_alpn_protocols(["http/1.1"])
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
    with context.wrap_socket(plain, server_hostname="localhost") as tls:
        assert tls.selected_alpn_protocol() == "http/1.1"
        tls.sendall(b"water\n")
        assert tls.recv(100) == b"you said water\n"
        tls.sendall(b"x" * 100000 + b"\n")
        received = b""
        while len(received) < 100010:
            received += tls.recv(65536)
        # Sends a closing message, and waits for the answer.
        plain = tls.unwrap()
        assert plain.recv(100) == b""
print("done")
"#;

fn python_talks_and_closes_politely(on: On) {
    let (mut reactor, log, files) = (on.reactor(), Log::default(), Files::new(&LOCALHOST));
    let tls = server_builder().alpn("http/1.1").build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    let ended = run(&mut reactor, "python3", &["-c", TALKS, &port, &files.authority], "");
    assert!(ended.succeeded && ended.output.starts_with("done"), "{ended:?}");
    pelton_testing::run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["finished by the other side"]);
}

const REFUSES: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
        context.wrap_socket(plain, server_hostname=sys.argv[3])
except ssl.SSLCertVerificationError as error:
    print(error.verify_message)
"#;

fn python_notices_what_is_wrong(on: On) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    for (issued, name, problem) in [
        (AUTHORITY.issue_expired(&["localhost"]), "localhost", "certificate has expired"),
        (LOCALHOST.clone(), "elsewhere", "Hostname mismatch"),
        (Issued::self_signed(&["localhost"]), "localhost", "self-signed certificate"),
        (Authority::new("Other").issue(&["localhost"]), "localhost", "unable to get local issuer certificate"),
    ] {
        let files = Files::new(&issued);
        let tls = Server::builder().certificate(&issued.chain[..], &issued.key[..]).build().unwrap();
        let port = serve_lines(&mut reactor, &tls, &log);
        let ended = run(&mut reactor, "python3", &["-c", REFUSES, &port, &files.authority, name], "");
        assert!(ended.succeeded && ended.output.contains(problem), "{problem}: {ended:?}");
        pelton_testing::run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        let reason = log.take().remove(0);
        assert!(reason.starts_with("the peer sent the TLS alert "), "{reason}");
    }
}
