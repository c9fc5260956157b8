//! Files and directories, compared with what `std::fs` says of them.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::io::{self, BufRead, BufReader, ErrorKind, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use pelton::fs::{self, File, Operation, Progress, Steps};
use pelton::{Error, EventLoop, Exit, Lane, LaneSettings, PanicPolicy, Reactor, Rejected};

use common::{On, on_every_engine, run, run_until};

on_every_engine![
    an_operation_has_the_same_outcome_in_every_form,
    many_files_are_read_together,
    a_full_lane_names_what_was_to_be_done,
    draining_waits_for_a_file_to_be_written,
    a_walk_comes_in_pieces_and_can_be_broken_off,
    a_copy_says_how_far_it_is,
    a_lock_that_is_waited_for_holds_up_nothing_else,
];

/// Long enough for whatever is waited for.
const DEADLINE: Duration = Duration::from_secs(20);

/// A directory of the test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pelton-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path.canonicalize().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Does it on this loop.
fn outcome<T: Send + 'static>(reactor: &mut EventLoop, operation: Operation<T>) -> io::Result<T> {
    let told = Rc::new(Cell::new(None));
    let tell = told.clone();
    operation.then(reactor, move |_, outcome| tell.set(Some(outcome))).unwrap();
    let mut outcome = None;
    run_until(reactor, |_| {
        // It may be asked again after it has said yes.
        outcome = outcome.take().or(told.take());
        outcome.is_some()
    });
    outcome.unwrap()
}

fn done<T: Send + 'static>(reactor: &mut EventLoop, operation: Operation<T>) -> T {
    outcome(reactor, operation).unwrap()
}

fn new_loop() -> EventLoop {
    Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap()
}

#[test]
fn whole_files_are_read_written_copied_renamed_and_removed() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.path("one");
    done(&mut reactor, fs::write(&path, "water"));
    assert_eq!(std::fs::read(&path).unwrap(), b"water");
    assert_eq!(done(&mut reactor, fs::read(&path)), b"water");
    assert_eq!(done(&mut reactor, fs::read_to_string(&path)), "water");
    done(&mut reactor, fs::write(&path, vec![0xff]));
    let error = outcome(&mut reactor, fs::read_to_string(&path)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);

    let copy = scratch.path("two");
    assert_eq!(done(&mut reactor, fs::copy(&path, &copy)), 1);
    assert!(done(&mut reactor, fs::exists(&copy)));
    let renamed = scratch.path("three");
    done(&mut reactor, fs::rename(&copy, &renamed));
    assert!(!done(&mut reactor, fs::exists(&copy)));
    assert_eq!(scratch.names(), ["one", "three"]);
    done(&mut reactor, fs::remove_file(&renamed));
    assert_eq!(scratch.names(), ["one"]);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    done(&mut reactor, fs::create_dir(scratch.path("a")));
    done(&mut reactor, fs::create_dir_all(scratch.path("b/c/d")));
    scratch.file("file", "");
    std::os::unix::fs::symlink("nowhere", scratch.path("link")).unwrap();
    let entries = done(&mut reactor, fs::read_dir(&scratch.0));
    let listed: BTreeSet<_> = entries
        .iter()
        .map(|entry| {
            let kind = entry.file_type();
            assert_eq!(entry.path(), scratch.0.join(entry.file_name()));
            assert_eq!(entry.depth(), 1);
            (entry.file_name().to_str().unwrap(), kind.is_dir(), kind.is_file(), kind.is_symlink())
        })
        .collect();
    let expected = [
        ("a", true, false, false),
        ("b", true, false, false),
        ("file", false, true, false),
        ("link", false, false, true),
    ];
    assert_eq!(listed, BTreeSet::from(expected));
    done(&mut reactor, fs::remove_dir(scratch.path("a")));
    let error = outcome(&mut reactor, fs::remove_dir(scratch.path("b"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
    done(&mut reactor, fs::remove_dir_all(scratch.path("b")));
    assert_eq!(scratch.names(), ["file", "link"]);
}

#[test]
fn what_is_known_of_a_file_is_what_the_system_says() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("one", "water");
    let (ours, theirs) = (done(&mut reactor, fs::metadata(&path)), std::fs::metadata(&path).unwrap());
    assert_eq!((ours.len(), ours.ino(), ours.mode()), (theirs.len(), theirs.ino(), theirs.mode()));
    done(&mut reactor, fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)));
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);

    let (hard, soft) = (scratch.path("hard"), scratch.path("soft"));
    done(&mut reactor, fs::hard_link(&path, &hard));
    assert_eq!(std::fs::metadata(&hard).unwrap().ino(), ours.ino());
    done(&mut reactor, fs::symlink("one", &soft));
    assert_eq!(done(&mut reactor, fs::read_link(&soft)), Path::new("one"));
    assert_eq!(done(&mut reactor, fs::canonicalize(&soft)), path);
    assert_eq!(done(&mut reactor, fs::metadata(&soft)).ino(), ours.ino());
    assert!(done(&mut reactor, fs::symlink_metadata(&soft)).is_symlink());
}

