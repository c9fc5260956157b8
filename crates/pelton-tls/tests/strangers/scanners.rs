//! Programs that look for weaknesses.

use pelton::Reactor;
use pelton_testing::Log;

use super::*;

#[test]
fn sslscan_finds_only_what_is_meant_to_be_there() {
    let (mut reactor, log) = (Reactor::new().unwrap(), Log::default());
    let tls = server_builder().build().unwrap();
    let port = serve_lines(&mut reactor, &tls, &log);
    let ended = run(&mut reactor, "sslscan", &["--no-colour", "--ipv4", &format!("localhost:{port}")], "");
    assert!(ended.succeeded, "{ended:?}");
    for version in ["SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1"] {
        let line = ended.output.lines().find(|line| line.starts_with(version)).unwrap_or_default();
        assert!(line.ends_with("disabled"), "{line}");
    }
    for version in ["TLSv1.2", "TLSv1.3"] {
        assert!(ended.output.lines().any(|line| line.starts_with(version) && line.ends_with("enabled")), "{version}");
    }
    let ciphers: Vec<&str> =
        ended.output.lines().filter(|line| line.starts_with("Preferred") || line.starts_with("Accepted")).collect();
    assert!(ciphers.len() >= 6, "{ciphers:?}");
    for cipher in ciphers {
        assert!(cipher.contains("GCM") || cipher.contains("CHACHA20"), "{cipher}");
        assert!(cipher.contains("TLS_") || cipher.contains("ECDHE-"), "{cipher}");
    }
    assert!(ended.output.contains("Session renegotiation not supported"), "{}", ended.output);
    let heartbleed: Vec<&str> = ended.output.lines().filter(|line| line.contains("heartbleed")).collect();
    assert!(heartbleed.len() >= 2 && heartbleed.iter().all(|line| line.contains("not vulnerable")), "{heartbleed:?}");
}

/// Takes half a minute: `cargo xtask soak --only tls` runs it.
#[test]
#[ignore = "takes half a minute, and needs testssl.sh"]
fn testssl_finds_nothing_above_low() {
    let (mut reactor, log, files) = (Reactor::new().unwrap(), Log::default(), Files::new(&LOCALHOST));
    let port = serve_lines(&mut reactor, &server_builder().build().unwrap(), &log);
    let (table, to) = (files.path("findings.csv"), format!("localhost:{port}"));
    let options = ["--quiet", "--warnings", "off", "--add-ca", &files.authority, "-p", "-S", "-P", "-U", "-s", "-f"];
    let arguments = [&["600", "testssl"], &options[..], &["--csvfile", &table, &to]].concat();
    // Its code counts the findings.
    let ended = run_for_long(&mut reactor, &arguments);
    assert_ne!(ended.code(), Some(124), "it took too long");
    let findings = std::fs::read_to_string(&table).unwrap();
    assert!(findings.lines().count() > 50, "{findings}");
    let severe: Vec<&str> = findings
        .lines()
        .filter(|line| ["\"MEDIUM\"", "\"HIGH\"", "\"CRITICAL\""].iter().any(|severity| line.contains(severity)))
        // The certificate of the tests names no revocation list, and is valid for centuries.
        .filter(|line| !line.contains("cert_revocation") && !line.contains("cert_validityPeriod"))
        .collect();
    assert!(severe.is_empty(), "{severe:#?}");
}
