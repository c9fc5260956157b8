//! Descriptors in all forms of handling: codecs, `async` streams, children's pipes, socketpairs.

use std::io::{Read, Write, pipe};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::codec::Lines;
use pelton::net::Stream;
use pelton::{Framed, Protocol, Replies, Socket};
use pelton_testing::{Echo, Log, On, block_on, on_every_engine, run_with};

use super::{adopt, read_to_the_end, run_to_the_end};

on_every_engine![
    lines_come_through_a_pipe,
    async_streams_read_and_write_pipes,
    the_pipes_of_a_child_are_connections,
    a_socketpair_is_adopted,
];

struct Logged(Log);

impl Protocol for Logged {
    type Message = String;

    fn process(&mut self, line: String, _: &mut Replies<'_, String>) {
        self.0.add(line);
    }
}

fn lines_come_through_a_pipe(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, mut writer) = pipe().unwrap();
    reactor.adopt(reader, Framed::new(Lines::default(), Logged(log.clone()))).unwrap();
    writer.write_all(b"one\ntwo\nth").unwrap();
    writer.write_all(b"ree\n").unwrap();
    drop(writer);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["one", "two", "three"]);
}

fn async_streams_read_and_write_pipes(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = pipe().unwrap();
    let received = block_on(&mut reactor, async {
        let mut reader = Stream::adopt(reader).unwrap();
        let mut writer = Stream::adopt(writer).unwrap();
        writer.write_all(b"through a pipe").await.unwrap();
        assert_eq!(writer.read(&mut [0; 10]).await.unwrap(), 0, "nothing comes out of the write end");
        writer.close().await.unwrap();
        let mut received = String::new();
        reader.read_to_string(&mut received).await.unwrap();
        received
    });
    assert_eq!(received, "through a pipe");
    let (reader, _writer) = pipe().unwrap();
    let error = block_on(&mut reactor, async {
        let mut reader = Stream::adopt(reader).unwrap();
        reader.write_all(b"x").await.unwrap_err()
    });
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "send: the descriptor is open for reading only");
}

fn the_pipes_of_a_child_are_connections(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = adopt(&mut reactor, child.stdin.take().unwrap(), &Log::default());
    adopt(&mut reactor, child.stdout.take().unwrap(), &log);
    let mut io = reactor.connection(input).unwrap();
    io.send(b"meow").unwrap();
    io.finish();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("meow"));
    assert!(child.wait().unwrap().success());
}

fn a_socketpair_is_adopted(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    reactor.adopt(Socket::from(std::os::fd::OwnedFd::from(ours)), Echo).unwrap();
    let echoed = run_with(&mut reactor, move || {
        theirs.write_all(b"both ways").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut echoed = String::new();
        theirs.read_to_string(&mut echoed).unwrap();
        echoed
    });
    assert_eq!(echoed, "both ways");
}