#[test]
fn an_open_file_is_read_written_and_moved_in() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.path("one");
    let file = done(&mut reactor, File::create(&path));
    assert_eq!(file.path(), path);
    assert_eq!(done(&mut reactor, file.write("wa")), 2);
    done(&mut reactor, file.write_all(b"ter wheel".to_vec()));
    assert_eq!(done(&mut reactor, file.stream_position()), 11);
    done(&mut reactor, file.sync_data());
    done(&mut reactor, file.sync_all());
    let error = outcome(&mut reactor, file.read(1)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("read {}: ", path.display())), "{error}");
    done(&mut reactor, file.close());

    let file = done(&mut reactor, File::open(&path));
    assert_eq!(done(&mut reactor, file.read(5)), b"water");
    assert_eq!(done(&mut reactor, file.seek(SeekFrom::End(-5))), 6);
    assert_eq!(done(&mut reactor, file.read_to_string()), "wheel");
    assert!(done(&mut reactor, file.read(5)).is_empty(), "the end");
    assert_eq!(done(&mut reactor, file.seek(SeekFrom::Start(3))), 3);
    let buffer = done(&mut reactor, file.read_into(Vec::with_capacity(64)));
    assert_eq!(buffer, b"er wheel");
    let memory = buffer.as_ptr();
    let buffer = done(&mut reactor, file.read_into_at(1, buffer));
    assert_eq!((&*buffer, buffer.as_ptr()), (&b"ater wheel"[..], memory), "the same memory");
    let second = done(&mut reactor, file.try_clone());
    assert_eq!(done(&mut reactor, second.seek(SeekFrom::Start(9))), 9);
    assert_eq!(done(&mut reactor, file.read_to_end()), b"el", "they share a position");
    assert_eq!(done(&mut reactor, file.metadata()).len(), 11);
}

#[test]
fn positions_are_read_and_written_without_moving_the_files_own() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("one", "0123456789");
    let file = done(&mut reactor, File::open_with(&path, std::fs::OpenOptions::new().read(true).write(true)));
    assert_eq!(done(&mut reactor, file.read_at(4, 3)), b"456");
    assert_eq!(done(&mut reactor, file.read_at(9, 3)), b"9");
    assert_eq!(done(&mut reactor, file.read_exact_at(2, 2)), b"23");
    let error = outcome(&mut reactor, file.read_exact_at(9, 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(done(&mut reactor, file.write_at(2, "ab")), 2);
    done(&mut reactor, file.write_all_at(12, "c"));
    assert_eq!(done(&mut reactor, file.stream_position()), 0);
    assert_eq!(std::fs::read(&path).unwrap(), b"01ab456789\0\0c");
    done(&mut reactor, file.set_len(3));
    assert_eq!(std::fs::read(&path).unwrap(), b"01a");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    done(&mut reactor, file.set_modified(time));
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), time);
    done(&mut reactor, file.set_times(std::fs::FileTimes::new().set_accessed(time)));
    done(&mut reactor, file.set_permissions(std::fs::Permissions::from_mode(0o600)));
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let error = outcome(&mut reactor, File::create_new(&path)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    done(&mut reactor, File::create_new(scratch.path("two")));
    let file = File::from_std(std::fs::File::open(&path).unwrap(), &path);
    assert_eq!(done(&mut reactor, file.read_to_end()), b"01a");
    assert_eq!(file.as_std().metadata().unwrap().len(), 3);
}

