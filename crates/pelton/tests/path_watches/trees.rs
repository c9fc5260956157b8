//! Watches of a directory and everything below it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pelton::{Change, PathWatchOptions};
use pelton_testing::{On, on_every_engine, poll, run_until};

use super::Scene;

on_every_engine![
    directories_that_are_there_are_watched,
    new_directories_are_watched_and_their_entries_reported_once,
    directories_that_are_moved_keep_being_watched_under_their_new_names,
    directories_that_are_moved_out_are_not_watched_any_more,
    directories_that_are_moved_in_are_watched,
    deleted_directories_give_their_marks_back,
    links_inside_are_not_followed,
    a_directory_without_permission_is_reported,
    what_is_reported_agrees_with_what_is_there,
    what_another_thread_changes_meanwhile_agrees_in_the_end,
    a_visit_that_is_ahead_of_the_notices_leaves_nothing_wrong,
    what_another_thread_creates_meanwhile_is_reported_exactly_once,
    a_large_tree_is_visited_in_steps,
    changes_before_a_directory_is_visited_are_reported,
    changes_while_a_large_tree_is_visited_are_reported,
];

/// How many random programs of changes are tried.
const SEEDS: u64 = 20;

fn recursive() -> PathWatchOptions {
    PathWatchOptions::default().recursive()
}

pub fn directories_that_are_there_are_watched(on: On) {
    let mut scene = Scene::new(on);
    scene.make("a/b/c");
    scene.make("d");
    scene.watch_with("", &recursive());
    scene.write("a/b/c/file", "");
    scene.write("d/file", "");
    scene.write("a/file", "");
    scene.expect(["created a/b/c/file", "created d/file", "created a/file"]);
}

pub fn new_directories_are_watched_and_their_entries_reported_once(on: On) {
    let mut scene = Scene::new(on);
    scene.watch_with("", &recursive());
    scene.make("a/b/c");
    scene.write("a/b/c/file", "x");
    scene.expect(["created a", "created a/b", "created a/b/c", "created a/b/c/file"]);
    scene.write("a/b/c/file", "y");
    scene.write("a/b/c/other", "");
    scene.expect(["modified a/b/c/file", "created a/b/c/other"]);
}

pub fn directories_that_are_moved_keep_being_watched_under_their_new_names(on: On) {
    let mut scene = Scene::new(on);
    scene.make("a/b/c");
    scene.make("x");
    scene.watch_with("", &recursive());
    let marks = scene.reactor.path_mark_count();
    scene.rename("a/b", "x/y");
    scene.write("x/y/c/file", "");
    scene.expect(["moved a/b to x/y", "created x/y/c/file"]);
    scene.rename("x", "z");
    scene.rename("z/y/c", "z/c");
    scene.write("z/c/file", "x");
    scene.make("z/y/new");
    scene.expect(["moved x to z", "moved z/y/c to z/c", "modified z/c/file", "created z/y/new"]);
    assert_eq!(scene.reactor.path_mark_count(), marks + 1);
}

pub fn directories_that_are_moved_out_are_not_watched_any_more(on: On) {
    let mut scene = Scene::new(on);
    scene.make("in/a/b");
    scene.make("out");
    scene.watch_with("in", &recursive());
    let marks = scene.reactor.path_mark_count();
    scene.rename("in/a", "out/a");
    scene.expect(["deleted in/a"]);
    scene.write("out/a/b/file", "");
    scene.write("in/file", "");
    scene.expect(["created in/file"]);
    assert_eq!(scene.reactor.path_mark_count(), marks - 2);
}

pub fn directories_that_are_moved_in_are_watched(on: On) {
    let mut scene = Scene::new(on);
    scene.make("in");
    scene.make("out/a/b");
    scene.write("out/a/b/file", "");
    scene.watch_with("in", &recursive());
    scene.rename("out/a", "in/a");
    scene.expect(["created in/a", "created in/a/b", "created in/a/b/file"]);
    scene.write("in/a/b/file", "x");
    scene.expect(["modified in/a/b/file"]);
}

