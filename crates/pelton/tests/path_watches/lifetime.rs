//! How watches begin and end.

use std::cell::Cell;
use std::rc::Rc;

use futures::StreamExt;
use pelton::{Change, Error, PathChanges, PathWatchOptions, Reactor, SourceId};
use pelton_testing::{
    Alive, Counted, Log, On, block_on, count_faults, descriptors, on_every_engine, poll, run, run_until,
};

use super::Scene;

on_every_engine![
    a_watch_can_end_itself_and_others,
    a_watch_that_panics_ends_and_the_others_go_on,
    the_last_watch_closes_the_descriptor,
    a_failed_watch_leaves_nothing_behind,
    a_stopped_reactor_refuses_and_drops_its_watches,
    a_promise_for_the_next_change,
    a_stream_of_changes,
    a_stream_that_is_dropped_ends_its_watch,
    a_stream_ends_with_its_reactor,
    a_label_is_known_by_its_watch,
];

fn a_watch_can_end_itself_and_others(on: On) {
    let mut scene = Scene::new(on);
    let other = Rc::new(Cell::new(None));
    let (victim, log) = (other.clone(), scene.log.clone());
    let directory = scene.directory.clone();
    scene
        .reactor
        .watch_path(&directory, move |reactor, changes| {
            log.add("first");
            assert!(reactor.end(victim.take().unwrap()));
            assert!(reactor.end(changes.watch));
            assert!(!reactor.end(changes.watch));
        })
        .unwrap();
    other.set(Some(scene.watch("")));
    scene.write("file", "");
    scene.expect(["first"]);
    assert_eq!((scene.reactor.path_watch_count(), scene.reactor.path_mark_count()), (0, 0));
}

fn a_watch_that_panics_ends_and_the_others_go_on(on: On) {
    let mut scene = Scene::new(on);
    scene.reactor = on.catching();
    let faults = count_faults(&mut scene.reactor);
    let directory = scene.directory.clone();
    scene.reactor.watch_path(&directory, |_, _| panic!("expected")).unwrap();
    scene.watch("");
    scene.write("file", "");
    scene.expect(["created file"]);
    scene.write("file", "x");
    scene.expect(["modified file"]);
    assert_eq!((faults.get(), scene.reactor.path_watch_count()), (1, 1));
}

fn the_last_watch_closes_the_descriptor(on: On) {
    let mut scene = Scene::new(on);
    let link = |scene: &Scene| {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        let _ = scene;
        links.filter(|link| link.to_string_lossy().contains("inotify")).count()
    };
    if descriptors() == 0 {
        return;
    }
    // Other tests have theirs at the same time, so this only looks at what this reactor watches.
    let watch = scene.watch("");
    assert!(link(&scene) >= 1);
    assert!(scene.reactor.end(watch));
    poll(&mut scene.reactor);
    assert_eq!(scene.reactor.path_mark_count(), 0);
    scene.watch("");
    scene.write("file", "");
    scene.expect(["created file"]);
}

fn a_failed_watch_leaves_nothing_behind(on: On) {
    let mut scene = Scene::new(on);
    let too_long = "x".repeat(300);
    let alive = Alive::default();
    let counted = Counted::new(&alive);
    let path = scene.path(&too_long);
    let outcome = scene.reactor.watch_path(&path, move |_, _| drop(counted.clone()));
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("watch ") && error.contains(&too_long), "{error}");
    assert_eq!((scene.reactor.path_watch_count(), alive.count()), (0, 0));
}

fn a_stopped_reactor_refuses_and_drops_its_watches(on: On) {
    let mut scene = Scene::new(on);
    let alive = Alive::default();
    let counted = Counted::new(&alive);
    let directory = scene.directory.clone();
    scene.reactor.watch_path(&directory, move |_, _| drop(counted.clone())).unwrap();
    scene.reactor.stop();
    assert!(matches!(scene.reactor.watch_path(&directory, |_, _| {}), Err(Error::Stopped)));
    run(&mut scene.reactor);
    assert_eq!(alive.count(), 0);
}

fn a_promise_for_the_next_change(on: On) {
    let mut scene = Scene::new(on);
    let log = scene.log.clone();
    let path = scene.path("file");
    let next = scene.reactor.next_change(path).unwrap();
    next.then(move |_, changes| {
        log.add(format!("{}", changes.len()));
        Ok(())
    })
    .done(|_, outcome| outcome.unwrap());
    scene.write("file", "");
    scene.expect(["1"]);
    assert_eq!(scene.reactor.path_watch_count(), 0);
}

fn a_stream_of_changes(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.path("file");
    let seen = block_on(&mut scene.reactor, async {
        let mut changes = PathChanges::with(&path, &PathWatchOptions::default()).unwrap();
        std::fs::write(&path, "").unwrap();
        let first = changes.next().await;
        std::fs::remove_file(&path).unwrap();
        let second = StreamExt::next(&mut changes).await;
        (first, second)
    });
    assert!(matches!(seen, (Some(Change::Created { .. }), Some(Change::Deleted { .. }))), "{seen:?}");
}

fn a_stream_that_is_dropped_ends_its_watch(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.path("file");
    block_on(&mut scene.reactor, async { drop(PathChanges::of(&path).unwrap()) });
    poll(&mut scene.reactor);
    assert_eq!(scene.reactor.path_watch_count(), 0);
    assert!(PathChanges::of(&path).is_err(), "there is no current reactor here");
}

fn a_stream_ends_with_its_reactor(on: On) {
    let mut scene = Scene::new(on);
    let (log, path) = (Log::default(), scene.path("file"));
    let entry = log.clone();
    let changes = scene.reactor.enter(|| PathChanges::of(&path)).unwrap();
    let handle = scene.reactor.handle();
    scene.reactor.next_tick(|reactor: &mut Reactor| reactor.stop());
    run(&mut scene.reactor);
    drop(handle);
    let mut changes = changes;
    entry.add(format!("{:?}", futures::executor::block_on(changes.next())));
    assert_eq!(log.take(), ["None"]);
}

fn a_label_is_known_by_its_watch(on: On) {
    let mut scene = Scene::new(on);
    scene.reactor = on.catching();
    let log = scene.log.clone();
    scene.reactor.on_fault(move |_, fault| log.add(fault.to_string()));
    let directory = scene.directory.clone();
    let watch = scene.reactor.watch_path(&directory, |_, _| panic!("expected")).unwrap();
    scene.reactor.label(watch, "configuration");
    assert!(matches!(SourceId::from(watch), SourceId::Path(same) if same == watch));
    scene.write("file", "");
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| !log.is_empty());
    assert!(scene.log.take()[0].contains("configuration"));
}