#[test]
fn errors_say_what_was_being_done_and_to_what() {
    let mut reactor = new_loop();
    let missing = "/nonexistent/file";
    fn check<T: Send + 'static>(reactor: &mut EventLoop, operation: Operation<T>, doing: &str) {
        let described = format!("{operation:?}");
        let error = outcome(reactor, operation).err().unwrap_or_else(|| panic!("{doing} did not fail"));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        assert!(text.starts_with(&format!("{doing}: No such file or directory")), "{text}");
        assert_eq!(described, format!("Operation({doing})"));
        let source = std::error::Error::source(error.get_ref().unwrap()).unwrap();
        assert_eq!(source.downcast_ref::<io::Error>().unwrap().raw_os_error(), Some(2), "the system's own is in it");
    }
    let reactor = &mut reactor;
    check(reactor, fs::read(missing), "read /nonexistent/file");
    check(reactor, fs::read_to_string(missing), "read /nonexistent/file");
    check(reactor, fs::write(missing, ""), "write /nonexistent/file");
    check(reactor, fs::write_atomic(missing, ""), "write /nonexistent/file");
    check(reactor, fs::copy(missing, "/tmp/x"), "copy /nonexistent/file to /tmp/x");
    check(reactor, fs::copy_in_steps(missing, "/tmp/x").step(), "copy /nonexistent/file to /tmp/x");
    check(reactor, fs::rename(missing, "/tmp/x"), "rename /nonexistent/file to /tmp/x");
    check(reactor, fs::remove_file(missing), "remove /nonexistent/file");
    check(reactor, fs::remove_dir(missing), "remove directory /nonexistent/file");
    check(reactor, fs::remove_dir_all(missing), "remove all of /nonexistent/file");
    check(reactor, fs::create_dir(missing), "create directory /nonexistent/file");
    check(reactor, fs::read_dir(missing), "list /nonexistent/file");
    check(reactor, fs::metadata(missing), "get metadata of /nonexistent/file");
    check(reactor, fs::symlink_metadata(missing), "get metadata of /nonexistent/file");
    check(reactor, fs::canonicalize(missing), "resolve /nonexistent/file");
    check(reactor, fs::hard_link(missing, "/tmp/x"), "link /nonexistent/file to /tmp/x");
    check(reactor, fs::symlink("x", missing), "link x to /nonexistent/file");
    check(reactor, fs::read_link(missing), "read link /nonexistent/file");
    check(reactor, File::open(missing), "open /nonexistent/file");
    check(reactor, File::create(missing), "create /nonexistent/file");
    let mode = std::fs::Permissions::from_mode(0o600);
    check(reactor, fs::set_permissions(missing, mode), "set permissions of /nonexistent/file");
    assert!(!done(reactor, fs::exists(missing)));
}

