//! Operations that report their progress: walks and copies.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::rc::Rc;

use pelton::fs::{self, Progress, Steps};
use pelton::{Exit, Lane};
use pelton_testing::{DEADLINE, On, on_every_engine, run};

use super::{Scratch, done, new_loop, outcome};

on_every_engine![walk_reports_in_batches_and_can_be_stopped, copy_reports_progress,];

/// A deep and wide tree, and its entries.
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
    // Links are not followed, or this would never end.
    let link = directory.join("link");
    std::os::unix::fs::symlink(scratch.path("tree"), &link).unwrap();
    paths.insert(link);
    paths
}

fn walk_reports_in_batches_and_can_be_stopped(on: On) {
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
            assert!(entry.depth() == 1 || into.borrow().contains(parent), "a directory comes before its entries");
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
    assert_eq!((count.get(), Rc::strong_count(&count)), (30, 1), "the walk ends, and the callback is dropped");
    assert_eq!(reactor.stats().lane(Lane::Files).done, 3);
}

#[test]
fn walk_continues_past_unreadable_directories() {
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
    // A directory that is removed before it is listed.
    std::fs::remove_dir_all(scratch.path("b")).unwrap();
    let (entries, _) = done(&mut reactor, rest.unwrap().step());
    assert_eq!((entries.iter().filter(|entry| entry.is_ok()).count(), entries.len()), (2, 3));
}

fn copy_reports_progress(on: On) {
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
fn copy_onto_itself_is_refused_and_an_empty_copy_is_one_step() {
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