pub fn deleted_directories_give_their_marks_back(on: On) {
    let mut scene = Scene::new(on);
    scene.watch_with("", &recursive());
    let marks = scene.reactor.path_mark_count();
    scene.make("a/b");
    scene.expect(["created a", "created a/b"]);
    assert_eq!(scene.reactor.path_mark_count(), marks + 2);
    fs::remove_dir_all(scene.path("a")).unwrap();
    scene.expect(["deleted a/b", "deleted a"]);
    assert_eq!(scene.reactor.path_mark_count(), marks);
    scene.make("a");
    scene.write("a/file", "");
    scene.expect(["created a", "created a/file"]);
}

pub fn links_inside_are_not_followed(on: On) {
    let mut scene = Scene::new(on);
    scene.make("out");
    scene.make("in");
    scene.link("../out", "in/link");
    scene.link("..", "in/up");
    scene.watch_with("in", &recursive());
    scene.write("out/file", "");
    scene.write("in/file", "");
    scene.expect(["created in/file"]);
}

pub fn a_directory_without_permission_is_reported(on: On) {
    if rustix::process::geteuid().is_root() {
        return; // may read everything
    }
    let mut scene = Scene::new(on);
    let closed = scene.make("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    scene.watch_with("", &recursive());
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| !log.is_empty());
    let entries = scene.log.take();
    assert!(entries[0].starts_with("cannot watch closed: "), "{entries:?}");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

/// Changes a tree at random while it is watched, and compares what the reports amount to with what is there in the end.
pub fn what_is_reported_agrees_with_what_is_there(on: On) {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scene = Scene::new(on);
        scene.make("tree");
        let known = std::rc::Rc::new(std::cell::RefCell::new(BTreeSet::<PathBuf>::new()));
        let model = known.clone();
        let tree = scene.path("tree");
        scene
            .reactor
            .watch_path_with(tree, &recursive(), move |_, changes| {
                for change in changes {
                    apply(&mut model.borrow_mut(), change);
                }
            })
            .unwrap();
        for _ in 0..300 {
            change_at_random(&scene.path("tree"), &mut random);
            if random.usize(0..10) == 0 {
                scene.settle();
            }
        }
        let mut there = BTreeSet::new();
        collect(&scene.path("tree"), &mut there);
        let end = scene.path("tree/end");
        fs::write(&end, "").unwrap();
        there.insert(end.clone());
        run_until(&mut scene.reactor, |_| known.borrow().contains(&end));
        scene.settle();
        assert_eq!(*known.borrow(), there, "seed {seed}");
    }
}

/// As before, but the loop runs while another thread changes the tree: what is reported may be over already.
pub fn what_another_thread_changes_meanwhile_agrees_in_the_end(on: On) {
    for seed in 0..SEEDS / 4 {
        let mut scene = Scene::new(on);
        scene.make("tree");
        let known = std::rc::Rc::new(std::cell::RefCell::new(BTreeSet::<PathBuf>::new()));
        let (model, tree, end) = (known.clone(), scene.path("tree"), scene.path("tree/end"));
        let report = move |_: &mut pelton::Reactor, changes: pelton::Changes| {
            for change in changes {
                apply(&mut model.borrow_mut(), change);
            }
        };
        scene.reactor.watch_path_with(&tree, &recursive(), report).unwrap();
        let changing = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..1_000 {
                change_at_random(&tree, &mut random);
            }
            let mut there = BTreeSet::new();
            collect(&tree, &mut there);
            fs::write(tree.join("end"), "").unwrap();
            there
        });
        run_until(&mut scene.reactor, |_| known.borrow().contains(&end));
        scene.settle();
        let mut there = changing.join().unwrap();
        there.insert(end);
        assert_eq!(*known.borrow(), there, "seed {seed}");
    }
}

