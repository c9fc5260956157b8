//! Many watches, and limits.

use std::fs;
use std::rc::Rc;

use pelton::{Change, PathWatchOptions, Reactor};
use pelton_testing::{On, child, on_every_engine, run_until};

use super::Scene;

on_every_engine![hundreds_of_watches_share_a_descriptor, an_overflow_is_told_and_the_watch_goes_on];

fn hundreds_of_watches_share_a_descriptor(on: On) {
    let mut scene = Scene::new(on);
    for number in 0..300 {
        scene.make(&format!("d{number}"));
        scene.watch(&format!("d{number}/file"));
    }
    // One for each directory, and one for each on the way.
    let depth = scene.directory.components().count();
    assert_eq!(scene.reactor.path_mark_count(), 300 + depth);
    for number in 0..300 {
        scene.write(&format!("d{number}/file"), "");
    }
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| log.len() >= 300);
    let mut seen = scene.log.take();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 300);
}

fn an_overflow_is_told_and_the_watch_goes_on(on: On) {
    let Ok(limit) = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events") else { return };
    let limit: usize = limit.trim().parse().unwrap();
    if limit > 100_000 {
        return; // would take too long
    }
    let mut scene = Scene::new(on);
    scene.make("tree");
    scene.write("tree/one", "");
    scene.write("tree/two", "");
    let overflowed = Rc::new(std::cell::Cell::new(false));
    let told = overflowed.clone();
    let log = scene.log.clone();
    let options = PathWatchOptions::default().recursive();
    let tree = scene.path("tree");
    scene
        .reactor
        .watch_path_with(tree, &options, move |_, changes| {
            told.set(told.get() | changes.overflowed());
            for change in changes {
                if matches!(&change, Change::Created { path } if path.ends_with("file")) {
                    log.add("created");
                }
            }
        })
        .unwrap();
    // The kernel combines equal neighbours, so take turns.
    let files = ["tree/one", "tree/two"].map(|name| fs::File::options().write(true).open(scene.path(name)).unwrap());
    for round in 0..limit + 100 {
        use std::os::unix::fs::FileExt;
        files[round % 2].write_at(b"x", 0).unwrap();
    }
    // The notice of this directory is lost.
    scene.make("tree/new");
    run_until(&mut scene.reactor, |_| overflowed.get());
    scene.settle();
    // But it was found afterwards, and is watched.
    scene.write("tree/new/file", "");
    scene.expect(["created"]);
}

#[test]
#[cfg(target_os = "linux")]
fn an_exhausted_limit_is_an_error_that_names_the_sysctl() {
    const TEST: &str = "many::an_exhausted_limit_is_an_error_that_names_the_sysctl";
    if child::role().is_none() {
        // The limit counts per user, so other tests would run into it.
        let unshare = ["--user", "--map-root-user"];
        let mut command = std::process::Command::new("unshare");
        command.args(unshare).arg(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(child::CHILD, "1");
        let output = match command.output() {
            Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("unshare failed") => output,
            // User namespaces may be forbidden here.
            _ => return,
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let sysctl = "/proc/sys/user/max_inotify_watches";
    if fs::write(sysctl, "5").is_err() {
        return;
    }
    let mut reactor = Reactor::new().unwrap();
    let directory = std::env::temp_dir().join(format!("pelton-limit-{}", std::process::id()));
    for number in 0..10 {
        fs::create_dir_all(directory.join(format!("{number}"))).unwrap();
    }
    let options = PathWatchOptions::default().recursive();
    let error = reactor.watch_path_with(&directory, &options, |_, _| {}).unwrap_err().to_string();
    fs::remove_dir_all(&directory).unwrap();
    assert!(error.contains("fs.inotify.max_user_watches"), "{error}");
    assert!(error.contains(directory.to_str().unwrap()), "{error}");
    assert_eq!((reactor.path_watch_count(), reactor.path_mark_count()), (0, 0));
}
