//! What comes from the environment: the certificates that the system trusts, and the file for keys.

use std::fs;

use pelton_testing::{child, run_until};

use super::*;

/// Connects to a server of the loop, and returns what its handler is told.
fn meet(reactor: &mut EventLoop, tls: &Server, client: &Client) -> Vec<String> {
    let log = Log::default();
    let address = serve(reactor, tls, Recorder { greeting: b"hello", ..Recorder::default() });
    let handler = Recorder { quiet: true, finishes_after: b"hello", ..Recorder::logging(&log) };
    reactor.connect(&address, client.wrap("localhost", handler).unwrap()).unwrap();
    run_until(reactor, |reactor| reactor.connection_count() == 0);
    log.take()
}

#[test]
fn the_system_says_whom_to_trust_and_where_keys_are_logged() {
    const TEST: &str = "environment::the_system_says_whom_to_trust_and_where_keys_are_logged";
    if child::role().is_none() {
        let directory = std::env::temp_dir().join(format!("pelton-tls-environment-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = child::command(TEST, "1");
        command.env("SSL_CERT_FILE", directory.join("trusted.pem")).env_remove("SSL_CERT_DIR");
        let output = command.env("SSLKEYLOGFILE", directory.join("keys")).output().unwrap();
        let keys = fs::read_to_string(directory.join("keys")).unwrap_or_default();
        fs::remove_dir_all(&directory).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // One connection, logged by the server and by the client.
        for label in ["CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_TRAFFIC_SECRET_0", "EXPORTER_SECRET"] {
            let of_label: Vec<&str> = keys.lines().filter(|line| line.starts_with(label)).collect();
            assert_eq!(of_label.len(), 2, "{keys}");
            assert_eq!(of_label[0], of_label[1], "both sides have the same");
            assert_eq!(of_label[0].split(' ').map(str::len).collect::<Vec<_>>()[1..], [64, 96]);
        }
        return;
    }
    fs::write(std::env::var("SSL_CERT_FILE").unwrap(), &AUTHORITY.pem).unwrap();
    let mut reactor = Reactor::new().unwrap();
    let accepted = ["opened", "received hello", "peer finished", "closed: finished by the other side"];
    // Nothing is logged unless it is asked for.
    assert_eq!(meet(&mut reactor, &server(), &Client::new().unwrap()), accepted);
    let log = std::env::var("SSLKEYLOGFILE").unwrap();
    assert!(fs::read(&log).unwrap_or_default().is_empty());
    let tls = server_builder().log_keys_for_debugging().build().unwrap();
    let client = Client::builder().log_keys_for_debugging().build().unwrap();
    assert_eq!(meet(&mut reactor, &tls, &client), accepted);
    // The system does not know this one.
    let stranger = Authority::new("Stranger").issue(&["localhost"]);
    let tls = Server::builder().certificate(&stranger.chain[..], &stranger.key[..]).build().unwrap();
    let [reason] = &meet(&mut reactor, &tls, &Client::new().unwrap())[..] else { panic!("accepted") };
    assert!(reason.ends_with("sent the alert unknown_ca"), "{reason}");
    // Nobody is trusted.
    fs::write(std::env::var("SSL_CERT_FILE").unwrap(), "").unwrap();
    assert!(Client::new().is_err());
}
