//! Whole files and directories: reading, writing, listing, metadata, errors.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use pelton::EventLoop;
use pelton::fs::{self, File, Operation, Steps};

use super::{Scratch, done, new_loop, outcome};

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
fn metadata_matches_the_system() {
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
fn errors_name_the_operation_and_the_path() {
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
        assert_eq!(
            source.downcast_ref::<io::Error>().unwrap().raw_os_error(),
            Some(2),
            "the source is the system's error"
        );
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
fn directory_operations_work_and_names_cannot_escape() {
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

    // The current directory does not matter.
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

    // The link is removed, not its target.
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
    assert_ne!(before.ino(), after.ino(), "the file is replaced");
    assert_eq!(after.mode() & 0o777, 0o604, "the permissions are kept");
    assert_eq!(io::read_to_string(held).unwrap(), "first", "an open file keeps the old content");
    assert_eq!(scratch.names(), ["one"], "no temporary file is left");

    std::os::unix::fs::symlink("one", scratch.path("link")).unwrap();
    done(&mut reactor, fs::write_atomic(scratch.path("link"), "third"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
    assert!(scratch.path("link").is_symlink());
}

#[test]
fn an_atomic_write_that_fails_leaves_no_trace() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    // All steps succeed but the last: a file cannot replace a directory.
    let target = scratch.path("taken");
    std::fs::create_dir(&target).unwrap();
    let error = outcome(&mut reactor, fs::write_atomic(&target, "text")).unwrap_err();
    assert!(error.to_string().starts_with(&format!("write {}: ", target.display())), "{error}");
    assert_eq!(scratch.names(), ["taken"]);

    let closed = scratch.path("closed");
    std::fs::create_dir(&closed).unwrap();
    let inside = scratch.file("closed/one", "old");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    // Permissions do not restrict the superuser.
    if !rustix::process::geteuid().is_root() {
        let error = outcome(&mut reactor, fs::write_atomic(&inside, "new")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read_to_string(&inside).unwrap(), "old");
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(outcome(&mut reactor, fs::write_atomic("/", "x")).unwrap_err().kind(), ErrorKind::InvalidInput);
}
