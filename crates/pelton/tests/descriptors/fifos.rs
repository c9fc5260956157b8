//! FIFOs: pipes with a name.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use pelton::{Chunk, Connection, Io};
use pelton_testing::{Log, On, activity, on_every_engine, poll};
use rustix::fs::OFlags;

use super::{adopt, is_blocking, read_to_the_end, run_to_the_end, run_until_more};

on_every_engine![
    a_fifo_ends_with_its_last_writer_and_can_be_opened_again,
    a_fifo_that_nobody_writes_to_has_not_ended,
    the_write_end_of_a_fifo_hears_that_its_reader_is_gone,
    a_shared_fifo_blocks_again_when_the_connection_is_over,
    a_shared_fifo_blocks_again_when_the_reactor_is_dropped,
    a_shared_fifo_blocks_again_after_a_panic,
];

/// A FIFO in the file system, removed at the end.
struct Fifo(PathBuf);

impl Fifo {
    fn new(on: On, name: &str) -> Fifo {
        let path = std::env::temp_dir().join(format!("pelton-{}-{}-{name}", std::process::id(), on.0));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Fifo(path)
    }

    /// Opens it for reading, without waiting for a writer.
    fn reader(&self) -> File {
        let flags = OFlags::NONBLOCK.bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(&self.0).unwrap()
    }

    /// Opens it for writing. It must have a reader.
    fn writer(&self) -> File {
        OpenOptions::new().write(true).open(&self.0).unwrap()
    }

    /// Opens it for both: it always has a reader and a writer.
    fn both(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn a_fifo_ends_with_its_last_writer_and_can_be_opened_again(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let fifo = Fifo::new(on, "again");
    for round in ["first", "second"] {
        let reader = fifo.reader();
        let mut writer = fifo.writer();
        adopt(&mut reactor, reader, &log);
        writer.write_all(round.as_bytes()).unwrap();
        drop(writer);
        run_to_the_end(&mut reactor);
        assert_eq!(log.take(), read_to_the_end(round));
    }
}

fn a_fifo_that_nobody_writes_to_has_not_ended(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let fifo = Fifo::new(on, "silent");
    adopt(&mut reactor, fifo.reader(), &log);
    poll(&mut reactor);
    assert_eq!(log.entries(), ["opened"]);
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns without a writer");
    fifo.writer().write_all(b"hello").unwrap();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("hello"));
}

fn the_write_end_of_a_fifo_hears_that_its_reader_is_gone(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let fifo = Fifo::new(on, "unread");
    let reader = fifo.reader();
    adopt(&mut reactor, fifo.writer(), &log);
    poll(&mut reactor);
    drop(reader);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
}

/// A duplicate stands for another process that shares the description.
fn a_shared_fifo_blocks_again_when_the_connection_is_over(on: On) {
    let mut reactor = on.reactor();
    let fifo = Fifo::new(on, "closed");
    let shared = fifo.both();
    let id = adopt(&mut reactor, shared.try_clone().unwrap(), &Log::default());
    poll(&mut reactor);
    assert!(!is_blocking(&shared), "a FIFO with a name cannot be opened again");
    reactor.connection(id).unwrap().close();
    run_to_the_end(&mut reactor);
    assert!(is_blocking(&shared));
}

fn a_shared_fifo_blocks_again_when_the_reactor_is_dropped(on: On) {
    let mut reactor = on.reactor();
    let fifo = Fifo::new(on, "dropped");
    let shared = fifo.both();
    adopt(&mut reactor, shared.try_clone().unwrap(), &Log::default());
    poll(&mut reactor);
    assert!(!is_blocking(&shared));
    drop(reactor);
    assert!(is_blocking(&shared));
}

struct Panicking;

impl Connection for Panicking {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        panic!("on purpose");
    }
}

fn a_shared_fifo_blocks_again_after_a_panic(on: On) {
    let fifo = Fifo::new(on, "panicked");
    let mut shared = fifo.both();
    // The panic unwinds through the loop, which is dropped.
    let copy = shared.try_clone().unwrap();
    shared.write_all(b"x").unwrap();
    let unwound = std::panic::catch_unwind(move || {
        let mut reactor = on.reactor();
        reactor.adopt(copy, Panicking).unwrap();
        run_until_more(&mut reactor, &Log::default());
    });
    assert!(unwound.is_err());
    assert!(is_blocking(&shared));
}