/// A directory is visited when another one has its name already, and the notice of that is behind many others.
pub fn a_visit_that_is_ahead_of_the_notices_leaves_nothing_wrong(on: On) {
    let mut scene = Scene::new(on);
    for name in ["tree", "tree/one", "tree/two"] {
        scene.make(name);
    }
    let known = std::rc::Rc::new(std::cell::RefCell::new(BTreeSet::<PathBuf>::new()));
    let model = known.clone();
    let report = move |_: &mut pelton::Reactor, changes: pelton::Changes| {
        for change in changes {
            apply(&mut model.borrow_mut(), change);
        }
    };
    scene.reactor.watch_path_with(scene.directory.join("tree"), &recursive(), report).unwrap();
    scene.make("tree/dir");
    for number in 0..6_000 {
        // Alternating, so that the system does not combine them.
        let path = scene.path(["tree/one", "tree/two"][number % 2]);
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    scene.rename("tree/dir", "tree/moved");
    scene.make("tree/dir/inside");
    scene.write("tree/end", "");
    let end = scene.path("tree/end");
    run_until(&mut scene.reactor, |_| known.borrow().contains(&end));
    scene.settle();
    let there = ["tree/dir", "tree/dir/inside", "tree/end", "tree/moved"].map(|name| scene.path(name));
    assert_eq!(*known.borrow(), BTreeSet::from(there));
    // Both are watched under their names.
    scene.write("tree/moved/new", "");
    scene.write("tree/dir/inside/new", "");
    let new = ["tree/moved/new", "tree/dir/inside/new"].map(|name| scene.path(name));
    run_until(&mut scene.reactor, |_| new.iter().all(|path| known.borrow().contains(path)));
}

/// Makes a change somewhere in a tree. Most fail for some trees.
fn change_at_random(tree: &Path, random: &mut fastrand::Rng) {
    let mut name = || {
        let depth = random.usize(1..4);
        tree.join((0..depth).map(|_| ["a", "b", "c"][random.usize(0..3)]).collect::<PathBuf>())
    };
    let (one, two) = (name(), name());
    match random.usize(0..6) {
        0 => drop(fs::create_dir_all(&one)),
        1 | 2 => drop(fs::write(&one, "x")),
        3 => drop(fs::remove_dir_all(&one)),
        4 => drop(fs::remove_file(&one)),
        _ => drop(fs::rename(&one, &two)),
    }
}

fn apply(known: &mut BTreeSet<PathBuf>, change: Change) {
    let below = |known: &BTreeSet<PathBuf>, path: &Path| -> Vec<PathBuf> {
        known.iter().filter(|other| other.starts_with(path)).cloned().collect()
    };
    match change {
        Change::Created { path } => {
            known.insert(path);
        }
        Change::Deleted { path } => known.retain(|other| !other.starts_with(&path)),
        Change::Moved { from, to } => {
            known.retain(|other| !other.starts_with(&to));
            for old in below(known, &from) {
                known.remove(&old);
                let rest = old.strip_prefix(&from).unwrap();
                known.insert(if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) });
            }
            // It may have got its old name too recently to be reported.
            known.insert(to);
        }
        Change::Overflow => panic!("an overflow"),
        _ => {}
    }
}

fn collect(directory: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        into.insert(entry.path());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), into);
        }
    }
}

pub fn what_another_thread_creates_meanwhile_is_reported_exactly_once(on: On) {
    const DIRECTORIES: usize = 150;
    const FILES: usize = 20;
    let mut scene = Scene::new(on);
    scene.watch_with("", &recursive());
    let root = scene.directory.clone();
    let creating = std::thread::spawn(move || {
        for number in 0..DIRECTORIES {
            let directory = root.join(format!("{number}/inside"));
            fs::create_dir_all(&directory).unwrap();
            for file in 0..FILES {
                drop(fs::File::create(directory.join(format!("{file}"))).unwrap());
            }
        }
    });
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| log.len() >= DIRECTORIES * (FILES + 2));
    creating.join().unwrap();
    scene.settle();
    let mut seen = scene.log.take();
    seen.sort();
    let reported = seen.len();
    seen.dedup();
    assert_eq!((reported, seen.len()), (DIRECTORIES * (FILES + 2), DIRECTORIES * (FILES + 2)));
}

