//! Streams with tokio's traits, used by tokio's own tools, without its runtime.

#![forbid(unsafe_code)]

use pelton::net::{Listener, Stream};
use pelton::{Address, task};
use pelton_testing::{On, block_on, on_every_engine};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional, split};

on_every_engine![
    lines_are_read_and_answered,
    a_proxy_copies_both_ways_until_both_sides_have_finished,
    refused_connection_is_a_connection_refused_error,
];

fn listener() -> (Listener, Address) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

/// Answers each line in capitals.
async fn shout(stream: Stream) {
    let (reading, mut writing) = split(stream);
    let mut lines = BufReader::new(reading).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        writing.write_all(format!("{}\n", line.to_uppercase()).as_bytes()).await.unwrap();
    }
    writing.shutdown().await.unwrap();
}

fn lines_are_read_and_answered(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let (listener, address) = listener();
        let server = task::spawn(async move { shout(listener.accept().await.unwrap()).await });
        let mut client = Stream::connect(&address).await.unwrap();
        client.write_all(b"water\nwheel\n").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "WATER\nWHEEL\n");
        server.await.unwrap();
    });
}

fn a_proxy_copies_both_ways_until_both_sides_have_finished(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let (behind, target) = listener();
        let server = task::spawn(async move { shout(behind.accept().await.unwrap()).await });
        let (front, address) = listener();
        let proxy = task::spawn(async move {
            let mut near = front.accept().await.unwrap();
            let mut far = Stream::connect(&target).await.unwrap();
            copy_bidirectional(&mut near, &mut far).await.unwrap()
        });
        let sent = "x".repeat(999) + "\n";
        let (mut reading, mut writing) = split(Stream::connect(&address).await.unwrap());
        let much = sent.repeat(2_000);
        let length = much.len() as u64;
        let writer = task::spawn(async move {
            writing.write_all(much.as_bytes()).await.unwrap();
            writing.shutdown().await.unwrap();
        });
        let mut answer = String::new();
        reading.read_to_string(&mut answer).await.unwrap();
        assert!(answer == sent.to_uppercase().repeat(2_000), "the data differs");
        writer.await.unwrap();
        server.await.unwrap();
        assert_eq!(proxy.await.unwrap(), (length, length));
    });
}

fn refused_connection_is_a_connection_refused_error(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let (listener, address) = listener();
        drop(listener);
        task::yield_now().await;
        let error = Stream::connect(&address).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}
