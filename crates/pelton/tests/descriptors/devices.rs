//! Character devices that are always ready, and regular files.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
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
    a_file_is_received_no_faster_than_it_is_taken,
    an_error_of_a_file_closes_the_connection,
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

/// A file of this content, open for reading, without a name.
fn unnamed(contents: &[u8]) -> File {
    let number = fastrand::u64(..);
    let path = std::env::temp_dir().join(format!("pelton-devices-{}-{number}", std::process::id()));
    std::fs::write(&path, contents).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

fn a_file_is_received_no_faster_than_it_is_taken(on: On) {
    let (mut reactor, bytes) = (on.reactor(), Rc::new(Cell::new(0)));
    let mut file = unnamed(&[0; 3_000_000]);
    let counter = Counter { bytes: bytes.clone() };
    let id = reactor.receive_file(file.try_clone().unwrap(), counter).unwrap();
    reactor.connection(id).unwrap().pause();
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns < 20, "{turns} turns, although nobody takes anything");
    let read = file.stream_position().unwrap();
    assert!(read < 300_000, "{read} bytes were read for nobody");
    reactor.connection(id).unwrap().resume();
    run_to_the_end(&mut reactor);
    assert_eq!(bytes.get(), 3_000_000);

    // It is not read on if the handler has closed.
    file.rewind().unwrap();
    let id = reactor.receive_file(file.try_clone().unwrap(), Counter { bytes }).unwrap();
    run_until(&mut reactor, |_| file.stream_position().unwrap() > 0);
    reactor.connection(id).unwrap().close();
    run_to_the_end(&mut reactor);
    assert!(file.stream_position().unwrap() < 3_000_000);
}

fn an_error_of_a_file_closes_the_connection(on: On) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    // A directory cannot be read.
    reactor.receive_file(File::open("/").unwrap(), Logging::and(&log, |_| {})).unwrap();
    run_to_the_end(&mut reactor);
    let told = log.take();
    assert!(told.len() == 2 && told[1].contains("directory"), "{told:?}");
}