/// Makes a tree that is too large to be visited at once, and waits until its files are old enough not to count as changed.
fn make_large(scene: &Scene) {
    for number in 0..300 {
        scene.make(&format!("tree/{}/{number}", number % 10));
        scene.write(&format!("tree/{}/{number}/old", number % 10), "");
    }
    let (made, until) = (SystemTime::now(), Duration::from_millis(25));
    while made.elapsed().unwrap_or(until) < until {
        std::thread::yield_now();
    }
}

pub fn a_large_tree_is_visited_in_steps(on: On) {
    let mut scene = Scene::new(on);
    make_large(&scene);
    scene.watch_with("tree", &recursive());
    assert!(scene.reactor.is_visiting_paths(), "the call does not visit everything");
    let marks = scene.reactor.path_mark_count();
    assert!(marks < 100, "{marks} marks");
    scene.settle();
    assert!(scene.reactor.path_mark_count() > 310);
    assert_eq!(scene.log.take(), [""; 0], "nothing has changed");
    scene.write("tree/9/299/new", "");
    scene.expect(["created tree/9/299/new"]);
    // It may end at any time, and another may begin.
    scene.make("other");
    for _ in 0..3 {
        let id = scene.watch_with("tree", &recursive());
        poll(&mut scene.reactor);
        assert!(scene.reactor.end(id));
    }
    scene.settle();
    scene.log.take();
    scene.remove("tree/9/299/new");
    scene.expect(["deleted tree/9/299/new"]);
}

pub fn changes_before_a_directory_is_visited_are_reported(on: On) {
    let mut scene = Scene::new(on);
    make_large(&scene);
    scene.watch_with("tree", &recursive());
    // Nobody has looked there yet.
    scene.write("tree/9/299/old", "written");
    scene.write("tree/9/289/new", "");
    scene.remove("tree/9/279/old");
    scene.rename("tree/9/269", "tree/9/moved");
    scene.settle();
    let told = scene.log.take();
    for change in ["tree/9/299/old", "tree/9/289/new", "tree/9/279"] {
        assert!(told.contains(&format!("modified {change}")), "{change}: {told:?}");
    }
    let moved = ["modified tree/9", "moved tree/9/269 to tree/9/moved"];
    assert!(moved.iter().any(|change| told.iter().any(|told| told == change)), "{told:?}");
    assert!(!told.iter().any(|change| change.contains("/0/") || change.contains("/259")), "{told:?}");
    scene.write("tree/9/moved/old", "written");
    scene.expect(["modified tree/9/moved/old"]);
}

pub fn changes_while_a_large_tree_is_visited_are_reported(on: On) {
    let mut scene = Scene::new(on);
    make_large(&scene);
    scene.watch_with("tree", &recursive());
    let root = scene.path("tree");
    let changing = std::thread::spawn(move || {
        for number in 0..300 {
            let directory = root.join(format!("{}/{number}", number % 10));
            fs::write(directory.join("new"), "").unwrap();
            fs::create_dir(directory.join("below")).unwrap();
            fs::write(directory.join("below/new"), "").unwrap();
        }
    });
    run_until(&mut scene.reactor, |_| changing.is_finished());
    changing.join().unwrap();
    scene.settle();
    let told: BTreeSet<String> = scene.log.take().into_iter().collect();
    for number in 0..300 {
        for name in ["new", "below", "below/new"] {
            let path = format!("tree/{}/{number}/{name}", number % 10);
            let is_told = |what: &str| told.contains(&format!("{what} {path}"));
            assert!(is_told("created") || is_told("modified"), "{path}");
        }
    }
}
