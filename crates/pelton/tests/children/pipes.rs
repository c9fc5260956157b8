//! The pipes of a child as connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::codec::Lines;
use pelton::net::Stream;
use pelton::process::Stdio;
use pelton::{Chunk, Connection, Framed, Io, Protocol, Reactor, Reason, Replies};
use pelton_testing::{Log, On, block_on, on_every_engine, run_until};

use super::sh;

on_every_engine![
    lines_go_to_a_child_and_come_back,
    a_child_sees_the_end_of_its_input,
    a_slow_reader_holds_a_child_with_much_output_back,
    a_child_that_closes_its_input_early_ends_the_connection,
    the_exit_may_come_before_the_output_is_read,
    async_streams_talk_to_a_child,
];

struct Logged(Log);

impl Protocol for Logged {
    type Message = String;

    fn process(&mut self, line: String, _: &mut Replies<'_, String>) {
        self.0.add(line);
    }
}

/// Sends this, then finishes.
struct Say(&'static str);

impl Connection for Say {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(self.0.as_bytes()).unwrap();
        io.finish();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

fn lines_go_to_a_child_and_come_back(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let mut child = sh("while read line; do echo \"<$line>\"; done; echo end >&2; exit 5")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn(&mut reactor)
        .unwrap();
    reactor.adopt(child.stdin.take().unwrap(), Say("one\ntwo\n")).unwrap();
    reactor.adopt(child.stdout.take().unwrap(), Framed::new(Lines::default(), Logged(log.clone()))).unwrap();
    let errors = Log::default();
    reactor.adopt(child.stderr.take().unwrap(), Framed::new(Lines::default(), Logged(errors.clone()))).unwrap();
    let exit = child.exit(&mut reactor);
    let status = block_on(&mut reactor, exit).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!((log.take(), errors.take()), (vec!["<one>".to_owned(), "<two>".to_owned()], vec!["end".to_owned()]));
    assert_eq!((status.code(), child.status(), reactor.child_count()), (Some(5), Some(status), 0));
}

fn a_child_sees_the_end_of_its_input(on: On) {
    let mut reactor = on.reactor();
    let mut child = sh("cat >/dev/null; exit 3").stdin(Stdio::piped()).spawn(&mut reactor).unwrap();
    drop(child.stdin.take());
    let exit = child.exit(&mut reactor);
    assert_eq!(block_on(&mut reactor, exit).unwrap().code(), Some(3));
}

/// Counts bytes, and pauses after each chunk for a turn.
struct Slow {
    bytes: Rc<Cell<usize>>,
    most: Rc<Cell<usize>>,
}

impl Connection for Slow {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.bytes.set(self.bytes.get() + chunk.len());
        self.most.set(self.most.get().max(chunk.len()));
        io.pause();
        let id = io.id();
        io.reactor().after(Duration::from_micros(50), move |reactor| {
            if let Some(mut io) = reactor.connection(id) {
                io.resume();
            }
        });
    }
}

fn a_slow_reader_holds_a_child_with_much_output_back(on: On) {
    const BYTES: usize = 20_000_000;
    let mut reactor = on.reactor();
    let mut child = sh(&format!("head -c {BYTES} /dev/zero")).stdout(Stdio::piped()).spawn(&mut reactor).unwrap();
    let (bytes, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let slow = Slow { bytes: bytes.clone(), most: most.clone() };
    reactor.adopt(child.stdout.take().unwrap(), slow).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0 && reactor.child_count() == 0);
    assert_eq!(bytes.get(), BYTES);
    assert!(most.get() <= 1 << 20, "{} bytes at once", most.get());
}

/// Sends without end.
struct Endless(Rc<RefCell<Option<Reason>>>);

impl Connection for Endless {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(&[0; 100_000]).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn writable(&mut self, io: &mut Io<'_>) {
        io.send(&[0; 100_000]).unwrap();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        *self.0.borrow_mut() = Some(reason);
    }
}

fn a_child_that_closes_its_input_early_ends_the_connection(on: On) {
    let mut reactor = on.reactor();
    let mut child = sh("head -c 10 >/dev/null; exec 0<&-; exit 0").stdin(Stdio::piped()).spawn(&mut reactor).unwrap();
    let reason = Rc::new(RefCell::new(None));
    reactor.adopt(child.stdin.take().unwrap(), Endless(reason.clone())).unwrap();
    run_until(&mut reactor, |_| reason.borrow().is_some());
    let exit = child.exit(&mut reactor);
    assert!(block_on(&mut reactor, exit).unwrap().success());
}

fn the_exit_may_come_before_the_output_is_read(on: On) {
    let mut reactor = on.reactor();
    let mut child = sh("echo written before the exit").stdout(Stdio::piped()).spawn(&mut reactor).unwrap();
    let exit = child.exit(&mut reactor);
    assert!(block_on(&mut reactor, exit).unwrap().success());
    let log = Log::default();
    reactor.adopt(child.stdout.take().unwrap(), Framed::new(Lines::default(), Logged(log.clone()))).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["written before the exit"]);
}

fn async_streams_talk_to_a_child(on: On) {
    let mut reactor = on.reactor();
    let mut child = sh("tr a-z A-Z").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn(&mut reactor).unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let received = block_on(&mut reactor, async {
        let mut stdin = Stream::adopt(stdin).unwrap();
        let mut stdout = Stream::adopt(stdout).unwrap();
        stdin.write_all(b"shout").await.unwrap();
        stdin.close().await.unwrap();
        let mut received = String::new();
        stdout.read_to_string(&mut received).await.unwrap();
        received
    });
    assert_eq!(received, "SHOUT");
    run_until(&mut reactor, |reactor| reactor.child_count() == 0);
}
