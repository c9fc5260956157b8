use super::*;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Starts a server with a thread for each connection. `serve` gets the connection and its number.
fn server(serve: fn(usize, TcpStream)) -> Offer {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(server) = listener.local_addr().unwrap() else { unreachable!("bound to an IPv4 address") };
    thread::spawn(move || {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept() else { return };
            thread::spawn(move || serve(number, stream));
        }
    });
    Offer { server, request: b"?".to_vec(), rate: 2_000.0, kept: 1, window: Duration::from_millis(10) }
}

/// Answers every request with this status.
fn answer(mut stream: TcpStream, status: u16) {
    // In one piece, as servers send short responses.
    let answer = format!("HTTP/1.1 {status} -\r\n\r\n");
    while let Ok(1..) = stream.read(&mut [0]) {
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn every_request_is_served_or_refused_and_counted_once() {
    let offered = offer(&server(|number, stream| answer(stream, if number % 2 == 0 { 200 } else { 503 }))).unwrap();
    assert_eq!((offered.served + offered.refused, offered.failed), (20, 0));
    assert!(offered.served > 0 && offered.refused > 0, "{offered:?}");
    assert_eq!(offered.served_after.len(), offered.served);
    assert_eq!(offered.refused_after.len(), offered.refused);
}

#[test]
fn requests_without_an_answer_are_counted() {
    let offered = offer(&server(|_, mut stream| drop(stream.read(&mut [0])))).unwrap();
    assert_eq!((offered.served, offered.refused, offered.failed), (0, 0, 20));
}

#[test]
fn other_responses_are_an_error() {
    let error = offer(&server(|_, stream| answer(stream, 404))).unwrap_err();
    assert!(format!("{error:#}").contains("404"), "{error:#}");
}
