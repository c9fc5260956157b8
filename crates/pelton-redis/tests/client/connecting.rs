//! Connecting: users, databases, TLS, old servers.

use std::time::Duration;

use pelton::Reactor;
use pelton_redis::{Command, Error, Options, Protocol, Value};
use pelton_testing::{Authority, RedisServer, run_until};

use super::{ask, open, options, ping, quick};

#[test]
fn acl_user_database_name_and_protocol_are_set() {
    let user = ["--user", "ana", "on", ">p@ss", "~*", "&*", "+@all", "--requirepass", "secret"];
    let server = RedisServer::start(&user);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut reactor = Reactor::new().unwrap();
        let url = format!("unix://ana:p%40ss@{}?db=3", server.socket().display());
        let redis = open(&mut reactor, quick(url.parse().unwrap()).protocol(protocol).name("my program"));
        let info: String = ask(&mut reactor, &redis, Command::new("CLIENT").arg("INFO")).unwrap();
        for part in [" user=ana ", " db=3 ", " name=my-program "] {
            assert!(info.contains(part), "{info}");
        }
        // A map in RESP3, an array in RESP2.
        ask::<()>(&mut reactor, &redis, Command::new("HSET").arg("hash").arg("field").arg("value")).unwrap();
        let hash: Value = ask(&mut reactor, &redis, Command::new("HGETALL").arg("hash")).unwrap();
        assert_eq!(matches!(hash, Value::Map(_)), protocol == Protocol::Resp3, "{hash:?}");
        let pairs = hash.into_pairs().unwrap();
        assert_eq!(pairs, [(Value::Bytes("field".into()), Value::Bytes("value".into()))]);
    }
}

#[test]
fn wrong_password_fails_commands_at_once_and_does_not_end_the_client() {
    let server = RedisServer::start(&["--requirepass", "secret"]);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, options(&server).password("wrong").protocol(protocol));
        let answer = ask::<()>(&mut reactor, &redis, ping());
        let Err(Error::Refused { command: "PING", error }) = answer else { panic!("{answer:?}") };
        assert_eq!(error.code(), "WRONGPASS");
        assert!(redis.last_outage().contains("WRONGPASS"), "{}", redis.last_outage());
    }
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    let answer = ask::<()>(&mut reactor, &redis, ping());
    assert!(matches!(&answer, Err(Error::Refused { error, .. }) if error.code() == "NOAUTH"), "{answer:?}");
    // Somebody removes the password. The client notices by itself.
    let admin = open(&mut reactor, options(&server).password("secret"));
    ask::<()>(&mut reactor, &admin, Command::new("CONFIG").arg("SET").arg("requirepass").arg("")).unwrap();
    run_until(&mut reactor, |_| redis.stats().connected);
    assert!(ask::<()>(&mut reactor, &redis, ping()).is_ok());
}

#[test]
fn server_that_cannot_be_reached_makes_commands_fail_in_time() {
    let mut reactor = Reactor::new().unwrap();
    let unreachable: Options = "unix:///nonexistent/redis.sock".parse().unwrap();
    let redis = open(&mut reactor, quick(unreachable).time_limit(Duration::from_millis(100)));
    let answer = ask::<()>(&mut reactor, &redis, ping());
    let Err(Error::Unavailable { command: "PING", reason, .. }) = &answer else { panic!("{answer:?}") };
    assert!(reason.contains("/nonexistent/redis.sock"), "{reason}");
    assert!(!answer.unwrap_err().may_have_run());
    assert!(redis.stats().outages >= 2, "it tries again: {:?}", redis.stats());
}

#[test]
fn commands_wait_for_a_server_that_starts_later() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    let answers: Vec<_> = (0..3).map(|_| redis.ask::<i64>(&mut reactor, Command::new("INCR").arg("n"))).collect();
    run_until(&mut reactor, |_| redis.stats().outages > 3);
    server.restart();
    let answers: Vec<_> = answers.into_iter().map(|answer| super::settled(&mut reactor, answer)).collect();
    assert_eq!(answers, [Ok(1), Ok(2), Ok(3)]);
}

#[test]
fn silent_server_does_not_hold_up_connecting_for_ever() {
    // It accepts connections and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = quick(Options::new(listener.local_addr().unwrap()));
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options.connect_limit(Duration::from_millis(50)));
    run_until(&mut reactor, |_| redis.stats().outages >= 2);
    assert!(redis.last_outage().contains("within 50ms"), "{}", redis.last_outage());
}

#[test]
fn tls_verifies_the_server_and_carries_commands() {
    let authority = Authority::new("a test");
    let issued = authority.issue(&["localhost", "127.0.0.1"]);
    let files = std::env::temp_dir().join(format!("pelton-redis-tls-{}", std::process::id()));
    std::fs::create_dir_all(&files).unwrap();
    let (chain, key) = issued.write_to(&files, "server");
    let (server, port) = RedisServer::start_on_port(|port| {
        let (chain, key, port) = (chain.to_str().unwrap(), key.to_str().unwrap(), port.to_string());
        let files = ["--tls-cert-file", chain, "--tls-key-file", key, "--tls-ca-cert-file", chain];
        let others = ["--tls-port", &port, "--tls-auth-clients", "no"];
        files.iter().chain(&others).map(ToString::to_string).collect()
    });
    let url = format!("rediss://127.0.0.1:{port}");

    let trusting = pelton_tls::Client::builder().roots(&authority.pem[..]).build().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, quick(url.parse().unwrap()).tls(trusting));
    let large = pelton_testing::pattern(300_000);
    ask::<()>(&mut reactor, &redis, Command::new("SET").arg("k").arg(&large)).unwrap();
    assert!(ask::<pelton::Bytes>(&mut reactor, &redis, Command::new("GET").arg("k")).unwrap() == large);

    let strangers = pelton_tls::Client::builder().roots(&Authority::new("another").pem[..]).build().unwrap();
    let suspicious = quick(url.parse().unwrap()).tls(strangers).time_limit(Duration::from_millis(500));
    let redis = open(&mut reactor, suspicious);
    let answer = ask::<()>(&mut reactor, &redis, ping());
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    assert!(redis.last_outage().contains("certificate"), "{}", redis.last_outage());
    drop(server);
    std::fs::remove_dir_all(files).unwrap();
}