#[test]
fn a_directory_does_what_its_names_say_and_cannot_be_left() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let root = scratch.path("root");
    std::fs::create_dir(&root).unwrap();
    scratch.file("secret", "secret");
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    std::os::unix::fs::symlink("..", root.join("up")).unwrap();
    let directory = done(&mut reactor, fs::Directory::open(&root));

    done(&mut reactor, directory.create_dir("sub"));
    done(&mut reactor, directory.write("sub/note", "one"));
    assert_eq!(done(&mut reactor, directory.read_to_string("sub/note")), "one");
    let file = done(&mut reactor, directory.create("sub/note"));
    done(&mut reactor, file.write_at(0, "second"));
    assert_eq!(done(&mut reactor, directory.read("./sub/note")), b"second");
    assert_eq!(done(&mut reactor, directory.metadata("sub/note")).len(), 6);
    assert_eq!(outcome(&mut reactor, directory.create_new("sub/note")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let sub = done(&mut reactor, directory.directory("sub"));
    assert_eq!(done(&mut reactor, sub.names("")), ["note"]);
    let note = done(&mut reactor, sub.file("note"));
    assert_eq!(done(&mut reactor, note.read(100)), b"second");

    // Where it is does not matter.
    let moved = scratch.path("moved");
    std::fs::rename(&root, &moved).unwrap();
    assert_eq!(done(&mut reactor, directory.read("sub/note")), b"second");

    for out in ["../secret", "link", "up/secret", "/etc/passwd", "sub/../../secret", "sub/../sub/note"] {
        let kind = |outcome: io::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NotFound, "{out}");
        kind(outcome(&mut reactor, directory.read(out)).map(drop));
        kind(outcome(&mut reactor, directory.write(out, "overwritten")));
        kind(outcome(&mut reactor, directory.create(out)).map(drop));
        kind(outcome(&mut reactor, directory.metadata(out)).map(drop));
        kind(outcome(&mut reactor, directory.file(out)).map(drop));
    }
    for out in ["..", "up", "/etc", "up/root"] {
        let kind = |outcome: io::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NotFound, "{out}");
        kind(outcome(&mut reactor, directory.directory(out)).map(drop));
        kind(outcome(&mut reactor, directory.names(out)).map(drop));
        kind(outcome(&mut reactor, directory.create_dir(Path::new(out).join("made"))));
        kind(outcome(&mut reactor, directory.remove_file(Path::new(out).join("secret"))));
        kind(outcome(&mut reactor, directory.remove_dir(Path::new(out).join("moved"))));
    }
    assert_eq!(std::fs::read_to_string(scratch.path("secret")).unwrap(), "secret");
    assert_eq!(scratch.names(), ["moved", "secret"]);
    let error = outcome(&mut reactor, directory.read("../secret")).unwrap_err();
    let said = format!("read {}/../secret: the name leads out of the directory", root.display());
    assert_eq!(error.to_string(), said);

    // The link goes, and not what it leads to.
    done(&mut reactor, directory.remove_file("link"));
    done(&mut reactor, directory.remove_file("sub/note"));
    done(&mut reactor, directory.remove_dir("sub"));
    assert_eq!(done(&mut reactor, directory.names("")), ["up"]);
}

