//! Character devices that are always ready, and files, which are refused.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use pelton::{Chunk, Connection, Io, Reason};
use pelton_testing::{Log, On, activity, on_every_engine, poll, run_until};

use super::{Logging, adopt, run_to_the_end};

on_every_engine![
    dev_null_ends_at_once_and_takes_everything,
    dev_zero_is_bounded_per_turn_and_starves_nobody,
    a_paused_device_lets_the_loop_sleep,
    a_write_error_reaches_the_handler,
    files_are_refused_and_the_error_names_the_alternative,
];

fn open(path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn dev_null_ends_at_once_and_takes_everything(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    adopt(&mut reactor, open("/dev/null"), &log);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "peer finished", "closed: finished by the other side"]);

    let writer = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let id = reactor.adopt(writer, Logging::and(&log, |io| io.send(&[0; 3_000_000]).unwrap())).unwrap();
    run_until(&mut reactor, |reactor| log.len() == 1 && reactor.queued() == 0);
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns, although there is nothing to do");
    reactor.connection(id).unwrap().finish();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: finished by the other side"]);
}

struct Counter {
    bytes: Rc<Cell<usize>>,
}

impl Connection for Counter {
    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        assert!(chunk.iter().all(|byte| *byte == 0));
        self.bytes.set(self.bytes.get() + chunk.len());
    }
}

fn dev_zero_is_bounded_per_turn_and_starves_nobody(on: On) {
    let mut reactor = on.reactor();
    let bytes: [Rc<Cell<usize>>; 2] = Default::default();
    for bytes in &bytes {
        reactor.adopt(open("/dev/zero"), Counter { bytes: bytes.clone() }).unwrap();
    }
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    adopt(&mut reactor, ours, &log);
    poll(&mut reactor);
    let before = bytes.each_ref().map(|bytes| bytes.get());
    for turn in 1..=10 {
        theirs.write_all(b"x").unwrap();
        poll(&mut reactor);
        for (bytes, before) in bytes.iter().zip(before) {
            let received = bytes.get() - before;
            assert!(received >= turn && received <= turn * 64 * 1024, "{received} bytes in {turn} turns");
        }
        assert_eq!(log.entries(), ["opened".to_owned(), format!("received {}", "x".repeat(turn))]);
    }
}

fn a_paused_device_lets_the_loop_sleep(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let id = reactor.adopt(open("/dev/zero"), Logging::and(&log, |io| io.pause())).unwrap();
    poll(&mut reactor);
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(log.entries(), ["opened"]);
    reactor.connection(id).unwrap().resume();
    run_until(&mut reactor, |_| log.len() == 2);
}

fn a_write_error_reaches_the_handler(on: On) {
    struct Sender(Rc<Cell<Option<i32>>>);
    impl Connection for Sender {
        fn opened(&mut self, io: &mut Io<'_>) {
            io.send(b"too much").unwrap();
        }

        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

        fn closed(&mut self, _: &mut pelton::Reactor, reason: Reason) {
            let Reason::Failed(error) = reason else { panic!("{reason}") };
            self.0.set(error.raw_os_error());
        }
    }
    // Some systems do not have this device.
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
    let mut reactor = on.reactor();
    let error = Rc::new(Cell::new(None));
    reactor.adopt(full, Sender(error.clone())).unwrap();
    run_to_the_end(&mut reactor);
    assert_eq!(error.get(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
}

fn files_are_refused_and_the_error_names_the_alternative(on: On) {
    let mut reactor = on.reactor();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let error = reactor.adopt(file, Logging::default()).unwrap_err().to_string();
    assert!(error.contains("a regular file is always ready") && error.contains("pelton::fs"), "{error}");
    let error = reactor.adopt(File::open("/").unwrap(), Logging::default()).unwrap_err().to_string();
    assert!(error.contains("a directory") && error.contains("pelton::fs"), "{error}");
    assert_eq!(reactor.connection_count(), 0);
}
