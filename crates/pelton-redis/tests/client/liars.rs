//! Servers that answer with nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use pelton::Reactor;
use pelton_redis::{Command, Error, Limits, Options, Protocol, ProtocolError};
use pelton_testing::run_until;

use super::{ask, open, ping, quick};

/// A server that answers everything it reads on each connection with the same bytes, then closes the connection.
pub fn liar(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        // Tests make few connections. The thread ends with the process.
        for mut client in listener.incoming().map_while(Result::ok) {
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer);
            let _ = client.shutdown(std::net::Shutdown::Write);
            // Until the client closes the connection, so that no reset overtakes the answer.
            while let Ok(1..) = client.read(&mut [0; 4096]) {}
        }
    });
    address
}

fn options(address: SocketAddr) -> Options {
    // RESP2 needs no greeting, so the first answer is that of the command.
    quick(Options::new(address)).protocol(Protocol::Resp2)
}

#[test]
fn nonsense_is_an_error_of_the_protocol() {
    let limits = Limits { bytes: 1000, elements: 10, depth: 3, line: 100 };
    let cases: [(&'static [u8], ProtocolError); 9] = [
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolError::UnknownType(b'H')),
        (b":12x\r\n", ProtocolError::Malformed("an integer")),
        (b"$1000000000000\r\n", ProtocolError::TooLarge(1000)),
        (b"*2000000000\r\n", ProtocolError::TooManyElements(10)),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", ProtocolError::TooDeep(3)),
        (b"$3\r\nabcdef\r\n", ProtocolError::BadLine),
        (b"$-7\r\n", ProtocolError::Malformed("the length of a string")),
        (b"*1\r\n>1\r\n+x\r\n", ProtocolError::NestedPush),
        (&[b'+'; 500], ProtocolError::LongLine(100)),
    ];
    for (answer, error) in cases {
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, options(liar(answer)).limits(limits));
        let result = ask::<()>(&mut reactor, &redis, ping());
        assert_eq!(result, Err(Error::Protocol { command: "PING", error }), "{}", answer.escape_ascii());
    }
}

#[test]
fn truncated_answers_are_interruptions() {
    let whole = b"*2\r\n$5\r\nhello\r\n:1\r\n";
    for end in 0..whole.len() {
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, options(liar(&whole[..end])));
        let result = ask::<()>(&mut reactor, &redis, ping());
        assert!(matches!(result, Err(Error::Interrupted { .. })), "{end} bytes: {result:?}");
    }
}

#[test]
fn more_answers_than_commands_end_the_connection() {
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(liar(b"+first\r\n+second\r\n")));
    assert_eq!(ask::<String>(&mut reactor, &redis, ping()).as_deref(), Ok("first"));
    run_until(&mut reactor, |_| redis.stats().outages > 0);
    assert!(redis.last_outage().contains("no command waits for"), "{}", redis.last_outage());
}

#[test]
fn pushed_messages_and_attributes_are_not_answers() {
    let mut reactor = Reactor::new().unwrap();
    let answer = b">2\r\n+invalidate\r\n_\r\n|1\r\n+ttl\r\n:1\r\n+answer\r\n";
    let redis = open(&mut reactor, options(liar(answer)));
    assert_eq!(ask::<String>(&mut reactor, &redis, ping()).as_deref(), Ok("answer"));
    assert_eq!(redis.stats().pushed, 1);
}

#[test]
fn nonsense_in_the_greeting_does_not_end_the_client() {
    for answer in [&b"+PONG\r\n"[..], b"*0\r\n", b"$5\r\nhello\r\n", b"x", b"", b">1\r\n+x\r\n"] {
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, quick(Options::new(liar(answer))).time_limit(Duration::from_millis(200)));
        let result = ask::<()>(&mut reactor, &redis, ping());
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{}: {result:?}", answer.escape_ascii());
        assert!(redis.stats().outages > 0);
    }
}

#[test]
fn old_server_without_hello_is_spoken_to_in_resp2() {
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, quick(Options::new(liar(b"-ERR unknown command 'HELLO'\r\n+PONG\r\n"))));
    // The second answer is there before the command, which a real server cannot do. It ends the connection.
    run_until(&mut reactor, |_| redis.stats().connects > 0);
    run_until(&mut reactor, |_| redis.stats().outages > 0);
}

#[test]
fn control_characters_of_the_server_are_not_printed() {
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(liar(b"-ERR \x1b]0;title\x07\r\n")));
    let error = ask::<()>(&mut reactor, &redis, Command::new("GET").arg("x")).unwrap_err();
    assert!(!error.to_string().contains(char::is_control), "{error:?}");
}