#[test]
fn an_atomic_write_replaces_everything_or_nothing() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.path("one");
    done(&mut reactor, fs::write_atomic(&path, "first"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
    let (held, before) = (std::fs::File::open(&path).unwrap(), std::fs::metadata(&path).unwrap());
    done(&mut reactor, fs::write_atomic(&path, "second, and longer"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "second, and longer");
    let after = std::fs::metadata(&path).unwrap();
    assert_ne!(before.ino(), after.ino(), "it is another file");
    assert_eq!(after.mode() & 0o777, 0o604, "with the permissions of the first");
    assert_eq!(io::read_to_string(held).unwrap(), "first", "who has it open still reads the old one");
    assert_eq!(scratch.names(), ["one"], "nothing is left beside it");

    std::os::unix::fs::symlink("one", scratch.path("link")).unwrap();
    done(&mut reactor, fs::write_atomic(scratch.path("link"), "third"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
    assert!(scratch.path("link").is_symlink());
}

#[test]
fn an_atomic_write_that_fails_leaves_no_trace() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    // Everything goes well but the last step: no file takes the name of a directory.
    let target = scratch.path("taken");
    std::fs::create_dir(&target).unwrap();
    let error = outcome(&mut reactor, fs::write_atomic(&target, "text")).unwrap_err();
    assert!(error.to_string().starts_with(&format!("write {}: ", target.display())), "{error}");
    assert_eq!(scratch.names(), ["taken"]);

    let closed = scratch.path("closed");
    std::fs::create_dir(&closed).unwrap();
    let inside = scratch.file("closed/one", "old");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    // Nothing is closed to the superuser.
    if !rustix::process::geteuid().is_root() {
        let error = outcome(&mut reactor, fs::write_atomic(&inside, "new")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read_to_string(&inside).unwrap(), "old");
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(outcome(&mut reactor, fs::write_atomic("/", "x")).unwrap_err().kind(), ErrorKind::InvalidInput);
}

fn an_operation_has_the_same_outcome_in_every_form(on: On) {
    let scratch = Scratch::new();
    let path = scratch.file("one", "water");
    let mut reactor = on.reactor();
    assert_eq!(done(&mut reactor, fs::read(&path)), b"water");
    assert_eq!(fs::read(&path).now().unwrap(), b"water");
    let error = fs::read("/nonexistent/file").now().unwrap_err();
    assert!(error.to_string().starts_with("read /nonexistent/file: No such file"), "{error}");
    assert_eq!(fs::read(&path).reply(&reactor).wait().unwrap().unwrap(), b"water");
    let handle = reactor.handle();
    let (other, elsewhere) = (path.clone(), handle.clone());
    let other = std::thread::spawn(move || fs::read(other).reply_by(&elsewhere).wait());
    assert_eq!(other.join().unwrap().unwrap().unwrap(), b"water");

    let reading = async {
        let file = File::open(&path).await?;
        let text = file.read_to_string().await?;
        let error = fs::read("/nonexistent/file").await.unwrap_err();
        Ok::<_, io::Error>((text, error.to_string()))
    };
    let (text, error) = reactor.block_on(reading).unwrap().unwrap();
    assert_eq!(text, "water");
    assert!(error.starts_with("read /nonexistent/file: No such file"), "{error}");

    let promised = fs::read_to_string(&path).promise(&mut reactor).map(|text| text.len());
    assert_eq!(reactor.block_on(promised).unwrap().unwrap(), 5);
    let promised = fs::read("/nonexistent/file").promise(&mut reactor);
    let Err(Rejected::Failed(error)) = reactor.block_on(promised).unwrap() else { panic!("there is no such file") };
    assert_eq!(error.kind(), io::ErrorKind::NotFound);

    let mut context = Context::from_waker(Waker::noop());
    let mut nowhere = pin!(fs::read(&path).into_future());
    let Poll::Ready(Err(error)) = nowhere.as_mut().poll(&mut context) else { panic!("no reactor was lent") };
    assert_eq!(error.to_string(), format!("read {}: there is no current reactor to run it", path.display()));
    drop(reactor);
    let error = fs::read(&path).reply_by(&handle).wait().unwrap().unwrap_err();
    assert_eq!(error.to_string(), format!("read {}: the reactor has stopped", path.display()));
}

fn many_files_are_read_together(on: On) {
    const COUNT: usize = 1_000;
    let scratch = Scratch::new();
    for number in 0..COUNT {
        scratch.file(&number.to_string(), format!("file {number}"));
    }
    let mut reactor = on.reactor();
    let read = Rc::new(Cell::new(0));
    for number in 0..COUNT {
        let read = read.clone();
        let then = move |_: &mut Reactor, text: io::Result<String>| {
            assert_eq!(text.unwrap(), format!("file {number}"));
            read.set(read.get() + 1);
        };
        fs::read_to_string(scratch.path(&number.to_string())).then(&mut reactor, then).unwrap();
    }
    run_until(&mut reactor, |_| read.get() == COUNT);
    assert_eq!(reactor.stats().lane(Lane::Files).done, COUNT as u64);
}

fn a_full_lane_names_what_was_to_be_done(on: On) {
    let settings = LaneSettings { threads: 1, waiting: 1, ..LaneSettings::FILES };
    let mut reactor = on.build(on.builder().lane(Lane::Files, settings));
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    let stuck = move || {
        begin.send(()).unwrap();
        let _ = released.recv_timeout(DEADLINE);
    };
    reactor.defer(Lane::Files, stuck, |_, _| {}).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    fs::exists("/").then(&mut reactor, |reactor, _| reactor.stop()).unwrap();
    let error = fs::read("/etc/hosts").then(&mut reactor, |_, _| {}).unwrap_err();
    let text = "read /etc/hosts: the lane is full, with 1 waiting for a thread";
    assert!(matches!(error, Error::LaneFull { waiting: 1, .. }) && error.to_string() == text, "{error}");
    let error = fs::read("/etc/hosts").reply(&reactor).wait().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::ResourceBusy, text.into()));
    drop(release);
    run(&mut reactor);
}

fn draining_waits_for_a_file_to_be_written(on: On) {
    let scratch = Scratch::new();
    let mut reactor = on.reactor();
    let path = scratch.path("one");
    fs::write(&path, vec![b'x'; 1 << 20]).then(&mut reactor, |_, outcome| outcome.unwrap()).unwrap();
    reactor.drain(DEADLINE);
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

/// A tree that is deep and wide, and what is in it.
fn tree(scratch: &Scratch) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut directory = scratch.path("tree");
    std::fs::create_dir(&directory).unwrap();
    for depth in 0..100 {
        for number in 0..5 {
            let file = directory.join(format!("file {depth} {number}"));
            std::fs::write(&file, "").unwrap();
            paths.insert(file);
        }
        directory = directory.join("d");
        std::fs::create_dir(&directory).unwrap();
        paths.insert(directory.clone());
    }
    // Not followed, or this would never end.
    let link = directory.join("link");
    std::os::unix::fs::symlink(scratch.path("tree"), &link).unwrap();
    paths.insert(link);
    paths
}

fn a_walk_comes_in_pieces_and_can_be_broken_off(on: On) {
    let scratch = Scratch::new();
    let expected = tree(&scratch);
    let mut reactor = on.reactor();
    let (seen, pieces) = (Rc::new(RefCell::new(BTreeSet::new())), Rc::new(Cell::new(0)));
    let (into, count) = (seen.clone(), pieces.clone());
    let walk = fs::walk(scratch.path("tree")).entries_per_step(50);
    walk.each(&mut reactor, move |reactor, entries| {
        let Some(entries) = entries.unwrap() else {
            reactor.stop();
            return ControlFlow::Continue(());
        };
        assert!(entries.len() <= 50);
        count.set(count.get() + 1);
        for entry in entries {
            let entry = entry.unwrap();
            let parent = entry.path().parent().unwrap();
            assert!(entry.depth() == 1 || into.borrow().contains(parent), "a directory comes before what is in it");
            assert!(into.borrow_mut().insert(entry.into_path()), "once");
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    run(&mut reactor);
    assert_eq!(seen.take(), expected);
    assert!(pieces.get() >= expected.len() / 50);

    let mut reactor = on.reactor();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    fs::walk(scratch.path("tree"))
        .entries_per_step(10)
        .each(&mut reactor, move |_, entries| {
            counted.set(counted.get() + entries.unwrap().expect("not the end").len());
            if counted.get() == 30 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    reactor.drain(DEADLINE);
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!((count.get(), Rc::strong_count(&count)), (30, 1), "nothing goes on, and the callback is dropped");
    assert_eq!(reactor.stats().lane(Lane::Files).done, 3);
}

#[test]
fn a_walk_goes_on_past_what_it_cannot_read() {
    let mut reactor = new_loop();
    let (entries, rest) = done(&mut reactor, fs::walk("/nonexistent/tree").step());
    assert!(rest.is_none());
    let error = entries.into_iter().next().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("list /nonexistent/tree: "), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);

    let scratch = Scratch::new();
    for name in ["a", "b", "c"] {
        std::fs::create_dir_all(scratch.path(name)).unwrap();
        scratch.file(&format!("{name}/file"), "");
    }
    let (entries, rest) = done(&mut reactor, fs::walk(&scratch.0).entries_per_step(3).step());
    assert_eq!(entries.len(), 3);
    // One that is gone when its turn comes.
    std::fs::remove_dir_all(scratch.path("b")).unwrap();
    let (entries, _) = done(&mut reactor, rest.unwrap().step());
    assert_eq!((entries.iter().filter(|entry| entry.is_ok()).count(), entries.len()), (2, 3));
}

fn a_copy_says_how_far_it_is(on: On) {
    const LENGTH: usize = 1_000_000;
    let scratch = Scratch::new();
    let contents: Vec<u8> = (0..LENGTH).map(|number| (number % 251) as u8).collect();
    let from = scratch.file("from", &contents);
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o640)).unwrap();
    let to = scratch.file("to", vec![b'x'; 2 * LENGTH]);
    let mut reactor = on.reactor();
    let told = Rc::new(RefCell::new(Vec::new()));
    let steps = told.clone();
    fs::copy_in_steps(&from, &to)
        .bytes_per_step(250_000)
        .each(&mut reactor, move |reactor, progress| {
            match progress.unwrap() {
                Some(Progress { copied, total }) => steps.borrow_mut().push((copied, total)),
                None => reactor.stop(),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    run(&mut reactor);
    let total = LENGTH as u64;
    assert_eq!(told.take(), [(250_000, total), (500_000, total), (750_000, total), (total, total)]);
    assert!(std::fs::read(&to).unwrap() == contents);
    assert_eq!(std::fs::metadata(&to).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn a_copy_onto_itself_is_refused_and_an_empty_one_is_one_step() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("one", "water");
    let error = outcome(&mut reactor, fs::copy_in_steps(&path, &path).step()).unwrap_err();
    assert!(error.to_string().ends_with("the source and the target are the same file"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"water");
    let error = outcome(&mut reactor, fs::copy_in_steps(&scratch.0, scratch.path("two")).step()).unwrap_err();
    assert!(error.to_string().ends_with("the source is not a file"), "{error}");
    let empty = scratch.file("empty", "");
    let (progress, rest) = done(&mut reactor, fs::copy_in_steps(empty, scratch.path("three")).step());
    assert_eq!(progress, Progress { copied: 0, total: 0 });
    assert!(rest.is_none() && scratch.path("three").exists());
}

fn a_lock_that_is_waited_for_holds_up_nothing_else(on: On) {
    let scratch = Scratch::new();
    let path = scratch.file("lock", "");
    let mut reactor = on.reactor();
    let first = done(&mut reactor, File::open(&path));
    done(&mut reactor, first.lock());
    let mut others = Vec::new();
    let granted = Rc::new(Cell::new(0));
    // More than the files lane has threads.
    for _ in 0..2 * LaneSettings::FILES.threads {
        let file = done(&mut reactor, File::open(&path));
        assert!(!done(&mut reactor, file.try_lock()));
        assert!(!done(&mut reactor, file.try_lock_shared()));
        let granted = granted.clone();
        let then = move |_: &mut Reactor, outcome: io::Result<()>| {
            outcome.unwrap();
            granted.set(granted.get() + 1);
        };
        file.lock_shared().then(&mut reactor, then).unwrap();
        others.push(file);
    }
    assert_eq!(done(&mut reactor, fs::read(&path)), b"");
    assert_eq!(granted.get(), 0);
    done(&mut reactor, first.unlock());
    run_until(&mut reactor, |_| granted.get() == others.len());
    assert!(!done(&mut reactor, first.try_lock()));
    assert!(done(&mut reactor, first.try_lock_shared()));
    drop(others);
    done(&mut reactor, first.unlock());
    assert!(done(&mut reactor, first.try_lock()));
}

/// Names the file that the other process of the next test locks.
const TO_LOCK: &str = "PELTON_TEST_FILE_TO_LOCK";

#[test]
fn a_lock_keeps_another_process_waiting() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("lock", "");
    let file = done(&mut reactor, File::open(&path));
    done(&mut reactor, file.lock());
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process_locks_a_file", "--nocapture"])
        .env(TO_LOCK, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = |what: &str| assert!(lines.any(|line| line.ends_with(what)), "it did not say {what:?}");
    said("not free");
    done(&mut reactor, file.unlock());
    said("locked");
    assert!(!done(&mut reactor, file.try_lock()), "now it is the other's");
    let locked = Rc::new(Cell::new(false));
    let flag = locked.clone();
    file.lock().then(&mut reactor, move |_, outcome| flag.set(outcome.is_ok())).unwrap();
    drop(other.stdin.take());
    run_until(&mut reactor, |_| locked.get());
    assert!(other.wait().unwrap().success());
}

/// Run by [`a_lock_keeps_another_process_waiting`]; by itself it does nothing.
#[test]
fn the_other_process_locks_a_file() {
    let Some(path) = std::env::var_os(TO_LOCK) else { return };
    let mut reactor = new_loop();
    let file = done(&mut reactor, File::open(path));
    assert!(!done(&mut reactor, file.try_lock()));
    println!("\nnot free");
    done(&mut reactor, file.lock());
    println!("locked");
    // It ends when the first process says so, or ends itself.
    io::read_to_string(io::stdin()).unwrap();
}
