//! Settings that cannot be used are errors that say why.

use pelton_openssl::{ConfigError, Roots, Version};

use super::*;

#[test]
fn certificates_and_keys_that_are_none_are_refused() {
    let error = |builder: Builder| builder.build().unwrap_err();
    let certificate = error(Config::server().certificate("nothing").key(&LOCALHOST.key[..]));
    assert!(matches!(certificate, ConfigError::Certificate(_)), "{certificate}");
    let missing = error(Config::server().certificate_file("/nonexistent/certificate"));
    assert!(missing.to_string().contains("/nonexistent/certificate: No such file"), "{missing}");
    let key = error(Config::server().certificate(&LOCALHOST.chain[..]).key("nothing"));
    assert!(matches!(key, ConfigError::PrivateKey(_)), "{key}");
    let other = AUTHORITY.issue(&["other"]);
    let mismatch = error(Config::server().certificate(&LOCALHOST.chain[..]).key(&other.key[..]));
    assert_eq!(mismatch.to_string(), "private key: key values mismatch");
    let alone = error(Config::client().key(&LOCALHOST.key[..]));
    assert_eq!(alone.to_string(), "private key: it has no certificate");
}

#[test]
fn an_encrypted_key_needs_its_passphrase() {
    use pelton_openssl::openssl::{pkey::PKey, symm::Cipher};
    let key = PKey::private_key_from_pem(&LOCALHOST.key).unwrap();
    let encrypted = key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_128_cbc(), b"open sesame").unwrap();
    let builder = || Config::server().certificate(&LOCALHOST.chain[..]).key(&encrypted[..]);
    builder().passphrase("open sesame").build().unwrap();
    for builder in [builder(), builder().passphrase("wrong"), builder().passphrase("x".repeat(100_000))] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, ConfigError::PrivateKey(_)), "{error}");
    }
}

#[test]
fn other_settings_that_openssl_refuses_are_named() {
    let error = |builder: Builder| builder.build().unwrap_err().to_string();
    assert_eq!(error(Config::client().ciphers("nonsense")), "list of ciphers: no cipher match");
    assert_eq!(error(Config::client().ciphers("ECDH\0")), "list of ciphers: it contains a zero byte");
    assert_eq!(error(Config::client().groups("\0")), "group: it contains a zero byte");
    let name = Config::client().build().unwrap().layer_to("a\0b").err().unwrap().to_string();
    assert_eq!(name, "name of the server: it contains a zero byte");
    assert!(error(Config::client().groups("nonsense")).starts_with("group: "));
    let missing = error(Config::client().dh_params_file("/nonexistent"));
    assert!(missing.starts_with("Diffie-Hellman parameters: /nonexistent: "), "{missing}");
    assert!(error(Config::client().roots(Roots::File("/nonexistent".into()))).starts_with("certificates to trust: "));
    assert_eq!(error(Config::client().roots(Roots::Pem(Vec::new()))), "certificates to trust: there is none");
    Config::client().roots(Roots::System).build().unwrap();
}

#[test]
fn a_version_that_is_not_allowed_is_not_spoken() {
    let mut reactor = Reactor::new().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, &server().versions([Version::Tls13]).build().unwrap(), Recorder::default());
    let client = Config::client().versions([Version::Tls12]).build().unwrap();
    let handler = wrap(&client, Recorder::logging(&log));
    reactor.connect(&address, handler).unwrap();
    run_out(&mut reactor);
    let log = log.take();
    assert!(log[0].starts_with("closed: TLS handshake: "), "{log:?}");
}
