use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Starts a server that serves each connection on its own thread, which ends with the connection.
fn server(serve: fn(TcpStream)) -> SocketAddrV4 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!("bound to an IPv4 address") };
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Echoes input, modified by `change`.
fn answer(mut stream: TcpStream, change: fn(&mut Vec<u8>)) {
    let mut buffer = vec![0; 5_000];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        change(&mut bytes);
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn echo(stream: TcpStream) {
    answer(stream, |_| {});
}

#[test]
fn every_message_is_counted_and_timed_even_if_it_is_echoed_in_pieces() {
    let mut client = Client::open(server(echo), 3, Exchange::echo(16 << 10)).unwrap();
    let burst = client.run(Until::Sent(50)).unwrap();
    assert_eq!((burst.messages, burst.latencies.len()), (50, 50));
    let burst = client.run(Until::Elapsed(Duration::from_millis(5))).unwrap();
    assert!(burst.messages >= 3 && burst.wall >= Duration::from_millis(5));
}

#[test]
fn the_number_of_messages_may_be_below_the_number_of_connections() {
    let mut client = Client::open(server(echo), 5, Exchange::echo(64)).unwrap();
    assert_eq!(client.run(Until::Sent(2)).unwrap().messages, 2);
}

#[test]
fn connections_can_be_added() {
    let address = server(echo);
    let mut client = Client::open(address, 1, Exchange::echo(64)).unwrap();
    client.grow(address, OPENED_TOGETHER + 2).unwrap();
    assert_eq!(client.run(Until::Sent(100)).unwrap().messages, 100);
}

#[test]
fn a_server_that_does_not_echo_is_an_error() {
    let failure = |serve| format!("{:#}", Client::open(server(serve), 1, Exchange::echo(64)).err().unwrap());
    assert!(failure(|stream| answer(stream, |bytes| bytes[0] ^= 1)).contains("the answer differs"));
    assert!(failure(|stream| answer(stream, |bytes| bytes.push(0))).contains("received 65 bytes instead of 64"));
    assert!(failure(|mut stream| drop(stream.read(&mut [0; 64]))).contains("closed a connection"));
}

#[test]
fn short_lived_clients_are_all_served() {
    let (served, wall) = come_and_go(server(echo), 4, Duration::from_millis(5)).unwrap();
    assert!(served >= 4 && wall >= Duration::from_millis(5));
}

#[test]
fn connections_of_any_kind_can_be_taken_over() {
    let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (plug, socket) = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).into();
    plug.connect(socket.local_addr().unwrap()).unwrap();
    thread::spawn(move || {
        let mut theirs = theirs;
        let mut buffer = [0; 1000];
        while let Ok(count @ 1..) = theirs.read(&mut buffer) {
            theirs.write_all(&buffer[..count]).unwrap();
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 1000];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            // The client may be gone.
            let _ = socket.send_to(&buffer[..count], from);
        }
    });
    let mut client = Client::over([mine.into(), plug.into()], Exchange::echo(500)).unwrap();
    assert_eq!(client.run(Until::Sent(20)).unwrap().messages, 20);
}
