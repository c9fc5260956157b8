//! Listening and connecting, and a client library that uses the streams.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::rt::ReadBufCursor;
use pelton::net::{Listener, Stream};
use pelton::{Address, Reactor, task};
use pelton_testing::{Network, On, block_on, localhost, on_every_network, poll};

on_every_network![
    dropped_connect_leaves_no_connection,
    dropped_listener_stops_listening,
    a_listener_is_a_stream_of_streams;
    with_a_kernel:
    unaccepted_connections_stay_in_the_kernel,
    refused_connection_is_a_connection_refused_error,
    names_and_unix_sockets_can_be_connected_to,
    sockets_can_be_adopted,
    hyper_client_works,
];

fn dropped_connect_leaves_no_connection(network: impl Network) {
    let mut reactor = network.reactor();
    let somebody = network.listen_peer();
    block_on(&mut reactor, async {
        for round in 1..=10 {
            assert!(Stream::connect(&somebody.address()).now_or_never().is_none());
            // Until the next flush.
            assert_eq!(Reactor::with_current(|reactor| reactor.connection_count()), Some(round));
        }
    });
    poll(&mut reactor);
    assert_eq!(reactor.connection_count(), 0);
}

fn dropped_listener_stops_listening(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&localhost()).unwrap();
        let address = listener.local_address().unwrap();
        let connecting = Stream::connect(&address);
        let (client, accepted) = futures::join!(connecting, listener.accept());
        let not_accepted = Stream::connect(&address).await.unwrap();
        drop(listener);
        let mut not_accepted = not_accepted;
        assert!(!matches!(not_accepted.read(&mut [0; 8]).await, Ok(1..)));
        assert!(Stream::connect(&address).await.is_err());
        // Accepted streams stay open.
        let (mut client, mut accepted) = (client.unwrap(), accepted.unwrap());
        client.write_all(b"x").await.unwrap();
        accepted.read_exact(&mut [0]).await.unwrap();
    });
}

fn a_listener_is_a_stream_of_streams(network: impl Network) {
    let mut reactor = network.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&localhost()).unwrap();
        let address = listener.local_address().unwrap();
        let clients = join_all((0..20u8).map(|number| {
            let address = address.clone();
            async move {
                let mut stream = Stream::connect(&address).await.unwrap();
                stream.write_all(&[number]).await.unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(answer, [number + 100]);
            }
        }));
        let serving = listener.take(20).for_each_concurrent(4, |mut stream| async move {
            let mut number = [0];
            stream.read_exact(&mut number).await.unwrap();
            stream.write_all(&[number[0] + 100]).await.unwrap();
        });
        futures::join!(clients, serving);
    });
}

fn unaccepted_connections_stay_in_the_kernel(on: On) {
    const CLIENTS: usize = 200;
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let listener = Listener::bind(&localhost()).unwrap();
        let address = listener.local_address().unwrap().to_string();
        let clients = thread::spawn(move || {
            (0..CLIENTS).map(|_| TcpStream::connect(&address).unwrap()).collect::<Vec<TcpStream>>()
        });
        let connections = || Reactor::with_current(|reactor| reactor.connection_count()).unwrap();
        while connections() < 64 {
            task::sleep(Duration::from_millis(1)).await;
        }
        task::sleep(Duration::from_millis(20)).await;
        assert!(connections() < 64 + 64, "{} were accepted", connections());
        let mut accepted = Vec::new();
        for _ in 0..CLIENTS {
            accepted.push(listener.accept().await.unwrap());
        }
        assert_eq!(clients.join().unwrap().len(), CLIENTS);
    });
}

fn refused_connection_is_a_connection_refused_error(on: On) {
    let mut reactor = on.build(on.builder().resolver(|host: &str, port: u16| match host {
        "here" => Ok(vec![([127, 0, 0, 1], port).into()]),
        _ => Err(io::Error::other("unknown name")),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(listener.local_addr().unwrap());
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    block_on(&mut reactor, async {
        let error = Stream::connect(&address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        let error = Stream::connect_to(&format!("here:{port}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = Stream::connect_to("elsewhere:80").await.unwrap_err();
        assert!(error.to_string().contains("elsewhere"), "{error}");
        let error = Stream::connect_to("no port").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

fn names_and_unix_sockets_can_be_connected_to(on: On) {
    let mut reactor = on.build(on.builder().resolver(|_: &str, port: u16| Ok(vec![([127, 0, 0, 1], port).into()])));
    let path = std::env::temp_dir().join(format!("pelton-async-{}-{}.sock", reactor.engine_name(), std::process::id()));
    let unix: Address = format!("unix:{}", path.display()).parse().unwrap();
    block_on(&mut reactor, async {
        for address in [localhost(), unix] {
            let listener = Listener::bind(&address).unwrap();
            let target = match listener.local_address().unwrap() {
                Address::Tcp(address) => format!("a-name:{}", address.port()),
                other => other.to_string(),
            };
            let (client, server) = futures::join!(Stream::connect_to(&target), listener.accept());
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
        }
    });
    poll(&mut reactor);
    assert!(!path.exists());
}

fn sockets_can_be_adopted(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.write_all(b"water").unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    block_on(&mut reactor, async {
        let mut stream = Stream::adopt(ours).unwrap();
        // Before it is open, too.
        stream.write_all(b"wheel").await.unwrap();
        let mut word = String::new();
        stream.read_to_string(&mut word).await.unwrap();
        assert_eq!(word, "water");
        stream.close().await.unwrap();
    });
    let mut word = String::new();
    theirs.read_to_string(&mut word).unwrap();
    assert_eq!(word, "wheel");
}

/// hyper's I/O traits.
struct ForHyper(Stream);

impl hyper::rt::Read for ForHyper {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let most = bytes.len().min(buffer.remaining());
        futures::AsyncRead::poll_read(Pin::new(&mut self.0), context, &mut bytes[..most])
            .map_ok(|count| buffer.put_slice(&bytes[..count]))
    }
}

impl hyper::rt::Write for ForHyper {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        futures::AsyncWrite::poll_write(Pin::new(&mut self.0), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_close(Pin::new(&mut self.0), context)
    }
}

fn hyper_client_works(on: On) {
    let mut reactor = on.reactor();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(server.local_addr().unwrap());
    let body = "water ".repeat(50_000);
    let sent = body.clone();
    let server = thread::spawn(move || {
        let mut stream = server.accept().unwrap().0;
        for _ in 0..3 {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /water HTTP/1.1\r\n"));
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{sent}", sent.len()).unwrap();
        }
    });
    block_on(&mut reactor, async {
        let stream = ForHyper(Stream::connect(&address).await.unwrap());
        let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let running = task::spawn(connection);
        for _ in 0..3 {
            let request = Request::get("/water").header("host", "wheel").body(Empty::<Bytes>::new()).unwrap();
            let response = client.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(response.into_body().collect().await.unwrap().to_bytes() == body);
        }
        drop(client);
        running.await.unwrap().unwrap();
    });
    server.join().unwrap();
}
